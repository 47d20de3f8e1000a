"""Tonight's verdicts as rows of a table. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpcdl.regress.history import single_node
from hpcdl.regress.identity import place_of
from hpcdl.regress.report.series_view import signed
from hpcdl.regress.run_directory import began
from hpcdl.system.text import duration

_ORDER = ("ERROR", "FAIL", "NO-REFERENCE", "STALE", "INSUFFICIENT-DATA", "PASS")


@dataclass(frozen=True)
class Row:
    """A verdict as the table shows it. `tone` is good, uncertain or bad."""

    name: str
    check: str
    case: str
    partition: str
    status: str
    tone: str
    waived: bool
    reason: str
    metrics: Sequence[Mapping[str, Any]]
    """Those that are judged first: the first is the one that the table shows."""
    facts: tuple[tuple[str, str], ...]
    node: str = ""
    """Where it ran, where the same case ran on several nodes."""


def rows(verdicts: Sequence[Mapping[str, Any]]) -> list[tuple[int, Row]]:
    """The verdicts as rows, those that need a person first, each with its index in `verdicts`."""
    found = [(index, _row(verdict)) for index, verdict in enumerate(verdicts)]
    often = Counter((row.name, row.partition) for _, row in found)
    found = [(index, row if often[row.name, row.partition] > 1 else replace(row, node=""))
             for index, row in found]  # fmt: skip

    def urgency(row: Row) -> tuple[bool, int, str, str]:
        place = _ORDER.index(row.status) if row.status in _ORDER else 0
        return row.tone == "good" or row.waived, place, row.partition, row.name

    return sorted(found, key=lambda pair: urgency(pair[1]))


def when(run: str) -> str:
    """A run's local time from its directory's name, '' where it has another name."""
    at = began(run.rpartition("/")[2])
    return at.astimezone().strftime("%Y-%m-%d %H:%M") if at else ""


def headline(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """The night in a sentence."""
    total = len(verdicts)
    bad = sum(not verdict["ok"] for verdict in verdicts)
    if not total:
        return "No check ran"
    if not bad:
        return "The check passes" if total == 1 else f"All {total} checks pass"
    if total == 1:
        return "The check does not pass"
    return f"{bad} of {total} checks {'does' if bad == 1 else 'do'} not pass"


def _row(verdict: Mapping[str, Any]) -> Row:
    status = str(verdict["status"])
    check, case = str(verdict["check"]), str(verdict.get("case") or "")
    metrics = [{"source": "", **metric} for metric in verdict.get("metrics") or ()]
    judged = sorted(metrics, key=lambda metric: not metric["wanted"])
    tone = {"PASS": "good", "FAIL": "bad", "ERROR": "bad"}.get(status, "uncertain")
    return Row(
        name=f"{check}/{case}" if case else check,
        check=check,
        case=case,
        partition=place_of(*(str(verdict.get(of) or "") for of in ("partition", "environment"))),
        status=status,
        tone=tone,
        waived=bool(verdict.get("waived")),
        reason=str(verdict.get("reason") or ""),
        metrics=judged,
        facts=tuple(_facts(verdict)),
        node=single_node(str((verdict.get("job") or {}).get("nodes") or "")),
    )


def change_text(value: float | None, reference: float | None) -> str:
    """How far a value lies from its reference, '' where nobody knows."""
    return signed(value / reference - 1) if value is not None and reference else ""


def _facts(verdict: Mapping[str, Any]) -> list[tuple[str, str]]:
    job: Mapping[str, Any] = verdict.get("job") or {}
    seconds = [("waited", job.get("queue_wait_seconds")), ("ran", job.get("run_seconds"))]
    known = [
        ("job", str(job.get("id") or "")),
        ("ended as", str(job.get("state") or "")),
        ("nodes", str(job.get("nodes") or "")),
        *((name, duration(value)) for name, value in seconds if value is not None),
        ("restarts", str(job.get("restarts") or "")),
        ("release", str(verdict.get("release") or "")),
        ("driver", str(verdict.get("driver") or "")),
    ]
    return [(name, text) for name, text in known if text]
