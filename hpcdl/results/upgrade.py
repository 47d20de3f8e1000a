"""Files of earlier versions, as the present version has them. Pure.

What is not as that version wrote it is left alone: the schema says what is wrong with it.
"""

from __future__ import annotations

from typing import Any

from hpcdl.results.faults import Fault, FaultKind, Status

Values = dict[str, Any]
_KINDS = {
    Status.FAIL: FaultKind.CHECK,
    Status.ERROR: FaultKind.RUN,
    Status.NO_REFERENCE: FaultKind.NO_REFERENCE,
    Status.STALE: FaultKind.STALE_REFERENCE,
    Status.INSUFFICIENT: FaultKind.FEW_RUNS,
}


def result(values: Values) -> Values:
    """result.json 1: an outcome that is a text, or has a `message`; a release with an `id`."""
    release = values.get("release")
    ids = {"release": release["id"]} if isinstance(release, dict) and "id" in release else {}
    return {**progress(values), **ids}


def progress(values: Values) -> Values:
    """progress.json 1: an outcome that is a text."""
    found = values.get("outcome")
    if isinstance(found, str):
        return {**values, "outcome": {"status": found, "reason": ""}}
    if isinstance(found, dict) and "message" in found:
        said = {name: value for name, value in found.items() if name != "message"}
        return {**values, "outcome": {"reason": found["message"], **said}}
    return values


def verdicts(values: Values) -> Values:
    """verdicts.json 1: what is wrong is said in words only, and the status tells the kind."""
    found = values.get("verdicts")
    if not isinstance(found, list):
        return values
    return {**values, "verdicts": [_verdict(one) if isinstance(one, dict) else one
                                   for one in found]}  # fmt: skip


def _verdict(values: Values) -> Values:
    status, reason = values.get("status"), values.get("reason")
    if "faults" in values or not isinstance(reason, str) or not isinstance(status, str):
        return values
    if status not in _KINDS:
        return values
    kind = _KINDS[Status(status)]
    if kind is FaultKind.FEW_RUNS and reason.startswith("insufficient data"):
        kind = FaultKind.FEW_STEPS
    return {**values, "faults": [Fault(kind, reason).as_data()]}
