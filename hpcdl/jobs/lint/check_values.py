"""Checks of what options are given: values that sbatch refuses, and counts without a unit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from hpcdl.facts import load
from hpcdl.jobs.lint.checks import checks
from hpcdl.jobs.lint.job import Hit, Job, at
from hpcdl.jobs.lint.options import Option
from hpcdl.slurm.rules import Release, Span, span

_EXPANDS = re.compile(r"[$`]")
_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})\Z", re.A)
_HOURS = {24, 48, 72, 96}
"""Numbers of minutes that hours were meant by."""
_MEANT_GB = frozenset((*range(1, 65), 96, 128))
"""Numbers of megabytes by which gigabytes were meant; 100 and 250 are those of small examples."""


@checks("option-value")
def refused_values(job: Job) -> Iterator[Hit]:
    """Values that are not written as sbatch reads them."""
    for option in job.options.given:
        expected = expects(option, job.release)
        if expected is not None:
            yield at("option-value", option, f"'{option.text[:60]}' is not {expected}")


def expects(option: Option, release: Release) -> str | None:
    """How a value is to be written, where it is written otherwise; None where it is right."""
    if option.value is None or option.fact is None or _EXPANDS.search(option.value):
        return None
    for releases, pattern, row in _grammar().get(option.name, ()):
        if releases.holds(release) and not _reads(pattern, option.value, row):
            return str(row["expects"])
    return None


def _reads(pattern: re.Pattern[str], value: str, row: dict[str, Any]) -> bool:
    both = _RANGE.match(value) if row.get("ordered") else None
    ordered = both is None or int(both.group(1)) <= int(both.group(2))
    return ordered and pattern.fullmatch(value[:2000]) is not None


@cache
def _grammar() -> dict[str, list[tuple[Span, re.Pattern[str], dict[str, Any]]]]:
    """The rows of facts/slurm_values.yaml by option."""
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
