"""A result.json as the model of scaling reads it: what a run measured, and where it ran.

Anybody may have written it, so nothing of it is believed before it was looked at.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hpcdl.predict.hardware import CPU, Machine, gpu_of
from hpcdl.predict.precision import WORDS
from hpcdl.system.errors import BadInput
from hpcdl.system.safe_read import read_regular

LONGEST_STEP = 86_400.0
_MAX_BYTES = 200_000_000
_LONGEST_NAME = 200
_OWN_PHASES = ("compute", "update", "other")


class Place(NamedTuple):
    """Where a run took place, as far as it says so.

    `partition` and `gpu` (as the driver calls it) are empty where the run knew none; `on_cpu`
    is whether it says that it used no GPU.
    """

    partition: str
    gpu: str
    on_cpu: bool


@dataclass(frozen=True)
class Result:
    """What a result.json says that matters here; `seconds` of one rank's own work per step.

    `precision` is the trainer's word.
    """

    model: str
    batch: int
    precision: str
    compress: bool
    seconds: float
    ranks: int
    images_per_second: float
    place: Place


def read_result(path: Path) -> Result:
    """Read a result.json of `hpcdl train`.

    Raises:
        BadInput: it cannot be read, is of another version, or measured nothing.
    """
    value = read_version_1(path)
    try:
        summary, layout = value["summary"], value["layout"]
        ranks, batch = int(layout["ranks"]), int(value["batch_per_rank"])
        rate = float(summary["images_per_second"])
        phases = summary.get("phases") or {}
        own = sum(float(phases[name]) for name in _OWN_PHASES if name in phases) or 1.0
        seconds = ranks * batch / rate * own
    except (KeyError, TypeError, ValueError, ArithmeticError) as fault:
        reason = " ".join(str(fault).split())[:80]
        raise BadInput(f"{path} lacks or garbles {reason}, so nothing was measured") from fault
    counted = ranks > 0 and batch > 0 and 0 < rate < 1e12
    if not (counted and 0 < own <= 1.001 and 0 < seconds < LONGEST_STEP):
        raise BadInput(
            f"{path} holds no measured step: {rate:g} images/s",
            hint="the run must have made steps beyond its warm-up",
        )
    return Result(
        _text(value.get("model"))[:_LONGEST_NAME], batch, _precision(value, path),
        _said(value.get("options"), "compress") is True, seconds, ranks, rate,
        place_of(value),
    )  # fmt: skip


def _precision(value: dict[str, Any], path: Path) -> str:
    found = _text(value.get("precision"))
    if found not in WORDS:
        raise BadInput(f"{path} names no precision that a run can have: {', '.join(WORDS)}")
    return found


def _said(table: object, key: str) -> object:
    """What a part of a result.json says under a key; None where it says nothing."""
    return table.get(key) if isinstance(table, dict) else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def place_of(value: dict[str, Any]) -> Place:
    """Where the run of a result.json took place."""
    layout = value.get("layout")
    return Place(
        partition=_text(_said(value.get("job"), "partition")),
        gpu=_text(_said(layout, "gpu")),
        on_cpu=_said(layout, "gpu_per_rank") == 0,
    )


def same_machine(path: Path | str, place: Place, machine: Machine) -> None:
    """A run of another machine says nothing of this one.

    Raises:
        BadInput: it is of another partition or GPU.
    """
    if place.partition and place.partition != machine.name:
        raise BadInput(
            f"{path} measured the partition '{place.partition}', not '{machine.name}'",
            hint="leave --partition out, or calibrate by a run of that partition",
        )
    gpu = _measured_gpu(place)
    if gpu and _family(gpu) != _family(machine.gpu):
        raise BadInput(
            f"{path} measured on {gpu}, but '{machine.name}' is of {machine.gpu}",
            hint="calibrate by a run of that partition",
        )


def _measured_gpu(place: Place) -> str:
    """The GPU of a run, CPU for none, nothing where nobody can tell.

    A run on the very partition is one of it, too, where it used no GPU: emulated ones are none.
    """
    elsewhere = place.gpu or (CPU if place.on_cpu else "")
    return gpu_of(place.gpu) or ("" if place.partition else elsewhere)


def _family(gpu: str) -> str:
    """`A100` of `A100-SXM4-80GB`: drivers do not always tell the cards of a kind apart."""
    return gpu.partition("-")[0]


def read_version_1(path: Path) -> dict[str, Any]:
    """The values of a result.json of version 1, of whatever kind.

    Raises:
        BadInput: it cannot be read, or is of another version.
    """
    value = _read_json(path)
    if not isinstance(value, dict) or value.get("schema") != 1:
        raise BadInput(
            f"{path} is no result.json of version 1", hint="`hpcdl train` writes one for every run"
        )
    return value


def _read_json(path: Path) -> Any:
    try:
        data = read_regular(path, _MAX_BYTES)
    except BadInput as fault:
        raise BadInput(fault.message, hint="name the result.json of a run") from fault
    try:
        return json.loads(data)
    except json.JSONDecodeError as fault:
        raise BadInput(f"{path}:{fault.lineno}:{fault.colno}: not JSON: {fault.msg}") from fault
    except (ValueError, RecursionError) as fault:
        raise BadInput(f"{path} is no result.json") from fault
