"""Checks of the script as text and of its environment: what sbatch refuses, what leaks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

from hpcdl.jobs.lint.checks import checks
from hpcdl.jobs.lint.job import Hit, Job, at
from hpcdl.jobs.lint.shell import Command

EPHEMERAL = (32768, 60999)
"""Linux's ephemeral ports, ip(7)."""
_PORT = re.compile(r"(?:\A|_)PORT\Z|\A(?:MASTER|RDZV|RENDEZVOUS)_?PORT\Z", re.A)
_JOB_ID = re.compile(r"\bSLURM_JOB_?ID\b", re.A)
_MODULO = re.compile(r"%\s*(\d{1,9})", re.A)
_TAIL = re.compile(r"tail\s+-c\s*(\d{1,2})", re.A)
_LAST_DIGITS = re.compile(r"(\d{0,4})\$\{SLURM_JOB_?ID:\s*0?\s*-\s*([1-5])\}", re.A)
_NUMBER = re.compile(r"(?<![\w%$])(\d{1,9})(?!\w)", re.A)
_SELF = {"$0", "${0}", "$BASH_SOURCE", "${BASH_SOURCE}", "${BASH_SOURCE[0]}", "${0##*/}"}


@checks("shebang", "dos-line-ends", "nul-character")
def refused_text(job: Job) -> Iterator[Hit]:
    """What sbatch refuses before it reads any directive."""
    text = job.script.text
    if job.script.is_batch and not text.startswith("#!"):
        yield Hit("shebang", 0, max(1, len(text[:200].partition("\n")[0])))
    if (place := text.find("\r\n")) >= 0:
        yield Hit("dos-line-ends", place, 1)
    if (place := text.find("\0")) >= 0:
        yield Hit("nul-character", place, 1)


@checks("export-flows")
def export_flows_into_steps(job: Job) -> Iterator[Hit]:
    """--export without ALL, and steps that inherit it."""
    option = job.options.last("export")
    if option is None or "ALL" in option.text.upper().split(",") or "$" in option.text:
        return
    if job.script.assigned("SLURM_EXPORT_ENV", "SRUN_EXPORT_ENV") or _unsets(job, "EXPORT_ENV"):
        return
    if any(not step.options.has("export") for step in job.sruns):
        yield at("export-flows", option)


def _unsets(job: Job, part: str) -> bool:
    return any(
        command.name == "unset" and any(part in word.raw for word in command.words[1:])
        for command in job.script.commands
    )


@checks("nested-environment")
def jobs_of_jobs(job: Job) -> Iterator[Hit]:
    """A job that submits another script with its own variables."""
    if not job.script.is_batch or _unsets(job, "SLURM_"):
        return
    name = PurePath(job.script.name).name
    for command in job.script.commands:
        words = [word.value for word in command.words]
        if "sbatch" not in words[:6] or words[0] in {"echo", "printf", "command", "which", "type"}:
            continue
        place = words.index("sbatch")
        before, after = words[:place], words[place + 1 :]
        clean = any(word in {"--export=NONE", "--export=NIL", "NONE", "NIL"} for word in after)
        own = any(word in _SELF or PurePath(word).name == name for word in after)
        if before[:2] == ["env", "-i"] or clean or own or "--test-only" in after:
            continue
        yield Hit("nested-environment", command.words[place].start, len("sbatch"))


@checks("port-from-job-id")
def ports_from_job_ids(job: Job) -> Iterator[Hit]:
    """A port computed from the job id that can lie among the ephemeral ones."""
    for one in job.script.assignments:
        if _PORT.search(one.name) and _JOB_ID.search(one.value) and _may_be_ephemeral(one.value):
            yield Hit("port-from-job-id", one.start, len(one.raw.partition("\n")[0]))
    for command in job.script.commands:
        yield from _port_arguments(command)


def _port_arguments(command: Command) -> Iterator[Hit]:
    """`--master_port=$((...))` and the like."""
    for word in command.words:
        name, equals, value = word.raw.partition("=")
        port = name.startswith("--") and name.lower().endswith("port")
        if port and equals and _JOB_ID.search(value) and _may_be_ephemeral(value):
            yield Hit("port-from-job-id", word.start, len(word.raw))


def _may_be_ephemeral(expression: str) -> bool:
    """Whether `base + id % count` reaches the ephemeral ports, as far as its numbers are known."""
    text = expression[:2000]
    if digits := _LAST_DIGITS.search(text):  # `1${SLURM_JOB_ID:0-4}` is 10000 to 19999
        first, width = digits.group(1) or "0", int(digits.group(2))
        low, high = int(first + "0" * width), int(first + "9" * width)
        return low <= EPHEMERAL[1] and high >= EPHEMERAL[0]
    modulo, tail = _MODULO.search(text), _TAIL.search(text)
    if modulo is None and tail is None:
        return True
    count = int(modulo.group(1)) if modulo else 10 ** int(tail.group(1) if tail else 5)
    numbers = [int(found) for found in _NUMBER.findall(_TAIL.sub("", _MODULO.sub("", text)))]
    base = max((number for number in numbers if number >= 1000), default=0)
    low, high = base, base + count - 1
    shared = min(high, EPHEMERAL[1]) - max(low, EPHEMERAL[0]) + 1
    return 4 * shared >= count  # A rare port of many is a rare failure of few.
