"""A site's own all-reduce check as the links of the model."""

import json
from dataclasses import replace

import pytest

from hpcdl.predict.hardware import Link, allreduce, of_partition
from hpcdl.predict.request import ScalingRequest, answer, prepare
from hpcdl.predict.results import read_exchange, with_exchange
from hpcdl.system.errors import BadInput

SIZES = (1 << 16, 1 << 20, 1 << 24, 1 << 26)
SLOW = Link("slow", 40e-6, 0.5e9)


def took(machine, local, nodes, size):
    """Seconds of a message by the model."""
    return min(line.seconds(size) for line in allreduce(machine, local, nodes))


def a_check(folder, machine, local, nodes, wait=0.0, **changes):
    """What the check writes where its messages take as long as on `machine`, and `wait` each."""
    ranks, rates = local * nodes, {}
    for size in SIZES:
        rates[str(size)] = size / (wait + took(machine, local, nodes, size)) / 1e9
        rates[str(size)] *= 2 * (ranks - 1) / ranks
    hosts = [f"n{rank // local}" for rank in range(ranks)]
    layout = {"ranks": ranks, "hosts": hosts, "gpu_per_rank": 1}
    check = {"schema": 2, "kind": "allreduce", "job": {"partition": "p100"}, "layout": layout}
    path = folder / f"allreduce-{local}-{nodes}.json"
    path.write_text(json.dumps({**check, "summary": {"bus_gbs": rates}, **changes}))
    return path


@pytest.fixture
def p100(three_generations):
    return of_partition(three_generations.partition("p100"))


@pytest.mark.parametrize(("local", "nodes"), [(2, 1), (4, 1), (1, 2), (2, 2), (4, 2), (4, 8)])
def test_the_model_says_of_large_messages_what_was_measured(p100, tmp_path, local, nodes):
    """What every message waits for, such as Horovod's cycle, is not bandwidth."""
    truth = replace(p100, network=SLOW, inside=SLOW._replace(bandwidth=2e9))
    start = p100 if nodes == 1 else replace(truth, network=p100.network)
    check = a_check(tmp_path, truth, local, nodes, wait=1e-3)
    found = with_exchange(start, read_exchange(check))
    if nodes > 1:
        assert found.network.latency == p100.network.latency
    expected = took(truth, local, nodes, SIZES[-1])
    assert took(found, local, nodes, SIZES[-1]) == pytest.approx(expected, rel=0.02)


def test_a_slow_network_that_was_measured_slows_the_forecast(three_generations, p100, tmp_path):
    check = a_check(tmp_path, replace(p100, network=SLOW), 4, 2)
    request = ScalingRequest(three_generations.partition("p100"), "vgg16", gpus="16")
    plain, slow = answer(request), answer(replace(request, exchanges=(check,)))
    assert slow.points[0].images_per_second < plain.points[0].images_per_second
    assert "8 ranks on 2 nodes" in slow.request.links[0].describe
    assert "measured" in slow.machine.network.name


def test_both_kinds_of_links_may_be_measured_but_each_once(three_generations, p100, tmp_path):
    near, far = a_check(tmp_path, p100, 4, 1), a_check(tmp_path, p100, 4, 2)
    request = ScalingRequest(three_generations.partition("p100"), "vgg16", exchanges=(far, near))
    assert prepare(request)[0].network.name.endswith("GB/s")
    for twice in (replace(request, exchanges=(far, far)), replace(request, network_gbs=1.0)):
        with pytest.raises(BadInput, match="between nodes are given twice"):
            answer(twice)


def test_a_check_of_another_partition_is_refused(three_generations, p100, tmp_path):
    check = a_check(tmp_path, p100, 4, 2)
    with pytest.raises(BadInput, match="measured the partition 'p100', not 'v100'"):
        answer(ScalingRequest(three_generations.partition("v100"), "vgg16", exchanges=(check,)))


@pytest.mark.parametrize(
    "changes",
    [
        {"summary": {}},
        {"summary": {"bus_gbs": []}},
        {"summary": {"bus_gbs": {}}},
        {"summary": {"bus_gbs": {"65536": 0}}},
        {"summary": {"bus_gbs": {"x": 1}}},
        {"summary": {"bus_gbs": {"65536": float("nan")}}},
        {"schema": 3},
        {"summary": {"bus_gbs": {"65536": 10**400}}},
        {"layout": {"hosts": ["a"]}},
        {"layout": {"hosts": 5}},
        {"layout": {"hosts": ["a", "a", "b"]}},
        {"summary": {"bus_gbs": {"65536": 1, "131072": 4}}},
    ],
)
def test_a_check_that_measured_nothing_is_refused(p100, tmp_path, changes):
    with pytest.raises(BadInput, match=r"allreduce-4-2\.json"):
        read_exchange(a_check(tmp_path, p100, 4, 2, **changes))


def test_the_command_tells_a_check_from_a_run(hpcdl, p100, tmp_path):
    check = str(a_check(tmp_path, p100, 4, 2))
    words = ["predict", "--site", "p100-v100-k80", "--model", "resnet50", "--calibrate", check]
    shown = hpcdl(*words).out
    assert "on p100" in shown  # the partition of the check
    assert f"links: {check}" in shown
