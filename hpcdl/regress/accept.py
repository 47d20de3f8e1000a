"""Accepts findings of the gate: in a file that a team reviews, beside the references.

PREFIX/references/accepted.yaml holds what is in force. The level that a change led to becomes the
reference of its series, where the site has one; the row that it replaces stays in the file, so
that one command undoes it. Both files are written together, and shown as one diff.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.regress.answer import RETIRED, Acceptance, Finding, GateAnswer, Rulings
from hpcdl.regress.gate import ask
from hpcdl.regress.history import History, read_history
from hpcdl.regress.identity import Series, name_of
from hpcdl.regress.references import (
    Edit,
    Edits,
    Reference,
    edits_of,
    entry_of,
    load_references,
    read_references,
    reference_of,
    site_file,
    text_of,
)
from hpcdl.site import Site
from hpcdl.slurm.execution import current_or_cluster
from hpcdl.system.document import check, read_document
from hpcdl.system.errors import BadInput
from hpcdl.system.text import did_you_mean

SCHEMA = 1


def accepted_file(site: Site) -> Path:
    """Where a site keeps what is accepted."""
    return site.paths.prefix / "references" / "accepted.yaml"


def rulings_of(site: Site) -> Rulings:
    """All that is decided about a site's series. Raises BadInput: a file has faults."""
    return Rulings(read_accepted(accepted_file(site)), load_references(site))


def answer_now(
    site: Site,
    *,
    partitions: tuple[str, ...] = (),
    names: tuple[str, ...] = (),
    rulings: Rulings | None = None,
) -> GateAnswer:
    """The gate's answer now, from a site's history and what people decided about its series.

    It is about all partitions and all checks (`names`) by default.
    """
    with read_history(site) as history:
        return ask(
            history,
            partitions=partitions,
            names=names,
            now=datetime.now(timezone.utc),
            execution=current_or_cluster(),
            rulings=rulings or rulings_of(site),
        )


def read_accepted(path: Path) -> tuple[Acceptance, ...]:
    """Return a file's acceptances; none if it does not exist.

    Raises BadInput: every fault of the file at once.
    """
    if not path.exists():
        return ()
    document = read_document(path, if_empty="`hpcdl check accept` writes it")
    values = check(document, facts.load("check_formats")["accepted"])
    document.raise_faults()
    return tuple(
        Acceptance(**{**row, "series": Series(**{"metric": "", **row["series"]})})
        for row in values["accepted"]
    )


def accept(site: Site, history: History, answer: GateAnswer, what: str, given: Acceptance) -> Edits:
    """Accept a finding: its level, or until a day.

    `what` is a finding's id, or the name of its series. Raises BadInput: there is no such finding,
    or it cannot be accepted so.
    """
    accepted = read_accepted(accepted_file(site))
    finding = _find(answer, what, accepted)
    run = history.newest(finding.series, history.series().get(finding.series, ""))
    last = run[-1] if run else None
    value = finding.after or (last.value if last and finding.kind == "FAIL" else None)
    if not given.until and (value is None or last is None):
        message = f"{finding.kind} of {finding.name} has no level that could become the normal one"
        raise BadInput(message, hint="let it sleep until a day: --until YEAR-MONTH-DAY")
    since = "" if given.until or last is None else str(finding.began or last.time[:10])
    row = None if given.until else _reference(site, finding.series)
    new = replace(
        given,
        id=finding.id,
        series=finding.series,
        since=since,
        replaced=entry_of(row) if row else None,
    )
    kept = [entry for entry in accepted if (entry.id, bool(entry.since)) != (new.id, bool(since))]
    levels = []
    if row is not None and value is not None and last is not None:
        level = float(f"{value:.6g}")
        source, release = _source(given), last.release or None
        levels = [replace(row, value=level, date=given.date, release=release, source=source)]
    return _edits(site, [*kept, new], levels, f"{finding.id} {finding.name}: {new.describe()}")


def retire(site: Site, history: History, what: str, given: Acceptance) -> Edits:
    """Retire the series of a name, which give no more results: no gate misses them.

    One that gives a result again is watched again. Raises BadInput: the history has none.
    """
    series = history.series()
    meant = [candidate for candidate in series if what in {name_of(candidate), candidate.name}]
    if not meant:
        hint = did_you_mean(what, [candidate.name for candidate in series])
        raise BadInput(f"the history has no series '{what}'", hint=hint or _LIST)
    known = read_accepted(accepted_file(site))
    kept = [entry for entry in known if entry.id != RETIRED or entry.series not in meant]
    new = [replace(given, id=RETIRED, series=candidate) for candidate in meant]
    summary = f"{what}: {len(meant)} series retired"
    return _edits(site, [*kept, *new], [], summary)


def undo(site: Site, what: str) -> Edits:
    """Undo an acceptance, and restore the earlier reference of its series.

    Raises BadInput: nothing of that id or name is accepted.
    """
    accepted = read_accepted(accepted_file(site))
    gone = [entry for entry in accepted if what in {entry.series.name, *_names(entry)}]
    if not gone:
        names = [name for entry in accepted for name in _names(entry)]
        raise BadInput(f"'{what}' is not accepted", hint=did_you_mean(what, names) or _LIST)
    kept, rows = [entry for entry in accepted if entry not in gone], []
    summary = "; ".join(f"{entry.id} {name_of(entry.series)}" for entry in gone)
    for entry in gone:
        row = _reference(site, entry.series) if entry.replaced else None
        if entry.replaced and (row is None or row.source == _source(entry)):
            rows.append(reference_of(entry.replaced))
        elif row:
            summary += f"; the reference of {name_of(entry.series)} was set anew since, and stays"
    return _edits(site, kept, rows, f"undone: {summary}")


def _source(accepted: Acceptance) -> str:
    return f"accepted by {accepted.by}: {accepted.because}"


def _names(entry: Finding | Acceptance) -> tuple[str, str]:
    return entry.id, name_of(entry.series)


_LIST = "`hpcdl check accept` lists what is accepted, `hpcdl check gate` what can be"


def _find(answer: GateAnswer, what: str, known: Sequence[Acceptance]) -> Finding:
    there = [*answer.findings, *answer.warnings]
    meant = [finding for finding in there if what in {finding.series.name, *_names(finding)}]
    if len(meant) == 1:
        return meant[0]
    if not meant:
        for entry in known:
            if what in _names(entry):
                message = f"{entry.id} {name_of(entry.series)} is accepted: {entry.describe()}"
                raise BadInput(
                    message, hint=f"take it back first: hpcdl check accept {entry.id} --undo"
                )
        names = [name for finding in there for name in _names(finding)]
        raise BadInput(f"there is no finding '{what}'", hint=did_you_mean(what, names) or _LIST)
    details = [
        f"{finding.id}  {finding.kind}  {finding.name}: {finding.description}" for finding in meant
    ]
    message = f"'{what}' has {len(meant)} findings"
    raise BadInput(message, details=details, hint="name one by its id")


def _reference(site: Site, series: Series) -> Reference | None:
    """The site's own reference of a series."""
    here = (part for part in site.by_groups() if part.label == series.partition)
    rows = (row for part in here for row in read_references(site_file(site, part.reference_set)))
    key = None if series.environment else tuple(series[:4])
    return next((row for row in rows if row.key == key), None)


def _edits(
    site: Site, accepted: Sequence[Acceptance], rows: Sequence[Reference], summary: str
) -> Edits:
    """The change of the file of what is accepted, and of the references of its series."""
    import yaml

    path = accepted_file(site)
    each = [_filled({**asdict(row), "series": _filled(row.series._asdict())}) for row in accepted]
    values = {"schema": SCHEMA, "accepted": each}
    head = (
        "# Findings of the nightly checks that somebody accepted. `hpcdl check accept` writes it,\n"
        "# `--undo` takes one back; a change is reviewed like code.\n"
    )
    text = head + str(yaml.safe_dump(values, sort_keys=False, width=96, allow_unicode=True))
    return Edits((Edit(path, text_of(path), text), *edits_of(site, rows).files), summary)


def _filled(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are set."""
    return {key: value for key, value in values.items() if value not in (None, "")}
