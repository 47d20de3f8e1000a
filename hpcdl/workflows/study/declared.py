"""What a study file declares: frozen values, and functions that judge and draw its results.

    STUDY = Study(title=..., question=..., small=Scale(...), full=Scale(...), report=report, ...)

docs/studies.md has an example. A file is shipped or a user's own: running it is as much trust as
running the programs that it names, so its owner and mode are checked as those of a site file. A
fault in it is one error with the file's own line.
"""

from __future__ import annotations

import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from hpcdl.system.errors import BadInput, HpcdlError, MissingPrerequisite
from hpcdl.system.files import read_regular
from hpcdl.system.resources import folder
from hpcdl.system.text import did_you_mean
from hpcdl.system.trust import require_known_owner

SYNTHETIC = "synthetic"
_SUFFIX = ".py"
_HINT = "docs/studies.md has an example; pydoc hpcdl.api.study says what a study is made of"
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
    """A data set: made by a program, which a directory follows, or a path of the site's data."""

    make: Sequence[str] = ()
    path: str = ""


def photographs(options: str) -> DataSet:
    """Return a data set of generated JPEGs; the options are those of examples/photographs.py."""
    return DataSet(("python", example("photographs.py"), *shlex.split(options)))


@dataclass(frozen=True)
class Jobs:
    """Jobs that differ in the values of a matrix only.

    `over` is the matrix, as `--over` of `hpcdl job sweep`: `gpus=1,2,4 model=alexnet,resnet50`;
    `data` in it names what the scale declares. `options` are of the program, `exclude` combinations
    that do not run, `predict` numbers of GPUs to predict. `named` are more values of every job, by
    which reports and rules tell it from others.
    """

    name: str
    over: str
    options: str
    exclude: Sequence[str] = ()
    data: str = SYNTHETIC
    minutes: int | None = None
    predict: Sequence[int] = ()
    named: Values = field(default_factory=dict)
    launcher: str = "horovod"
    program: Sequence[str] = ("hpcdl", "train")
    environment: Values = field(default_factory=dict)

    def each(self, key: str, ways: Mapping[str, Any]) -> list[Jobs]:
        """The same jobs in several ways: each changes fields, and is known by its name as `key`."""
        return [
            replace(self, **{**changes, "named": {**self.named, key: name}})
            for name, changes in ways.items()
        ]

    def __post_init__(self) -> None:
        counts = self.matrix.get("gpus", ())
        if not counts or not all(re.fullmatch("[1-9][0-9]{0,6}", count) for count in counts):
            raise BadInput(
                f"the jobs '{self.name}' have no counts of GPUs", hint="write gpus=1,2,4"
            )
        words = {word.partition("=")[0] for word in shlex.split(self.options)}
        if twice := [key for key in self.matrix if f"--{key}" in words]:
            raise BadInput(f"'{twice[0]}' is in the matrix and in the options", hint="take one out")

    @cached_property
    def matrix(self) -> dict[str, tuple[str, ...]]:
        """The values of each key."""
        return {key: tuple(text.split(",")) for key, text in values_of(self.over).items()}

    @property
    def excluded(self) -> list[dict[str, str]]:
        """The combinations that do not run."""
        return [values_of(text) for text in self.exclude]


@dataclass(frozen=True)
class Scale:
    """One size of a study; `minutes` of walltime each job. `judge` states every rule of results.

    On a `single_node` all ranks share the cores of the machine that emulates the cluster: jobs run
    one at a time.
    """

    shows: str
    jobs: Sequence[Jobs]
    judge: Callable[..., None]
    minutes: int
    takes: str = ""
    single_node: bool = False
    cpus_per_rank: int | None = None
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

    `series` are the keys of values that distinguish the lines of the figure; `report` takes the
    results and yields panels and tables.
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
    name: str = ""
    path: Path = Path()

    def scale(self, name: str) -> Scale:
        """Return a size of the study; an unknown name is a `BadInput`."""
        scales = {"small": self.small, "full": self.full}
        return scales[known(name, scales, "scale")]


def known(name: str, names: Iterable[str], what: str) -> str:
    """Return a name that is among `names`, else raise BadInput."""
    if name not in (every := [*names]):
        raise BadInput(f"unknown {what} '{name}'", hint=did_you_mean(name, every))
    return name


# ---- study files ----


def shipped() -> tuple[str, ...]:
    """The names of the shipped studies."""
    names = (path.stem for path in _folder().glob(f"[a-z]*{_SUFFIX}"))
    return tuple(sorted(name.replace("_", "-") for name in names))


def load_study(which: str) -> Study:
    """The study of a name, or of a file's path."""
    if "/" in which or which.endswith(_SUFFIX):
        return read_study(Path(which))
    if which not in shipped():
        hint = did_you_mean(which, shipped())
        raise BadInput(f"unknown study '{which}'", hint=f"{hint}; or name a file of your own")
    return read_study(_folder() / f"{which.replace('-', '_')}{_SUFFIX}")


def read_study(path: Path) -> Study:
    """The study of a file, named after it."""
    if not __debug__:
        raise MissingPrerequisite(
            "Python leaves out asserts, which are a study's rules",
            hint="run it without -O and PYTHONOPTIMIZE",
        )
    text = read_regular(path, kind="study file", require=require_known_owner)
    if b"\0" in text:  # about which each Python says something else
        raise BadInput(f"{path} is no Python file: it has a zero byte")
    module = ModuleType(f"hpcdl_study_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where dataclasses look for the names of annotations
    with line_of(path):
        exec(compile(text, str(path), "exec"), vars(module))  # noqa: S102 - see above  # nosec B102
    study = vars(module).get("STUDY")
    if not isinstance(study, Study):
        raise BadInput(f"{path} makes no study", hint="end it with `STUDY = study.Study(...)`")
    return replace(study, name=path.stem.replace("_", "-"), path=path)


@contextmanager
def line_of(path: Path) -> Iterator[None]:
    """Turn a fault of a study's code into a BadInput at the last of its own lines."""
    try:
        yield
    except (Exception, SystemExit) as fault:
        frames = [
            frame
            for frame in traceback.extract_tb(fault.__traceback__)
            if frame.filename == str(path)
        ]
        if isinstance(fault, SyntaxError) and fault.filename == str(path):
            line, source = fault.lineno, fault.text or ""
        elif frames:
            line, source = frames[-1].lineno, frames[-1].line or ""
        else:
            raise
        known = isinstance(fault, HpcdlError)
        kind = "" if known else f"{type(fault).__name__}: "
        raise BadInput(
            f"{path}:{line}: {kind}{getattr(fault, 'msg', fault)}",
            details=[source.strip()] if source else [],
            hint=fault.hint if isinstance(fault, HpcdlError) else _HINT,
        ) from fault


def _folder() -> Path:
    return folder("examples") / "studies"
