"""Pure parsers of what Slurm's commands print, from 20.11 to 26.05.

Jobs are read by formats of our own (squeue -o), not from `scontrol show job` or `--json`: there,
text that users choose (names, comments, paths) can look like fields and records, and `--json` came
late and changed shape between releases. Nodes and partitions are written by admins only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

ACTIVE = frozenset(
    {
        "PENDING",
        "CONFIGURING",
        "RUNNING",
        "COMPLETING",
        "REQUEUED",
        "REQUEUE_HOLD",
        "RESIZING",
        "SIGNALING",
        "STAGE_OUT",
        "STOPPED",
        "SUSPENDED",
        "REQUEUE_FED",
        "SPECIAL_EXIT",
    }
)
"""Job states that may still change (squeue(1), job state codes)."""

# The words of a node's state, and "*" behind one that does not answer (sinfo(1), node state codes).
# One that Slurm powered down to save energy is started for the next job: it takes jobs.
_OUT = re.compile(
    r"\b(DOWN|DRAIN(ED|ING)?|FAIL(ING)?|NOT_RESPONDING|INVAL(ID_REG)?)\b", re.IGNORECASE
)
_NOT_NOW = re.compile(
    r"\b(ERROR|MAINT|RESERVED|BLOCKED|POWERING_DOWN|REBOOT|UNKNOWN|FUTURE)|\*", re.IGNORECASE
)
# Of GPUs without a type, those in use are `gpu:(null):3(IDX:0-2)` from Slurm 21.08 on.
_GPU = re.compile(r"(?:^|,)gpu(?::(?:\(null\)|([^:,()\s]+)))?:(\d+)(?=[(,]|$)")
_SPAN = re.compile(r"([0-9]+)(?:-([0-9]+)(?::([0-9]+))?)?\Z")
_PAIR = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9_:/()*-]*)=")


class JobRecord(NamedTuple):
    """Slurm's current record of a job. Times are Slurm's text, empty if unknown.

    `exit_code` and `signal` are those of the batch script; `restarts` counts requeues.
    `array_job` and `array_tasks` say which tasks of which array it is; those that still wait
    are one record (`3-9%2`). `cancelled_by` is a user id, as accounting has it.
    """

    id: int
    name: str
    state: str
    reason: str
    exit_code: int
    signal: int
    partition: str
    nodes: str
    restarts: int
    submitted: str
    started: str
    ended: str
    time_limit: str
    script: str
    array_job: int | None = None
    array_tasks: str = ""
    cancelled_by: int | None = None

    def has_task(self, task: int) -> bool:
        """Whether this record is about a task of its array.

        A list that is cut short, or in an unknown format, stands for all tasks: one that
        may wait must not be queued again.
        """
        pieces = self.array_tasks.partition("%")[0].split(",")
        spans = [_SPAN.match(piece) for piece in pieces if piece]
        return any(span is None or task in _numbers(span) for span in spans)

    @property
    def active(self) -> bool:
        """Whether the job may still change its state."""
        return self.state in ACTIVE


class NodeRecord(NamedTuple):
    """slurmctld's record of a node; memory in MB, `gres` as Slurm writes it.

    `usable_cpus` are those that jobs may have: CPUEfctv, or without CoreSpecCount; `memory_mb` is
    what they may have, RealMemory without MemSpecLimit.
    """

    name: str
    partitions: tuple[str, ...]
    state: str
    cpus: int
    sockets: int
    cores_per_socket: int
    threads_per_core: int
    memory_mb: int
    gres: str
    features: tuple[str, ...]
    reason: str
    usable_cpus: int = 0

    @property
    def gpus(self) -> tuple[tuple[str | None, int], ...]:
        """Types and counts of its GPUs, in order; type None where Slurm gives none."""
        return tuple(gpu_counts(self.gres).items())


class PartitionRecord(NamedTuple):
    """slurmctld's record of a partition; `qos` is its own, `allowed_qos` is '' for all."""

    name: str
    nodes: str
    node_count: int
    max_time: str
    default: bool
    qos: str = ""
    allowed_qos: str = ""
    allowed_accounts: str = ""
    state: str = "UP"


class Reservation(NamedTuple):
    """Nodes that Slurm keeps; times as Slurm writes them."""

    name: str
    nodes: str
    start: str
    end: str


class QosLimits(NamedTuple):
    """The limits of a quality of service, as Slurm writes them; '' for no limit."""

    name: str
    max_wall: str
    max_tres: str
    max_tres_of_user: str
    max_jobs_of_user: str
    max_submitted_of_user: str

    @property
    def shown(self) -> str:
        """The limits in one line, by sacctmgr's names: `MaxWall=08:00:00, MaxTRESPU=gres/gpu=4`."""
        names = ("MaxWall", "MaxTRES", "MaxTRESPU", "MaxJobsPU", "MaxSubmitPU")
        pairs = zip(names, self[1:], strict=True)
        return ", ".join(f"{name}={value}" for name, value in pairs if value)


def is_out(state: str) -> bool:
    """Whether a node in this state starts no job until a person acts."""
    return _OUT.search(state) is not None


def takes_jobs(state: str) -> bool:
    """Whether a node in this state starts jobs now."""
    return not (is_out(state) or _NOT_NOW.search(state))


def gpu_counts(gres: str) -> dict[str | None, int]:
    """The GPUs in a list of GRES by type, in order; None where Slurm gives them no type."""
    found: dict[str | None, int] = {}
    for kind, count in _GPU.findall(gres):
        found[kind or None] = found.get(kind or None, 0) + int(count)
    return {kind: count for kind, count in found.items() if count}


def pairs(line: str) -> dict[str, str]:
    """`Key=Value Key=Value` of `scontrol show ... -o`; values may hold blanks and `=`."""
    marks = list(_PAIR.finditer(line))
    ends = [*(mark.start() for mark in marks[1:]), len(line)]
    return {mark[1]: line[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=False)}


def job_id(text: str) -> int:
    """Return the job id in the output of `sbatch --parsable`: `7` or `7;cluster`."""
    number = int(text.strip().split(";")[0])
    if number < 1:
        raise ValueError(f"{number} is no job id")
    return number


def marked_format(fields: Sequence[str], mark: str) -> str:
    """A format for squeue with `<mark>` before every record and `|mark|` between its fields."""
    return f"<{mark}>" + f"|{mark}|".join(fields)


def without_cluster(text: str) -> str:
    """An answer of squeue without the line above its heading that SLURM_CLUSTERS brings."""
    return re.sub(r"\ACLUSTER: \S+\n", "", text)


def marked(text: str, mark: str) -> list[list[str]]:
    """The records of an answer to `marked_format`.

    Whoever chose a name or a path could not know the mark of this call, so neither a newline nor a
    separator in it makes a field or a record. The heading is the first record of every answer; it
    is left out.

    Raises ValueError: there is no heading, so this is no answer, or several: of several clusters.
    """
    head, *records = without_cluster(text).split(f"<{mark}>")
    if head.strip() or not records:
        raise ValueError("an answer without its heading")
    heading, *rows = [[field.strip() for field in one.split(f"|{mark}|")] for one in records]
    if any(row[0] == heading[0] for row in rows):
        raise ValueError("answers of several clusters")
    return rows


def current(rows: Sequence[list[str]]) -> list[list[str]]:
    """Rows of JOB_FORMAT without those of clusters that gave the job to another of the federation.

    Where squeue shows a whole federation (FederationParameters=fed_display), the job has a row of
    the same id for each; REVOKED alone means that the other cluster runs it.
    """
    had = {row[0] for row in rows if row[1] != "REVOKED"}
    return [row for row in rows if row[1] != "REVOKED" or row[0] not in had]


JOB_FORMAT = ("%A", "%T", "%F", "%K", "%P", "%N", "%V", "%S", "%e", "%l", "%r", "%o", "%j")
"""What squeue is asked of a job (squeue(1), --format), in this order."""
EXIT_FORMAT = "JobID:12,exit_code:12,RestartCnt:12"
"""Fields that only squeue's long format has: numbers, so no text of users."""


def job(fields: Sequence[str], ended: Sequence[int] = (0, 0, 0)) -> JobRecord:
    """A record of squeue.

    `fields` are those of JOB_FORMAT; `ended` has the batch script's exit code and signal, and the
    number of restarts.
    """
    number, state, array, tasks, where, nodes, submitted, *times, reason, script, name = fields
    started, end, limit = times
    code, signal, restarts = ended
    return JobRecord(
        id=int(number),
        name=name,
        state=state,
        reason=reason,
        exit_code=code,
        signal=signal,
        partition=where,
        nodes=_known(nodes),
        restarts=restarts,
        submitted=_known(submitted),
        started=_known(started),
        ended=_known(end),
        time_limit=limit,
        script=_known(script),
        array_job=int(array) if _known(tasks) else None,
        array_tasks=_known(tasks),
    )


def exits(text: str) -> dict[int, tuple[int, int, int]]:
    """Return exit code, signal and restarts by job id, from squeue's EXIT_FORMAT.

    Slurm 24.11 writes `3:0`, 22.05 the wait status 768 (wait(2)).
    """
    by_job = {}
    for line in without_cluster(text).splitlines()[1:]:
        number, ended, restarts = line.split()
        status, colon, signal = ended.partition(":")
        code = int(status) if colon else int(status) >> 8
        by_job[int(number)] = (code, int(signal) if colon else int(status) & 0x7F, int(restarts))
    return by_job


def accounted_job(lines: Sequence[str]) -> JobRecord:
    """The lines of `sacct -n -P -X -D -o ACCOUNTING_FIELDS`: one per run of the job, last last."""
    keys = ACCOUNTING_FIELDS.split(",")  # the last one may hold the separator
    runs = [dict(zip(keys, line.split("|", len(keys) - 1), strict=True)) for line in lines]
    values = runs[-1]
    code, _, signal = values["ExitCode"].partition(":")
    by = re.fullmatch(r"CANCELLED by (\d+)", values["State"])
    return JobRecord(
        id=int(values["JobIDRaw"]),
        name=values["JobName"],
        state=values["State"].split()[0],
        reason="None",
        exit_code=int(code or 0),
        signal=int(signal or 0),
        partition=values["Partition"],
        nodes=_known(values["NodeList"].replace("None assigned", "")),
        # Ids start anew where a controller's state was lost: another job may have had this one.
        restarts=sum(run["JobName"] == values["JobName"] for run in runs) - 1,
        submitted=_known(values["Submit"]),
        started=_known(values["Start"]),
        ended=_known(values["End"]),
        time_limit=values["Timelimit"],
        script="",
        cancelled_by=int(by[1]) if by else None,
    )


def own_lines(text: str, mark: str) -> list[str]:
    """The lines of ACCOUNTING_FIELDS that sacct began itself, with `|` in place of `mark`.

    Whoever chose a name could not know the mark: what follows a newline in one is no line here.

    Raises ValueError: there is none, so this is no answer.
    """
    count = ACCOUNTING_FIELDS.count(",")
    found = [line.replace(mark, "|") for line in text.split("\n") if line.count(mark) == count]
    if text.strip() and not found:
        raise ValueError("no line has the fields that were asked for")
    return found


ACCOUNTING_FIELDS = "JobIDRaw,State,ExitCode,Partition,NodeList,Submit,Start,End,Timelimit,JobName"


def node(line: str) -> NodeRecord:
    """A line of `scontrol show node -o`."""
    fields = pairs(line)
    cpus, threads = int(fields.get("CPUTot", "1")), int(fields.get("ThreadsPerCore", "1"))
    reserved = int(fields.get("CoreSpecCount", "0")) * threads
    memory = int(fields.get("RealMemory", "1")) - int(fields.get("MemSpecLimit", "0"))
    return NodeRecord(
        name=fields["NodeName"],
        partitions=tuple(_listed(fields.get("Partitions", ""))),
        state=fields.get("State", ""),
        cpus=cpus,
        sockets=int(fields.get("Sockets", "1")),
        cores_per_socket=int(fields.get("CoresPerSocket", "1")),
        threads_per_core=threads,
        memory_mb=max(1, memory),
        gres=_known(fields.get("Gres", "")),
        features=tuple(_listed(_known(fields.get("AvailableFeatures", "")))),
        reason=fields.get("Reason", ""),
        # Slurm 20.11 has no CPUEfctv.
        usable_cpus=int(fields.get("CPUEfctv") or max(1, cpus - reserved)),
    )


def partition(line: str) -> PartitionRecord:
    """A line of `scontrol show partition -o`."""
    fields = pairs(line)
    return PartitionRecord(
        name=fields["PartitionName"],
        nodes=_known(fields.get("Nodes", "")),
        node_count=int(fields.get("TotalNodes", "0")),
        max_time=fields.get("MaxTime", "UNLIMITED"),
        default=fields.get("Default", "NO") == "YES",
        qos=_known(fields.get("QoS", "")),
        allowed_qos=_limited(fields.get("AllowQos", "ALL")),
        allowed_accounts=_limited(fields.get("AllowAccounts", "ALL")),
        state=fields.get("State", "UP"),
    )


def reservation(line: str) -> Reservation:
    """A line of `scontrol show reservation -o`."""
    fields = pairs(line)
    return Reservation(
        fields["ReservationName"],
        _known(fields.get("Nodes", "")),
        fields.get("StartTime", ""),
        fields.get("EndTime", ""),
    )


QOS_FIELDS = "Name,MaxWall,MaxTRES,MaxTRESPU,MaxJobsPU,MaxSubmitPU"


def qos_limits(line: str) -> QosLimits:
    """A line of `sacctmgr -nP show qos format=QOS_FIELDS`."""
    return QosLimits(*line.split("|"))


def config(text: str) -> dict[str, str]:
    """`scontrol show config` as a mapping; the headings are left out."""
    found = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, _, value in found}


def plugin_options(text: str) -> tuple[str, ...]:
    """The options below the heading of plug-ins in `sbatch --help`; the heading is there if any."""
    _, _, listed = text.partition("Options provided by plugins:")
    return tuple(re.findall(r"^ +(?:-\w, *)?--([A-Za-z0-9][\w-]*)", listed, re.M))


def mpi_plugins(text: str) -> tuple[str, ...]:
    """`srun --mpi=list`: one per line in every release, with headings that end in a colon."""
    found: list[str] = []
    for line in map(str.strip, text.splitlines()):
        _, colon, rest = line.rpartition(":")
        names = rest.split(",") if colon and rest else [] if colon else [line]
        found += [name.strip() for name in names if re.fullmatch(r"[a-z0-9_]+", name.strip())]
    return tuple(dict.fromkeys(found))


def _numbers(span: re.Match[str]) -> range:
    """The numbers of `7`, `3-9` or `0-12:4`."""
    first, last, step = span.groups()
    return range(int(first), int(last or first) + 1, max(1, int(step or 1)))


def _listed(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _limited(text: str) -> str:
    return "" if text == "ALL" else text


def _known(text: str) -> str:
    return "" if text in {"(null)", "Unknown", "N/A", "None", "None assigned"} else text
