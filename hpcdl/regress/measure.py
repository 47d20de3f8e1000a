"""Measures a site's own references: runs the checks several times and keeps what came out."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hpcdl.regress import references
from hpcdl.regress.check_request import CheckRequest
from hpcdl.regress.propose import by_key, of_runs, rows_of
from hpcdl.regress.references import MIN_RUNS, Reference, by_set, fingerprint
from hpcdl.regress.reframe_adapter.process import Progress
from hpcdl.regress.reframe_adapter.settings import Modules, module_on
from hpcdl.regress.runner import CheckOutcome, as_data, run_checks
from hpcdl.results.faults import Status
from hpcdl.site import Site
from hpcdl.system.errors import BadInput, CheckFailed


class Measurement(NamedTuple):
    """New references, and the files they went to."""

    references: tuple[Reference, ...]
    files: tuple[Path, ...]


def measure(
    site: Site, modules: Modules, request: CheckRequest, progress: Progress | None = None
) -> Measurement:
    """Run the checks `request.repeat` times and derive references.

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
    files = [references.update_references(site, name, new)
             for name, new in by_set(site, rows).items()]  # fmt: skip
    return Measurement(rows, tuple(files))


def covered(site: Site, modules: Modules, request: CheckRequest) -> bool:
    """Whether each check asked for has a reference of this release and machine, everywhere.

    Raises BadInput: no check is named; which ones tags mean, only ReFrame knows.
    """
    if not request.names:
        hint = "name the checks: --name throughput --name storage"
        raise BadInput("--if-missing cannot know which references are missing", hint=hint)
    machine = fingerprint()
    for part in site.by_groups(request.partitions):
        rows = references.load_references(site, part.reference_set).values()
        there = [row.names for row in rows if row.partition == part.label and row.proof == "run"
                 and row.release == module_on(modules, part.label).release
                 and row.machine in {None, machine}]  # fmt: skip
        if not set().union(*there).issuperset(request.names):
            return False
    return True


def derive(site: Site, modules: Modules, outcome: CheckOutcome) -> tuple[Reference, ...]:
    """A reference for every metric of every case."""
    source = f"measured on '{site.name}' by hpcdl check references measure"
    verdicts = as_data(outcome)["verdicts"]
    rows = rows_of(verdicts, outcome.machine, time.strftime("%Y-%m-%d"), source)
    return tuple(
        replace(of_runs(group), release=module_on(modules, key[2]).release)
        for key, group in by_key(rows).items()
    )
