"""What a user asks for: a frozen `JobSpec`, checked for what needs no partition, and job.yaml.

A job.yaml (version 1) has the options of `hpcdl job submit` as keys; its one definition is
facts/job_format.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from hpcdl import facts
from hpcdl.slurm.time_limit import slurm_minutes
from hpcdl.system.errors import BadInput
from hpcdl.system.text import did_you_mean

LAUNCHERS = (
    "horovod",
    "horovod-mpirun",
    "mpi",
    "torch",
    "torchrun",
    "jax",
    "multiworker",
    "plain",
    "single",
)
"""What starts the ranks, by the value of --launcher: docs/users.md has what each does."""
DEFAULT_MINUTES = 60
MAX_REQUEUES = 5
MAX_CHAIN = 100
SIGNAL_SECONDS = 120
_TIME = re.compile(r"(\d{1,4}-)?\d{1,5}(:[0-5]?\d){0,2}\Z", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,62}\Z")
_ACCOUNT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:@+-]{0,127}\Z")
_IMAGE = re.compile(r"[A-Za-z0-9/._~][^\x00-\x1f,]{0,1000}\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SIZE = re.compile(r"(\d{1,12})([KMGT]?)[Bb]?\Z", re.ASCII | re.IGNORECASE)
_UNITS = {"K": 1, "": 1024, "M": 1024, "G": 1024**2, "T": 1024**3}
_MOST_MB = 10**9
_COUNTS = ("gpus", "nodes", "gpus_per_node", "tasks", "tasks_per_node", "cpus_per_task", "minutes")
_BOUNDS = {
    **dict.fromkeys(_COUNTS, (1, 1_000_000)),
    "chain": (1, MAX_CHAIN),
    "requeues": (0, 10_000),
}
_LONGEST_ARGUMENT = 100_000
_LONGEST_REQUEST = 1_000_000
# Names that bash or the script itself gives a meaning: a value would not arrive as it is.
_RESERVED = frozenset(
    "BASHOPTS BASHPID BASH_ALIASES BASH_ARGC BASH_ARGV BASH_CMDS BASH_COMMAND "  # noqa: SIM905
    "BASH_LINENO BASH_MONOSECONDS "
    "BASH_SOURCE BASH_SUBSHELL BASH_VERSINFO DIRSTACK EPOCHREALTIME EPOCHSECONDS EUID FUNCNAME "
    "GROUPS HISTCMD LINENO OPTIND PIPESTATUS PPID RANDOM SECONDS SHELLOPTS SHLVL SRANDOM UID _ "
    "HPCDL_JOB_DIR HPCDL_PORTS HPCDL_TRUSTED_NETWORK HPCDL_WORKERS "
    "SLURM_JOB_ID SLURM_RESTART_COUNT SLURM_EXPORT_ENV again agent asked "
    "attempt before code found hpcdl_job hpcdl_requeues hpcdl_result hpcdl_seconds hpcdl_staged "
    "kept launcher name pause point rank stopped taken".split()
)


class Module(NamedTuple):
    """The modules a job loads: a directory for `module use`, names, and the release they pin.

    `release` is the release's id, None where none is published yet. `functions` is its file of
    what every job does, None where scripts have that in themselves.
    """

    names: tuple[str, ...]
    folder: Path | None = None
    release: str | None = None
    functions: Path | None = None


class Memory(NamedTuple):
    """Memory as asked for: MB per `node`, `cpu` or `gpu`."""

    mb: int
    per: str


@dataclass(frozen=True)
class JobSpec:
    """A job as asked for. None means: worked out from the partition.

    Sizes: `minutes` of walltime; `cpus_per_task` in CPUs as Slurm counts them. `program` is
    the command of every rank; empty means `hpcdl train`. `data` is a path that must exist on
    the nodes before the ranks start; with `stage` it is copied to their own disks first. A
    `chain` of jobs resumes where the one before ran out of time. `container` is an image, run
    by the site's container runtime. `sbatch` are further options of it, such as `mail-type=END`.
    `gpu_model` chooses among the models of a partition. With a `trusted_network` the job may run
    servers that ask nobody for a password. The program works in `chdir`; None is the job's own
    directory. `python_path` is where Python finds its module, and `files` are the directories of
    the program's own files, for containers.
    """

    partition: str
    gpus: int | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    cpus_per_task: int | None = None
    minutes: int | None = None
    name: str = "train"
    launcher: str = "horovod"
    program: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    account: str | None = None
    qos: str | None = None
    job_dir: Path | None = None
    requeues: int = MAX_REQUEUES
    preflight: bool = True
    data: str | None = None
    stage: bool = False
    chain: int = 1
    container: str | None = None
    sbatch: tuple[str, ...] = ()
    gpu_model: str | None = None
    trusted_network: bool = False
    chdir: Path | None = None
    python_path: Path | None = None
    files: tuple[Path, ...] = ()
    memory: Memory | None = None


def command_of(rest: Sequence[str]) -> tuple[str, ...]:
    """The program of a job from what followed `--`: options are those of `hpcdl train`."""
    train = not rest or rest[0].startswith("-")
    return (*(("hpcdl", "train") if train else ()), *rest)


def is_train(program: Sequence[str]) -> bool:
    """Whether a program is `hpcdl train`."""
    return tuple(program[:2]) == ("hpcdl", "train")


def check_spec(spec: JobSpec) -> JobSpec:
    """The spec itself; BadInput for what is wrong with it wherever it runs."""
    check_name(spec.name)
    if spec.launcher not in LAUNCHERS:
        said = f"unknown launcher '{spec.launcher}'"
        raise BadInput(said, hint=did_you_mean(spec.launcher, LAUNCHERS))
    for key, (least, most) in _BOUNDS.items():
        value = getattr(spec, key)
        if value is not None and not least <= value <= most:
            option = f"--{key.replace('minutes', 'time').replace('_', '-')} {value} is"
            said = f"{value} requeues are" if key == "requeues" else option
            hint = f"queue at most {most} jobs" if key == "chain" and value else ""
            raise BadInput(
                f"{said} not possible", hint=hint or f"give a number from {least} to {most:,}"
            )
    for option, name in (("account", spec.account), ("qos", spec.qos)):
        if name is not None and not _ACCOUNT.match(name):
            said = f"--{option} {_shown(name)} is not possible"
            raise BadInput(said, hint="`sacctmgr show associations` has the names")
    if spec.chain > 1 and is_train(spec.program) and "--fresh" in spec.program:
        raise BadInput(
            "--fresh with --chain would start over in every job of the chain",
            hint="leave out --fresh and give the run a --job-dir of its own",
        )
    check_environment(spec.environment)
    if spec.container is not None and not _IMAGE.match(spec.container):
        said = f"--container {_shown(spec.container)} is no path or name of an image"
        raise BadInput(said, hint="give what the site's container runtime takes")
    _check_program(spec.program)
    _check_text(spec.data or "", "the name of the data set")
    for folder in filter(None, (spec.job_dir, spec.chdir)):
        _check_folder(str(folder))
    return spec


def check_name(name: str) -> None:
    """Raise BadInput for names that cannot be a job's or, as directories bear them, a sweep's."""
    if not _NAME.match(name):
        hint = "use up to 63 letters, digits and . _ + -, a letter or digit first"
        raise BadInput(f"the job name {_shown(name)} is not possible", hint=hint)


def check_environment(environment: Mapping[str, str]) -> None:
    """Raise BadInput for a variable that would not reach the program as it is."""
    for key, text in environment.items():
        if not _VARIABLE.match(key):
            said = f"--env {_shown(key)} is no name of a variable"
            raise BadInput(said, hint="write NAME=VALUE, or NAME to take it from here")
        if key in _RESERVED:
            said = f"the variable {key} cannot be set: bash or the job's script uses it itself"
            raise BadInput(said, hint="choose another name")
        _check_text(text, f"the value of {key}")


def _check_program(program: tuple[str, ...]) -> None:
    if program and not program[0]:
        raise BadInput("the program after -- is empty", hint="write -- PROGRAM ARGUMENTS")
    for argument in program:
        _check_text(argument, "an argument of the program")
    if sum(map(len, program)) > _LONGEST_REQUEST:
        said = f"the program's arguments are longer than {_LONGEST_REQUEST // 1000} kB together"
        raise BadInput(said, hint="put them into a file and pass the file's name")


def _check_folder(text: str) -> None:
    """A directory that sbatch can write a log to; its directives know no escape for some."""
    _check_text(text, "the name of the job's directory")
    if "\\" in text or any(ord(character) < 32 or character == "\x7f" for character in text):
        hint = "choose a directory without backslashes and control characters in its name"
        raise BadInput(f"Slurm cannot write a log below {_shown(text)}", hint=hint)


def minutes_of(text: str) -> int:
    """A time limit as Slurm writes it, in minutes; BadInput for what sbatch does not take."""
    if not _TIME.match(text) or not text.strip("0:-"):
        said = f"--time {_shown(text)} is not a time limit"
        raise BadInput(said, hint="write minutes, H:MM:SS or D-HH:MM:SS, as for sbatch")
    return max(1, slurm_minutes(text))


def memory_of(option: str, text: str) -> int:
    """A size as Slurm takes it, in its MB (MiB); BadInput for what is none."""
    found = _SIZE.match(text)
    size = int(found[1]) * _UNITS[found[2].upper()] // 1024 if found else 0
    if not found or not 0 < size <= _MOST_MB:
        said = f"{option} {_shown(text)} is no size"
        raise BadInput(said, hint="write MB, or a size such as 64G")
    return size


def _check_text(text: str, what: str) -> None:
    if "\0" in text:
        raise BadInput(f"{what} has a NUL byte in it, which no program can be given")
    try:
        size = len(text.encode(errors="surrogateescape"))
    except UnicodeEncodeError as fault:
        raise BadInput(f"{what} has half a character in it (a lone surrogate)") from fault
    if size > _LONGEST_ARGUMENT:
        said = f"{what} is longer than {_LONGEST_ARGUMENT // 1000} kB"
        raise BadInput(said, hint="put it into a file and pass the file's name")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def job_schema() -> dict[str, Any]:
    """The format of a job file, as a JSON Schema."""
    schema: dict[str, Any] = facts.load("job_format")["job"]
    return schema


def load_request(path: Path) -> dict[str, Any]:
    """The values of a job file, defaults filled in.

    Raises:
        BadInput: every fault of the file at once, each with its line and a caret.
    """
    from hpcdl.system.document import read_document
    from hpcdl.system.schema import check

    keys = "write `schema: 1` and options of `hpcdl job submit`; `hpcdl job schema` has all keys"
    document = read_document(path, if_empty=keys)
    values = check(document, job_schema())
    document.raise_faults()
    assert isinstance(values, dict)
    return values
