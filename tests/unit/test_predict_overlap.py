"""What exchanging costs and a step hides: all-reduces, the recursion, the step event by event."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdl.predict.calibrate import from_images_per_second
from hpcdl.predict.hardware import Link, of_gpu
from hpcdl.predict.network import network
from hpcdl.predict.overlap import (
    Gradient,
    gradients,
    lines,
    next_look,
    pack,
    parameter_server,
    ring,
    tree,
    wait_free,
)
from hpcdl.predict.step import Training, constants, feed, pace, profile
from tests.exchange_oracle import Cluster, both, simulate

LINK = Link("link", 1e-6, 1e10)
NET = Link("net", 1e-5, 1e9)
TRACES = yaml.safe_load(Path(__file__).with_name("wfbp_traces.yaml").read_text())
SECONDS = ((0.0, 1.0),)
RATES = {"resnet50": 220, "vgg16": 154, "alexnet": 2900, "inception_v3": 142, "mlp": 1e5}
LAYERS = st.lists(
    st.tuples(st.floats(1e-6, 1.0), st.floats(1.0, 1e9)), min_size=1, max_size=40
).map(lambda rows: gradients([row[0] for row in rows], [row[1] for row in rows]))
COSTS = st.lists(st.tuples(st.floats(0, 1e-3), st.floats(1e-12, 1e-8)), min_size=1, max_size=3).map(
    tuple
)


def test_gradients_become_ready_from_the_last_layer_to_the_first():
    assert gradients([1.0, 2.0, 4.0], [10.0, 20.0, 40.0]) == ((4, 40), (6, 20), (7, 10))


def test_a_message_starts_when_it_is_ready_and_the_one_before_is_done():
    ready = (Gradient(1, 5), Gradient(2, 1), Gradient(9, 1))
    assert [wait_free(ready[:n], SECONDS, 0).exposed for n in (1, 2, 3)] == [6, 7, 10]


def traced(nodes):
    """Seconds of communication that the authors' trace of a step on so many nodes exposes."""
    rows = [line.split() for line in TRACES["traces"][nodes].splitlines()]
    backward, allreduce = ([float(row[at]) * 1e-6 for row in rows] for at in (1, 2))
    return wait_free(gradients(backward, allreduce), SECONDS, sum(backward)).exposed


def measured(nodes):
    """Seconds of the measured GoogLeNet step with wait-free back-propagation."""
    asked = {"model": "googlenet", "algorithm": "wfbp", "nodes": nodes}
    row = next(row for row in TRACES["steps"] if asked.items() <= row.items())
    return float(nodes * TRACES["batch_per_node"]["googlenet"] / row["images_per_sec"])


@pytest.mark.parametrize(
    ("nodes", "exposed_ms", "error"),
    [
        (2, 0.404, -0.083),
        (4, 55.207, 0.046),
        (8, 105.865, -0.022),
    ],
)
def test_the_recursion_gives_the_authors_figures_on_their_own_traces(nodes, exposed_ms, error):
    assert traced(nodes) == pytest.approx(exposed_ms / 1000, abs=1e-6)
    assert (measured(1) + traced(nodes)) / measured(nodes) - 1 == pytest.approx(error, abs=5e-4)


@settings(max_examples=40, deadline=None)
@given(LAYERS, COSTS)
def test_exposed_communication_lies_between_the_first_layers_and_all(ready, cost):
    backward = ready[-1].ready
    found = wait_free(ready, cost, backward)
    last = min(latency + ready[-1].size * rate for latency, rate in cost)
    assert last <= found.exposed * (1 + 1e-9) + 1e-12
    assert found.exposed <= found.busy * (1 + 1e-9) + 1e-12
    assert found.exposed >= found.busy - backward - 1e-9


@settings(max_examples=40, deadline=None)
@given(LAYERS, st.floats(1.0, 1e9), st.floats(1e-4, 0.1))
def test_packing_loses_no_byte_sends_nothing_early_and_fits_the_buffer(ready, buffer, cycle):
    packed = pack(ready, buffer_bytes=buffer, cycle=cycle)
    assert sum(m.size for m in packed) == pytest.approx(sum(g.size for g in ready))
    assert packed[-1].ready >= ready[-1].ready
    assert [m.ready for m in packed] == sorted(m.ready for m in packed)
    largest = max(g.size for g in ready)
    assert all(m.size <= max(buffer, largest) * (1 + 1e-9) for m in packed)


def test_the_thread_looks_on_its_cycle():
    assert next_look(0.0, 0.012, 0.005) == pytest.approx(0.015)
    assert next_look(0.0, 0.001, 0.005) == pytest.approx(0.005)
    assert next_look(1.0, 0.2, 0.0) == pytest.approx(1.0)


@pytest.fixture
def machine():
    return replace(of_gpu("P100-PCIe", "pcie3", 28, 2, NET), inside=LINK, per_node=4)


def test_a_ring_moves_twice_its_share_over_every_link_and_a_tree_takes_few_steps():
    assert ring(4, LINK).seconds(4e6) == pytest.approx(6 * 1e-6 + 2 * 3 / 4 * 4e6 / 1e10)
    assert ring(1, LINK).seconds(4e6) == 0
    assert tree(1024, NET).latency == pytest.approx(10 * tree(2, NET).latency), "logarithm"
    assert tree(1024, NET).latency < ring(1024, NET).latency


def test_candidates_are_a_nodes_own_link_the_ring_through_all_and_trees_between_nodes(machine):
    assert lines(machine, 4, 1) == (ring(4, LINK),)
    assert lines(machine, 4, 2)[0] == pytest.approx((14 * 1e-5, 2 * 7 / 8 / 1e9)), "slowest link"
    through_all, trees = lines(machine, 4, 8)
    assert trees.rate == pytest.approx(2 * 3 / 4 / 1e10 + 2 / 1e9)
    assert trees.latency < through_all.latency


def test_gpus_share_the_root_ports_to_a_parameter_server(machine):
    assert parameter_server(machine, 8, 1).rate == pytest.approx(8 / (machine.roots * machine.root))
    assert parameter_server(machine, 1, 1).rate == pytest.approx(1 / machine.root)


@settings(max_examples=40, deadline=None)
@given(st.floats(1e-3, 1e3), st.integers(1, 8))
def test_input_never_gives_more_than_either_side_can(ratio, buffer):
    kept = pace(ratio * 100, 100, buffer)
    assert 0 < kept <= 1
    assert kept * ratio <= 1 + 1e-9


def test_a_deeper_buffer_costs_less():
    assert pace(50, 100, 1) < pace(50, 100, 2) < pace(50, 100, 8)
    assert pace(50, float("inf"), 1) == 1


def test_storage_limits_all_nodes_together_and_cores_each_node_by_size_and_augmentation(machine):
    found = feed(machine, network("resnet50"), storage_rate=115129 * 1000)
    assert found.storage == pytest.approx(1000)
    assert found.decode == pytest.approx(machine.cores * found.one_core)
    names = ("resnet50", "efficientnet_v1_b0", "efficientnet_v1_b4")
    resnet, small, large = (feed(machine, network(name)).decode for name in names)
    assert resnet > small > large


def setting(model, per_node=4):
    machine = replace(of_gpu("P100-PCIe", "pcie3", 28, 2, NET), per_node=per_node)
    training = Training(network(model), 64)
    base = from_images_per_second(RATES[model], training)
    return machine, training, profile(machine, training, base.seconds)


@pytest.mark.parametrize("model", RATES)
@pytest.mark.parametrize(("gpus", "per_node"), [(2, 4), (8, 4), (16, 2)])
def test_with_equal_ranks_and_links_both_agree_within_two_percent(model, gpus, per_node):
    closed, simulated = both(*setting(model, per_node), gpus, constants())
    assert closed == pytest.approx(simulated, rel=0.02)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("cycle", [0.0, 1e-320, 1e-12, 1e-9])
def test_a_coordinator_that_never_sleeps_ends_and_agrees_with_the_closed_form(cycle):
    closed, simulated = both(*setting("resnet50"), 8, replace(constants(), cycle=cycle))
    assert closed == pytest.approx(simulated, rel=0.02)


def test_the_played_step_sends_all_bytes_in_messages_of_a_buffer_one_after_the_other():
    _, _, one = setting("resnet50")
    played = simulate(Cluster(2, 2, LINK, NET), one.gradients, buffer_bytes=16e6, cycle=0.001)
    assert sum(size for size, _, _ in played.messages) == pytest.approx(one.size)
    assert max(size for size, _, _ in played.messages) <= 16e6
    for before, after in zip(played.messages, played.messages[1:], strict=False):
        assert after[1] >= before[2]


def test_in_the_played_step_the_slowest_rank_and_the_slowest_link_decide():
    ready = (Gradient(0.1, 1e8),)
    equal, rank, link = (
        simulate(Cluster(1, 2, LINK, NET, **odd), ready, buffer_bytes=1e9, cycle=0.001)
        for odd in ({}, {"paces": (1.0, 1.5)}, {"slow_link": (1, 4.0)})
    )
    assert rank.done - equal.done == pytest.approx(0.05, abs=1e-3)
    assert link.busy == pytest.approx(4 * equal.busy, rel=0.05)
