"""Checks of options: how they and their values are written, what releases and clusters know."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from difflib import SequenceMatcher
from functools import cache
from typing import Any

from hpcdl.facts import load
from hpcdl.jobs.lint.job import Hit, Job, at, checks
from hpcdl.jobs.lint.options import Option, read_options
from hpcdl.jobs.lint.parse import CONTINUED, BatchScript, SourceLine
from hpcdl.jobs.lint.shell import names
from hpcdl.slurm.fits import misfits
from hpcdl.slurm.hostlist import expand_hostlist
from hpcdl.slurm.options import known_options, letters, megabytes, prefixes
from hpcdl.slurm.rules import SlurmRelease, Span, all_rules, mpi_plugins, span
from hpcdl.system.errors import BadInput
from hpcdl.system.text import count_of, nearest, one_of

_LOOKS_LIKE = re.compile(r"#(?:sbatch|slurm|sbtach|sbacth|sabtch)\b(?=[ \t]+-)", re.I | re.A)
_SWITCHED_OFF = re.compile(r"#[ \t]+SBATCH\b(?=[ \t]+-)")
"""`# SBATCH`, with a blank, is how people switch a directive off, but not all of a script."""
_DIRECTIVES = ("#SBATCH", "#SLURM")
_OTHERS = re.compile(r"#(PBS|BSUB|COBALT|\$)\s+-", re.A)
_SCHEDULERS = {"PBS": "for PBS", "BSUB": "for LSF", "COBALT": "for Cobalt", "$": "for Grid Engine"}
_SETUP = {
    "",
    *names(
        "module ml source . export set unset echo printf cd ulimit umask conda date hostname "
        "mkdir shopt alias"
    ),
}
"""Commands that may come before directives, in a script without others."""
_NAME = re.compile(r"[A-Za-z_]\w*(?:=.*)?\Z", re.A | re.S)
_UNEXPANDED = re.compile(r"\$\{?[A-Za-z_]\w*|\$\(|`|(?:^|:)~(?:/|$)", re.A)
"""What a shell would put something else for: variables, commands, the home directory."""
_OF_THE_JOB = names("wrap comment export")
"""Options whose value is read by the job or by people, not by sbatch."""
_ASK_FOR_GPUS = ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "gres")
_MAX_SUGGESTIONS = 20
_RENAMED = {"workdir": "chdir"}
"""What releases before all known ones called an option: 19.05 dropped --workdir."""
_ALIKE = 0.8
"""So much of two names is the same where one is a slip of the pen: `--partiton`, not `--image`."""


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
        meant = line.start < until and _said(line) not in right
        if meant and script.is_comment(line.start):
            yield Hit("directive-after-command", line.start, len(line.text))
    for line in script.header:
        found = _LOOKS_LIKE.match(line.text)
        found = found or (None if script.is_batch else _SWITCHED_OFF.match(line.text))
        if found and not line.text.startswith(_DIRECTIVES):
            words, _ = script.words_behind(line, found.end())
            options = read_options(words, "sbatch", script.release, expands=False)
            again = line.text[found.end() :].strip() in right
            # One that names a script says how to submit it; of others sbatch knows the options.
            if not (again or options.rest) and all(one.fact for one in options.given):
                yield Hit("directive-misspelt", line.start, len(line.text))


def _said(line: SourceLine) -> str:
    return line.text[len("#SBATCH") :].split("#")[0].strip()


def _notes_begin(script: BatchScript, batch: bool) -> int:
    """Return the offset after which a directive is a note, not an option for sbatch.

    That is after `exit` or after all commands; in a script without others, after its work.
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
    for row in load("slurm_values")["foreign_lines"] if job.script.is_batch else ():
        taken = re.compile(row["pattern"], re.A)
        for line in job.script.lines if span(row).holds(job.release) else ():
            if line.text.startswith(row["begins"]) and not taken.fullmatch(line.text):
                detail = f"sbatch also reads {row['begins']} lines, and does not take this one"
                yield Hit("directive-argument", line.start, len(line.text), detail)


@checks("directive-variable")
def unexpanded_directives(job: Job) -> Iterator[Hit]:
    """`#SBATCH --output=$HOME/x`, `--chdir=~/run`: no shell reads them."""
    unread = _OF_THE_JOB | {"mail-user"}
    if job.options.text("mail-type").upper() not in {"", "NONE"}:
        unread -= {"mail-user"}
    for option in job.options.given:
        read = option.name not in unread and not wrong_value(option, job.release)
        if read and _UNEXPANDED.search(option.text):
            yield at("directive-variable", option, f"'{option.text[:60]}' is not expanded")


_PLACEHOLDER = re.compile(
    r"(?<!\$)\{\{.*?\}\}|(?<!\$)\{[A-Za-z_]\w*\}|<[A-Za-z][^<>]*>|@[A-Za-z_]\w*@|__[A-Z]\w*?__|"
    r"%\(\w+\)|\[[A-Za-z][A-Za-z_ ]{3,}\](?!\d)|"
    r"(?i:(?<![a-z])your[_. -]?(?:name|e-?mail|account|project|mail|user|id)|"
    r"(?<![a-z])x{3,}(?![a-z])|change_?me|placeholder|todo|fixme)",
    re.A,
)


@checks("placeholder")
def placeholders(job: Job) -> Iterator[Hit]:
    """Values that are to be filled in; everything else is judged all the same."""
    for option in job.options.given:
        if option.name not in _OF_THE_JOB and _PLACEHOLDER.search(option.text):
            yield at("placeholder", option, f"'{option.text[:60]}'")


@checks("other-scheduler")
def other_schedulers(job: Job) -> Iterator[Hit]:
    """A script for PBS, LSF or Grid Engine."""
    if job.script.is_batch:
        return
    for line in job.script.header:
        if match := _OTHERS.match(line.text):
            yield Hit("other-scheduler", line.start, len(line.text), _SCHEDULERS[match[1]])
            return


@checks("option-unknown", "option-removed", "option-misspelt", "option-foreign")
def unknown_options(job: Job) -> Iterator[Hit]:
    """Options and values that this release, or any release, does not know."""
    close: dict[tuple[str, str], str] = {}
    plugins = job.cluster.plugin_options
    given = [(command, one) for command, options in job.commands_at() for one in options.given]
    for command, option in given:
        name, known = option.name[:60], option.fact and option.fact.span
        if known and not known.holds(job.release):
            early = known.since is not None and job.release < known.since
            rule = "option-unknown" if early else "option-removed"
            yield at(rule, option, f"--{option.name}: {known}")
        elif not known and option.name not in (plugins or ()):
            if (command, name) not in close:
                names = {*known_options(command), *(plugins or ())}
                hint = _nearest(command, name, names) if len(close) < _MAX_SUGGESTIONS else ""
                close[command, name] = hint
            hint = close[command, name] or _ambiguous(command, option.name)
            other = "srun" if command == "sbatch" else "sbatch"
            theirs = option.name in known_options(other)
            # Plug-ins add long options only.
            sure = hint or len(option.name) == 1 or theirs or plugins is not None
            dashes = "--" if job.script.text.startswith("--", option.start) else "-"
            detail = f"{command} has no {dashes}{name}{f', {other} has' if theirs else hint}"
            yield at("option-misspelt" if sure else "option-foreign", option, detail)


def _ambiguous(command: str, beginning: str) -> str:
    """Return the options that an abbreviation may mean, as a message; '' if it is unambiguous."""
    able = sorted({fact.name for fact in prefixes(command).get(beginning, ())})
    return f": it may be {one_of(f'--{name}' for name in able[:6])}" if len(able) > 1 else ""


def _nearest(command: str, name: str, names: Collection[str]) -> str:
    if len(name) == 1:  # --c: several options begin so
        return f"; did you mean '-{name}'?" if name in letters(command) else ""
    close = nearest(name, names)
    if close is None or SequenceMatcher(a=close, b=name.lower()).ratio() < _ALIKE:
        close = _RENAMED.get(name)
    return f"; did you mean '--{close}'?" if close else ""


_EXCLUDING = [one for one in all_rules() if one.excludes]
_NEEDING = [one for one in all_rules() if one.needs]


@checks(*(rule.id for rule in _EXCLUDING))
def exclusive_pairs(job: Job) -> Iterator[Hit]:
    """Options of one command that exclude each other, by the rules' own lists."""
    for _, options in job.commands_at():
        given = {option.name: option for option in options.given if option.fact}
        for rule in _EXCLUDING if len(given) > 1 else ():
            for pair in rule.excludes:
                if all(name in given for name in pair):
                    yield at(
                        rule.id,
                        max((given[name] for name in pair), key=lambda option: option.start),
                    )


@checks(*(rule.id for rule in _NEEDING))
def lonely_options(job: Job) -> Iterator[Hit]:
    """Options that mean nothing without another, by the rules' own lists."""
    for part in job.script.components:
        for rule in _NEEDING:
            for name, others in rule.needs:
                if (option := part.last(name)) and not part.has(*others):
                    yield at(rule.id, option)


@checks("option-twice")
def options_given_twice(job: Job) -> Iterator[Hit]:
    """An option of one component that is given again with another value: the last one counts."""
    for part in job.script.components:
        for option in part.given:
            last = part.last(option.name)
            added = option.name == "mail-type"
            if last and last is not option and last.text != option.text and not added:
                detail = f"--{option.name} {option.text[:30]} here, {last.text[:30]} later"
                yield at("option-twice", option, detail)


@checks("tasks-arithmetic")
def tasks_that_do_not_add_up(job: Job) -> Iterator[Hit]:
    """Numbers of nodes, tasks and tasks per node that contradict each other."""
    for part in job.script.components:
        total, each, nodes = part.last("ntasks"), part.last("ntasks-per-node"), part.nodes
        if not (total and total.number and part.has("nodes") and nodes):
            continue
        if each and each.number and total.number > nodes * each.number:
            detail = f"{total.number} tasks are more than {nodes} x {each.number}"
            yield at("tasks-arithmetic", max(total, each, key=lambda one: one.start), detail)
        elif total.number < nodes:
            yield at("tasks-arithmetic", total, f"{total.number} tasks cannot use {nodes} nodes")


@checks("nodelist-beyond")
def more_nodes_than_asked(job: Job) -> Iterator[Hit]:
    """--nodelist with more nodes than --nodes allows."""
    for part in job.script.components:
        named, (_, most) = part.last("nodelist"), part.node_range
        if not (named and most) or "/" in named.text or wrong_value(named, job.release):
            continue
        with suppress(BadInput):
            if (nodes := len(set(expand_hostlist(named.text)))) > most:
                yield at("nodelist-beyond", named, f"{nodes} of {count_of(most, 'node')}")


@checks("count-missing", "count-missing-of-nodes", "count-wanted")
def counts_of_nothing(job: Job) -> Iterator[Hit]:
    """GPUs per task without a number of tasks, memory per GPU without GPUs, and the like."""
    counted = ("ntasks", "gpus", "ntasks-per-gpu", "ntasks-per-tres")
    for part in job.script.components:
        per_task, per_gpu = part.last("gpus-per-task"), part.last("mem-per-gpu")
        if (tres := part.last("tres-per-task")) and "gres" in tres.text:
            per_task = tres
        nodes, each = part.has("nodes"), part.has("ntasks-per-node")
        if per_task and per_task.text and not (part.has(*counted) or (nodes and part.nodes)):
            rule = "count-missing-of-nodes" if each and not nodes else "count-missing"
            yield at(rule, per_task, "the number of tasks or nodes is missing")
        elif per_gpu and megabytes(per_gpu.text) and not part.has(*_ASK_FOR_GPUS):
            yield at("count-wanted", per_gpu, "no GPUs are asked for")
        order = part.last("distribution")
        if order and order.text == "arbitrary" and not part.has("nodelist", "nodefile"):
            yield at("count-wanted", order, "no list of nodes is given")
        tasks = part.last("ntasks-per-gpu")
        if tasks and not part.has(*_ASK_FOR_GPUS, "ntasks", "nodes"):
            yield at("count-wanted", tasks, "no GPUs or tasks are asked for")


@checks("gpus-arithmetic")
def gpus_that_do_not_add_up(job: Job) -> Iterator[Hit]:
    """GPUs of the job, of a node and of a task that contradict each other, or --nodes."""
    for part in job.script.components:
        asked, (least, most) = part.request, part.node_range
        place = part.last("gpus") or part.last("gpus-per-task")
        if place is None or len(asked.gpus) > 1 or len(asked.gpus_per_node) > 1:
            continue
        total, node = (sum(n for _, n in one) for one in (asked.gpus, asked.gpus_per_node))
        task, tasks = asked.gpus_per_task or 0, part.number("ntasks")
        odd = [(a, b) for a, b in ((total, node), (total, task), (node, task)) if b and a % b]
        if odd:
            yield at("gpus-arithmetic", place, f"{odd[0][0]} is no multiple of {odd[0][1]}")
        elif total and node and least and most and not least <= total // node <= most:
            detail = f"{total} GPUs, {node} a node, are not {part.text('nodes')} nodes"
            yield at("gpus-arithmetic", place, detail)
        elif total and task and tasks and total != task * tasks:
            yield at("gpus-arithmetic", place, f"{total} GPUs are not {tasks} tasks x {task}")


@checks("export-comma")
def export_lists(job: Job) -> Iterator[Hit]:
    """--export with commas inside of a value."""
    for _, options in job.commands_at():
        for option in (one for one in options.given if one.name == "export"):
            parts = option.text.split(",")
            text = next((part for part in parts if part and not _NAME.match(part)), None)
            if text is not None and "=" in option.text and len(parts) > 1:
                yield at("export-comma", option, f"'{text[:40]}' is taken for a name")


@checks("mpi-plugin", "partition-limit")
def mpi_of_steps(job: Job) -> Iterator[Hit]:
    """--mpi= of steps against the plug-ins of the cluster, else of the release."""
    plugins, known = mpi_plugins(job.release), {row["name"] for row in load("slurm_rules")["mpi"]}
    here = next((one.mpi for one in job.limits_for(job.options) if one.mpi), ())
    for step in job.sruns:
        option = step.options.last("mpi")
        name = option.text.partition(",")[0] if option else ""
        if option and here and name not in {"", "list", *here} and "$" not in name:
            yield at("partition-limit", option, f"srun --mpi takes {', '.join(here)} here")
        elif option and name in known - {*plugins}:
            yield at("mpi-plugin", option, f"Slurm {job.release} has: {', '.join(plugins)}")


_FIELDS = {
    "nodes": ("nodes",),
    "tasks": ("ntasks",),
    "tasks_per_node": ("ntasks-per-node", "ntasks"),
    "cpus_per_task": ("cpus-per-task",),
    "gpus": ("gpus",),
    "gpus_per_node": ("gpus-per-node", "gres"),
    "gpus_per_task": ("gpus-per-task",),
    "memory_mb": ("mem",),
    "memory_per_cpu": ("mem-per-cpu",),
    "memory_per_gpu": ("mem-per-gpu",),
    "minutes": ("time",),
    "feature": ("constraint",),
    "qos": ("qos",),
    "last_of_array": ("array",),
}
"""The options that ask for the fields of a request."""


@checks("partition-limit")
def beyond_the_partition(job: Job) -> Iterator[Hit]:
    """Requests that exceed the partitions that the directives name, if those are known."""
    for part in job.script.components:
        request = part.request
        found = [misfits(request, limits) for limits in job.limits_for(part)]
        for misfit in min(found, key=len, default=()):
            names = (one for field in misfit.fields for one in _FIELDS[field])
            if (place := part.last(*names)) and place.fact:
                yield at("partition-limit", place, misfit.why)


# ---- values ----

_RANGE = re.compile(r"(\d{1,18})(?!\d)[^-:]*-(\d{1,18})(?!\d)", re.A)
_MEANT_GB = frozenset((*range(1, 65), 96, 128))
"""Numbers of megabytes that probably mean gigabytes; 100 and 250 occur in small examples."""


@checks("option-value")
def refused_values(job: Job) -> Iterator[Hit]:
    """Values that are not written as sbatch reads them."""
    for option in job.options.given:
        if wrong := wrong_value(option, job.release):
            yield at("option-value", option, wrong)
    least, most = job.options.minutes("time-min"), job.options.minutes("time")
    shortest = job.options.last("time-min")
    if shortest and least and most and least > most:
        yield at("option-value", shortest, "it is more than --time")


def wrong_value(option: Option, release: SlurmRelease) -> str:
    """Return what is wrong with a value, and the right form; '' where nothing is."""
    value, fact = option.value, option.fact
    if fact is None or option.name in {"help", "usage", "version"}:
        return ""
    if value is None:
        return f"--{option.name} needs a value" if fact.argument == "required" else ""
    if fact.argument == "none":
        return f"--{option.name} takes no value"
    for releases, pattern, row in _grammar().get(option.name, ()):
        parts = value.split(",") if row.get("ordered") == "each" else [value]
        pairs = [_RANGE.match(one.lstrip("[ +").partition("%")[0]) for one in parts]
        ordered = "ordered" not in row or all(
            int(one[1]) % 2**32 <= int(one[2]) % 2**32 for one in pairs if one
        )
        if releases.holds(release) and not (ordered and pattern.fullmatch(value[:2000])):
            return f"'{option.text[:60]}' is not {row['expects']}"
    return ""


@cache
def _grammar() -> dict[str, list[tuple[Span, re.Pattern[str], dict[str, Any]]]]:
    table: dict[str, list[tuple[Span, re.Pattern[str], dict[str, Any]]]] = {}
    for row in load("slurm_values")["values"]:
        entry = span(row), re.compile(row["pattern"], re.I | re.A), row
        for name in row["options"]:
            table.setdefault(name, []).append(entry)
    return table


@checks("memory-unit")
def counts_without_unit(job: Job) -> Iterator[Hit]:
    """`--mem=16` is 16 MB."""
    memory = job.options.last("mem", "mem-per-cpu", "mem-per-gpu")
    run = {one.programs[-1][0].program for one in job.script.commands if one.programs}
    if memory is not None and memory.number in _MEANT_GB and any(map(_HUNGRY.match, run)):
        yield at("memory-unit", memory, f"{memory.number} MB")


_HUNGRY = re.compile(
    r"(?:python[\d.]*|Rscript|R|matlab|julia|java|torchrun|deepspeed|accelerate)\Z", re.A
)
"""Interpreters, and what loads libraries: they take hundreds of megabytes."""


@checks("partition-unknown")
def unknown_partitions(job: Job) -> Iterator[Hit]:
    """Partitions that the cluster has not; of what they have, partition-limit tells."""
    known = job.cluster.partitions
    asked = (options.last("partition") for _, options in job.commands_at())
    for option in filter(None, asked) if known is not None else ():
        for name in filter(None, map(str.strip, option.text.split(","))):
            if known is not None and name not in known:
                close = nearest(name, known)
                there = f"{job.cluster.where} has {', '.join(sorted(known)[:8]) or 'none'}"
                guess = f"did you mean '{close}'?" if close else there
                yield at("partition-unknown", option, f"'{name[:60]}'; {guess}")
