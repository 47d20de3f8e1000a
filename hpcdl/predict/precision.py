"""The precisions of `hpcdl train`, and what they mean to the model of scaling.

The trainer's fp16 and bf16 are mixed ones: its weights and gradients stay float32, and only
`--compress` sends half of the bytes. Its fp32 is multiplied as TF32 where a GPU can.
"""

from __future__ import annotations

from hpcdl.system.errors import BadInput

_TF32_SINCE = 8.0  # compute capability from which TensorFlow multiplies fp32 as TF32
_MIXED = ("fp16", "bf16", "amp")
WORDS = ("fp32", "float32", "tf32", *_MIXED)
"""What a run may call its precision."""


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
