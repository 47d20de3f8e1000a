"""The checks, one function per rule or per few rules that share a look at the script.

A check is a function from a `Job` to hits, registered with the ids that it may yield. It knows
no release: it yields what it sees, and the rules' spans decide which of it holds. Checks lie in
modules by what they look at; `all_checks` imports them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module

from hpcdl.jobs.lint.gaps import FILLED
from hpcdl.jobs.lint.job import Hit, Job

Check = Callable[[Job], Iterator[Hit]]

_MODULES = ("directives", "values", "cluster", "gpus", "steps", "script", "signals", "habits")

CHECKS: list[tuple[frozenset[str], Check]] = []
"""Every check with the ids of its rules."""


def checks(*rules: str) -> Callable[[Check], Check]:
    """Register a check for some rules."""

    def register(check: Check) -> Check:
        CHECKS.append((frozenset(rules), check))
        return check

    return register


def hits(job: Job, active: frozenset[str]) -> Iterator[Hit]:
    """What all checks find of the active rules; in a template, what no filling mends."""
    wanted = active - FILLED if job.script.is_template else active
    for rules, check in all_checks():
        if rules & wanted:
            yield from (hit for hit in check(job) if hit.rule in wanted)


def all_checks() -> list[tuple[frozenset[str], Check]]:
    """Every check with the ids of its rules, their modules imported."""
    for name in _MODULES:
        import_module(f"hpcdl.jobs.lint.check_{name}")
    return CHECKS
