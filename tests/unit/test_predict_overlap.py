"""The recursion of wait-free back-propagation, and Horovod's packing of gradients."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdl.predict.overlap import Gradient, gradients, next_look, pack, wait_free

TRACES = yaml.safe_load(Path(__file__).with_name("wfbp_traces.yaml").read_text())
SECONDS: tuple[tuple[float, float], ...] = ((0.0, 1.0),)
layers = st.lists(
    st.tuples(st.floats(1e-6, 1.0), st.floats(1.0, 1e9)), min_size=1, max_size=40
).map(lambda rows: gradients([row[0] for row in rows], [row[1] for row in rows]))
costs = st.lists(st.tuples(st.floats(0, 1e-3), st.floats(1e-12, 1e-8)), min_size=1, max_size=3).map(
    tuple
)


def test_gradients_become_ready_from_the_last_layer_to_the_first() -> None:
    assert gradients([1.0, 2.0, 4.0], [10.0, 20.0, 40.0]) == (
        Gradient(4.0, 40.0),
        Gradient(6.0, 20.0),
        Gradient(7.0, 10.0),
    )


def test_a_message_starts_when_it_is_ready_and_the_one_before_is_done() -> None:
    ready = (Gradient(1, 5), Gradient(2, 1), Gradient(9, 1))
    assert [wait_free(ready[:n], SECONDS, 0).exposed for n in (1, 2, 3)] == [6, 7, 10]


def traced(nodes: int) -> float:
    """Seconds of communication that the authors' trace of a step on so many nodes exposes."""
    rows = [line.split() for line in TRACES["traces"][nodes].splitlines()]
    backward, allreduce = ([float(row[at]) * 1e-6 for row in rows] for at in (1, 2))
    return wait_free(gradients(backward, allreduce), SECONDS, sum(backward)).exposed


def measured(nodes: int) -> float:
    """Seconds of the measured GoogLeNet step with wait-free back-propagation."""
    asked = {"model": "googlenet", "algorithm": "wfbp", "nodes": nodes}
    row = next(row for row in TRACES["steps"] if asked.items() <= row.items())
    return float(nodes * TRACES["batch_per_node"]["googlenet"] / row["images_per_sec"])


@pytest.mark.parametrize(
    ("nodes", "exposed_ms", "error"),
    [(2, 0.404, -0.083), (4, 55.207, 0.046), (8, 105.865, -0.022)],
)
def test_the_recursion_gives_the_authors_figures_on_their_own_traces(
    nodes: int, exposed_ms: float, error: float
) -> None:
    assert traced(nodes) == pytest.approx(exposed_ms / 1000, abs=1e-6)
    assert (measured(1) + traced(nodes)) / measured(nodes) - 1 == pytest.approx(error, abs=5e-4)


@settings(max_examples=40, deadline=None)
@given(layers, costs)
def test_exposed_communication_lies_between_the_first_layers_and_all(
    ready: tuple[Gradient, ...], cost: tuple[tuple[float, float], ...]
) -> None:
    backward = ready[-1].ready
    found = wait_free(ready, cost, backward)
    last = min(latency + ready[-1].size * rate for latency, rate in cost)
    assert last <= found.exposed * (1 + 1e-9) + 1e-12
    assert found.exposed <= found.busy * (1 + 1e-9) + 1e-12
    assert found.exposed >= found.busy - backward - 1e-9


@settings(max_examples=40, deadline=None)
@given(layers, st.floats(1.0, 1e9), st.floats(1e-4, 0.1))
def test_packing_loses_no_byte_and_sends_nothing_early(
    ready: tuple[Gradient, ...], buffer: float, cycle: float
) -> None:
    packed = pack(ready, buffer_bytes=buffer, cycle=cycle)
    assert sum(m.size for m in packed) == pytest.approx(sum(g.size for g in ready))
    assert packed[-1].ready >= ready[-1].ready
    assert [m.ready for m in packed] == sorted(m.ready for m in packed)


@settings(max_examples=40, deadline=None)
@given(layers, st.floats(1.0, 1e9))
def test_a_message_exceeds_the_buffer_only_where_a_gradient_does(
    ready: tuple[Gradient, ...], buffer: float
) -> None:
    largest = max(g.size for g in ready)
    packed = pack(ready, buffer_bytes=buffer, cycle=0.005)
    assert all(m.size <= max(buffer, largest) * (1 + 1e-9) for m in packed)


def test_the_thread_looks_on_its_cycle() -> None:
    assert next_look(0.0, 0.012, 0.005) == pytest.approx(0.015)
    assert next_look(0.0, 0.001, 0.005) == pytest.approx(0.005)
    assert next_look(1.0, 0.2, 0.0) == pytest.approx(1.0)
