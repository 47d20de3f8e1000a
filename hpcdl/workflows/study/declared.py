"""What a study file declares: frozen values, and functions that judge and draw its results.

    STUDY = Study(title=..., question=..., small=Scale(...), full=Scale(...), report=report, ...)

docs/studies.md has an example. A file's faults are raised here as plain errors; load.py adds the
file's line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hpcdl.jobs.sweep import check_matrix
from hpcdl.system.errors import BadInput
from hpcdl.system.resources import folder
from hpcdl.system.text import did_you_mean

SYNTHETIC = "synthetic"
PYTHON = "{python}"
"""In a program: the interpreter of its framework, python3 or that of `--python FRAMEWORK=PATH`."""

Values = Mapping[str, str]


def example(path: str) -> str:
    """Return the path of a program that hpcdl brings, such as `strategies/multiworker.py`."""
    return str(folder("examples") / path)


def values_of(text: str) -> dict[str, str]:
    """Return the values of `KEY=VALUE KEY=VALUE`."""
    pairs = [word.partition("=") for word in shlex.split(text)]
    if wrong := next((key for key, sign, value in pairs if not (sign and value)), ""):
        raise BadInput(f"'{wrong}' has no value in '{text}'", hint="write KEY=A,B KEY=C")
    return {key: value for key, _, value in pairs}


@dataclass(frozen=True)
class DataSet:
    """A data set: made by `hpcdl data make KIND`, or `given` below the site's directory of data."""

    kind: str
    path: str = ""
    options: Values = field(default_factory=dict)
    gigabytes: float | None = None
    images: float | None = None


def made(kind: str, options: str = "") -> DataSet:
    """Return a data set that a job makes by `data make`; `options` are such as `count=100`."""
    return DataSet(kind, options=values_of(options))


def given(path: str, gigabytes: float, images: int) -> DataSet:
    """Return a data set that the site has."""
    return DataSet("given", path, gigabytes=gigabytes, images=images)


@dataclass(frozen=True)
class Reads:
    """Data are read past memory, at most at so many megabytes per second of a job (0: no limit)."""

    megabytes_per_second: float = 0.0


@dataclass(frozen=True)
class Program:
    """How the jobs of a framework are started: launcher, program and its first arguments."""

    launcher: str = "horovod"
    argv: Sequence[str] = ("hpcdl", "train")


@dataclass(frozen=True)
class Surroundings:
    """What surrounds a program: variables; or the image of `--container`, and no module."""

    variables: Values = field(default_factory=dict)
    container: bool = False


@dataclass(frozen=True)
class Jobs:
    """Jobs that differ in the values of a matrix only.

    `over` is the matrix, as `--over` of `hpcdl job sweep`: `gpus=1,2,4 model=alexnet,resnet50`.
    `data`, `framework` and `environment` name what the study declares, other keys are of a job or
    options of the program, which `options` are, too. `exclude` are combinations that do not run.
    Jobs run `repeats` times, in rounds, so that what differs between them shows as spread; those of
    more than `repeat_up_to` GPUs run once. `predict` are numbers of GPUs to predict.
    """

    name: str
    over: str
    options: str
    exclude: Sequence[str] = ()
    data: str = SYNTHETIC
    minutes: int | None = None
    repeats: int = 1
    repeat_up_to: int | None = None
    reads: Reads | None = None
    predict: Sequence[int] = ()

    def __post_init__(self) -> None:
        counts = self.matrix.get("gpus", ())
        if not counts or not all(re.fullmatch("[1-9][0-9]{0,6}", count) for count in counts):
            raise BadInput(
                f"the jobs '{self.name}' have no counts of GPUs", hint="write gpus=1,2,4"
            )
        check_matrix(self.matrix, self.excluded)
        for key in self.matrix:
            if self.option(key):
                raise BadInput(f"'{key}' is in the matrix and in the options", hint="take one out")

    @cached_property
    def matrix(self) -> dict[str, tuple[str, ...]]:
        """The values of each key."""
        return {key: tuple(text.split(",")) for key, text in values_of(self.over).items()}

    @property
    def excluded(self) -> list[dict[str, str]]:
        """The combinations that do not run."""
        return [values_of(text) for text in self.exclude]

    def option(self, name: str) -> str:
        """The word of the options that gives one; '' where none does."""
        words = shlex.split(self.options)
        return next((word for word in words if word.partition("=")[0] == f"--{name}"), "")

    @property
    def throttled(self) -> bool:
        """Whether its data come more slowly than the storage could give them."""
        return self.reads is not None and self.reads.megabytes_per_second > 0


@dataclass(frozen=True)
class Scale:
    """One size of a study; `minutes` of walltime each job. `judge` states every rule of results.

    On a `single_node` all ranks share the cores of the machine that emulates the cluster: jobs run
    one at a time, and what exchanging gradients costs there is taken from the cells that
    `exchange_from` chooses. `memory_gigabytes` is memory for data, by default a node's.
    """

    shows: str
    jobs: Sequence[Jobs]
    judge: Callable[..., None]
    minutes: int
    takes: str = ""
    single_node: bool = False
    cpus_per_rank: int | None = None
    exchange_from: str = ""
    memory_gigabytes: float | None = None
    data: Mapping[str, DataSet] = field(default_factory=dict)


@dataclass(frozen=True)
class Published:
    """Published numbers: images/s of all GPUs, or speed-ups over one, by the number of GPUs."""

    label: str
    source: str
    rates: Mapping[int, float] = field(default_factory=dict)
    speedups: Mapping[int, float] = field(default_factory=dict)

    @property
    def gains(self) -> dict[int, float]:
        """Speed-ups by the number of GPUs, also those that follow from rates."""
        one = self.rates.get(1)
        found = {gpus: rate / one for gpus, rate in self.rates.items()} if one else {}
        return dict(sorted({**found, **self.speedups}.items()))


@dataclass(frozen=True)
class Study:
    """A study: the question, what its origin found, and the two sizes.

    `series` are the keys of the matrix that distinguish the lines of the figure; `report` takes
    the results and yields panels and tables, of charts.py or its own.
    """

    title: str
    question: str
    origin: str
    found: str
    series: Sequence[str]
    small: Scale
    full: Scale
    report: Callable[..., Iterable[Any]]
    published: Sequence[Published] = ()
    frameworks: Mapping[str, Program] = field(default_factory=dict)
    environments: Mapping[str, Surroundings] = field(default_factory=dict)
    name: str = ""
    path: Path = Path()

    def scale(self, name: str) -> Scale:
        """Return a size of the study; an unknown name is a `BadInput`."""
        scales = {"small": self.small, "full": self.full}
        return scales[known(name, scales, "scale")]


def known(name: str, names: Mapping[str, object], what: str) -> str:
    """Return a name that is among `names`, else raise BadInput."""
    if name not in names:
        raise BadInput(f"unknown {what} '{name}'", hint=did_you_mean(name, names))
    return name
