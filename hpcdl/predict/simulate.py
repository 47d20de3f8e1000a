"""A step's communication simulated: every rank, every chunk on every link, beside the closed form.

What the closed form sums up is played here: every rank finishes its layers at its own pace,
Horovod's coordinator packs what all ranks have, and every chunk of a ring goes over its own link
once its sender has it and the link is free. With equal ranks and links both agree; the other
scenes show what the closed form leaves out or only knows on average: one slow rank, one slow link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from hpcdl.predict.hardware import Link, Machine
from hpcdl.predict.overlap import Gradient, pack
from hpcdl.predict.step import Constants, Profile, Training, constants, predict_step
from hpcdl.system.errors import BadInput

MOST_SIMULATED = 64
_SLOW_RANK = 1.1
_SLOW_LINK = 2.0


@dataclass(frozen=True)
class Cluster:
    """Equal nodes: `local` ranks each, a link between ranks and a network between nodes.

    `paces` are times as long as the fastest rank that each takes for its layers; `slow_link` is
    (index, factor): a rank whose way to the next one is so many times slower.
    """

    nodes: int
    local: int
    inside: Link
    outside: Link
    paces: tuple[float, ...] = (1.0,)
    slow_link: tuple[int, float] = (0, 1.0)

    def hops(self, size: float) -> list[float]:
        """Seconds of `size` bytes from every rank to the next one of the ring through all."""
        last = self.local - 1
        links = [self.outside if rank % self.local == last and self.nodes > 1 else self.inside
                 for rank in range(self.nodes * self.local)]  # fmt: skip
        found = [link.latency + size / link.bandwidth for link in links]
        found[self.slow_link[0]] *= self.slow_link[1]
        return found

    def seconds(self, size: float) -> float:
        """Seconds of an all-reduce of `size` bytes: 2(N-1) times every rank passes a chunk on."""
        ranks = self.nodes * self.local
        hops, done = self.hops(size / ranks), [0.0] * ranks
        for _ in range(2 * (ranks - 1)):
            # A chunk is sent on when it has come, and the one before it has gone.
            done = [max(done[i], done[i - 1]) + hops[i] for i in range(ranks)]
        return max(done)


@dataclass(frozen=True)
class Simulated:
    """Messages as (bytes, start, end), and how many chunks they made."""

    messages: tuple[tuple[float, float, float], ...]
    events: int

    @property
    def done(self) -> float:
        """When the last message was done."""
        return self.messages[-1][2] if self.messages else 0.0

    @property
    def busy(self) -> float:
        """Seconds during which there was a message."""
        return sum(end - start for _, start, end in self.messages)


def simulate(
    cluster: Cluster, ready: Sequence[Gradient], *, buffer_bytes: float, cycle: float
) -> Simulated:
    """Play the communication of one back-propagation.

    `ready` are gradients in the order they become ready, with the fastest rank's times;
    `buffer_bytes` is Horovod's fusion buffer, `cycle` the seconds between its polls.
    """
    # The coordinator sends what every rank has, so the slowest rank decides.
    moments = [Gradient(moment * max(cluster.paces), size) for moment, size in ready]
    messages, free = [], 0.0
    for moment, size in pack(moments, buffer_bytes=buffer_bytes, cycle=cycle):
        start = max(free, moment)
        free = start + cluster.seconds(size)
        messages.append((size, start, free))
    ranks = cluster.nodes * cluster.local
    return Simulated(tuple(messages), len(messages) * 2 * (ranks - 1) * ranks)


@dataclass(frozen=True)
class Scene:
    """One scene: seconds of the step by the closed form and by the simulation."""

    name: str
    gpus: int
    closed: float
    simulated: float
    events: int

    @property
    def difference(self) -> float:
        """(closed - simulated) / simulated."""
        return self.closed / self.simulated - 1


def scenes(
    machine: Machine, training: Training, one: Profile, gpus: int, known: Constants | None = None
) -> tuple[Scene, ...]:
    """Simulate the step of `gpus` GPUs in every scene.

    Raises:
        BadInput: too many GPUs to simulate, or a form that is not simulated.
    """
    if gpus > MOST_SIMULATED:
        raise BadInput(
            f"{gpus} GPUs are too many to simulate event by event",
            hint=f"take {MOST_SIMULATED} or fewer; the closed form goes further",
        )
    if training.form != "horovod":
        raise BadInput(f"form '{training.form}' is not simulated, only 'horovod' is")
    ring = replace(training, trees=False)
    known, found = known or constants(), []
    nodes = max(1, gpus // machine.per_node)
    network = machine.between if nodes > 1 else machine.inside
    cluster = Cluster(nodes, gpus // nodes, machine.inside, network)
    uneven = tuple(1 + known.straggler * deviate for deviate in deviates(gpus))
    slow = (*(1.0,) * (gpus - 1), _SLOW_RANK)
    for name, straggler, scene in (
        ("equal ranks and links", 0.0, cluster),
        ("ranks as uneven as usual", known.straggler, replace(cluster, paces=uneven)),
        (f"one rank {_SLOW_RANK - 1:.0%} slower", known.straggler, replace(cluster, paces=slow)),
        (f"one link {_SLOW_LINK:.0f} times slower", 0.0,
         replace(cluster, slow_link=(cluster.local - 1, _SLOW_LINK))),
    ):  # fmt: skip
        step = predict_step(
            machine, ring, one, gpus, nodes,
            replace(known, straggler=straggler, contention=0.0, exposed=1.0),
        )  # fmt: skip
        outcome = simulate(scene, one.gradients, buffer_bytes=known.fusion_bytes, cycle=known.cycle)
        pace = max(scene.paces)
        simulated = (one.total - one.backward) * pace + max(outcome.done, one.backward * pace)
        closed = step.seconds - step.input_wait
        found.append(Scene(name, gpus, closed, simulated, outcome.events))
    return tuple(found)


def deviates(ranks: int) -> tuple[float, ...]:
    """Standard normal deviates spread as those of `ranks` ranks are on average (Blom 1958)."""
    normal = NormalDist()
    return tuple(normal.inv_cdf((rank + 0.625) / (ranks + 0.25)) for rank in range(ranks))
