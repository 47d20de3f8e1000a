"""What is known to be wrong with a release's packages, and what the site says of it.

Vulnerabilities come from hpcdl's own facts, which stop a publish until they are waived, and from
OSV's file (hpcdl.stack.osv), which only informs. A waiver answers either by any of its names.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase

from hpcdl import facts
from hpcdl.site import Site
from hpcdl.stack.components import Component, components
from hpcdl.stack.osv import osv_file, vulnerabilities
from hpcdl.stack.records import Records, Waiver, concerns, read_records, today, waiver_of
from hpcdl.stack.release import BrokenRelease, Release, read_release, release_ids


@dataclass(frozen=True)
class Finding:
    """A vulnerability in packages of a release: `state` is `waived`, `expired` or `open`.

    `aliases` are its other names, `purls` the packages, `fixed` the first version without it.
    """

    id: str
    aliases: tuple[str, ...]
    what: str
    packages: tuple[str, ...]
    purls: tuple[str, ...]
    fixed: str
    state: str
    waiver: Waiver | None = None

    def as_data(self) -> dict[str, object]:
        """For machines."""
        return {"id": self.id, "aliases": list(self.aliases), "what": self.what,
                "packages": list(self.packages), "fixed": self.fixed or None, "state": self.state,
                "waiver": vars(self.waiver) if self.waiver else None}  # fmt: skip

    def describe(self) -> str:
        """What the site says of it."""
        if self.waiver is None:
            return "no waiver" + (f"; fixed in {self.fixed}" if self.fixed else "")
        told = f"{self.waiver.because} (owner: {self.waiver.owner}, until {self.waiver.until})"
        return told if self.state == "waived" else f"the waiver expired: {told}"


def findings(site: Site, release: Release, inside: Sequence[Component]) -> list[Finding]:
    """Everything known, hpcdl's own facts first; one that both know is named once.

    Raises:
        CheckFailed: OSV's file or the site's records are damaged.
    """
    records, day = read_records(site), today()
    rows = facts.load("records")["weaknesses"]
    own = [_own(name, row, inside, records, day) for name, row in rows.items()
           if concerns(release, row)]  # fmt: skip
    path = osv_file(site)
    known = {name for one in own for name in (one.id, *one.aliases)}
    found = []
    for one in vulnerabilities(path, inside) if path else ():
        if known.isdisjoint(one.names):
            waiver = next((w for name in one.names if (w := waiver_of(name, records))), None)
            what = f"{one.summary or 'no summary'} ({', '.join(one.aliases) or one.id})"
            found.append(Finding(one.id, one.aliases, what, (one.package,), (one.purl,), one.fixed,
                                 _state(waiver, day), waiver))  # fmt: skip
    return [*own, *found]


def known_names(site: Site) -> set[str]:
    """Every name in OSV's file of a vulnerability in any release of the site.

    Raises:
        CheckFailed: the file is damaged.
        MissingPrerequisite: the libraries of the extra 'records' are not installed.
    """
    path = osv_file(site)
    if path is None:
        return set()
    inside: dict[str, Component] = {}
    for release_id in release_ids(site):
        with suppress(BrokenRelease):
            found = components(read_release(site, release_id))
            inside |= {one.purl: one for one in found}
    return {name for one in vulnerabilities(path, list(inside.values()))
            for name in one.names}  # fmt: skip


def _own(
    name: str,
    row: dict[str, list[str]],
    inside: Sequence[Component],
    records: Records,
    day: datetime.date,
) -> Finding:
    touched = [one for one in inside if any(fnmatchcase(one.name, p) for p in row["packages"])]
    waiver = waiver_of(name, records)
    packages, purls = tuple(one.name for one in touched), tuple(one.purl for one in touched)
    what = str(row["what"])
    return Finding(name, (), what, packages, purls, "", _state(waiver, day), waiver)


def _state(waiver: Waiver | None, day: datetime.date) -> str:
    if waiver is None:
        return "open"
    return "expired" if waiver.expired(day) else "waived"
