"""Series from files: CSV with the columns date and value, and optionally release, driver, node."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import asdict
from datetime import date, datetime
from functools import cache
from pathlib import Path
from typing import Any

from hpcdl.regress.answer import describe
from hpcdl.regress.drift import Analysis
from hpcdl.regress.identity import LARGEST, Night
from hpcdl.regress.verdict import number
from hpcdl.system.errors import BadInput
from hpcdl.system.files import read_regular
from hpcdl.system.text import count_of

COLUMNS = ("date", "value", "release", "driver", "node")
_SHOWN_FAULTS = 10
_MOST_BYTES = 20_000_000


def read_series(path: Path) -> list[Night]:
    """The nights of a CSV file.

    Raises:
        BadInput: it cannot be read, or is no such file; its faulty lines are named (the first ten).
    """
    try:
        text = read_regular(path, _MOST_BYTES, "CSV file").decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        raise BadInput(f"{path} is not UTF-8 text", hint="save it as UTF-8") from fault
    lines = text.replace("\0", "").splitlines()
    mark = next((one for one in ",;\t" if lines and one in lines[0]), ",")
    rows = csv.DictReader(lines, delimiter=mark)
    nights, faults = [], []
    try:
        names = rows.fieldnames = [name.strip().lower() for name in rows.fieldnames or ()]
        wrong = [name for name in COLUMNS[:2] if name not in names]
        wrong += [name for name in COLUMNS if names.count(name) > 1]
        if wrong:
            hint = f"its first line names the columns: {','.join(COLUMNS)}; the last three may lack"
            raise BadInput(f"{path} needs one column {' and one column '.join(wrong)}", hint=hint)
        for row in rows:
            try:
                nights.append(_night(row))
            except ValueError as fault:
                faults.append(f"line {rows.line_num}: {fault}")
    except csv.Error as fault:
        raise BadInput(f"{path}, line {rows.line_num + 1}: {fault}") from fault
    if faults:
        more = [f"and {len(faults) - _SHOWN_FAULTS} more"] if len(faults) > _SHOWN_FAULTS else []
        raise BadInput(f"{path} has faults", details=[*faults[:_SHOWN_FAULTS], *more])
    if not nights:
        raise BadInput(f"{path} has no nights", hint="a line for each: 2026-01-31,1234.5")
    return nights


def analysis_text(analysis: Analysis) -> str:
    """An analysis for a person, each change in the words of the gate."""
    lines = [
        f"{count_of(analysis.nights, 'night')}, level {number(analysis.level)}, "
        f"spread {analysis.spread:.1%}"
    ]
    if not analysis.enough:
        lines.append("INSUFFICIENT-DATA: too few nights to see a change")
    lines += [
        f"{one.word}, seen on {one.seen}, began {one.earliest} to {one.latest}: {describe(one)}"
        for one in analysis.changes
    ] or ["no change"] * analysis.enough
    if analysis.warning:
        lines.append("the last change is not sure yet: more nights are needed")
    return "\n".join([*lines, *(f"slow node: {node}" for node in analysis.slow_nodes)])


def analysis_data(analysis: Analysis) -> dict[str, Any]:
    """An analysis for JSON; dates are dates."""
    changes = [
        {**asdict(change), "kind": change.word, "change": round(change.change, 5)}
        for change in analysis.changes
    ]
    now = {"alarm": analysis.alarm, "warning": analysis.warning}
    return {
        "schema": 1,
        **asdict(analysis),
        "changes": changes,
        **{name: change.kind.value if change else None for name, change in now.items()},
    }


def _night(row: Mapping[str | None, str | None]) -> Night:
    if None in row:
        raise ValueError("more fields than columns")
    day, text, *rest = ((row.get(name) or "").strip() for name in COLUMNS)
    if not text:
        raise ValueError("no value; leave a night without one out")
    try:
        value = float(text)
    except ValueError:
        point = ": it has a comma for a point" if "," in text else ""
        raise ValueError(f"value {text[:40]!r} is no number{point}") from None
    if not 0 <= value <= LARGEST or 0 < value < 1 / LARGEST:
        raise ValueError(f"value {text[:40]!r} is no measurement from 0 up")
    return Night(_date(day), value, *rest)


@cache
def _date(text: str) -> date:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).date()
    except ValueError:
        raise ValueError(f"date {text[:40]!r} is not like 2026-01-31") from None
