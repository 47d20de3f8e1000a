"""The user's request: a frozen `JobSpec`, declared field by field.

A field of `JobSpec` is the option of `hpcdl job submit`, the key of job.yaml and the argument in
Python (hpcdl/system/declare.py); here is also what no single field can say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from hpcdl.slurm.options import CHARGED, TIME, megabytes, slurm_minutes, walltime
from hpcdl.system.declare import (
    COUNT,
    SWITCH,
    check,
    choice,
    listed,
    option,
    read_file,
    schema_of,
    text,
    whole,
)
from hpcdl.system.errors import BadInput
from hpcdl.system.frozen import dataclass

DEFAULT_MINUTES = 60
MAX_REQUEUES = 5
MAX_CHAIN = 100
SIGNAL_SECONDS = 120
TRAIN = ("hpcdl", "train")
_MOST_SECONDS = 65_535
_MOST_MB = 10**9
_MOST_MINUTES = 10**6
_LONGEST_ARGUMENT = 100_000
_LONGEST_REQUEST = 1_000_000
# Names that bash, a rank's own shell or the script itself sets: a value would not arrive as it is.
_RESERVED = frozenset(
    "BASHOPTS BASHPID BASH_ALIASES BASH_ARGC BASH_ARGV BASH_CMDS BASH_COMMAND "  # noqa: SIM905
    "BASH_LINENO BASH_MONOSECONDS "
    "BASH_SOURCE BASH_SUBSHELL BASH_VERSINFO DIRSTACK EPOCHREALTIME EPOCHSECONDS EUID FUNCNAME "
    "GROUPS HISTCMD IFS LINENO OPTIND PIPESTATUS PPID PWD RANDOM SECONDS SHELLOPTS "
    "SHLVL SRANDOM UID _ "
    "HPCDL_JOB_DIR HPCDL_PORTS HPCDL_RANK HPCDL_STAGED HPCDL_TRUSTED_NETWORK HPCDL_WORKERS "
    "SLURM_JOB_ID SLURM_RESTART_COUNT".split()
)

_SECRET = re.compile(
    r"(\A|_)(API|ACCESS|AUTH|PRIVATE|SECRET|SIGNING|ENCRYPTION)?_?(KEY|KEYS|TOKEN|TOKENS|SECRET|"
    r"SECRETS|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|PWD|PASS|CREDENTIAL|CREDENTIALS|AUTH|COOKIE)\Z"
    r"|SECRET|PASSW|APIKEY|TOKEN|CREDENTIAL|PRIVATE_?KEY",
    re.IGNORECASE,
)


class Module(NamedTuple):
    """The modules a job loads: a directory for `module use`, names, and the release they pin.

    `release` is the release's id, None where none is published yet.
    """

    names: tuple[str, ...]
    folder: Path | None = None
    release: str | None = None


# ---- the launchers: a new one is a row here, one of docs/users.md, and a case of a test ----


class Launcher(NamedTuple):
    """How the ranks of a step start, find each other and end.

    `mpi`: ranks meet through MPI: by the plug-in of `srun --mpi`, or with `mpirun` through it.
    `gpu_each`: each rank needs a GPU where the partition has GPUs. `one_process`: it is not for
    several nodes. `agent` is the command that each node's one task runs, in a shell that has
    {nodes} and {workers} filled in; it starts the workers. `apart`: the ranks know nothing of each
    other, and one that fails ends no other. `meets`: the program asks where ranks meet, also where
    it is alone. `openmp`: OMP_NUM_THREADS is set. `exports` is a further variable of the script;
    `per_rank` are those that each rank's own shell works out. `server`: it opens a server that asks
    for no password.
    """

    name: str
    mpi: bool = False
    mpirun: bool = False
    gpu_each: bool = True
    one_process: bool = False
    agent: str = ""
    apart: bool = False
    meets: bool = False
    openmp: bool = False
    exports: str = ""
    per_rank: str = ""
    server: bool = False


_ROWS = (
    Launcher("horovod", mpi=True),
    Launcher("horovod-mpirun", mpi=True, mpirun=True),
    Launcher("mpi", mpi=True, gpu_each=False, openmp=True),
    Launcher("mpi-mpirun", mpi=True, mpirun=True, gpu_each=False, openmp=True),
    Launcher(
        "torch",
        meets=True,
        openmp=True,
        per_rank="RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID GROUP_RANK=$SLURM_NODEID "
        "WORLD_SIZE={ranks} LOCAL_WORLD_SIZE={workers}",
    ),
    Launcher(
        "torchrun",
        # The static rendezvous unpickles nothing that strangers may send.
        agent='torchrun --nnodes={nodes} --nproc_per_node={workers} --node_rank="$SLURM_NODEID" '
        '--master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" --no_python',
        meets=True,
        openmp=True,
    ),
    Launcher("jax", meets=True, exports="JAX_COORDINATOR_ADDRESS=$MASTER_ADDR:$MASTER_PORT"),
    Launcher("multiworker", server=True),
    Launcher("plain", gpu_each=False, apart=True, openmp=True),
    Launcher("single", one_process=True, apart=True, openmp=True),
)
LAUNCHERS = {row.name: row for row in _ROWS}

STARTERS = {
    "torchrun": "torchrun",
    "accelerate": "torchrun",
    "deepspeed": "torch",
    "horovodrun": "horovod",
}
"""What starts ranks itself, and the launcher that does the same here; any other is `mpi`."""


# ---- what the written forms mean ----


def minutes_of(text: str) -> int:
    """A time limit as Slurm writes it, in minutes; BadInput for what sbatch does not take."""
    if not re.fullmatch(TIME, text, re.ASCII) or not text.strip("0:-"):
        hint = "write minutes, H:MM:SS or D-HH:MM:SS, as for sbatch"
        raise BadInput(f"is {_shown(text)}, which is not a time limit", hint=hint)
    if (minutes := slurm_minutes(text)) > _MOST_MINUTES:
        raise BadInput(f"is {_shown(text)}: no job runs for years", hint="ask for less")
    return max(1, minutes)


def _written(form: Callable[[int], str]) -> Callable[[Any], str]:
    """How a number is written; what is none is written as it is, and refused."""
    return lambda value: form(value) if type(value) is int else str(value)


def megabytes_of(text: str) -> int:
    """A size as Slurm takes it, in its MB (MiB); BadInput for what is none."""
    size = megabytes(text)
    if not size or size > _MOST_MB:
        hint = "write MB, or a size such as 64G; without one a job gets its share of the node"
        raise BadInput(f"is {_shown(text)}, which is no size", hint=hint)
    return size


def _seconds_of(text: str) -> int:
    seconds = 0 if text == "none" else int(text)
    if seconds > _MOST_SECONDS:
        hint = f"sbatch takes up to {_MOST_SECONDS} seconds"
        raise BadInput(f"is {text}: no signal comes so early", hint=hint)
    return seconds


def _folder(text: str) -> Path:
    """Return a directory that sbatch can write a log to; some characters cannot be escaped."""
    _data(text)
    if "\\" in text or any(ord(character) < 32 or character == "\x7f" for character in text):
        hint = "choose a directory without backslashes and control characters in its name"
        raise BadInput(f"is {_shown(text)}: Slurm cannot write a log below it", hint=hint)
    return Path(text)


def _data(text: str) -> str:
    if not text.strip():
        raise BadInput("is empty", hint="name a directory, or leave it out")
    _check_text(text, "is a name that")
    return text


def _program(words: Sequence[str]) -> tuple[str, ...]:
    if words and not words[0]:
        raise BadInput("begins with an empty word", hint="write -- PROGRAM ARGUMENTS")
    for argument in words:
        _check_text(argument, "has an argument that")
    if sum(map(len, words)) > _LONGEST_REQUEST:
        message = f"has arguments longer than {_LONGEST_REQUEST // 1000} kB together"
        raise BadInput(message, hint="put them into a file and pass the file's name")
    return tuple(words)


def check_environment(environment: Mapping[str, str]) -> Mapping[str, str]:
    """The variables; BadInput for one that would not reach the program as it is."""
    for key, value in environment.items():
        if key in _RESERVED or key.startswith("hpcdl_"):
            message = f"cannot set the variable {key}: bash or the job's script uses it itself"
            raise BadInput(message, hint="choose another name")
        _check_text(value, f"has a value of {key} that")
    return MappingProxyType(dict(environment))


def looks_secret(name: str) -> bool:
    """Whether a variable's name suggests a secret value."""
    return _SECRET.search(name) is not None


def _check_text(text: str, what: str) -> None:
    if "\0" in text:
        raise BadInput(f"{what} has a NUL byte in it, which no program can be given")
    try:
        size = len(text.encode(errors="surrogateescape"))
    except UnicodeEncodeError as fault:
        raise BadInput(f"{what} has half a character in it (a lone surrogate)") from fault
    if size > _LONGEST_ARGUMENT:
        message = f"{what} is longer than {_LONGEST_ARGUMENT // 1000} kB"
        raise BadInput(message, hint="put it into a file and pass the file's name")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


# ---- the declaration ----


_NAME = text(
    "^[A-Za-z0-9][A-Za-z0-9_.+-]{0,62}$",
    "use up to 63 letters, digits and . _ + -, a letter or digit first",
)
_OF_SITE = text(r"^[^\s]{1,128}$")
_CHARGED = text(CHARGED, "`sacctmgr show associations` has the names")
_SIZE_OF: dict[str, Any] = {
    "metavar": "SIZE",
    "together": "memory",
    "type": "string",
    "read": megabytes_of,
    "write": _written("{}M".format),
}
_SHAPE: dict[str, Any] = {"sweep": True, "together": "shape", **COUNT}
_FOLDER: dict[str, Any] = {"metavar": "DIR", "type": "string", "read": _folder}


@dataclass(frozen=True)
class JobSpec:
    """A job as asked for. None means: worked out from the partition.

    `program` is the command of every rank. `python_path` is where Python finds its module, and
    `files` are the directories of the program's own files, for containers; `traps` is whether it is
    a shell script that traps USR2. All are found out where the job is asked for
    (hpcdl/jobs/program.py).
    """

    partition: str = option(
        "partition; the site's default one where none is named",
        required=False,
        sweep=True,
        **_OF_SITE,
    )
    gpus: int | None = option("total number of GPUs, one rank each", None, example=16, **_SHAPE)
    nodes: int | None = option("number of nodes", None, **_SHAPE)
    gpus_per_node: int | None = option("GPUs per node", None, **_SHAPE)
    tasks: int | None = option(
        "processes in all, for partitions without GPUs, or for `plain` and `mpi`", None, **_SHAPE
    )
    tasks_per_node: int | None = option("the same per node", None, flag=None, **_SHAPE)
    cpus_per_task: int | None = option(
        "CPUs per rank; its share of the node by default", None, sweep=True, **COUNT
    )
    minutes: int | None = option(
        "walltime, as for sbatch; an hour by default",
        None,
        key="time",
        metavar="TIME",
        sweep=True,
        free=True,
        example="2:00:00",
        read=minutes_of,
        write=_written(walltime),
        type="string",
    )
    name: str = option("job name", "train", free=True, **_NAME)
    launcher: str = option(
        "how ranks start and find each other", "horovod", **choice(*LAUNCHERS), sweep=True
    )
    program: tuple[str, ...] = option(
        "the program and its arguments; `hpcdl train` by default",
        TRAIN,
        **listed({"type": "string", "maxLength": _LONGEST_ARGUMENT}),
        flag=None,
        shapes=False,
        example=["python", "train.py", "--lr", "0.1"],
        read=_program,
        minItems=1,
    )
    environment: Mapping[str, str] = option(
        "variable of the job; on the command line without a value: yours, or asked for; repeatable",
        {},
        key="env",
        metavar="NAME[=VALUE]",
        example="{NCCL_IB_HCA: mlx5}",
        read=check_environment,
        type="object",
        propertyNames=text("^[A-Za-z_][A-Za-z0-9_]{0,100}$", "write NAME=VALUE"),
        additionalProperties={"type": "string", "maxLength": _LONGEST_ARGUMENT},
    )
    account: str | None = option("account to charge", None, sweep=True, free=True, **_CHARGED)
    qos: str | None = option("quality of service", None, sweep=True, free=True, **_CHARGED)
    job_dir: Path | None = option(
        "directory of the job's files; one below the site's work by default",
        None,
        free=True,
        **_FOLDER,
    )
    signal_before: int = option(
        "seconds before the time limit at which the ranks get USR2, or `none`",
        SIGNAL_SECONDS,
        metavar="SECONDS|none",
        free=True,
        sweep=True,
        read=_seconds_of,
        write=_written(lambda seconds: str(seconds or "none")),
        **text(r"^(none|[1-9][0-9]{0,4})$", "write seconds, such as 300, or none"),
    )
    setup: tuple[str, ...] = option(
        "line of bash before the program starts, such as `source venv/bin/activate`; repeatable",
        (),
        metavar="LINE",
        example=["ulimit -n 4096"],
        type="array",
        items=text(r"^[^\x00-\x1f\x7f]{1,10000}$", "write one line of bash"),
    )
    ask_partition: bool = option(
        "write the partition into the script",
        True,
        **SWITCH,
        flag=None,
        constants={
            "--no-partition": (False, "name no partition to Slurm: the site chooses one by QOS")
        },
    )
    requeues: int = option(
        "how often the job may be requeued",
        MAX_REQUEUES,
        **whole(0, 10_000),
        constants={"--no-requeue": (0, "never requeue the job")},
        sweep=True,
        free=True,
    )
    preflight: bool = option(
        "check the allocation before the ranks start", True, **SWITCH, flag=None, free=True
    )
    data: str | None = option(
        "data set; the job finds it in HPCDL_DATA", None, metavar="DIR", read=_data, type="string"
    )
    stage: bool = option(
        "copy the data set to node-local disks first",
        False,
        **SWITCH,
        key="stage_data",
        flag=None,
        sweep=True,
    )
    chain: int = option(
        "number of jobs to queue; each resumes where the last one stopped",
        1,
        **whole(1, MAX_CHAIN),
        free=True,
    )
    container: str | None = option(
        "container image for the program, without modules",
        None,
        metavar="IMAGE",
        example="/images/tensorflow.sif",
        **text(r"^[A-Za-z0-9/._~][^\x00-\x1f,]{0,1000}$", "give what the site's runtime takes"),
    )
    sbatch: tuple[str, ...] = option(
        "additional sbatch option; repeatable",
        (),
        **listed({**text(r"\S", "write NAME=VALUE"), "maxLength": 10_000}),
        metavar="OPTION",
        example=["mail-type=END", "mail-user=me"],
    )
    gpu_model: str | None = option(
        "GPU model, where a partition has several",
        None,
        metavar="MODEL",
        sweep=True,
        example="L40S",
        **_OF_SITE,
    )
    trusted_network: bool = option(
        "for multiworker: all who reach the nodes' ports may run code as you",
        False,
        **SWITCH,
        flag=None,
        free=True,
    )
    chdir: Path | None = option(
        "where the program works; the job's own directory by default", None, **_FOLDER
    )
    python_path: Path | None = None
    files: tuple[Path, ...] = ()
    traps: bool = False
    mem: int | None = option(
        "memory per node; its share by default", None, example="64G", sweep=True, **_SIZE_OF
    )
    mem_per_cpu: int | None = option("memory per CPU", None, flag=None, **_SIZE_OF)
    mem_per_gpu: int | None = option("memory per GPU", None, flag=None, **_SIZE_OF)
    modules: tuple[str, ...] | None = option(
        "module to load instead of the published release's; repeatable, in a file an empty list "
        "loads none",
        None,
        flag="--module",
        constants={"--no-module": ([], "load no module")},
        metavar="NAME[/VERSION]",
        type="array",
        items=text(r"^[A-Za-z0-9_][^\s]{0,200}$", "write NAME/VERSION"),
    )
    nice: int | None = option(
        "lower the job's priority by this value",
        None,
        **whole(0, 2_147_483_645),
        sweep=True,
        free=True,
    )


def command_of(rest: Sequence[str]) -> tuple[str, ...]:
    """The program of a job from what followed `--`: options are those of `hpcdl train`."""
    return (*TRAIN, *rest) if not rest or rest[0].startswith("-") else tuple(rest)


def is_train(program: Sequence[str]) -> bool:
    """Whether a program is `hpcdl train`, and does more than show its help."""
    return tuple(program[:2]) == TRAIN and not {"-h", "--help"} & set(program)


def check_spec(spec: JobSpec) -> JobSpec:
    """The spec, as options or a file give it; BadInput for what is wrong wherever it runs."""
    spec = check(spec)
    if [spec.mem, spec.mem_per_cpu, spec.mem_per_gpu].count(None) < 2:
        message = "mem, mem_per_cpu and mem_per_gpu exclude each other"
        raise BadInput(message, hint="give one of them")
    if spec.data and "HPCDL_DATA" in spec.environment:
        message = "--data and --env HPCDL_DATA exclude each other: --data sets HPCDL_DATA"
        raise BadInput(message, hint="give one of them")
    if spec.chain > 1 and is_train(spec.program) and "--fresh" in spec.program:
        raise BadInput(
            "--fresh with --chain would start over in every job of the chain",
            hint="leave out --fresh and give the run its own --job-dir",
        )
    return spec


def job_schema() -> dict[str, Any]:
    """The format of a job file, as a JSON Schema."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "hpcdl job file, version 1",
        **schema_of(JobSpec, "A job: what `hpcdl job submit` takes as options, as a file.", 1),
    }


def load_request(path: Path) -> dict[str, Any]:
    """The written values of a job file.

    Raises BadInput: every fault of the file at once, each with its line and a caret.
    """
    from hpcdl.system.document import read_document
    from hpcdl.system.trust import require_known_owner

    keys = "write `schema: 1` and options of `hpcdl job submit`; `hpcdl schema job` has all keys"
    document = read_document(path, if_empty=keys, require=require_known_owner)
    return read_file(JobSpec, document, version=1)
