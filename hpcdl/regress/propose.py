"""Drafts changes of the site's references, as a diff that a team reviews like code.

The values come from the runs that lie in the site's work directory: those of the release that is
published now, not slowed on purpose, not failed. A reference is drafted where there is none, or
where the one there is was measured with another release, driver or machine, or on too few runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdl.regress.references import (
    MIN_RUNS,
    OWN_DEMAND,
    Edit,
    Key,
    Reference,
    by_set,
    edit_of,
    from_runs,
    load_references,
    update_references,
)
from hpcdl.regress.reframe_adapter.settings import Modules, module_on
from hpcdl.regress.run_directory import runs_directory
from hpcdl.results.faults import FaultKind, Status
from hpcdl.results.records import VERDICTS
from hpcdl.site import Site
from hpcdl.slurm.hostlist import expand_hostlist
from hpcdl.system.errors import BadInput

MOST_RUNS = 10
_USABLE = {Status.PASS.value, Status.STALE.value, Status.NO_REFERENCE.value,
           Status.INSUFFICIENT.value}  # fmt: skip


@dataclass(frozen=True)
class Value:
    """One metric of one run, with all that its reference would say."""

    key: Key
    value: float
    unit: str
    release: str | None
    driver: str | None
    machine: str | None
    nodes: tuple[str, ...]
    date: str


@dataclass(frozen=True)
class Drafts:
    """Changes of the sets' files, and what is still measured too seldom, as text."""

    edits: tuple[Edit, ...]
    waiting: tuple[str, ...]
    nights: bool = True
    """Whether anything was measured that could be proposed."""
    rows: tuple[Reference, ...] = ()
    """What the changes add or replace."""

    def write(self, site: Site) -> None:
        """Make the changes, in the files as they are by now."""
        for name, rows in by_set(site, self.rows).items():
            update_references(site, name, rows)


def propose(
    site: Site, modules: Modules, partitions: Sequence[str] = (), names: Sequence[str] = ()
) -> Drafts:
    """Draft references from the runs of the release that is published now.

    Args:
        site: whose references.
        modules: what jobs load now.
        partitions: only these; all by default.
        names: only these checks, or `check/case`; all by default.

    Raises:
        BadInput: an unknown partition, or a reference file with faults.
    """
    chosen = [part.label for part in site.by_groups(partitions)]
    values = [
        value
        for value in read_values(runs_directory(site))
        if value.key[2] in chosen
        and value.release == module_on(modules, value.key[2]).release
        and (not names or {value.key[0], "/".join(value.key[:2])} & set(names))
    ]
    rows, waiting = draft(site, values)
    edits = tuple(edit_of(site, name, new) for name, new in by_set(site, rows).items())
    return Drafts(edits, waiting, bool(values), tuple(rows))


def draft(site: Site, values: Sequence[Value]) -> tuple[list[Reference], tuple[str, ...]]:
    """New rows from values, newest first, and what is measured too seldom."""
    groups: dict[Key, list[Value]] = {}
    for value in values:
        groups.setdefault(value.key, []).append(value)
    rows, waiting = [], []
    for key, group in groups.items():
        known = load_references(site, site.partition(key[2]).reference_set).get(key)
        same = [v for v in group if v.value > 0 and _alike(v, group[0])]
        if known is not None and not _outdated(known, group[0]):
            continue
        if len(same) < MIN_RUNS:
            name = f"{key[0]}/{key[1]} on {key[2]}, {key[3]}"
            waiting.append(f"{name}: {len(same)} of {MIN_RUNS} runs")
            continue
        rows.append(_row(site, same[:MOST_RUNS]))
    return rows, tuple(waiting)


def read_values(directory: Path) -> Iterator[Value]:
    """What can be used of all runs, the newest run first; damaged ones are left out."""
    for path in sorted(directory.glob("*/verdicts.json"), reverse=True):
        try:
            run = VERDICTS.read(path).values
            found = [] if run["settings"] else [*_values(run, path.parent.name)]
        except (BadInput, KeyError, TypeError):
            continue
        yield from found


def _values(run: Mapping[str, Any], stamp: str) -> Iterator[Value]:
    date = f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]}"
    for verdict in run["verdicts"]:
        for metric in verdict["metrics"] if _usable(verdict) else ():
            ruled = metric.get("source") == OWN_DEMAND
            if metric["wanted"] and metric["value"] is not None and not ruled:
                yield Value(
                    key=(verdict["check"], verdict["case"], verdict["partition"], metric["name"]),
                    value=float(metric["value"]),
                    unit=metric["unit"],
                    release=verdict["release"],
                    driver=verdict.get("driver"),
                    machine=run.get("machine"),
                    nodes=tuple(expand_hostlist(str(verdict["job"].get("nodes") or ""))),
                    date=date,
                )


def _alike(one: Value, other: Value) -> bool:
    return one.machine == other.machine and one.driver == other.driver


def _usable(verdict: Mapping[str, Any]) -> bool:
    """Whether a verdict's numbers are those of a good run, whatever its references."""
    kinds = {fault["kind"] for fault in verdict["faults"]}
    return verdict["status"] in _USABLE and FaultKind.FEW_STEPS not in kinds


def _outdated(known: Reference, newest: Value) -> bool:
    """Whether a reference says nothing of today's software and machine any more."""
    if known.proof != "run":
        return True
    now = {"release": newest.release, "driver": newest.driver, "machine": newest.machine}
    changed = any(getattr(known, what) not in {None, value} for what, value in now.items() if value)
    return changed or 0 < known.runs < MIN_RUNS


def _row(site: Site, values: Sequence[Value]) -> Reference:
    newest = values[0]
    check, case, partition, metric = newest.key
    empty = Reference(
        check=check, case=case, partition=partition, metric=metric, value=1.0, unit=newest.unit,
        source=f"nightly runs on '{site.name}', drafted by hpcdl check references propose",
        proof="run", date=newest.date, release=newest.release, driver=newest.driver,
        nodes=tuple(sorted({node for value in values for node in value.nodes})),
        machine=newest.machine,
    )  # fmt: skip
    return from_runs(empty, [value.value for value in values])
