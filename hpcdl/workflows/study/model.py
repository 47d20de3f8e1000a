"""The values of a study: frozen, made by load.py only, and therefore valid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcdl.slurm.execution import ExecutionProfile

SYNTHETIC = "synthetic"
PARTS = ("compute", "input", "communication", "update", "other")
"""What a step's time is made of."""

Values = Mapping[str, str]


@dataclass(frozen=True)
class DataSet:
    """A data set: `kind` says who makes it, `path` is that of a given one."""

    name: str
    kind: str
    path: str
    options: Values
    gigabytes: float | None
    images: float | None


@dataclass(frozen=True)
class Reads:
    """How data are read: megabytes per second of a whole job (0: no limit), and from memory?"""

    megabytes_per_second: float
    cached: bool


@dataclass(frozen=True)
class Run:
    """Jobs that differ in the values of a matrix only; `minutes` of walltime each.

    Jobs run `repeats` times, in rounds, so that what differs between them shows as spread; those
    of more than `repeat_up_to` GPUs, which take longest, run once.
    """

    name: str
    repeats: int
    repeat_up_to: int | None
    over: Mapping[str, tuple[str, ...]]
    exclude: tuple[Values, ...]
    options: Values
    data: str
    cpus_per_rank: int | None
    minutes: int
    reads: Reads | None
    predict: tuple[int, ...]


@dataclass(frozen=True)
class AcceptanceRule:
    """One acceptance rule; judge.py implements the kinds."""

    rule: str
    says: str
    where: Values
    over: str
    better: str
    worse: str
    gpus: tuple[int, ...]
    metric: str
    part: str
    at_least: float | None
    at_most: float | None

    @property
    def bound(self) -> float:
        """The bound of a rule that has one, the lower of two."""
        return (self.at_most if self.at_least is None else self.at_least) or 0.0


@dataclass(frozen=True)
class Scale:
    """One size of a study; `execution` says how its measurements are judged.

    What exchanging gradients costs on shared cores, predictions take from the measured cells
    that `exchange_from` chooses.
    """

    name: str
    shows: str
    takes: str
    in_turn: bool
    execution: ExecutionProfile
    exchange_from: Values | None
    memory_gigabytes: float | None
    data: Mapping[str, DataSet]
    runs: tuple[Run, ...]
    acceptance: tuple[AcceptanceRule, ...]


@dataclass(frozen=True)
class Point:
    """A published number: images per second of all GPUs, or the speed-up over one."""

    gpus: int
    images_per_second: float | None
    speedup: float | None


@dataclass(frozen=True)
class Published:
    """Published numbers of one source, in rising numbers of GPUs."""

    label: str
    source: str
    points: tuple[Point, ...]
    where: Values


@dataclass(frozen=True)
class Panel:
    """One part of the figure; panels.py draws the kinds."""

    panel: str
    where: Values
    title: str


@dataclass(frozen=True)
class Framework:
    """How a run of the matrix's `framework` is started; empty is `hpcdl train` as usual.

    In `program`, `{python}` is the framework's interpreter, `{programs}` the directory of hpcdl's
    programs in other frameworks, and `{strategies}` of those for other ways to go parallel.
    """

    launcher: str
    program: tuple[str, ...]


@dataclass(frozen=True)
class Environment:
    """The surroundings of a program by the matrix's `environment`: variables, an image."""

    variables: Values
    container: bool


@dataclass(frozen=True)
class Table:
    """Measurements side by side: `value` of each, a column for each value of a key."""

    title: str
    columns: str
    value: str
    where: Values


@dataclass(frozen=True)
class Original:
    """A table or figure of the original: by what it is repeated, or in `note` why it is not.

    `by` names parts of the study (`figure: rate`, `run: learning`), commands and pages.
    """

    item: str
    by: tuple[str, ...]
    note: str


@dataclass(frozen=True)
class Study:
    """A study: the question, what its origin found, the figure, and the two sizes."""

    name: str
    title: str
    question: str
    origin: str
    found: str
    series: tuple[str, ...]
    figure: tuple[Panel, ...]
    published: tuple[Published, ...]
    scales: Mapping[str, Scale]
    frameworks: Mapping[str, Framework]
    environments: Mapping[str, Environment]
    tables: tuple[Table, ...]
    original: tuple[Original, ...]
    path: Path


def matches(values: Values, where: Values) -> bool:
    """Return whether values match every key of `where`; a missing key does not match."""
    return all(values.get(key) == value for key, value in where.items())
