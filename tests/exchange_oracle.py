"""An oracle of hpcdl.predict: a step's communication, every rank, every chunk on every link.

What the closed form sums up is played here: every rank finishes its layers at its own pace,
Horovod's coordinator packs what all ranks have, and every chunk of a ring goes over its own link
once its sender has it and the link is free. With equal ranks and links both agree.
"""

from dataclasses import dataclass, replace
from unittest.mock import patch

from hpcdl.predict import overlap
from hpcdl.predict.hardware import Link
from hpcdl.predict.overlap import Gradient, lines, pack
from hpcdl.predict.step import predict_step


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

    def hops(self, size):
        """Seconds of `size` bytes from every rank to the next one of the ring through all."""
        last = self.local - 1
        links = [
            self.outside if rank % self.local == last and self.nodes > 1 else self.inside
            for rank in range(self.nodes * self.local)
        ]
        found = [link.latency + size / link.bandwidth for link in links]
        found[self.slow_link[0]] *= self.slow_link[1]
        return found

    def seconds(self, size):
        """Seconds of an all-reduce of `size` bytes: 2(N-1) times every rank passes a chunk on."""
        ranks = self.nodes * self.local
        hops, done = self.hops(size / ranks), [0.0] * ranks
        for _ in range(2 * (ranks - 1)):
            # A chunk is sent on when it has come, and the one before it has gone.
            done = [max(done[i], done[i - 1]) + hops[i] for i in range(ranks)]
        return max(done)


@dataclass(frozen=True)
class Simulated:
    """Messages as (bytes, start, end)."""

    messages: tuple[tuple[float, float, float], ...]

    @property
    def done(self):
        """When the last message was done."""
        return self.messages[-1][2] if self.messages else 0.0

    @property
    def busy(self):
        """Seconds during which there was a message."""
        return sum(end - start for _, start, end in self.messages)


def simulate(cluster, ready, *, buffer_bytes, cycle):
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
    return Simulated(tuple(messages))


def both(machine, training, one, gpus, known):
    """Seconds of a step of equal ranks and links, by the closed form and by the simulation."""
    known = replace(known, straggler=0.0, contention=0.0, exposed=1.0)
    nodes = max(1, gpus // machine.per_node)
    network = machine.between if nodes > 1 else machine.inside
    with patch.object(overlap, "lines", lambda *where: lines(*where)[:1]):  # no trees
        step = predict_step(machine, training, one, gpus, nodes, known)
    played = simulate(
        Cluster(nodes, gpus // nodes, machine.inside, network),
        one.gradients,
        buffer_bytes=known.fusion_bytes,
        cycle=known.cycle,
    )
    simulated = one.total - one.backward + max(played.done, one.backward)
    return step.seconds - step.input_wait, simulated
