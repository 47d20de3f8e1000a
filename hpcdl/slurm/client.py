"""Asks and commands the Slurm on PATH (SLURM_CONF decides which cluster that is).

Every call goes through `ask`: a time limit, a clean environment, and one clear error where
Slurm is missing, does not answer, or answers what no release does.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from hpcdl.slurm import parse
from hpcdl.slurm.parse import JobRecord, NodeRecord, PartitionRecord, QosLimits, Reservation
from hpcdl.system.errors import BadInput, HpcdlError, MissingPrerequisite, Stopped
from hpcdl.system.files import user_name
from hpcdl.system.run import CommandFailed, CommandResult, run

if TYPE_CHECKING:
    from hpcdl.slurm.fits import Cluster, PartitionLimits

_T = TypeVar("_T")
_Text = TypeVar("_Text", str, Sequence[str])
_AWAY = (
    "Unable to contact slurm controller",
    "Connection refused",
    "Zero Bytes were transmitted",
    "Protocol authentication error",
    "Unable to establish",
    "timed out",
    "Invalid authentication credential",
    "Could not establish a configuration source",
)
# What `sbatch --test-only` says where nodes are down, drained or taken: it looks at those that are
# up now, while `sbatch` itself queues the job and refuses only what the partition can never hold.
_NOT_NOW = (
    "Requested node configuration is not available",
    "Requested nodes are busy",
    "Required node not available",
)
# What Slurm says where a limit is reached: it takes the job once others have ended.
_FULL = ("Resource temporarily unavailable", "job submit limit", "SubmitJobLimit", "SubmitJobPer")
_DEFAULTS = re.compile(r"(SQUEUE|SINFO|SCONTROL|SACCT|SACCTMGR|SCANCEL)_")
_GONE = ("Invalid job id", "already completing or completed")
_ANSWER_SECONDS = 30.0
_TEST_SECONDS = 10.0
_SLOW_SECONDS = 5.0
_IDS_AT_ONCE = 5000  # an argument holds 128 KiB


class SlurmAway(MissingPrerequisite):
    """Slurm does not answer: it may be back in a minute."""


def _clean_environment() -> dict[str, str]:
    """The environment for sbatch: without what would override or leak into the job.

    SBATCH_* and SRUN_* override the script's own directives; SLURM_* of an allocation we run
    in changes the step's shape. SLURM_CONF and similar variables select the cluster and stay.
    """
    keep = {"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_CONF_SERVER"}
    foreign = re.compile(r"(SLURM|SBATCH|SRUN|SALLOC|PMIX|PMI|OMPI)_")
    return {
        name: os.environ[name] for name in os.environ if name in keep or not foreign.match(name)
    }


def query_environment() -> dict[str, str]:
    """The environment for questions: also without the user's defaults for squeue and its like.

    SQUEUE_USERS, SQUEUE_STATES or SINFO_PARTITION in a shell's profile would hide jobs and nodes.
    """
    known = _clean_environment()
    return {key: value for key, value in known.items() if not _DEFAULTS.match(key)}


def version() -> str:
    """Slurm's release, `22.05.8`."""
    output = ask(["sinfo", "--version"]).stdout
    release = output.split()[-1] if output.split() else ""  # some vendors print `slurm-wlm 22.05.8`
    if not re.match(r"\d{2}\.\d", release):
        raise _unreadable(output, "sinfo")
    return release


def job(job_id: int) -> JobRecord | None:
    """Return a job's record: from slurmctld, else from accounting; None if neither has it.

    Raises SlurmAway: it does not answer, or it is unknown how the job ended: ask again.
    """
    found, unclear = _jobs(f"--jobs={job_id}")
    # Of an array, squeue shows all tasks; the last one that waits has the array's own id.
    record = next((one for one in found if one.id == job_id), found[0] if found else None)
    if record and record.id not in unclear:
        return with_accounting({job_id: record}, [job_id])[job_id]
    known = accounted([job_id])
    if record and not known:
        raise _away([f"squeue did not show how job {job_id} ended"])
    return known.get(job_id)


def with_accounting(records: dict[int, JobRecord], jobs: Sequence[int]) -> dict[int, JobRecord]:
    """Return `records` with accounting's data: forgotten jobs, and who cancelled a job.

    It is asked once for all of them; a slow database delays no other answer.
    """
    asked = [job for job in jobs if job not in records or records[job].state == "CANCELLED"]
    with suppress(SlurmAway):
        for job, one in accounted(asked).items():
            ended = records.get(job, one)
            records |= {job: ended._replace(cancelled_by=one.cancelled_by)}
    return records


def accounted(jobs: Sequence[int]) -> dict[int, JobRecord]:
    """Return accounting's records of jobs, by id, all their runs, also of old jobs.

    It is asked in a form that no job's name can forge; without accounting there are none.
    """
    runs: dict[str, list[str]] = {}
    mark = f"|{secrets.token_hex(8)}|"
    shape = (f"--delimiter={mark}", f"--format={parse.ACCOUNTING_FIELDS}")
    argv = ["sacct", "--noheader", "--parsable2", *shape, "--allocations", "--duplicates"]
    for first in range(0, len(jobs) if shutil.which("sacct") else 0, _IDS_AT_ONCE):
        ids = ",".join(map(str, jobs[first : first + _IDS_AT_ONCE]))
        answer = ask([*argv, "--jobs", ids], check=False)
        rows = answer.stdout if answer.ok else ""
        for line in parsed(lambda text: parse.own_lines(text, mark), rows, "sacct"):
            runs.setdefault(line.partition("|")[0], []).append(line)
    known = ((job, runs.get(str(job))) for job in jobs)
    return {job: parsed(parse.accounted_job, own, "sacct") for job, own in known if own}


def queue(*, mine: bool = False, jobs: Sequence[int] | None = None) -> tuple[JobRecord, ...]:
    """Every job slurmctld holds, ended ones of the last minutes included; or this user's only.

    All of them may be 50,000, which take 118 MB: `jobs` are those (and arrays) that are asked for.
    """
    if jobs is not None and not jobs:
        own_jobs()  # raises: whether Slurm answers is known, also where nothing is asked of it
        return ()
    named = [f"--jobs={','.join(map(str, jobs))}"] if jobs and len(jobs) <= _IDS_AT_ONCE else []
    found, unclear = _jobs(*["--me"] * mine, *named)
    return tuple(record for record in found if record.id not in unclear)


def _jobs(*options: str) -> tuple[list[JobRecord], set[int]]:
    """The records of squeue, in a form that no job's name can forge; none where it has none.

    The second value has the ids of ended jobs whose exit squeue did not show.
    """
    mark = secrets.token_hex(8)
    text = _squeue(*options, f"--format={parse.marked_format(parse.JOB_FORMAT, mark)}")
    if text is None:
        return [], set()
    rows = parsed(lambda text: parse.current(parse.marked(text, mark)), text, "squeue")
    # Asked later: of a job that ended meanwhile, the next query shows only its end.
    more = _squeue(*options, f"--Format={parse.EXIT_FORMAT}") if rows else None
    if more is None:  # there is none, or it was forgotten in between
        return [], set()
    ended = parsed(parse.exits, more, "squeue")

    def read(fields: str | Sequence[str]) -> JobRecord:
        return parse.job(fields, ended.get(int(fields[0]), (0, 0, 0)))

    found = [parsed(read, row, "squeue") for row in rows]
    return found, {one.id for one in found if not one.active and one.id not in ended}


def _squeue(*options: str) -> str | None:
    answer = ask(["squeue", "--all", "--states=all", *options], check=False)
    if "Invalid job id" in answer.stderr:
        return None
    if not answer.ok:
        refuse(answer)
    return answer.stdout


def batch_script(job_id: int) -> str | None:
    """The script of an active job; '' where it has none, None where Slurm does not show it.

    Others' scripts are shown to root and to Slurm's operators only.
    """
    answer = ask(["scontrol", "write", "batch_script", str(job_id), "-"], check=False)
    if "Invalid job id" in answer.stderr or "not specified" in answer.stderr:
        return ""  # it has ended meanwhile, or is interactive
    if any(sign in answer.stderr for sign in _AWAY):
        refuse(answer)
    return None if "retrieval failed" in answer.stderr or not answer.ok else answer.stdout


def own_jobs() -> frozenset[int]:
    """The ids of this user's jobs that have not ended; a task that runs has its own."""

    def read(text: str) -> frozenset[int]:
        heading, *numbers = parse.without_cluster(text).split()
        if heading != "JOBID":  # so that no answer is not an empty one
            raise ValueError(heading)
        return frozenset(map(int, numbers))

    return parsed(read, ask(["squeue", "--me", "--all", "--format=%A"]).stdout, "squeue")


def sees_all_jobs() -> bool:
    """Whether this user is shown everybody's jobs (slurm.conf(5), PrivateData)."""
    known = config()
    private = set(known.get("PrivateData", "none").split(","))
    user = user_name()
    owner = known.get("SlurmUser", "root").partition("(")[0]
    if not private & {"jobs", "all"} or user in {"root", owner}:
        return True
    level = _accounting("user", user, "format=AdminLevel")
    return level in {("Operator",), ("Administrator",)}


def qos_limits(names: Collection[str]) -> tuple[QosLimits, ...]:
    """Return the limits of these qualities of service; none if accounting does not list them."""
    if not names:
        return ()
    found = _accounting_lines("qos", f"name={','.join(names)}", f"format={parse.QOS_FIELDS}")
    return tuple(parsed(parse.qos_limits, line, "sacctmgr") for line in found)


def _accounting(*what: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for line in _accounting_lines(*what) for word in line.split()))


def _accounting_lines(*what: str) -> list[str]:
    if shutil.which("sacctmgr") is None:
        return []
    answer = ask(["sacctmgr", "--noheader", "--parsable2", "show", *what], check=False)
    return answer.stdout.splitlines() if answer.ok else []


def plugin_options() -> tuple[str, ...]:
    """The long options that plug-ins (SPANK) add to sbatch here, without dashes."""
    return parse.plugin_options(ask(["sbatch", "--help"]).stdout)


def nodes() -> tuple[NodeRecord, ...]:
    """All nodes."""
    return tuple(parsed(parse.node, line, "scontrol") for line in _all_records("Node"))


def partitions() -> tuple[PartitionRecord, ...]:
    """All partitions."""
    return tuple(parsed(parse.partition, line, "scontrol") for line in _all_records("Partition"))


def reservations() -> tuple[Reservation, ...]:
    """All reservations; none where Slurm does not show them."""
    text = ask(["scontrol", "show", "reservation", "-o"], check=False).stdout
    lines = (line for line in text.splitlines() if line.startswith("ReservationName="))
    return tuple(parsed(parse.reservation, line, "scontrol") for line in lines)


def _all_records(kind: str, *options: str) -> list[str]:
    """Every node or partition; an answer that is no answer is not "there are none"."""
    text = ask(["scontrol", "show", kind.lower(), *options, "-o"]).stdout
    found = [line for line in text.splitlines() if line.startswith(f"{kind}Name=")]
    if not found and f"No {kind.lower()}s in the system" not in text:
        raise _unreadable(text, "scontrol")
    return found


def node_details() -> list[str]:
    """`scontrol show node -d -o`: a line per node, also with the GRES and CPUs in use."""
    return _all_records("Node", "-d")


def dry_run(*argv: str | Path) -> CommandResult:
    """Return the answer of `sbatch --test-only` to options, and a script: a start, or a refusal.

    Nothing is queued.
    """
    words = [*map(str, argv)]
    return ask(["sbatch", "--test-only", *words], check=False, seconds=_TEST_SECONDS)


def refusal(answer: CommandResult) -> tuple[str, ...]:
    """Return why an answer of `dry_run` refuses a job; () for one that Slurm would take.

    That nodes are not there at the moment, or that a limit is reached, is no refusal: the job would
    wait.
    """
    if answer.ok or any(sign in answer.stderr for sign in (*_NOT_NOW, *_FULL)):
        return ()
    lines = _lines_of(answer)
    if any(sign in line for line in lines for sign in _AWAY):
        raise _away(lines[-3:])
    return tuple(line for line in lines if line and "--help" not in line) or ("no reason given",)


def _lines_of(answer: CommandResult) -> list[str]:
    """What a command of Slurm's that failed says, without its name."""
    begins = re.compile(r"^(sbatch|srun|allocation failure|error): ?(error: )?")
    lines = (answer.stderr.strip() or answer.stdout.strip()).splitlines()
    return [begins.sub("", line) for line in lines]


def of_nodes(field: str, hostlist: str) -> dict[str, str]:
    """A field of each of these nodes, as Slurm's text; by node.

    Such as `State` (`DOWN*`, `IDLE+DRAIN`), and `SlurmdStartTime`, when slurmd last started.
    """
    text = ask(["scontrol", "show", "node", "-o", hostlist]).stdout if hostlist else ""
    found = [parse.pairs(line) for line in text.splitlines() if line.startswith("NodeName=")]
    return {node["NodeName"]: node.get(field, "") for node in found}


def config() -> dict[str, str]:
    """Slurmctld's configuration, by key."""
    text = ask(["scontrol", "show", "config"]).stdout
    found = parse.config(text)
    if "ClusterName" not in found:
        raise _unreadable(text, "scontrol")
    return found


def mpi_plugins() -> tuple[str, ...]:
    """The plug-ins that `srun --mpi=` takes here."""
    answer = ask(["srun", "--mpi=list"])
    found = parse.mpi_plugins(answer.stdout + answer.stderr)
    if "none" not in found:  # every release has it
        raise _unreadable(answer.stdout, "srun")
    return found


def would_run(script: Path) -> None:
    """Raise BadInput for a script that slurmctld would not take; nothing is queued."""
    if why := refusal(dry_run(script)):
        raise BadInput("Slurm would not take this job", details=why)


def is_full(fault: BadInput) -> bool:
    """Whether Slurm refused a job because a limit on the number of jobs is reached."""
    return any(sign in line for line in fault.details for sign in _FULL)


def array_room(script: Path, tasks: int) -> int:
    """How many tasks of this array Slurm takes now, where limits on jobs kept out `tasks` of them.

    It is asked: limits of associations, their parents, QOS and partitions add up, and some are only
    seen by those whom they do not bind.
    """
    low = 0
    while tasks - low > 1:
        middle = (low + tasks) // 2
        answer = dry_run(f"--array=0-{middle - 1}", script)
        low, tasks = (
            (low, middle) if any(map(answer.stderr.__contains__, _FULL)) else (middle, tasks)
        )
    return low


class SubmitLimits(NamedTuple):
    """The limits of slurm.conf now: tasks of one array, more jobs, and what bounds these."""

    array_tasks: int
    jobs: int
    setting: str


def submit_limits() -> SubmitLimits:
    """The limits on what may be submitted, where a task of an array counts as a job.

    Jobs that are hidden from this user are not counted here.
    """
    settings = config()
    most = int(settings.get("MaxJobCount", "10000"))
    queued = ask(["squeue", "--all", "--array", "--noheader", "--states=all", "--format=%A"])
    # slurmctld stops one below the limit. Then sbatch itself waits, for up to two minutes a call.
    room = max(0, most - 1 - len(queued.stdout.splitlines()))
    tasks = max(1, int(settings.get("MaxArraySize", "1001")))
    return SubmitLimits(tasks, room, f"MaxJobCount={most}")


def cancel(job_ids: Sequence[int]) -> None:
    """Cancel jobs; those that have ended already are no error."""
    if not job_ids:
        return
    answer = ask(["scancel", *map(str, job_ids)], check=False)
    lines = [line for line in answer.stderr.splitlines() if line.strip()]
    # It names each job that is gone, cancels the others, and exits with 1.
    gone = [line for line in lines if any(sign in line for sign in _GONE)]
    if not answer.ok and (not lines or len(gone) < len(lines)):
        refuse(answer)


def ask(
    argv: Sequence[str], *, check: bool = True, tied: bool = False, seconds: float = _ANSWER_SECONDS
) -> CommandResult:
    """Run one of Slurm's commands with a clean environment and a time limit in seconds."""
    if shutil.which(argv[0]) is None:
        raise MissingPrerequisite(
            f"Slurm's command '{argv[0]}' is not on PATH",
            hint="log in to the cluster, or start the embedded one: `hpcdl cluster up`, then "
            '`eval "$(hpcdl cluster env)"`',
        )
    conf = os.environ.get("SLURM_CONF")
    if conf and not Path(conf).exists():  # Slurm's commands would try again for a minute
        raise _away([f"SLURM_CONF names {conf}, which is not there"])
    try:
        # Times are compared and shown: in one form, whatever the caller likes.
        # What sbatch has, the job has: there the user's own defaults stay.
        given = _clean_environment() if argv[0] == "sbatch" else query_environment()
        environment = {**given, "SLURM_TIME_FORMAT": "standard"}
        answer = run(
            argv,
            base_env=environment,
            check=False,
            timeout=seconds,
            tied=tied,
            watch=_patience(argv[0], seconds),
        )
    except Stopped as late:  # a controller that is gone may just be silent
        raise _away([late.message]) from late
    if check and not answer.ok:
        refuse(answer)
    return answer


def _patience(program: str, seconds: float) -> Callable[[], None]:
    """Return a function that prints once that Slurm is slow, so that nobody kills the command."""
    late = time.monotonic() + _SLOW_SECONDS
    warned: list[str] = []

    def watch() -> None:
        if not warned and time.monotonic() > late:
            warned.append(program)
            held = ", also after Ctrl-C" if program == "sbatch" else ""
            note = f"note: {program} has not answered yet; it gets {seconds:.0f} s{held}"
            print(note, file=sys.stderr)

    return watch


def _away(lines: Sequence[str]) -> SlurmAway:
    return SlurmAway(
        "Slurm does not answer",
        details=lines,
        hint="is slurmctld running, and is SLURM_CONF right? For the embedded cluster: "
        '`hpcdl cluster status`, and `eval "$(hpcdl cluster env)"` sets SLURM_CONF',
    )


def refuse(answer: CommandResult, what: str = "") -> None:
    """Raise the right error for a command of Slurm's that failed."""
    lines = (answer.stderr.strip() or answer.stdout.strip()).splitlines()
    if any(sign in line for line in lines for sign in _AWAY):
        raise _away(lines[-3:])
    if what:
        raise BadInput(what, details=_lines_of(answer))
    hint = "run it by hand; `hpcdl doctor` shows which Slurm is on PATH"
    raise CommandFailed(answer, hint=hint)


def parsed(parser: Callable[[_Text], _T], text: _Text, command: str) -> _T:
    """Return what `parser` reads in a command's output; `MissingPrerequisite` if unexpected."""
    try:
        return parser(text)
    except (KeyError, ValueError, IndexError) as fault:
        raise _unreadable(text if isinstance(text, str) else "\n".join(text), command) from fault


def _unreadable(text: str, command: str) -> MissingPrerequisite:
    return MissingPrerequisite(
        f"unexpected output from {command}",
        details=text[:300].splitlines(),
        hint=f"is another program called '{command}' first on PATH?",
    )


def live_cluster() -> Cluster:
    """Return the partitions, names and settings of the Slurm on PATH.

    Raises MissingPrerequisite: there is none, or it does not answer.
    """
    from hpcdl.slurm.fits import Cluster

    settings, own, every, mpi = config(), nodes(), partitions(), _mpi()
    return Cluster(
        where=f"'{settings['ClusterName'].split()[0]}'",
        partitions=frozenset(partition.name for partition in every),
        plugin_options=frozenset(plugin_options()),
        settings=settings,
        limits={
            partition.name: _limits(partition, own, settings, mpi)
            for partition in every
            if partition.node_count
        },
        default=next((partition.name for partition in every if partition.default), ""),
    )


def _limits(
    partition: PartitionRecord,
    nodes: Sequence[NodeRecord],
    settings: dict[str, str],
    mpi: tuple[str, ...] | None,
) -> PartitionLimits:
    from hpcdl.slurm.fits import NodeKind, PartitionLimits
    from hpcdl.slurm.options import slurm_minutes

    own = Counter(map(_kind, (node for node in nodes if partition.name in node.partitions)))
    size = re.match(r"\d+", settings.get("MaxArraySize", ""))
    return PartitionLimits(
        partition.name,
        tuple(
            NodeKind(count, cpus, memory, dict(gpus), features)
            for (cpus, memory, gpus, features), count in own.items()
        ),
        None if partition.max_time == "UNLIMITED" else slurm_minutes(partition.max_time),
        arrays=int(size[0]) if size else None,
        mpi=mpi,
    )


def _kind(node: NodeRecord) -> tuple[int, int, tuple[tuple[str, int], ...], frozenset[str]]:
    """Return the key by which nodes are equal for a job: CPUs and MB for jobs, GPUs, features."""
    gpus = tuple((kind or "", count) for kind, count in node.gpus)
    return node.cpus, node.memory_mb, gpus, frozenset(node.features)


def _mpi() -> tuple[str, ...] | None:
    """The plug-ins of `srun --mpi=`; None where srun does not list them."""
    try:
        return mpi_plugins()
    except HpcdlError:
        return None
