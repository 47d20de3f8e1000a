"""Checks of the text and of what breaks most jobs: unawaited work, lost logs, idle nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpcdl.jobs.lint.job import Hit, Job, at, checks
from hpcdl.jobs.lint.shell import names

_INDENTED = re.compile(r"[ \t]+#SBATCH[ \t]+-+([\w-]*)", re.A)
_TYPOGRAPHIC = re.compile("[\u201c\u201d\u2018\u2019\u00a0\u2013\u2014]")
_ONE_TASK = re.compile(r"(\d+)(?:-\1)?(?:%\d+)?\Z", re.A)
"""An array of one task."""
_SHORT = re.compile(r"sleep \d{1,2}s?\Z", re.A)
_DETACHED = re.compile(r"-[A-Za-z]*d[A-Za-z]*\Z")
_AT_ONCE = {
    "",
    *names(": [ [[ cd cat date disown echo exit export hostname mkdir printf set test true unset"),
}
"""Commands that are over at once; any other may be the work that the background serves."""


@checks("shebang", "dos-line-ends", "nul-character", "byte-order-mark")
def refused_text(job: Job) -> Iterator[Hit]:
    """Text that sbatch refuses before it reads any directive."""
    text = job.script.text
    marked = (line.start for line in job.script.lines if line.text.startswith("#SBATCH"))
    meant = job.script.is_batch or any(map(job.script.is_comment, marked))
    if meant and not text.startswith(("#!", "\ufeff")):
        yield Hit("shebang", 0, max(1, len(text[:200].partition("\n")[0])))
    for rule, sign in (("dos-line-ends", "\r\n"), ("nul-character", "\0")):
        if (place := text.find(sign)) >= 0:
            yield Hit(rule, place, 1)
    if text.startswith("\ufeff"):
        yield Hit("byte-order-mark", 0, 1)


@checks("sh-not-bash")
def bash_for_sh(job: Job) -> Iterator[Hit]:
    """`[[` and arrays in a script that /bin/sh runs, which is bash on some systems only."""
    if job.script.interpreter not in {"sh", "dash"}:
        return
    for command in job.script.commands:
        arrays = (word for word in command.assignments if re.match(r"\w+=\(", word.raw))
        words = command.words[:1] if command.name == "[[" else [*arrays]
        if words and not command.within("inner"):
            yield at("sh-not-bash", words[0])


@checks("background-unawaited")
def work_that_nobody_waits_for(job: Job) -> Iterator[Hit]:
    """The last work of a script, in the background or in a session of its own, and no wait."""
    outer = [one for one in job.script.commands if not one.within("inner", "substitution")]
    work = [one for one in outer if one.program not in _AT_ONCE and not _SHORT.match(one.text)]
    waits = any(one.name == "wait" and one.within("function") for one in outer)
    for last in work[-1:] if job.script.is_batch and not waits else ():
        options = (word.value for word in last.words)
        detached = last.program in {"screen", "tmux"} and any(map(_DETACHED.match, options))
        background = last.background and last.name != "wait"
        if (background or detached) and not last.within("condition", "function"):
            yield at("background-unawaited", last.words[0])


@checks("array-one-log")
def one_log_for_all_tasks(job: Job) -> Iterator[Hit]:
    """All tasks of an array write over the same log."""
    option, array = job.options.last("output"), job.options.last("array")
    text = job.script.text[option.start :].partition("\n")[0] if option else "%a"
    apart = re.search(r"%\d*[ajJ]|/dev/null", text)
    several = array is not None and not _ONE_TASK.match(array.text)
    if several and option and not (apart or job.appends):
        yield at("array-one-log", option)


@checks("directive-indented")
def indented_directives(job: Job) -> Iterator[Hit]:
    """`  #SBATCH`: a comment; one of an option that is given elsewhere is switched off."""
    for line in job.script.header:
        match = _INDENTED.match(line.text)
        if match and not job.options.has(match[1]):
            yield Hit("directive-indented", line.start, len(line.text.rstrip()))


@checks("typographic")
def word_processor(job: Job) -> Iterator[Hit]:
    """Typographic quotes, dashes and blanks from a word processor or a web page."""
    for line in job.script.header:
        statement = re.split(r"\s#", line.text)[0]  # without its comment
        found = _TYPOGRAPHIC.search(statement) if statement.startswith(("#SBATCH", "#!")) else None
        if found:
            yield Hit("typographic", line.start + found.start(), 1, f"U+{ord(found.group()):04X}")
