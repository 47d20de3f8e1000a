"""Checks of options: how they and their values are written, what releases and clusters know."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from difflib import SequenceMatcher
from functools import cache
from typing import Any

from hpcdl.facts import load
from hpcdl.jobs.lint.job import Hit, Job, Names, at, checks
from hpcdl.jobs.lint.options import Option, Options, known_options, letters, read_options
from hpcdl.jobs.lint.parse import CONTINUED, GAP, Line, Script, directive_words
from hpcdl.site import Partition
from hpcdl.slurm.rules import Release, Span, mpi_plugins, span
from hpcdl.slurm.time_limit import slurm_minutes
from hpcdl.system.text import count_of, nearest

_LOOKS_LIKE = re.compile(r"#(?:sbatch|slurm|sbtach|sbacth|sabtch)\b(?=[ \t]+-)", re.I | re.A)
_SWITCHED_OFF = re.compile(r"#[ \t]+SBATCH\b(?=[ \t]+-)")
"""`# SBATCH`, with a blank, is how people switch a directive off, but not all of a script."""
_DIRECTIVES = ("#SBATCH", "#SLURM")
_SETUP = {
    "",
    "module",
    "ml",
    "source",
    ".",
    "export",
    "set",
    "unset",
    "echo",
    "printf",
    "cd",
    "ulimit",
    "umask",
    "conda",
    "date",
    "hostname",
    "mkdir",
    "shopt",
    "alias",
}
"""Commands before which directives may be meant to stand in a script without others."""
_NAME = re.compile(r"[A-Za-z_]\w*(?:=.*)?\Z", re.A | re.S)
_SHELL_VARIABLE = re.compile(r"\$(?:\{?([A-Za-z_]\w*)|\()|`", re.A)
_EVERYWHERE = re.compile(
    r"(?:|USER_*|HOME|PWD|HOSTNAME|LOGNAME|SCRATCH|WORK|TMPDIR|DATE|RANDOM|SLURM_\w+)\Z", re.A
)
"""Variables of a shell or a job; nothing stands for what a command prints."""
_MAX_SUGGESTIONS = 20
_TIME = re.compile(r"(?:\d{1,5}-)?\d{1,7}(?::\d{1,2}){0,2}", re.A)
_RENAMED = {"workdir": "chdir"}
"""What releases before all known ones called an option: 19.05 dropped --workdir."""
_ALIKE = 0.8
"""So much of two names is the same where one is a slip of the pen: `--partiton`, not `--image`."""
_EXCLUDE_EACH_OTHER = (
    ("exclusive-oversubscribe", "exclusive", "oversubscribe"),
    ("memory-flags", "mem", "mem-per-cpu"),
    ("memory-flags", "mem", "mem-per-gpu"),
    ("memory-flags", "mem-per-cpu", "mem-per-gpu"),
    ("exact-whole", "exact", "whole"),
    ("exclusive-overlap", "exclusive", "overlap"),
    ("cpus-per-gpu-excludes", "cpus-per-gpu", "cpus-per-task"),
    ("gpu-bind-alias", "gpu-bind", "tres-bind"),
)


@checks("directive-after-command", "directive-misspelt")
def stray_directives(job: Job) -> Iterator[Hit]:
    """Lines that look like directives and are none."""
    script = job.script
    marked = [line for line in script.lines if line.text.startswith("#SBATCH")]
    if not script.is_batch and not all(script.is_comment(line.start) for line in marked):
        return  # It writes batch scripts, and is none.
    header = [line for line in marked if line.number <= len(script.header)]
    right = {_said(line) for line in header}
    until = _notes_begin(script, bool(header))
    for line in marked[len(header) :] if script.shebang else ():
        meant = line.start < until and not GAP.search(line.text) and _said(line) not in right
        if meant and script.is_comment(line.start):
            yield Hit("directive-after-command", line.start, len(line.text))
    for line in script.header:
        found = _LOOKS_LIKE.match(line.text)
        found = found or (None if script.is_batch else _SWITCHED_OFF.match(line.text))
        if found and not line.text.startswith(_DIRECTIVES):
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
    if any(one.name.startswith("--") for one in script.commands[:1]):
        return len(script.text)  # It was to be a directive.
    ends = [one.start for one in script.commands if one.name == "exit" and not one.scopes]
    work = [one.start for one in script.commands if not batch and one.name not in _SETUP]
    return min([*ends[:1], *work[:1], *(one.start for one in script.commands[-1:])], default=0)


@checks("directive-argument", "directive-continued")
def broken_directives(job: Job) -> Iterator[Hit]:
    """Directives that sbatch refuses, or reads otherwise than they look."""
    for line, _, options, broken in job.script.directives:
        below = job.script.lines[line.number : line.number + 1]
        if broken == CONTINUED and any(one.text[:1] not in {"", "#"} for one in below):
            yield Hit("directive-continued", line.start + len(line.text.rstrip()) - 1, 1)
        elif broken not in {"", CONTINUED}:
            yield Hit("directive-argument", line.start, len(line.text), broken)
        elif options.rest and all(one.fact for one in options.given):
            word, before = options.rest[0], options.given[-1].value if options.given else None
            detail = f"'{word.value[:60]}' is not an option"
            if before in {"", "="}:
                detail = "write = without blanks"
            elif before and re.search(r"\$\{[^}]*\Z", before):
                detail = f"'{before[:60]}' is not expanded"
            yield at("directive-argument", word, detail)


@checks("directive-variable")
def variables_in_directives(job: Job) -> Iterator[Hit]:
    """`#SBATCH --output=$HOME/x`: it is not expanded. `--wrap` and `--export` are for the job.

    A variable that neither the script nor every shell sets is one that a wrapper fills in.
    """
    own = {one.name for one in job.script.assignments}
    unread = {"wrap", "comment", "export"}
    if job.options.text("mail-type").upper() in {"", "NONE"}:
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
    plugins = job.cluster.plugin_options
    given = [(command, one) for command, options in job.commands_at() for one in options.given]
    for command, option in given:
        name = option.name[:60]
        if option.fact is not None:
            yield from _outside(job, option, option.fact.span, f"--{option.fact.name}")
            yield from _value_outside_its_span(job, command, option)
        elif option.name not in (plugins or ()):
            if (command, name) not in close:
                names = {*known_options(command), *(plugins or ())}
                hint = _nearest(command, name, names) if len(close) < _MAX_SUGGESTIONS else ""
                close[command, name] = hint
            hint = close[command, name]
            other = "srun" if command == "sbatch" else "sbatch"
            theirs = option.name in known_options(other)
            # Plug-ins add long options only.
            sure = hint or len(option.name) == 1 or theirs or plugins is not None
            dashes = "--" if job.script.text.startswith("--", option.start) else "-"
            detail = f"{command} has no {dashes}{name}{f', {other} has' if theirs else hint}"
            yield at("option-misspelt" if sure else "option-foreign", option, detail)


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
        named = row["option"] == option.name and row["value"].lower() in given
        if named and command in row.get("commands", (command,)):
            yield from _outside(job, option, span(row), f"--{option.name}={row['value']}")


def _nearest(command: str, name: str, names: Collection[str]) -> str:
    if len(name) == 1:  # --c: several options begin so
        return f"; did you mean '-{name}'?" if name in letters(command) else ""
    close = nearest(name, names)
    if close is None or SequenceMatcher(a=close, b=name.lower()).ratio() < _ALIKE:
        close = _RENAMED.get(name)
    return f"; did you mean '--{close}'?" if close else ""


@checks(*{rule for rule, _, _ in _EXCLUDE_EACH_OTHER})
def exclusive_pairs(job: Job) -> Iterator[Hit]:
    """Options of one command that exclude each other."""
    for _, options in job.commands_at():
        for rule, first, second in _EXCLUDE_EACH_OTHER:
            one, other = options.last(first), options.last(second)
            if one and other and one.fact and other.fact:
                yield at(rule, max(one, other, key=lambda option: option.start))


@checks("ntasks-per-gpu-excludes")
def ntasks_per_gpu_pairs(job: Job) -> Iterator[Hit]:
    """--ntasks-per-gpu beside what it excludes, in the same command."""
    for _, options, _ in job.given("ntasks-per-gpu"):
        other = options.last("ntasks-per-node", "gpus-per-task", "gpus-per-socket")
        if other is None and "gpu" in options.text("tres-per-task"):
            other = options.last("tres-per-task")
        if other:
            yield at("ntasks-per-gpu-excludes", other, f"--{other.name} with --ntasks-per-gpu")


@checks("ntasks-per-node")
def tasks_not_per_node(job: Job) -> Iterator[Hit]:
    """--nodes and --ntasks without --ntasks-per-node, where a step takes its tasks from them."""
    pinned = ("ntasks-per-node", "ntasks-per-gpu", "gpus-per-task", "tres-per-task")
    own = ("ntasks-per-node", "ntasks", "distribution")
    for part in job.script.components:
        count, total, option = part.nodes, part.tasks, part.last("ntasks")
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
    plugins, known = mpi_plugins(job.release), {row["name"] for row in load("slurm_rules")["mpi"]}
    for step in job.sruns:
        option = step.options.last("mpi")
        name = option.text.partition(",")[0] if option else ""
        if option and name in known - {*plugins}:
            yield at("mpi-plugin", option, f"Slurm {job.release} has: {', '.join(plugins)}")
        elif option and name in {"pmix_v2", "pmix_v3"}:
            yield at("pmix-v2-broken", option)


@checks("partition-limit")
def beyond_the_partition(job: Job) -> Iterator[Hit]:
    """What the directives ask for against the partition, where that is known."""
    partition, options = job.partition, job.options
    asked = options.last("partition")
    if partition is None or job.heterogeneous:
        return
    if asked is not None and partition.name not in asked.text.split(","):
        return
    has = f"'{partition.name}' has"
    for request in options.gpus:
        most = _most_gpus(partition, request.kind)
        if request.option.name in {"gpus-per-node", "gres"} and request.number > most:
            yield at("partition-limit", request.option, f"{has} {most} GPUs per node")
    nodes, cpus = options.last("nodes"), options.last("cpus-per-task", "ntasks-per-node")
    if nodes and job.nodes is not None and job.nodes > partition.nodes:
        yield at("partition-limit", nodes, f"{has} {count_of(partition.nodes, 'node')}")
    per_task = options.number("cpus-per-task") or 1
    if cpus and job.tasks_per_node and per_task * job.tasks_per_node > partition.cpus:
        yield at("partition-limit", cpus, f"{has} {partition.cpus} CPUs per node")
    limit, minutes = options.last("time"), time_minutes(options)
    if limit and minutes is not None and minutes > partition.max_minutes:
        yield at("partition-limit", limit, f"'{partition.name}' allows {partition.max_time}")


def _most_gpus(partition: Partition, kind: str) -> int:
    """GPUs of the node that has most of them, of a type where its groups have that type."""
    groups = [group.gpu for group in partition.node_groups if group.gpu]
    of_kind = [gpu for gpu in groups if gpu.gres_type == kind]
    return max((gpu.per_node for gpu in of_kind or groups), default=0)


def time_minutes(options: Options) -> int | None:
    """--time in minutes, rounded up; None where absent, unlimited or malformed."""
    limit = options.last("time")
    return slurm_minutes(limit.text) if limit and _TIME.fullmatch(limit.text) else None


# ---- values ----

_EXPANDS = re.compile(r"[$`]")
_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})\Z", re.A)
_HOURS = {24, 48, 72, 96}
"""Numbers of minutes that hours were meant by."""
_MEANT_GB = frozenset((*range(1, 65), 96, 128))
"""Numbers of megabytes by which gigabytes were meant; 100 and 250 are those of small examples."""
_FEATURE = re.compile(r"[^&|,()\[\]!*\s]+(?=$|[&|,()\[\]!*\s])")
_COUNT = re.compile(r"\*\d+")


@checks("option-value")
def refused_values(job: Job) -> Iterator[Hit]:
    """Values that are not written as sbatch reads them."""
    for option in job.options.given:
        expected = expects(option, job.release)
        if expected is not None:
            yield at("option-value", option, f"'{option.text[:60]}' is not {expected}")


def expects(option: Option, release: Release) -> str | None:
    """How a value is to be written, where it is written otherwise; None where it is right."""
    value = option.value
    if value is None or option.fact is None or _EXPANDS.search(value):
        return None
    for releases, pattern, row in _grammar().get(option.name, ()):
        both = _RANGE.match(value) if row.get("ordered") else None
        ordered = both is None or int(both[1]) <= int(both[2])
        if releases.holds(release) and not (ordered and pattern.fullmatch(value[:2000])):
            return str(row["expects"])
    return None


@cache
def _grammar() -> dict[str, list[tuple[Span, re.Pattern[str], dict[str, Any]]]]:
    table: dict[str, list[tuple[Span, re.Pattern[str], dict[str, Any]]]] = {}
    for row in load("slurm_values")["values"]:
        entry = span(row), re.compile(row["pattern"], re.I | re.A), row
        for name in row["options"]:
            table.setdefault(name, []).append(entry)
    return table


@checks("time-unit", "memory-unit")
def counts_without_unit(job: Job) -> Iterator[Hit]:
    """`--time=48` is 48 minutes, `--mem=16` is 16 MB."""
    time, memory = job.options.last("time"), job.options.last("mem", "mem-per-cpu", "mem-per-gpu")
    if time is not None and time.number in _HOURS:
        yield at("time-unit", time, f"{time.number} minutes")
    if memory is not None and memory.number in _MEANT_GB:
        yield at("memory-unit", memory, f"{memory.number} MB")


@checks("partition-unknown", "account-unknown", "qos-unknown", "feature-unknown", "gres-unknown")
def names_of_the_cluster(job: Job) -> Iterator[Hit]:
    """Partitions, accounts, QOS, features, types of GPUs and GRES that the cluster has not."""
    cluster = job.cluster
    for name, rule, known in (
        ("partition", "partition-unknown", cluster.partitions),
        ("account", "account-unknown", cluster.accounts),
        ("qos", "qos-unknown", cluster.qos),
    ):
        for _, _, option in job.given(name):
            yield from _unknown(job, rule, option, option.text.split(","), known)
    for _, _, option in job.given("constraint"):
        names = _FEATURE.findall(_COUNT.sub("", option.text))
        yield from _unknown(job, "feature-unknown", option, names, cluster.features)
    for _, options in job.commands_at():
        for request in options.gpus:
            kind = [request.kind]
            yield from _unknown(job, "gres-unknown", request.option, kind, cluster.gpu_types)
    gres = cluster.gres and cluster.gres | {"none", "gres"}
    for _, _, option in job.given("gres"):
        parts = (part.removeprefix("gres:") for part in option.text.lower().split(","))
        names = [re.split("[:=]", part)[0] for part in parts]
        yield from _unknown(job, "gres-unknown", option, names, gres)


def _unknown(
    job: Job, rule: str, option: Option, names: Iterable[str], known: Names
) -> Iterator[Hit]:
    if known is None or "$" in option.text or GAP.search(option.text):
        return
    for name in filter(None, map(str.strip, names)):
        if name not in known:
            close = nearest(name, known)
            there = f"{job.cluster.where} has {', '.join(sorted(known)[:8]) or 'none'}"
            guess = f"did you mean '{close}'?" if close else there
            yield at(rule, option, f"'{name[:60]}'; {guess}")


@checks("linear-per-task-gres")
def whole_nodes_only(job: Job) -> Iterator[Hit]:
    """GPUs of the whole job or per task, where nodes are given out whole."""
    if job.cluster.sets("SelectType", "linear"):
        per_task = ("gpus-per-task", "gpus-per-socket", "cpus-per-gpu", "mem-per-gpu")
        if gpus := job.options.last("gpus"):
            yield at("linear-per-task-gres", gpus)
        for _, _, option in job.given(*per_task):
            yield at("linear-per-task-gres", option)
