"""A discrete-event simulation of the communication of a step: ranks, links, fusion.

What the closed form sums up is simulated here: every rank finishes its layers at its own
pace, Horovod's coordinator polls every cycle and packs what all ranks have, and every chunk of
every ring goes over its own link when its sender has it and the link is free. With equal ranks
and links it agrees with the closed form; with unequal ones it shows what that leaves out.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from hpcdl.predict.hardware import Link
from hpcdl.predict.overlap import Gradient, Message, next_look

Act = Callable[[], None]


@dataclass(frozen=True)
class Cluster:
    """Equal nodes: `local` ranks each, a link between ranks and a network between nodes.

    `slow_rank` and `slow_link` are (index, factor): a rank that takes so many times as long
    for its layers, a rank whose way to the next one is so many times slower.
    """

    nodes: int
    local: int
    inside: Link
    outside: Link
    paces: tuple[float, ...] = ()
    slow_link: tuple[int, float] = (0, 1.0)

    @property
    def ranks(self) -> int:
        """Ranks in all."""
        return self.nodes * self.local

    def pace(self, rank: int) -> float:
        """Times as long as the fastest rank that `rank` takes for its layers."""
        return self.paces[rank] if self.paces else 1.0

    def link(self, rank: int) -> Link:
        """The link from `rank` to the next one of the ring through all ranks."""
        last = rank % self.local == self.local - 1
        link = self.outside if last and self.nodes > 1 else self.inside
        slow, factor = self.slow_link
        if rank != slow or factor == 1.0:
            return link
        return Link(link.name, link.latency * factor, link.bandwidth / factor)


@dataclass(frozen=True)
class Simulated:
    """What happened: when the last message was done, its messages, and how many events."""

    done: float
    busy: float
    messages: tuple[Message, ...]
    events: int


class Clock:
    """The queue of events: what happens next, in the order of time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._order = count()
        self._queue: list[tuple[float, int, Act]] = []

    def at(self, moment: float, act: Act) -> None:
        """Let `act` happen at `moment`."""
        heapq.heappush(self._queue, (moment, next(self._order), act))

    def run(self) -> None:
        """Let everything happen."""
        while self._queue:
            self.now, _, act = heapq.heappop(self._queue)
            self.events += 1
            act()


class Ring:
    """One pass of chunks around a ring: every member sends what it got the step before."""

    def __init__(
        self, clock: Clock, links: Sequence[Link], chunk: float, steps: int, done: Act
    ) -> None:
        self._clock, self._links, self._chunk = clock, links, chunk
        self._steps, self._done = steps, done
        self._sent = [0] * len(links)
        self._received = [0] * len(links)
        self._sending = [False] * len(links)
        self._left = steps * len(links)

    def start(self) -> None:
        """Every member sends its first chunk."""
        if not self._left:
            self._clock.at(self._clock.now, self._done)
        for member in range(len(self._links)):
            self._send(member)

    def _send(self, member: int) -> None:
        """Send the next chunk, where there is one, it has come, and the link is free."""
        step = self._sent[member]
        if self._sending[member] or step >= self._steps or step > self._received[member]:
            return
        self._sending[member] = True
        link = self._links[member]
        seconds = link.latency + self._chunk / link.bandwidth
        self._clock.at(self._clock.now + seconds, lambda: self._arrive(member))

    def _arrive(self, member: int) -> None:
        follower = (member + 1) % len(self._links)
        self._sending[member] = False
        self._sent[member] += 1
        self._received[follower] += 1
        self._left -= 1
        if not self._left:
            self._done()
            return
        self._send(member)
        self._send(follower)


@dataclass
class _Stream:
    """Messages one after the other, as NCCL's stream carries them."""

    clock: Clock
    cluster: Cluster
    algorithm: str
    waiting: deque[float] = field(default_factory=deque)
    messages: list[Message] = field(default_factory=list)
    busy: bool = False

    def put(self, size: float) -> None:
        """Queue a message of `size` bytes."""
        self.waiting.append(size)
        self.next()

    def next(self) -> None:
        """Start the next message, where the stream is free."""
        if self.busy or not self.waiting:
            return
        self.busy = True
        size, start = self.waiting.popleft(), self.clock.now
        self._phases(size, lambda: self._finished(size, start))

    def _finished(self, size: float, start: float) -> None:
        self.messages.append(Message(size, start, self.clock.now))
        self.busy = False
        self.next()

    def _phases(self, size: float, done: Act) -> None:
        """The rings that a message goes through, one phase after the other."""
        cluster = self.cluster
        if self.algorithm == "ring" or cluster.nodes == 1:
            links = [cluster.link(rank) for rank in range(cluster.ranks)]
            self._rings([(links, size / cluster.ranks, 2 * (cluster.ranks - 1))], done)
            return
        local, nodes = cluster.local, cluster.nodes
        inner = [
            [
                cluster.inside if member + 1 == local else cluster.link(node * local + member)
                for member in range(local)
            ]
            for node in range(nodes)
        ]
        halves = [(links, size / local, local - 1) for links in inner]
        shared = Link(
            cluster.outside.name, cluster.outside.latency, cluster.outside.bandwidth / local
        )
        outer = [([shared] * nodes, size / local / nodes, 2 * (nodes - 1))] * local
        self._rings(halves, lambda: self._rings(outer, lambda: self._rings(halves, done)))

    def _rings(self, rings: Sequence[tuple[Sequence[Link], float, int]], done: Act) -> None:
        """Rings at the same time; `done` when all of them are."""
        left = len(rings)

        def one_done() -> None:
            nonlocal left
            left -= 1
            if not left:
                done()

        for links, chunk, steps in rings:
            Ring(self.clock, links, chunk, steps, one_done).start()


def simulate(
    cluster: Cluster,
    ready: Sequence[Gradient],
    *,
    buffer_bytes: float,
    cycle: float,
    algorithm: str = "ring",
) -> Simulated:
    """Play the communication of one back-propagation.

    Args:
        cluster: ranks and links.
        ready: gradients in the order they become ready, with the fastest rank's times.
        buffer_bytes: Horovod's fusion buffer.
        cycle: seconds between its polls.
        algorithm: `ring` through all ranks, or `two-level`.
    """
    clock = Clock()
    stream = _Stream(clock, cluster, algorithm)
    # The coordinator sends what every rank has, so the slowest rank decides.
    slowest = max(cluster.pace(rank) for rank in range(cluster.ranks))
    moments = [gradient.ready * slowest for gradient in ready]

    def look(index: int) -> None:
        size = 0.0
        while index < len(ready) and moments[index] <= clock.now:
            if size and size + ready[index].size > buffer_bytes:
                stream.put(size)
                size = 0.0
            size += ready[index].size
            index += 1
        if size:
            stream.put(size)
        look_again(index)

    def look_again(index: int) -> None:
        # Looks that find nothing are left out: with a short cycle they would be endless.
        if index < len(ready):
            clock.at(next_look(clock.now, moments[index], cycle), lambda: look(index))

    look_again(0)
    clock.run()
    busy = sum(message.done - message.start for message in stream.messages)
    done = stream.messages[-1].done if stream.messages else 0.0
    return Simulated(done, busy, tuple(stream.messages), clock.events)
