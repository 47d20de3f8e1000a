"""A site's own all-reduce check as the links of the model."""

from dataclasses import replace

import pytest

from hpcdl.predict.machine import Link, allreduce, of_partition
from hpcdl.predict.request import ScalingRequest, answer
from hpcdl.predict.start import Exchange, bus_rate, with_exchange

SIZES = (1 << 16, 1 << 20, 1 << 24, 1 << 26)
SLOW = Link("slow", 40e-6, 0.5e9)


def took(machine, local, nodes, size):
    """Seconds of a message by the model."""
    return min(line.seconds(size) for line in allreduce(machine, local, nodes))


def a_check(machine, local, nodes, wait=0.0):
    """What the check finds where its messages take as long as on `machine`, and `wait` each."""
    passes = 2 * (local * nodes - 1) / (local * nodes)
    times = {size: wait + took(machine, local, nodes, size) for size in SIZES}
    rates = [(size, size / seconds * passes / 1e9) for size, seconds in times.items()]
    return Exchange("set.yaml", nodes, local, bus_rate(rates))


@pytest.fixture
def p100(three_generations):
    return of_partition(three_generations.partition("p100"))


@pytest.mark.parametrize(("local", "nodes"), [(2, 1), (4, 1), (1, 2), (2, 2), (4, 2), (4, 8)])
def test_the_model_says_of_large_messages_what_was_measured(p100, local, nodes):
    """What every message waits for, such as Horovod's cycle, is not bandwidth."""
    truth = replace(p100, network=SLOW, inside=SLOW._replace(bandwidth=2e9))
    start = p100 if nodes == 1 else replace(truth, network=p100.network)
    found = with_exchange(start, a_check(truth, local, nodes, wait=1e-3))
    if nodes > 1:
        assert found.network.latency == p100.network.latency
    expected = took(truth, local, nodes, SIZES[-1])
    assert took(found, local, nodes, SIZES[-1]) == pytest.approx(expected, rel=0.02)


def test_a_largest_message_that_took_no_longer_than_the_next_says_nothing():
    assert bus_rate([(65536, 1.0), (131072, 4.0)]) is None


def test_a_slow_network_that_was_measured_slows_the_forecast(three_generations, p100):
    near, far = a_check(p100, 4, 1), a_check(replace(p100, network=SLOW), 4, 2)
    request = ScalingRequest(three_generations.partition("p100"), "vgg16", gpus="16")
    plain, slow = answer(request), answer(replace(request, exchanges=(near, far)))
    assert slow.points[0].images_per_second < plain.points[0].images_per_second
    assert "8 ranks on 2 nodes" in slow.request.exchanges[1].describe
    assert "measured" in slow.machine.network.name
