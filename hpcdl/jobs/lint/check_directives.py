"""Checks of options: how directives are written, what a release knows, which pairs it refuses."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from difflib import SequenceMatcher

from hpcdl.facts import load
from hpcdl.jobs.lint.checks import checks
from hpcdl.jobs.lint.gaps import GAP
from hpcdl.jobs.lint.job import Hit, Job, at, gpu_requests, nodes, tasks
from hpcdl.jobs.lint.options import Option, Options, known_options, letters, read_options
from hpcdl.jobs.lint.parse import CONTINUED, Line, Script, directive_words
from hpcdl.site import Partition
from hpcdl.slurm.rules import Span, mpi_plugins, span
from hpcdl.slurm.time_limit import slurm_minutes
from hpcdl.system.text import count_of, nearest

_LOOKS_LIKE = re.compile(r"#(?:sbatch|slurm|sbtach|sbacth|sabtch)\b(?=[ \t]+-)", re.I | re.A)
"""`# SBATCH`, with a blank, is how people switch a directive off."""
_DIRECTIVES = ("#SBATCH", "#SLURM")
_SETUP = {"", "module", "ml", "source", ".", "export", "set", "unset", "echo", "printf", "cd",
          "ulimit", "umask", "conda", "date", "hostname", "mkdir", "shopt", "alias"}  # fmt: skip
"""Commands before which directives may be meant to stand in a script without others."""
_NAME = re.compile(r"[A-Za-z_]\w*(?:=.*)?\Z", re.A | re.S)
_SHELL_VARIABLE = re.compile(r"\$(?:\{?([A-Za-z_]\w*)|\()|`", re.A)
_EVERYWHERE = re.compile(
    r"(?:|USER_*|HOME|PWD|HOSTNAME|LOGNAME|SCRATCH|WORK|TMPDIR|DATE|RANDOM|SLURM_\w+)\Z", re.A
)
"""Variables of a shell or a job; nothing stands for what a command prints."""
_MAX_SUGGESTIONS = 20
_TIME = re.compile(r"(?:\d{1,5}-)?\d{1,7}(?::\d{1,2}){0,2}", re.A)
_ALIKE = 0.8
"""So much of two names is the same where one is a slip of the pen: `--partiton`, not `--image`."""


@checks("directive-after-command", "directive-misspelt")
def stray_directives(job: Job) -> Iterator[Hit]:
    """Lines that look like directives and are none."""
    script = job.script
    marked = [line for line in script.lines if line.text.startswith("#SBATCH")]
    if not script.is_batch and not all(script.is_comment(line.start) for line in marked):
        return  # It writes batch scripts, and is none.
    header = [line for line in marked if line.number < script.header_end]
    right = {_said(line) for line in header}
    until = _notes_begin(script, bool(header))
    for line in marked[len(header) :] if script.shebang else ():
        meant = line.start < until and not GAP.search(line.text) and _said(line) not in right
        if meant and script.is_comment(line.start):
            yield Hit("directive-after-command", line.start, len(line.text))
    for line in script.lines[: script.header_end - 1]:
        if (found := _LOOKS_LIKE.match(line.text)) and not line.text.startswith(_DIRECTIVES):
            words, _ = directive_words(line, found.end())
            options = read_options(words, "sbatch", expands=False)
            again = line.text[found.end() :].strip() in right
            # One that names a script says how to submit it; of others sbatch knows the options.
            if not (again or options.rest) and all(one.fact for one in options.given):
                yield Hit("directive-misspelt", line.start, len(line.text))


def _said(line: Line) -> str:
    return line.text[len("#SBATCH") :].split("#")[0].strip()


def _notes_begin(script: Script, batch: bool) -> int:
    """From where on a late directive is a note, not meant for sbatch.

    What stands behind `exit` or behind all commands; in a script without others, behind its work.
    """
    ends = [one.start for one in script.commands if one.name == "exit" and not one.scopes]
    work = [one.start for one in script.commands if not batch and one.name not in _SETUP]
    return min([*ends[:1], *work[:1], *(one.start for one in script.commands[-1:])], default=0)


@checks("directive-argument", "directive-continued")
def broken_directives(job: Job) -> Iterator[Hit]:
    """Directives that sbatch refuses, or reads otherwise than they look."""
    for directive in job.script.directives:
        line, rest = directive.line, directive.options.rest
        below = job.script.lines[line.number : line.number + 1]
        if directive.broken == CONTINUED and any(one.text[:1] not in {"", "#"} for one in below):
            end = line.start + len(line.text.rstrip()) - 1
            yield Hit("directive-continued", end, 1)
        elif directive.broken not in {"", CONTINUED}:
            yield Hit("directive-argument", line.start, len(line.text), directive.broken)
        elif rest and all(o.fact for o in directive.options.given):
            detail = f"'{rest[0].value[:60]}' is not an option"
            yield Hit("directive-argument", rest[0].start, len(rest[0].raw), detail)


@checks("directive-variable")
def variables_in_directives(job: Job) -> Iterator[Hit]:
    """`#SBATCH --output=$HOME/x`: it is not expanded. `--wrap` and `--export` are for the job.

    A variable that neither the script nor every shell sets is one that a wrapper fills in.
    """
    own = {one.name for one in job.script.assignments}
    mail = job.options.last("mail-type")
    unread = {"wrap", "comment", "export"}
    if mail is None or mail.text.upper() == "NONE":
        unread.add("mail-user")
    for option in job.options.given:
        names = set(_SHELL_VARIABLE.findall(option.text))
        known = names and all(one in own or _EVERYWHERE.match(one) for one in names)
        if known and option.name not in unread:
            yield at("directive-variable", option, f"'{option.text[:60]}' is not expanded")


@checks("option-unknown", "option-removed", "option-misspelt", "option-foreign")
def unknown_options(job: Job) -> Iterator[Hit]:
    """Options and values that this release, or any release, does not know."""
    close: dict[tuple[str, str], str] = {}
    for command, options in job.commands_at():
        for option in options.given:
            if option.fact is not None:
                yield from _outside(job, option, option.fact.span, f"--{option.fact.name}")
                yield from _value_outside_its_span(job, command, option)
                continue
            key = command, option.name[:60]
            if key not in close:
                names = {*known_options(command), *(job.cluster.plugin_options or ())}
                close[key] = (
                    _nearest(command, key[1], names) if len(close) < _MAX_SUGGESTIONS else ""
                )
            plugins = job.cluster.plugin_options
            if option.name in (plugins or ()):
                continue
            other = "srun" if command == "sbatch" else "sbatch"
            theirs = option.name in known_options(other)
            # Plug-ins add long options only.
            sure = close[key] or len(option.name) == 1 or theirs or plugins is not None
            rule = "option-misspelt" if sure else "option-foreign"
            dashes = "--" if job.script.text.startswith("--", option.start) else "-"
            hint = f", {other} has" if theirs else close[key]
            yield at(rule, option, f"{command} has no {dashes}{option.name[:60]}{hint}")


def _outside(job: Job, option: Option, releases: Span, what: str) -> Iterator[Hit]:
    """A hit where the release is none of these: too early, or too late."""
    if not releases.holds(job.release):
        early = releases.since is not None and job.release < releases.since
        yield at("option-unknown" if early else "option-removed", option, f"{what}: {releases}")


def _value_outside_its_span(job: Job, command: str, option: Option) -> Iterator[Hit]:
    if not option.value:
        return
    given = {part.partition(":")[0].lower() for part in option.value.split(",")[:50]}
    for row in load("slurm_rules")["values"]:
        if row["option"] != option.name or row["value"].lower() not in given:
            continue
        if command in row.get("commands", (command,)):
            yield from _outside(job, option, span(row), f"--{option.name}={row['value']}")


def _nearest(command: str, name: str, names: Collection[str]) -> str:
    if len(name) == 1:  # --c: several options begin so
        return f"; did you mean '-{name}'?" if name in letters(command) else ""
    close = nearest(name, names)
    alike = close is not None and SequenceMatcher(a=close, b=name.lower()).ratio() >= _ALIKE
    return f"; did you mean '--{close}'?" if alike else ""


@checks("exclusive-oversubscribe", "memory-flags", "exact-whole", "exclusive-overlap",
        "cpus-per-gpu-excludes", "gpu-bind-alias")  # fmt: skip
def exclusive_pairs(job: Job) -> Iterator[Hit]:
    """Options of one command that exclude each other."""
    pairs = (
        ("exclusive-oversubscribe", "exclusive", "oversubscribe", ""),
        ("memory-flags", "mem", "mem-per-cpu", ""),
        ("memory-flags", "mem", "mem-per-gpu", ""),
        ("memory-flags", "mem-per-cpu", "mem-per-gpu", ""),
        ("exact-whole", "exact", "whole", "srun"),
        ("exclusive-overlap", "exclusive", "overlap", "srun"),
        ("cpus-per-gpu-excludes", "cpus-per-gpu", "cpus-per-task", ""),
        ("gpu-bind-alias", "gpu-bind", "tres-bind", ""),
    )
    for command, options in job.commands_at():
        for rule, first, second, only in pairs:
            one, other = options.last(first), options.last(second)
            if one and other and only in {"", command}:
                yield at(rule, max(one, other, key=lambda option: option.start))


@checks("ntasks-per-gpu-excludes")
def ntasks_per_gpu_pairs(job: Job) -> Iterator[Hit]:
    """--ntasks-per-gpu beside what it excludes, in the same command."""
    for _, options in job.commands_at():
        other = options.last("ntasks-per-node", "gpus-per-task", "gpus-per-socket")
        tres = options.last("tres-per-task")
        if tres and "gpu" in tres.text:
            other = other or tres
        if other and options.has("ntasks-per-gpu"):
            yield at("ntasks-per-gpu-excludes", other, f"--{other.name} with --ntasks-per-gpu")


@checks("ntasks-per-node")
def tasks_not_per_node(job: Job) -> Iterator[Hit]:
    """--nodes and --ntasks without --ntasks-per-node, where a step takes its tasks from them."""
    pinned = ("ntasks-per-node", "ntasks-per-gpu", "gpus-per-task", "tres-per-task")
    own = ("ntasks-per-node", "ntasks", "distribution")
    for part in job.script.components:
        count, total, option = nodes(part), tasks(part), part.last("ntasks")
        if not (option and count and total and count > 1) or part.has(*pinned):
            continue
        # Without GPUs an uneven count may be meant: a controller and its workers.
        meant = total <= count or (not job.has_gpus and total % count > 0)
        placed = (step.options.last("ntasks-per-node", "distribution") for step in job.sruns)
        if meant or any(one and one.text != "block" for one in placed):
            continue
        work = [step.options for step in job.sruns if not step.brief]
        if job.has_gpus or any(not options.has(*own) for options in work):
            yield at("ntasks-per-node", option)


@checks("export-comma", "export-twice")
def export_lists(job: Job) -> Iterator[Hit]:
    """--export given twice, or with commas inside of a value."""
    for _, options in job.commands_at():
        exports = [option for option in options.given if option.name == "export"]
        if len({option.text for option in exports}) > 1:
            yield at("export-twice", exports[-1])
        for option in exports:
            parts = option.text.split(",")
            text = next((part for part in parts if part and not _NAME.match(part)), None)
            if text is not None and "=" in option.text and len(parts) > 1:
                yield at("export-comma", option, f"'{text[:40]}' is taken for a name")


@checks("mpi-plugin", "pmix-v2-broken")
def mpi_of_steps(job: Job) -> Iterator[Hit]:
    """--mpi= of steps against the plug-ins of the release."""
    plugins = mpi_plugins(job.release)
    for step in job.sruns:
        option = step.options.last("mpi")
        if option is None or "$" in option.text or option.text == "list":
            continue
        name = option.text.partition(",")[0]
        if name not in plugins and any(row["name"] == name for row in load("slurm_rules")["mpi"]):
            detail = f"Slurm {job.release} has: {', '.join(plugins)}"
            yield at("mpi-plugin", option, detail)
        elif name in {"pmix_v2", "pmix_v3"}:
            yield at("pmix-v2-broken", option)


@checks("partition-limit")
def beyond_the_partition(job: Job) -> Iterator[Hit]:
    """What the directives ask for against the partition, where that is known."""
    partition = job.partition
    if partition is None or job.heterogeneous:
        return
    asked = job.options.last("partition")
    if asked is not None and partition.name not in asked.text.split(","):
        return
    for request in gpu_requests(job.options):
        if request.option.name not in {"gpus-per-node", "gres"}:
            continue
        most = _most_gpus(partition, request.kind)
        if request.count > most:
            detail = f"'{partition.name}' has {most} GPUs per node"
            yield at("partition-limit", request.option, detail)
    option = job.options.last("nodes")
    if option and job.nodes is not None and job.nodes > partition.nodes:
        yield at(
            "partition-limit", option, f"'{partition.name}' has {count_of(partition.nodes, 'node')}"
        )
    yield from _too_many_cpus(job, job.options)
    limit, minutes = job.options.last("time"), time_minutes(job.options)
    if limit and minutes is not None and minutes > partition.max_minutes:
        yield at("partition-limit", limit, f"'{partition.name}' allows {partition.max_time}")


def _most_gpus(partition: Partition, kind: str) -> int:
    """GPUs of the node that has most of them, of a type where its groups have that type."""
    groups = [group.gpu for group in partition.node_groups if group.gpu]
    of_kind = [gpu for gpu in groups if gpu.gres_type == kind]
    return max((gpu.per_node for gpu in of_kind or groups), default=0)


def _too_many_cpus(job: Job, options: Options) -> Iterator[Hit]:
    partition, option = job.partition, options.last("cpus-per-task", "ntasks-per-node")
    assert partition is not None
    cpus = options.number("cpus-per-task") or 1
    if option and job.tasks_per_node and cpus * job.tasks_per_node > partition.cpus:
        detail = f"'{partition.name}' has {partition.cpus} CPUs per node"
        yield at("partition-limit", option, detail)


def time_minutes(options: Options) -> int | None:
    """--time in minutes, rounded up; None where absent, unlimited or malformed."""
    limit = options.last("time")
    return slurm_minutes(limit.text) if limit and _TIME.fullmatch(limit.text) else None
