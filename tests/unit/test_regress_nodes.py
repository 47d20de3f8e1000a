"""One slow node among many: found by robust statistics, named, and never by chance."""

import random
from dataclasses import replace
from datetime import datetime

import pytest

from hpcdl.regress import nodes as law
from hpcdl.regress.gate import ask
from hpcdl.regress.history import Result, open_history
from hpcdl.regress.nodes import find_slow_nodes, name_slow_nodes
from hpcdl.regress.verdict import MetricVerdict, Verdict
from hpcdl.results.faults import Status
from hpcdl.slurm.execution import SINGLE_NODE


def verdict(node: str, value: float | None, status: Status = Status.PASS) -> Verdict:
    metric = MetricVerdict("images_per_second", value, "images/s", 100.0, 90.0)
    return Verdict("throughput", "mlp", "p100", status, metrics=(metric,), job={"nodes": node})


def nodes(count: int, scatter: float, seed: int = 1) -> dict[str, float]:
    dice = random.Random(seed)
    return {f"n{index:02d}": dice.gauss(100.0, scatter) for index in range(count)}


def slower_than_the_rest(each: dict[str, float]) -> tuple[str, ...]:
    return law.slower_than_the_rest({node: (value,) for node, value in each.items()})


@pytest.mark.parametrize("count", [3, 4, 8, 40])
@pytest.mark.parametrize("seed", range(20))
def test_a_node_at_half_its_speed_is_found_among_any_number(count, seed):
    assert slower_than_the_rest(nodes(count, 2.0, seed) | {"n01": 50.0}) == ("n01",)


def test_among_many_a_node_slower_by_an_eighth_is_found_and_so_are_two():
    found = [slower_than_the_rest(nodes(16, 1.0, seed) | {"n07": 88.0}) for seed in range(50)]
    assert found.count(("n07",)) >= 48
    assert set(slower_than_the_rest(nodes(8, 1.0) | {"n02": 60.0, "n05": 55.0})) == {"n02", "n05"}


@pytest.mark.parametrize("count", [2, 3, 5, 10, 40])
def test_healthy_nodes_are_rarely_accused(count):
    accused = sum(bool(slower_than_the_rest(nodes(count, 2.0, seed))) for seed in range(1000))
    assert accused <= 5, f"{accused} of 1000 nights"


@pytest.mark.parametrize(("each", "slow"), [
    ({}, ()),
    ({"a": 1.0}, ()),
    ({"a": 100.0, "b": 90.0}, ()),
    ({"a": 100.0, "b": 80.0}, ("b",)),
    ({"a": 0.0, "b": 0.0, "c": 0.0}, ()),
    ({"a": 100.0, "b": 100.0, "c": 99.0}, ()),
])  # fmt: skip
def test_few_nodes_need_a_clear_difference(each, slow):
    assert slower_than_the_rest(each) == slow


def test_a_slow_nodes_verdict_fails_and_names_it():
    night = [verdict("n1", 100.0), verdict("n2", 101.0), verdict("n3", 60.0), verdict("n4", 99.0)]
    named = name_slow_nodes(night)
    assert [v.status.value for v in named] == ["PASS", "PASS", "FAIL", "PASS"]
    said = "slow node: n3 is 40% slower than the others, 3 of them (images_per_second)"
    assert named[2].reason == said


def test_on_a_single_node_less_is_blamed_on_a_node():
    night = [verdict(f"n{n}", value) for n, value in enumerate([100.0, 100.0, 75.0])]
    assert [v.ok for v in name_slow_nodes(night)] == [True, True, False]
    assert all(v.ok for v in name_slow_nodes(night, SINGLE_NODE))


def test_jobs_on_several_nodes_and_nights_that_went_wrong_accuse_nobody():
    assert find_slow_nodes([verdict("n[1-2]", 10.0), verdict("n3", 100.0)]) == {}
    wrong = [verdict("n1", 100.0), verdict("n2", 100.0), verdict("n3", None, Status.ERROR)]
    assert name_slow_nodes(wrong) == wrong


def test_the_gate_sees_the_slow_node_whichever_result_is_last(tmp_path):
    row = Result("r", "2026-01-01T00:00:00+00:00", "throughput", "mlp", "p100", "rate", 100.0,
                 "1/s", "PASS", nodes="n1", job=1)  # fmt: skip
    slow = replace(row, value=50.0, status="FAIL", reason="slow node: n2", nodes="n2", job=2)
    for number, order in enumerate(([row, slow], [replace(slow, job=1), replace(row, job=2)])):
        with open_history(tmp_path / f"{number}.sqlite") as history:
            history.add(order)
            answer = ask(history, now=datetime.fromisoformat(row.time))
        assert "slow node: n2" in [finding.description for finding in answer.findings]


def test_a_metric_of_which_nobody_knows_the_better_side_accuses_no_node():
    def warm(node: str, value: float) -> Verdict:
        metric = MetricVerdict("temperature", value, "C", 50.0, 40.0, 60.0)
        return Verdict("heat", "", "p100", Status.PASS, metrics=(metric,), job={"nodes": node})

    assert find_slow_nodes([warm(f"n{n}", 50.0 - 5.0 * (n == 5)) for n in range(6)]) == {}
