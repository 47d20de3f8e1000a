"""Checks of the script as text and of its environment: what sbatch refuses, what leaks."""

from __future__ import annotations

from collections.abc import Iterator

from hpcdl.jobs.lint.checks import checks
from hpcdl.jobs.lint.job import Hit, Job, at


@checks("shebang", "dos-line-ends", "nul-character")
def refused_text(job: Job) -> Iterator[Hit]:
    """What sbatch refuses before it reads any directive."""
    text = job.script.text
    if job.script.is_batch and not text.startswith("#!") and not job.script.is_part:
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
    unset = (one.words[1:] for one in job.script.commands if one.name == "unset")
    if any("EXPORT_ENV" in word.raw for words in unset for word in words):
        return
    if job.script.assigned("SLURM_EXPORT_ENV", "SRUN_EXPORT_ENV"):
        return
    if any(not step.options.has("export") for step in job.sruns):
        yield at("export-flows", option)
