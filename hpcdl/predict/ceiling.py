"""The most that GPUs can compute: a bound that only a mistake passes, not what is expected. Pure.

Arithmetic alone, at the peak of the fastest units that a precision may use (TF32 where float32 is
computed so): no memory, no input, no network. Fast convolutions do less of it, at most four times
less (Winograd's F(4x4, 3x3): Lavin and Gray 2016, arXiv:1509.09308). No published row of
facts/throughput.csv passes it.
"""

from __future__ import annotations

from hpcdl.predict.hardware import Machine
from hpcdl.predict.network import Network

FAST_CONVOLUTIONS = 4.0
_UNITS = {"fp32": ("fp32", "tf32"), "tf32": ("fp32", "tf32")}


def most_images_per_second(
    machine: Machine, net: Network, precision: str, gpus: int
) -> float | None:
    """Images (or sequences) per second beyond which a rate is no measurement.

    None where a peak of the GPU, or the work of the network, is not known.
    """
    units = _UNITS.get(precision, ("fp32", "tf32", "fp16"))
    if not net.macs or any(machine.lacks(unit) for unit in units):
        return None
    # Forward, and the gradients of weights and of inputs, which the first layer does not need.
    work = 2.0 * (3.0 * net.macs - net.layers[0].macs)
    return FAST_CONVOLUTIONS * gpus * max(machine.flops[: len(units)]) / work
