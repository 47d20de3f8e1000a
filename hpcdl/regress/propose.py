"""Makes a site's own references: measured by runs for them, or drafted from those of nights.

`propose` drafts changes, as a diff that a team reviews like code. The values come from the runs
that lie in the site's work directory: those of the release that is published now, not slowed on
purpose, not failed. A reference is drafted where there is none, or where the one there is was
measured with another release, driver or machine, or on too few runs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
    load_references,
)
from hpcdl.regress.reframe_adapter.process import CheckRequest, Progress
from hpcdl.regress.reframe_adapter.settings import Modules
from hpcdl.regress.run_directory import runs_directory
from hpcdl.regress.runner import CheckOutcome, as_data, run_checks
from hpcdl.regress.verdict import outdated
from hpcdl.results.faults import FaultKind, Status
from hpcdl.results.records import VERDICTS
from hpcdl.site import Site
from hpcdl.slurm.hostlist import expand_hostlist
from hpcdl.system.errors import BadInput, CheckFailed

MOST_RUNS = 10
_USABLE = {one.value for one in Status if one is Status.PASS or one.waivable}


@dataclass(frozen=True)
class Drafts:
    """New rows, the change of files that they are, and what is measured too seldom, as text.

    `nights` says whether anything was measured that could be proposed.
    """

    rows: Sequence[Reference]
    edits: Edits
    waiting: Sequence[str]
    nights: bool = True


def propose(
    site: Site, modules: Modules, partitions: Sequence[str] = (), names: Sequence[str] = ()
) -> Drafts:
    """Draft references from the runs of the release that is published now.

    All partitions and all checks (`names`, also as `check/case`) by default. Raises BadInput: an
    unknown partition, or a reference file with faults.
    """
    chosen = [part.label for part in site.by_groups(partitions)]
    measured = [
        row
        for row in read_rows(site)
        if row.partition in chosen
        and row.release == modules[row.partition].release
        and (not names or row.names & {*names})
    ]
    rows, waiting, there = [], [], load_references(site, partitions)
    for key, group in by_key(measured).items():
        if key in there and _stands(there[key], group[0]):
            continue
        now = (group[0].machine, group[0].driver)
        same = [row for row in group if row.value > 0 and (row.machine, row.driver) == now]
        if len(same) >= MIN_RUNS:
            rows.append(of_runs(same[:MOST_RUNS]))
        else:
            name = f"{key[0]}/{key[1]} on {key[2]}, {key[3]}"
            waiting.append(f"{name}: {len(same)} of {MIN_RUNS} runs")
    return Drafts(rows, edits_of(site, rows), waiting, bool(measured))


def by_key(rows: Iterable[Reference]) -> dict[ReferenceKey, list[Reference]]:
    """Rows of several runs by what they are of."""
    groups: dict[ReferenceKey, list[Reference]] = {}
    for row in rows:
        groups.setdefault(row.key, []).append(row)
    return groups


def of_runs(rows: Sequence[Reference]) -> Reference:
    """One reference from those of single runs, the newest first.

    Raises MissingPrerequisite: too few of them are good.
    """
    nodes = tuple(sorted({node for row in rows for node in row.nodes}))
    return from_runs(replace(rows[0], nodes=nodes), [row.value for row in rows])


def read_rows(site: Site) -> Iterator[Reference]:
    """Yield the usable runs, the newest first; damaged ones are left out."""
    source = f"nightly runs on '{site.name}', drafted by hpcdl check references propose"
    for path in sorted(runs_directory(site).glob("*/verdicts.json"), reverse=True):
        stamp = path.parent.name
        date = f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]}"
        try:
            run = VERDICTS.read(path).values
            good = [
                one
                for one in run["verdicts"]
                if not run["settings"]
                and one["status"] in _USABLE
                and FaultKind.FEW_STEPS not in {fault["kind"] for fault in one["faults"]}
            ]
            found = [*rows_of(good, run.get("machine"), date, source)]
        except (BadInput, KeyError, TypeError, AttributeError, ValueError, OverflowError):
            continue
        yield from found


def rows_of(
    verdicts: Iterable[Mapping[str, Any]], machine: str | None, date: str, source: str
) -> Iterator[Reference]:
    """Yield each metric of a run's verdicts as a reference, from this run alone."""
    for verdict in verdicts:
        for metric in verdict["metrics"]:
            ruled = metric.get("source") == OWN_DEMAND
            if metric["wanted"] and metric["value"] is not None and not ruled:
                better = metric.get("better") or (LOWER if metric["unit"] in TIMES else "")
                yield Reference(
                    check=verdict["check"],
                    case=verdict["case"],
                    partition=verdict["partition"],
                    metric=metric["name"],
                    value=float(metric["value"]),
                    unit=metric["unit"],
                    source=source,
                    proof="run",
                    date=date,
                    release=verdict["release"],
                    driver=verdict.get("driver"),
                    machine=machine,
                    nodes=tuple(expand_hostlist(str(verdict["job"].get("nodes") or ""))),
                    upper=WIDEST if better == LOWER else None,
                )


def _stands(known: Reference, newest: Reference) -> bool:
    often = known.proof == "run" and not 0 < known.runs < MIN_RUNS
    return often and not any(outdated(vars(known), vars(newest), newest.machine))


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
    """A reference for every metric of every case."""
    source = f"measured on '{site.name}' by hpcdl check references measure"
    verdicts = as_data(outcome)["verdicts"]
    rows = rows_of(verdicts, outcome.machine, time.strftime("%Y-%m-%d"), source)
    return tuple(
        replace(of_runs(group), release=modules[key[2]].release)
        for key, group in by_key(rows).items()
    )
