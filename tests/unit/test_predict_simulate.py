"""The closed form against the same step played event by event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpcdl.predict.calibrate import from_images_per_second
from hpcdl.predict.hardware import Link, Machine, of_gpu
from hpcdl.predict.network import network
from hpcdl.predict.overlap import Gradient
from hpcdl.predict.simulate import Cluster, deviates, scenes, simulate
from hpcdl.predict.step import Profile, Training, constants, predict_step, profile

LINK = Link("link", 1e-6, 1e10)
NET = Link("net", 1e-5, 1e9)
RATES = {"resnet50": 220, "vgg16": 154, "alexnet": 2900, "inception_v3": 142, "mlp": 1e5}


def setting(model: str, per_node: int = 4) -> tuple[Machine, Training, Profile]:
    machine = replace(of_gpu("P100-PCIe", "pcie3", 28, 2, NET), per_node=per_node)
    training = Training(network(model), 64)
    base = from_images_per_second(RATES[model], training)
    return machine, training, profile(machine, training, base.seconds)


@pytest.mark.parametrize("model", RATES)
@pytest.mark.parametrize(("nodes", "local"), [(1, 2), (2, 4), (8, 2)])
def test_with_equal_ranks_and_links_both_agree_within_two_percent(
    model: str, nodes: int, local: int
) -> None:
    machine, training, one = setting(model, local)
    training = replace(training, trees=False)
    known = replace(constants(), straggler=0.0, contention=0.0, exposed=1.0)
    closed = predict_step(machine, training, one, nodes * local, nodes, known)
    played = simulate(
        Cluster(nodes, local, machine.inside, machine.network),
        one.gradients,
        buffer_bytes=known.fusion_bytes,
        cycle=known.cycle,
    )
    simulated = one.total - one.backward + max(played.done, one.backward)
    assert closed.seconds == pytest.approx(simulated, rel=0.02)
    assert closed.busy == pytest.approx(played.busy, rel=0.02)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("cycle", [0.0, 1e-320, 1e-12, 1e-9])
def test_a_coordinator_that_never_sleeps_ends_and_agrees_with_the_closed_form(cycle: float) -> None:
    machine, training, one = setting("resnet50")
    known = replace(constants(), cycle=cycle)
    calm = scenes(machine, training, profile(machine, training, one.total, known), 8, known)[0]
    assert abs(calm.difference) <= 0.02


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


def test_scenes_show_where_the_closed_form_ends() -> None:
    hidden = {scene.name: scene for scene in scenes(*setting("resnet50"), 8)}
    assert abs(hidden["equal ranks and links"].difference) <= 0.02
    assert abs(hidden["ranks as uneven as usual"].difference) <= 0.02
    assert hidden["one rank 10% slower"].difference < -0.02
    exposed = {scene.name: scene for scene in scenes(*setting("alexnet"), 8)}
    assert exposed["one link 2 times slower"].difference < -0.02


def test_uneven_ranks_are_spread_as_chance_has_it() -> None:
    found = deviates(16)
    assert sum(found) == pytest.approx(0, abs=1e-9)
    assert max(found) == pytest.approx(1.77, abs=0.02)


def test_constants_travel_to_the_simulation() -> None:
    machine, training, one = setting("resnet50")
    known = replace(constants("early"), contention=0.0, straggler=0.1)
    calm = scenes(machine, training, one, 8)[1].simulated
    assert scenes(machine, training, one, 8, known)[1].simulated > calm
