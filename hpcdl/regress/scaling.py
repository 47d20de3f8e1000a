"""The expected efficiency of many GPUs: by a site's reference, else by the model.

The single-GPU rate of the same night calibrates hpcdl.predict, which then tells the efficiency
of more GPUs of this partition. Its band holds eight times in ten; a bound twice as far away is
beyond what the model's own uncertainty explains (2.6 standard deviations of a normal one).

The all-reduce check measures bus bandwidth by message size, on one node and on two. Its references
say what a job's gradients meet, and the expectation of a job starts from them instead of from
published links.
"""

from __future__ import annotations

import time

from hpcdl.predict.machine import Machine, NetworkSums
from hpcdl.predict.request import ScalingRequest, answer
from hpcdl.predict.start import trained_precision
from hpcdl.regress.references import Reference
from hpcdl.regress.training import TrainingCase
from hpcdl.site import Partition
from hpcdl.system.errors import HpcdlError

SIZES = (1 << 16, 1 << 20, 1 << 24, 1 << 26)
"""Bytes: a small layer's gradient, Horovod's fusion at work, and what large models send."""
SMALL_SIZES = (1 << 16, 1 << 20, 1 << 22)
"""On a single node: its memory carries everything several times."""
_BINARY = ((1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
_BANDS, _WIDEST = 2.0, 0.9
FAST_CONVOLUTIONS = 4.0
_UNITS = {"fp32": ("fp32", "tf32"), "tf32": ("fp32", "tf32")}


def most_images_per_second(
    machine: Machine, net: NetworkSums, precision: str, gpus: int
) -> float | None:
    """Images (or sequences) per second beyond which a rate is no measurement, not what is expected.

    Arithmetic alone, at the peak of the fastest units that a precision may use (TF32 where float32
    is computed so). Fast convolutions do less of it, at most four times less (Winograd's
    F(4x4, 3x3): Lavin and Gray 2016, arXiv:1509.09308). No published row passes it. None where a
    peak of the GPU, or the work of the network, is not known.
    """
    units = _UNITS.get(precision, ("fp32", "tf32", "fp16"))
    if not net.macs or any(machine.lacks(unit) for unit in units):
        return None
    # Forward, and the gradients of weights and of inputs, which the first layer does not need.
    work = 2.0 * (3.0 * net.macs - net.first_macs)
    return FAST_CONVOLUTIONS * gpus * max(machine.flops[: len(units)]) / work


def expected_efficiency(
    case: TrainingCase, partition: Partition, single: float | None, check: str
) -> Reference | None:
    """The efficiency that the model of scaling expects, None where it knows nothing.

    `single` is images per second of one rank the same night.
    """
    whole = case.nodes == 1 or case.ranks == partition.gpus_per_node
    if partition.gpu is None or not case.real or not single or not whole:
        return None
    try:
        precision = trained_precision(case.precision, partition.gpu.compute)
        request = ScalingRequest(
            partition,
            case.model,
            str(case.nodes * case.ranks),
            case.batch,
            precision,
            images_per_second=single,
        )
        (point,) = answer(request).points
    except HpcdlError:
        return None
    uncertainty = 1 - point.low / point.images_per_second
    lower, date = -min(_WIDEST, round(_BANDS * uncertainty, 3)), time.strftime("%Y-%m-%d")
    return Reference(
        check=check,
        case=str(case),
        partition=partition.label,
        metric="efficiency",
        value=round(point.efficiency, 4),
        unit="of ideal",
        lower=lower,
        date=date,
        proof="doubtful",
        source="hpcdl predict, from one GPU's rate of the same night",
    )


def metric_name(size: int) -> str:
    """The metric of messages of a size: `bus_gbs_4MiB`."""
    unit, name = next(one for one in _BINARY if size >= one[0])
    return f"bus_gbs_{size // unit}{name}"
