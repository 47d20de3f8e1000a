"""Checks of a job's life: signals, traps, waiting, exit codes, requeues."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from hpcdl.jobs.lint.job import Hit, Job, at, checks
from hpcdl.jobs.lint.options import Option
from hpcdl.jobs.lint.shell import ShellCommand, Word, parser

_SIGNAL = re.compile(r"(?:([BR]{1,2}):)?([A-Za-z0-9]{1,12})(?:@(\d{1,9}))?\Z", re.A)
_NUMBERS = {"1": "HUP", "2": "INT", "10": "USR1", "12": "USR2", "15": "TERM", "18": "CONT"}
_PSEUDO = {"EXIT", "ERR", "DEBUG", "RETURN", "0"}
_PROGRAMS = re.compile(r"(?:python[\d.]*|torchrun|accelerate|deepspeed|apptainer|singularity)\Z")
_SERVES = re.compile(
    r"(?:.*/)?(?:jupyter[\w-]*|dask-(?:scheduler|worker)|rserver|code-server|tensorboard)\Z", re.A
)
"""A word of a command that serves a user until the job ends, by whatever status."""
_TRAPS = re.compile(r"trap|signal|requeue|handler|checkpoint", re.IGNORECASE)
_SENDS = {"trap", "kill", "pkill", "killall", "scancel", "srun", "echo", "printf"}
"""Commands that name a signal and trap none."""
_EARLY = 60
"""Seconds by which Slurm may send --signal early, sbatch(1)."""


class _WallSignal(NamedTuple):
    """The value of --signal: the signal without SIG, seconds before the end, B."""

    option: Option
    signal: str
    seconds: int
    batch: bool


def _wall_signal(job: Job) -> _WallSignal | None:
    option = job.options.last("signal")
    match = _SIGNAL.match(option.text) if option else None
    if option is None or match is None:
        return None
    flags, name, seconds = match.groups(default="")
    return _WallSignal(option, _plain(name), int(seconds or 60), "B" in flags)


def _plain(name: str) -> str:
    upper = name.upper().removeprefix("SIG")
    return _NUMBERS.get(upper, upper)


class _Trap(NamedTuple):
    """A trap: its handler as written, and its signals without SIG."""

    command: ShellCommand
    handler: str
    signals: frozenset[str]


def _traps(job: Job) -> Iterator[_Trap]:
    """The script's traps, those of its inner scripts left out."""
    for command in job.script.commands:
        if command.name == "trap" and len(command.words) > 2 and not command.within("inner"):
            words = [word.value for word in command.words[1:] if word.value != "--"]
            if signals := frozenset(map(_plain, words[1:])) - _PSEUDO:
                yield _Trap(command, words[0], signals)


@checks("signal-not-trapped", "signal-steps-only", "signal-early")
def warning_signal(job: Job) -> Iterator[Hit]:
    """Whether the walltime signal reaches a process that handles it."""
    asked = _wall_signal(job)
    if asked is None:
        return
    minutes = job.options.minutes("time")
    if minutes and minutes * 60 <= asked.seconds + _EARLY:
        yield at("signal-early", asked.option)
    # A program may take the shell's place, and with it the signal.
    execs = any(one.name == "exec" and len(one.words) > 1 for one in _outer(job))
    if execs or not job.script.is_shell or not job.script.shebang or parser() is None:
        return  # no one knows what it traps
    trapped = any(asked.signal in trap.signals for trap in _traps(job))
    if asked.batch and not trapped and not _trapped_unseen(job, asked.signal):
        yield at("signal-not-trapped", asked.option)
    if not asked.batch and trapped:
        yield at("signal-steps-only", asked.option)


def _outer(job: Job) -> list[ShellCommand]:
    """Return the commands that the script itself runs, in order."""
    apart = ("function", "substitution", "inner")
    return [one for one in job.script.commands if not one.within(*apart)]


def _trapped_unseen(job: Job, signal: str) -> bool:
    """Whether a trap's signal is a variable, or a function or a sourced file may trap it."""
    by_name = any("$" in name for trap in _traps(job) for name in trap.signals)
    words = (word.raw for one in _outer(job) if one.name not in _SENDS for word in one.words[1:])
    by_function = not {signal, f"SIG{signal}"}.isdisjoint(words)
    sourced = (one.text for one in job.script.commands if one.name in {"source", "."})
    return by_name or by_function or any(map(_TRAPS.search, sourced))


def main_work(job: Job, *, sleeps: bool = False) -> Iterator[tuple[ShellCommand, int]]:
    """The commands that run long, with the offset of their launcher; steps that sleep if asked."""
    steps = {step.command.start: step for step in job.script.steps}
    for command in (one for one in _outer(job) if not one.within("condition")):
        step = steps.get(command.start)
        if step is not None and step.command is command:
            if not (step.brief if sleeps else step.trivial):
                yield command, step.start
        elif step is None and any(_PROGRAMS.match(words[0].program) for words in command.programs):
            yield command, command.words[0].start


@checks("trap-deferred")
def foreground_under_trap(job: Job) -> Iterator[Hit]:
    """A trap whose signal comes while bash waits for a foreground child."""
    asked = _wall_signal(job)
    wanted = {"USR1", "USR2"} | ({asked.signal} if asked and asked.batch else set())
    caught = [
        trap for trap in _traps(job) if trap.handler not in {"", "-"} and trap.signals & wanted
    ]
    if not caught or (asked and not asked.batch):
        return
    start = caught[0].command.start
    work = [(c, place) for c, place in main_work(job, sleeps=True) if c.start > start]
    # What runs before work in the background that is waited for prepares it.
    outside = [one for one in job.script.commands if not one.within("function", "inner")]
    behind = [one for one in outside if work and one.start > work[0][1]]
    last = max((one.start for one in behind if one.name == "wait"), default=0)
    waited = any(one.background and one.start < last for one in behind)
    if work and not work[0][0].background and not waited:
        yield Hit("trap-deferred", work[0][1], len(work[0][0].name) or 1)


@checks("status-lost", "wait-status")
def lost_statuses(job: Job) -> Iterator[Hit]:
    """Work whose exit code is lost: at the front of a pipe, or before a bare `wait`."""
    script = job.script
    seen = "PIPESTATUS" in script.text or "pipefail" in script.text
    commands = [
        command for command in script.commands if not command.within("substitution", "inner")
    ]
    work = [command for command, _ in main_work(job)]
    for step in work:
        if step.piped and not seen:
            yield at("status-lost", step.words[0])
    last = [word.value for one in commands[-1:] for word in one.words]
    strict = re.search(r"^\s*set\s+-\w*e|errexit", script.text, re.M)
    if work and last == ["exit", "0"] and not (commands[-1].scopes or seen or strict):
        yield at("status-lost", commands[-1].words[0])
    serve = [one for one in work if any(_SERVES.match(word.value) for word in one.words)]
    starts = [one.start for one in work if one.background and one not in serve]
    # The number of a process that is kept, and never looked at: it was to be waited for.
    unread = any(
        one.value == "$!" and script.text.count(one.name) == len(script.assigned(one.name))
        for one in script.assignments
    )
    careful = any(command.name == "wait" and len(command.words) > 1 for command in commands)
    for command, after in pairwise([*commands, None]):
        if command is None or command.name != "wait" or len(command.words) > 1:
            continue
        if not any(start < command.start for start in starts):
            continue
        asked = after is not None and any(
            "$?" in word.raw for word in (*after.assignments, *after.words)
        )
        if asked or unread:
            yield at("wait-status", command.words[0])
        elif not careful:
            yield at("status-lost", command.words[0])


@checks("requeue-truncates")
def requeue(job: Job) -> Iterator[Hit]:
    """Requeues that lose the log, or never end."""
    requeues = (
        Word(job.script.text[one.words[0].start : one.words[-1].end], one.words[0].start)
        for one in job.script.commands
        if one.program == "scontrol" and "requeue" in (word.value for word in one.words[1:3])
    )
    command, option = next(requeues, None), job.options.last("requeue")
    mode, nowhere = job.options.text("open-mode"), job.options.text("output") == "/dev/null"
    appends = job.appends or (not mode and job.cluster.sets("JobFileAppend", "1"))
    place = option or command
    if job.script.is_batch and not (nowhere or appends) and place:
        yield at("requeue-truncates", place)
