"""The closed form against the same step played event by event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpcdl.predict.calibrate import from_images_per_second
from hpcdl.predict.hardware import Link, Machine, of_gpu
from hpcdl.predict.network import network
from hpcdl.predict.overlap import Gradient
from hpcdl.predict.step import Profile, Training, constants, profile
from tests.exchange_oracle import Cluster, both, simulate

LINK = Link("link", 1e-6, 1e10)
NET = Link("net", 1e-5, 1e9)
RATES = {"resnet50": 220, "vgg16": 154, "alexnet": 2900, "inception_v3": 142, "mlp": 1e5}


def setting(model: str, per_node: int = 4) -> tuple[Machine, Training, Profile]:
    machine = replace(of_gpu("P100-PCIe", "pcie3", 28, 2, NET), per_node=per_node)
    training = Training(network(model), 64)
    base = from_images_per_second(RATES[model], training)
    return machine, training, profile(machine, training, base.seconds)


@pytest.mark.parametrize("model", RATES)
@pytest.mark.parametrize(("gpus", "per_node"), [(2, 4), (8, 4), (16, 2)])
def test_with_equal_ranks_and_links_both_agree_within_two_percent(
    model: str, gpus: int, per_node: int
) -> None:
    closed, simulated = both(*setting(model, per_node), gpus, constants())
    assert closed == pytest.approx(simulated, rel=0.02)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("cycle", [0.0, 1e-320, 1e-12, 1e-9])
def test_a_coordinator_that_never_sleeps_ends_and_agrees_with_the_closed_form(cycle: float) -> None:
    closed, simulated = both(*setting("resnet50"), 8, replace(constants(), cycle=cycle))
    assert closed == pytest.approx(simulated, rel=0.02)


def test_all_bytes_are_sent_in_messages_of_at_most_a_buffer() -> None:
    _, _, one = setting("resnet50")
    played = simulate(Cluster(1, 4, LINK, NET), one.gradients, buffer_bytes=16e6, cycle=0.005)
    assert sum(size for size, _, _ in played.messages) == pytest.approx(one.size)
    assert max(size for size, _, _ in played.messages) <= 16e6


def test_messages_never_overlap() -> None:
    _, _, one = setting("vgg16")
    played = simulate(Cluster(2, 2, LINK, NET), one.gradients, buffer_bytes=64e6, cycle=0.001)
    for before, after in zip(played.messages, played.messages[1:], strict=False):
        assert after[1] >= before[2]


def test_the_slowest_rank_decides() -> None:
    ready = (Gradient(0.1, 1e6),)
    equal = simulate(Cluster(1, 2, LINK, NET), ready, buffer_bytes=1e8, cycle=0.01)
    slow = simulate(Cluster(1, 2, LINK, NET, paces=(1.0, 1.5)), ready, buffer_bytes=1e8, cycle=0.01)
    assert slow.done - equal.done == pytest.approx(0.05)


def test_one_slow_link_holds_up_the_whole_ring() -> None:
    ready = (Gradient(0.0, 1e8),)
    fast = simulate(Cluster(1, 8, LINK, NET), ready, buffer_bytes=1e9, cycle=0.001)
    slow = simulate(
        Cluster(1, 8, LINK, NET, slow_link=(3, 4.0)), ready, buffer_bytes=1e9, cycle=0.001
    )
    assert slow.busy == pytest.approx(4 * fast.busy, rel=0.05)
