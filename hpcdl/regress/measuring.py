"""Measures a site's own references, by runs for them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hpcdl.regress.identity import LOWER, TIMES
from hpcdl.regress.references import (
    MIN_RUNS,
    OWN_DEMAND,
    WIDEST,
    Edits,
    Reference,
    ReferenceKey,
    edits_of,
    from_runs,
)
from hpcdl.regress.reframe_adapter.process import CheckRequest, Progress
from hpcdl.regress.reframe_adapter.settings import Modules
from hpcdl.regress.runner import CheckOutcome, run_checks
from hpcdl.results.faults import Status
from hpcdl.site import Site
from hpcdl.slurm.hostlist import expand_hostlist
from hpcdl.system.errors import BadInput, CheckFailed


def measure(
    site: Site, modules: Modules, request: CheckRequest, progress: Progress | None = None
) -> tuple[Sequence[Reference], Edits]:
    """Run the checks `request.repeat` times; the references that follow, and what was written.

    Raises BadInput: fewer runs than a reference needs. Raises CheckFailed: a run went wrong;
    nothing is written.
    """
    if request.repeat < MIN_RUNS:
        raise BadInput(
            f"--runs {request.repeat} is too few for a reference", hint=f"give at least {MIN_RUNS}"
        )
    outcome = run_checks(site, modules, replace(request, measuring=True), progress)
    well = {Status.NO_REFERENCE, Status.PASS}  # at most it lacks references
    faulty = [verdict for verdict in outcome.verdicts if verdict.status not in well]
    if faulty:
        raise CheckFailed(
            "no reference was written, because not every run went well",
            details=[f"{v.name} on {v.partition or '-'}: {v.reason}" for v in faulty],
            hint=f"see {outcome.directory.path}",
        )
    rows = derive(site, modules, outcome)
    if not rows:
        raise CheckFailed(
            "no reference was written, because nothing that ran has a number to be judged",
            hint="`hpcdl check run` says of each check what it holds",
        )
    edits = edits_of(site, rows)
    edits.write()
    return rows, edits


def derive(site: Site, modules: Modules, outcome: CheckOutcome) -> tuple[Reference, ...]:
    """A reference for every metric of every case, from all of its runs.

    Raises MissingPrerequisite: too few of them are good.
    """
    groups: dict[ReferenceKey, list[Reference]] = {}
    for row in _rows_of(site, outcome):
        groups.setdefault(row.key, []).append(row)
    return tuple(
        from_runs(
            replace(
                rows[0],
                nodes=tuple(sorted({node for row in rows for node in row.nodes})),
                release=modules[key[2]].release,
            ),
            [row.value for row in rows],
        )
        for key, rows in groups.items()
    )


def _rows_of(site: Site, outcome: CheckOutcome) -> Iterator[Reference]:
    """Yield each metric of a run's verdicts as a reference, from this run alone."""
    for verdict in outcome.verdicts:
        for metric in verdict.metrics:
            if not metric.wanted or metric.value is None or metric.source == OWN_DEMAND:
                continue
            better = metric.better or (LOWER if metric.unit in TIMES else "")
            yield Reference(
                check=verdict.check,
                case=verdict.case,
                partition=verdict.partition,
                metric=metric.name,
                value=float(metric.value),
                unit=metric.unit,
                source=f"measured on '{site.name}' by hpcdl check references measure",
                proof="run",
                date=time.strftime("%Y-%m-%d"),
                driver=verdict.driver,
                machine=outcome.machine,
                nodes=tuple(expand_hostlist(str(verdict.job.get("nodes") or ""))),
                upper=WIDEST if better == LOWER else None,
            )
