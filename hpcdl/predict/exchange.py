"""The site's own all-reduce check: links that take as long as its messages took.

`python -m hpcdl.measure.allreduce` measures messages of some sizes. By how much the largest one
takes longer than the next gives the bandwidth: what every message costs cancels out. The
smallest one gives the latency, but not through Horovod, whose cycle is longer than that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcdl.predict.allreduce import lines
from hpcdl.predict.hardware import GIGA, Link, Machine, slowest
from hpcdl.predict.results import Place, place_of, read_sound
from hpcdl.system.errors import BadInput

KIND = "allreduce"
_MOST = 1e6
_LEAST_LATENCY = 1e-9


@dataclass(frozen=True)
class Exchange:
    """An all-reduce check: seconds by bytes, in rising order, of nodes with `local` ranks each.

    `origin` is the file that says so; `steady`: its small messages show the link's latency.
    """

    origin: str
    place: Place
    nodes: int
    local: int
    times: tuple[tuple[int, float], ...]
    steady: bool

    @property
    def rate(self) -> float:
        """Bus bandwidth of large messages in bytes per second."""
        size, seconds = self.slope
        ranks = self.nodes * self.local
        return size / seconds * 2 * (ranks - 1) / ranks

    @property
    def slope(self) -> tuple[float, float]:
        """Bytes that the largest message has more than the next, and seconds that it takes more."""
        (small, short), (large, long) = ((0, 0.0), *self.times)[-2:]
        return large - small, long - short

    @property
    def describe(self) -> str:
        """The check as a line of text."""
        where = "a node" if self.nodes == 1 else f"{self.nodes} nodes"
        ranks = self.nodes * self.local
        return f"{self.origin}: {self.rate / GIGA:.3g} GB/s on the bus of {ranks} ranks on {where}"


def is_exchange(value: dict[str, Any]) -> bool:
    """Whether a result.json is that of an all-reduce check."""
    return value.get("kind") == KIND


def read_exchange(path: Path) -> Exchange:
    """Read the result.json of an all-reduce check.

    Raises:
        BadInput: it cannot be read, is none, or measured nothing.
    """
    try:
        value = read_sound(path, "layout.hosts", "versions.strategy", "summary.bus_gbs")
        hosts, steady = value["layout"]["hosts"], value["versions"]["strategy"] != "horovod"
        rates = sorted((int(size), gbs) for size, gbs in value["summary"]["bus_gbs"].items())
    except ValueError as fault:
        raise BadInput(f"{path} is not the result of an all-reduce check") from fault
    sane = rates and all(0 < size < GIGA * _MOST and 1 / _MOST <= r < _MOST for size, r in rates)
    if len(hosts) < 2 or not sane:
        raise BadInput(f"{path} measured no all-reduce of two ranks or more")
    counts = {hosts.count(host) for host in hosts}
    if len(counts) > 1:
        raise BadInput(f"{path} had more ranks on some nodes, which says too little")
    times = times_of(rates, len(hosts))
    found = Exchange(str(path), place_of(value), len(set(hosts)), counts.pop(), times, steady)
    if found.slope[1] <= 0:
        raise BadInput(
            f"{path}: its largest message took no longer than the next",
            hint="measure larger ones: python -m hpcdl.measure.allreduce --sizes BYTES,...",
        )
    return found


def times_of(rates: Iterable[tuple[int, float]], ranks: int) -> tuple[tuple[int, float], ...]:
    """Seconds by bytes of messages whose bus bandwidth in GB/s is known; in rising order."""
    passes = 2 * (ranks - 1) / ranks
    return tuple((size, size / (gbs * GIGA) * passes) for size, gbs in sorted(rates))


def fitted(machine: Machine, found: Exchange) -> Machine:
    """The machine whose links take as long as the messages of the check took."""
    if found.nodes == 1:
        return _fit(found, machine, machine.inside)
    # A ring between nodes passes within them, too, so those links are no slower.
    rate = max(machine.inside.bandwidth, found.rate)
    machine = replace(machine, inside=replace(machine.inside, bandwidth=rate))
    return _fit(found, machine, machine.network or slowest())


def _fit(found: Exchange, machine: Machine, link: Link) -> Machine:
    """The machine with a link of which the model says what was measured."""

    def put(one: Link) -> Machine:
        return replace(machine, network=one) if found.nodes > 1 else replace(machine, inside=one)

    link = replace(link, bandwidth=found.rate)
    if found.steady and len(found.times) > 1:
        size, seconds = found.times[0]
        trials = (put(replace(link, latency=at)) for at in (0.0, 1.0))
        none, one = (
            [line.seconds(size) for line in lines(trial, found.local, found.nodes)]
            for trial in trials
        )
        fits = ((seconds - a) / (b - a) for a, b in zip(none, one, strict=True))
        link = replace(link, latency=max(_LEAST_LATENCY, *fits))
    name = f"{link.name}, measured {link.bandwidth / GIGA:.3g} GB/s"
    return put(replace(link, name=name, measured=True))
