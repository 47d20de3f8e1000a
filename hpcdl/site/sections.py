"""Sections of the site file that hold no partitions: Slurm, paths, stacks, Spack, cleaning.

A field is the key of site.yaml with its bounds and its words in docs/site-file.md
(hpcdl/system/declare.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcdl.slurm.options import CHARGED
from hpcdl.system.declare import PATH, SWITCH, by_name, choice, listed, number, option, text, whole
from hpcdl.system.errors import BadInput
from hpcdl.system.frozen import dataclass
from hpcdl.system.resources import expand

if TYPE_CHECKING:
    from datetime import date

NAME = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
CLEANED = ("check-runs", "job-index", "logs", "failures", "cache")
"""The kinds of `hpcdl clean`."""
_EXTERNAL = {
    "type": "object",
    "description": "A package that Spack shall use and not build.",
    "required": ["spec", "prefix"],
    "additionalProperties": False,
    "properties": {
        "spec": {
            "type": "string",
            "description": "Its name and version.",
            "pattern": "^[a-z0-9-]+@[0-9][\\w.+-]*$",
            "examples": ["gcc@12.2.0"],
        },
        "prefix": {
            "type": "string",
            "description": "Where it is installed.",
            "pattern": "^/",
            "examples": ["/usr"],
        },
    },
}


def no_default(_: object) -> None:
    """Write no default to the schema: the value is derived if the file leaves it out."""


def _expanded(text: str) -> Path:
    if not (path := Path(expand(text))).is_absolute():
        raise BadInput(f"is '{path}', which is not absolute", hint="start it with / or ~")
    return path


_PLACE: Mapping[str, Any] = {
    **text(
        # \x24 is the dollar sign: `$` is the end.
        r"^(/|~|\x24(HOME|HPCDL_HOME|\{HOME\}|\{HPCDL_HOME\}))"
        r"([^\x24\x00-\x1f]|\x24(HOME|USER|HPCDL_HOME|\{(HOME|USER|HPCDL_HOME)\}))*$",
        "start it with / or ~; $HOME, $USER and $HPCDL_HOME are replaced here, no other variable",
    ),
    "read": _expanded,
    "write": str,
}


def _externals(rows: list[dict[str, str]]) -> tuple[External, ...]:
    found = ((*row["spec"].split("@", 1), row["prefix"]) for row in rows)
    return tuple(External(name, version, Path(prefix)) for name, version, prefix in found)


@dataclass(frozen=True)
class SlurmDialect:
    """How this site's Slurm wants to be asked."""

    version: str = option(
        "Slurm's release, as `sinfo --version` prints it. It decides the form of the scripts",
        **text("^\\d{1,2}\\.\\d{2}(\\.\\d{1,2})?([-.\\w]*)?$"),
        example="22.05.8",
    )
    gpu_request: str = option(
        "How a job asks for GPUs: `--gpus-per-node` or `--gres=gpu`. Never both",
        "gpus-per-node",
        **choice("gpus-per-node", "gres"),
    )
    gpu_typed: bool = option(
        "Whether the request names the GPU's type (`gpu:p100:4`, not `gpu:4`)", True, **SWITCH
    )
    mpi: str = option(
        "The plug-in for `srun --mpi=`; `srun --mpi=list` shows what there is",
        "pmix",
        **text("^[a-z0-9_]{1,30}$"),
    )
    pmix: str | None = option(
        "The PMIx release that Slurm was built with; MPI in the stack must share it",
        None,
        **text("^\\d+(\\.\\d+){0,2}$"),
        example="4.2",
    )
    accounting: bool = option("Whether slurmdbd runs, so that `sacct` answers", False, **SWITCH)
    account: str | None = option(
        "Account that jobs are charged to, where none is given", None, **text(CHARGED)
    )
    qos: str | None = option(
        "Quality of service of jobs, where none is given", None, **text(CHARGED)
    )
    select: str | None = option(
        "SelectType of slurm.conf behind the slash; `scontrol show config` shows it",
        None,
        **choice("cons_res", "cons_tres", "linear"),
    )
    task_plugins: tuple[str, ...] = option(
        "TaskPlugin of slurm.conf, what is behind each slash: affinity binds",
        (),
        **listed(choice("affinity", "cgroup", "none")),
    )
    plugin_options: tuple[str, ...] = option(
        "Long options that plug-ins (SPANK) add to sbatch and srun, without dashes; "
        "`sbatch --help` lists them at its end",
        (),
        **listed(text("^[A-Za-z0-9][A-Za-z0-9_-]{0,60}$")),
    )
    memory: str = option(
        "How a job asks for memory: `--mem`, `--mem-per-cpu`, `--mem-per-gpu`, or not at all",
        "node",
        **choice("node", "cpu", "gpu", "none"),
    )
    exclusive: bool = option(
        "Whether jobs that fill their nodes ask for `--exclusive`", True, **SWITCH
    )
    requeue: bool = option(
        "Whether jobs may be requeued; without it, `job submit --chain` continues a run",
        True,
        **SWITCH,
    )
    purge: str = option(
        "What a job unloads before it loads its modules: `all`, all but `sticky` ones "
        "of Lmod, or `none`, for Cray's bases and sites that load what jobs need",
        "all",
        **choice("all", "sticky", "none"),
    )


@dataclass(frozen=True)
class Paths:
    """Absolute directories: software `prefix`, jobs' `work` and `datasets`; Lmod's bash init."""

    prefix: Path = option("Where stacks and modules are published", **_PLACE, example="/apps/hpcdl")
    work: Path = option(
        "Where jobs keep scripts, logs, results and checkpoints", **_PLACE, example="/work/$USER"
    )
    datasets: Path = option("Where data sets are", **_PLACE, example="/data")
    lmod_init: Path = option(
        "Lmod's start-up file for bash", Path("/usr/share/lmod/lmod/init/bash"), **_PLACE
    )


class Backend(NamedTuple):
    """A way to build stacks. `words` name it; `versions` is the column of the facts that has its.

    `planner` is the function below hpcdl.stack that plans a release, whose plan makes it.
    `compiles`: from source, by the site's compilers. `own_python`: a Python is chosen with the
    wheels, and one build serves all CPUs of a kind.
    """

    words: str
    versions: str
    planner: str
    compiles: bool = False
    own_python: bool = False


_SPACK = "spack_backend.spack_build:plan_spack"
BACKENDS = {
    "wheels": Backend("wheels", "wheels", "build:plan_wheels", own_python=True),
    "spack": Backend("Spack", "spack", _SPACK, compiles=True),
    "spack-wheels": Backend("Spack with wheels", "spack-wheels", _SPACK),
}
"""From PyPI's wheels; compiled from source by Spack; by Spack from the overlay's wheels."""
OLD_BACKENDS = {"venv": "wheels"}


@dataclass(frozen=True)
class StackRequest:
    """A stack the site wants: its backend, pins, and the partitions it serves."""

    name: str
    backend: str = option(
        "How it is built: from PyPI's wheels; compiled from source by Spack; or by "
        "Spack from wheels, for its packages around them. `venv` is the old name of "
        "`wheels`",
        **choice(*BACKENDS, *OLD_BACKENDS),
    )
    partitions: tuple[str, ...] = option(
        "The partitions it serves; by default all that no stack names", (), **listed(text(NAME))
    )
    pins: Mapping[str, str] = option(
        "Versions fixed by the site, by component (tensorflow, cuda, ...)",
        {},
        **by_name(
            text("^[0-9][0-9A-Za-z.+_-]{0,40}$", "write a version or its beginning, such as 2.18"),
            "^[a-z0-9_-]{1,40}$",
        ),
    )
    packages: tuple[str, ...] = option(
        "Packages from PyPI on top, locked with the rest (wheels only): names, with "
        "extras and versions as pip takes them. TensorFlow, Keras and Horovod: see "
        "pins",
        (),
        **listed(
            text(
                "^(?!(tensorflow(-cpu|-gpu)?|keras|horovod)(?![A-Za-z0-9._-]))"
                "[A-Za-z0-9][A-Za-z0-9._-]{0,80}(\\[[A-Za-z0-9,._-]{1,80}\\])?( "
                "?(==|>=|<=|~=|!=|<|>) ?[0-9][0-9A-Za-z.*+!_-]{0,40},?){0,4}$"
            )
        ),
        example=["pandas", "jupyterlab>=4,<5"],
    )
    variant: str | None = option(
        "`cpu`: a build for CPUs, although its partitions have GPUs, which then stay "
        "idle. Without it the partitions decide",
        None,
        **choice("cpu"),
    )
    horovod: bool = option(
        "`none`: without Horovod, for tf.distribute; no compiler is needed then",
        True,
        **choice("none"),
        read=lambda text: text != "none",
        write=no_default,
    )
    cuda_home: Path | None = option(
        "The CUDA toolkit whose nvcc compiles Horovod; needed while building only. By "
        "default clang compiles it",
        None,
        **PATH,
        example="/usr/local/cuda-12.4",
    )
    renamed: str = ""
    """The old name of its backend, where the site file has that."""


@dataclass(frozen=True)
class External:
    """A package of the machine that Spack uses and does not build."""

    name: str
    version: str
    prefix: Path


@dataclass(frozen=True)
class SpackSettings:
    """How Spack builds here: what the machine has, mirrors by name, the padded path's length."""

    externals: tuple[External, ...] = option(
        "What the machine has already: compilers, Slurm, PMIx, rdma-core",
        (),
        type="array",
        items=_EXTERNAL,
        read=_externals,
    )
    mirrors: Mapping[str, str] = option(
        "Mirrors of sources and binaries, by name",
        {},
        **by_name(text("^(file|https?|oci|s3)://"), NAME),
    )
    build_jobs: int | None = option(
        "Processes per build; Spack's own choice by default", None, **whole(1, 1024)
    )
    padded_length: int = option(
        "Length the install path is padded to, so that binaries can move. 0: no padding",
        128,
        **whole(0, 512),
        write=no_default,
    )
    store: Path | None = option(
        "The site's own install tree, so that nothing is built twice; by default "
        "PREFIX/spack/store. `padded_length` is then that tree's own, 0 by default",
        None,
        **PATH,
        example="/apps/spack/opt/spack",
    )

    @property
    def compilers(self) -> tuple[str, ...]:
        """Versions of the gcc that the site offers; empty where it names none."""
        return tuple(external.version for external in self.externals if external.name == "gcc")


@dataclass(frozen=True)
class Limits:
    """How much of a kind `hpcdl clean` keeps; hpcdl's own limits by default."""

    days: float | None = option("Older ones are removed", None, **number(0, 36500), example=30)
    gb: float | None = option(
        "Above this many GB the oldest are removed", None, **number(0, 1000000), example=5
    )


@dataclass(frozen=True)
class Remeasure:
    """How often the nightly checks measure again what is suspicious, the same night."""

    runs: int = option(
        "At most so many further runs of a check; 0 for none", 4, **whole(0, 20), example=4
    )
    minutes: float = option(
        "No run starts or continues after this many minutes", 30.0, **number(0, 1440), example=30
    )


def _day(text: str) -> date:
    from datetime import date, timedelta

    try:
        day = date.fromisoformat(text)
    except ValueError as fault:
        raise BadInput(f"is '{text}', not a day", hint="write YEAR-MONTH-DAY") from fault
    if day > date.today() + timedelta(days=2 * 366):
        raise BadInput(f"is {text}, too far away", hint="a waiver holds for two years at most")
    return day


def _kind(text: str) -> str:
    from hpcdl import facts

    if text not in (kinds := facts.load("records")["waiver_kinds"]):
        raise BadInput(f"is '{text}', not one of {', '.join(kinds)}")
    return text


@dataclass(frozen=True)
class Waiver:
    """Why a vulnerability does not matter at this site."""

    because: str = option(
        "The reason",
        **text(r"^[^\x00-\x1f]{20,1000}$", "give a reason, in a line of at least 20 characters"),
        example="no elastic jobs are run at this site",
    )
    owner: str = option("Who answers for it", **text(r"[^\x00-\x1f]*\S[^\x00-\x1f]*"))
    until: date = option(
        "Its last day, two years from now at most; then it stops a publish",
        type="string",
        read=_day,
        write=str,
        example="2027-06-30",
    )
    kind: str = option(
        "What kind of answer it is, which the bill of materials says: a key of `waiver_kinds` in "
        "hpcdl/facts/records.yaml",
        "accepted-risk",
        type="string",
        read=_kind,
        write=str,
        example="code-not-reachable",
    )
