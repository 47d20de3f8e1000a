"""A result.json as the model of scaling reads it: what a run measured, and where it ran.

`hpcdl.results` reads it; here is what it means, and whether it is of this machine. The fp16 and
bf16 of `hpcdl train` are mixed ones: weights and gradients stay float32, and only `--compress`
sends half of the bytes. Its fp32 is multiplied as TF32 where a GPU can.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hpcdl.predict.hardware import CPU, Machine, gpu_of
from hpcdl.results.records import RESULT, at
from hpcdl.system.errors import BadInput

_TF32_SINCE = 8.0  # compute capability from which TensorFlow multiplies fp32 as TF32
_MIXED = ("fp16", "bf16", "amp")
WORDS = ("fp32", "float32", "tf32", *_MIXED)
"""What a run may call its precision."""
LONGEST_STEP = 86_400.0
_LONGEST_NAME = 200
_LARGEST_SIZE = 1_000_000
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

    `precision` is the trainer's word; `nodes` is 1 and `size`, of images, None where it says none.
    """

    model: str
    batch: int
    precision: str
    compress: bool
    seconds: float
    ranks: int
    nodes: int
    images_per_second: float
    place: Place
    size: int | None = None

    @property
    def step(self) -> float:
        """Seconds of a step of all ranks, waiting and exchanging with it."""
        return self.ranks * self.batch / self.images_per_second


def read_result(path: Path) -> Result:
    """Read a result.json of `hpcdl train`.

    Raises:
        BadInput: it cannot be read, is of another version, or measured nothing.
    """
    value = read_sound(path, "layout.ranks", "batch_per_rank", "summary.images_per_second")
    ranks, batch = value["layout"]["ranks"], value["batch_per_rank"]
    rate, phases = value["summary"]["images_per_second"], at(value, "summary", "phases") or {}
    own = sum(phases.get(name) or 0.0 for name in _OWN_PHASES) or 1.0
    seconds = ranks * batch / rate * own if rate > 0 else 0.0
    if not (rate < 1e12 and 0 < own <= 1.001 and 0 < seconds < LONGEST_STEP):
        raise BadInput(f"{path} holds no measured step: {rate:g} images/s",
                       hint="the run must have made steps beyond its warm-up")  # fmt: skip
    precision: str | None = value.get("precision")
    if precision not in WORDS:
        raise BadInput(f"{path} names no precision that a run can have: {', '.join(WORDS)}")
    size, hosts = at(value, "options", "image_size"), at(value, "layout", "hosts")
    return Result(
        (value.get("model") or "")[:_LONGEST_NAME], batch, precision,
        at(value, "options", "compress") is True, seconds, ranks,
        len(set(map(str, hosts))) if isinstance(hosts, list) and hosts else 1, rate,
        place_of(value), size if isinstance(size, int) and 0 < size < _LARGEST_SIZE else None,
    )  # fmt: skip


def place_of(value: dict[str, Any]) -> Place:
    """Where the run of a result.json took place."""
    return Place(
        partition=at(value, "job", "partition") or "",
        gpu=at(value, "layout", "gpu") or "",
        on_cpu=at(value, "layout", "gpu_per_rank") == 0,
    )


def usual_precision(compute: str | None) -> str:
    """What float32 is on a GPU of a compute capability (none: a CPU), unless asked otherwise."""
    return "tf32" if compute and float(compute) >= _TF32_SINCE else "fp32"


def trained_precision(name: str, compute: str | None, *, compress: bool = False) -> str:
    """The model's name for a run of `hpcdl train --precision NAME` on a GPU.

    Raises:
        BadInput: no run has such a precision.
    """
    if name not in WORDS:
        raise BadInput(f"unknown precision '{name[:40]}'", hint=f"it is {', '.join(WORDS)}")
    if name in _MIXED:
        return "fp16" if compress else "amp"
    return "tf32" if name == "tf32" else usual_precision(compute)


def alike(one: str, other: str) -> bool:
    """Whether two precisions use the same units: amp and fp16 do."""
    return one == other or {one, other} == {"amp", "fp16"}


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
    # A run on the very partition is one of it, too, where it used no GPU: emulated ones are none.
    elsewhere = "" if place.partition else place.gpu or (CPU if place.on_cpu else "")
    gpu = gpu_of(place.gpu) or elsewhere
    # `A100` of `A100-SXM4-80GB`: drivers do not always tell the cards of a kind apart.
    if gpu and gpu.partition("-")[0] != machine.gpu.partition("-")[0]:
        raise BadInput(f"{path} measured on {gpu}, but '{machine.name}' is of {machine.gpu}",
                       hint="calibrate by a run of that partition")  # fmt: skip


def read_sound(path: Path, *needed: str) -> dict[str, Any]:
    """The values of a result.json that says of which version it is, and all that is needed.

    Raises:
        BadInput: it cannot be read, is of another version, or lacks something.
    """
    try:
        record = RESULT.read(path)
        record.need("schema", *needed)
    except BadInput as fault:
        hint = fault.hint or "`hpcdl train` writes a result.json for every run"
        raise BadInput(fault.message, hint=hint) from fault
    return record.values
