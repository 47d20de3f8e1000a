"""How fast one GPU is where nobody measured it: effects that add up in logarithms.

What a published row reaches of its roofline is the product of effects of its GPU and precision,
network, framework and source, each drawn toward 1 by how many rows speak for it (a ridge, solved
by backfitting). A GPU and network that no row joins get the product of what others tell of them;
where rows do join them, those rows' own effect comes in as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from hpcdl.predict.hardware import Machine, of_host
from hpcdl.predict.network import names, network, roofline
from hpcdl.predict.records import Record, read_records
from hpcdl.predict.step import PRECISIONS, Training, peak_of

_ROUNDS = 20
_USUAL_BATCH = 64
_SLOPE = 2.0


@dataclass(frozen=True)
class Trait:
    """What a row is as far as effects go; `reached` is the log of its part of the roofline."""

    family: str
    card: str
    precision: str
    model: str
    kind: str
    framework: str
    source: str
    intensity: float = 0.0
    reached: float = 0.0


# Each effect: what it belongs to, and as how many rows without effect the ridge counts. The last
# one is a slope over the network's intensity, arithmetic per element moved: where the roofline is
# wrong about a kind of GPU, it is so more for networks of one end.
_EFFECTS: tuple[tuple[Callable[[Trait], tuple[str, ...]], float], ...] = (
    (lambda t: (t.family,), 0.3),
    (lambda t: (t.family, t.precision), 0.5),
    (lambda t: (t.card, t.precision), 3.0),
    (lambda t: (t.model,), 0.3),
    (lambda t: (t.model, t.precision), 2.0),
    (lambda t: (t.kind, t.precision), 2.0),
    (lambda t: (t.framework,), 2.0),
    (lambda t: (t.source,), 2.0),
    (lambda t: (t.card, t.kind), 2.0),
    (lambda t: (t.family, t.precision, t.model), 1.0),
    (lambda t: (t.source, t.precision, t.model), 1.0),
    (lambda t: (t.family, t.precision), _SLOPE),
)


class _Effect:
    """One effect while it is told from rows: a value per key, which counts by `by` in each row."""

    def __init__(self, keys: Sequence[tuple[str, ...]], by: Sequence[float], ridge: float) -> None:
        self._numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        self._rows = [(self._numbers[key], x) for key, x in zip(keys, by, strict=True)]
        self._values = [0.0] * len(self._numbers)
        counts = self._values[:]
        for key, x in self._rows:
            counts[key] += x * x
        self._weights = [count + ridge for count in counts]

    def improved(self, rest: Sequence[float]) -> list[float]:
        """Tell the values anew; from what no effect explains to what none explains then."""
        old, sums = self._values, [0.0] * len(self._values)
        for (key, x), value in zip(self._rows, rest, strict=True):
            sums[key] += x * (value + x * old[key])
        self._values = [total / weight for total, weight in zip(sums, self._weights, strict=True)]
        less = [before - now for before, now in zip(old, self._values, strict=True)]
        return [value + x * less[key] for (key, x), value in zip(self._rows, rest, strict=True)]

    def found(self) -> dict[tuple[str, ...], float]:
        """The values by key."""
        return dict(zip(self._numbers, self._values, strict=True))


class Effects:
    """The effects that rows tell of."""

    def __init__(self, rows: Sequence[Trait]) -> None:
        self._middle = sum(row.reached for row in rows) / max(1, len(rows))
        self._usual = sum(row.intensity for row in rows) / max(1, len(rows))
        effects = [
            _Effect([key(row) for row in rows], [self._by(index, row) for row in rows], ridge)
            for index, (key, ridge) in enumerate(_EFFECTS)
        ]
        rest = [row.reached - self._middle for row in rows]
        for _ in range(_ROUNDS):
            for effect in effects:
                rest = effect.improved(rest)
        self._found = [effect.found() for effect in effects]

    def _by(self, index: int, row: Trait) -> float:
        return row.intensity - self._usual if index == len(_EFFECTS) - 1 else 1.0

    def expected(self, trait: Trait) -> float:
        """The log of the part of the roofline that is reached."""
        return self._middle + sum(
            self._by(index, trait) * self._found[index].get(key(trait), 0.0)
            for index, (key, _) in enumerate(_EFFECTS)
        )


def trait_of(machine: Machine, training: Training, framework: str, source: str) -> Trait:
    """What a training on a machine is; nothing is known of what it reached."""
    precision = "amp" if training.precision == "fp16" else training.precision
    return Trait(
        machine.gpu.partition("-")[0], machine.gpu, precision, training.net.name,
        "images" if training.net.channels else "text", framework, source,
        math.log(training.net.macs / sum(layer.moved for layer in training.net.layers)),
    )  # fmt: skip


def roof(machine: Machine, training: Training) -> float:
    """Seconds of a step at the hardware's peaks."""
    return roofline(
        training.net, training.batch, peak_of(machine, training.precision),
        machine.memory_rate, training.activation_bytes,
    ).total  # fmt: skip


def traits(records: Iterable[Record]) -> list[Trait]:
    """The single-GPU rows that effects can be told from."""
    found = []
    for row in records:
        machine = of_host(row.gpu, row.hardware, 1) if row.gpus == 1 and row.rate else None
        known = row.model in names() and row.precision in PRECISIONS
        if machine is None or not known or machine.lacks(row.precision):
            continue
        net = network(row.model, row.size)
        training = Training(net, row.batch or _USUAL_BATCH, row.precision)
        reached = math.log((row.rate or 1.0) * roof(machine, training) / training.batch)
        framework = f"{row.framework.partition(' ')[0]}{' with XLA' if row.xla else ''}"
        trait = trait_of(machine, training, framework, row.source)
        found.append(replace(trait, reached=reached))
    return found


@cache
def ours() -> Effects:
    """The effects of our rows."""
    return Effects(traits(read_records()))


def seconds(machine: Machine, training: Training, framework: str = "TensorFlow") -> float:
    """Seconds of a step of one GPU, as effects of published rows tell."""
    trait = trait_of(machine, training, framework, "")
    return roof(machine, training) / math.exp(ours().expected(trait))
