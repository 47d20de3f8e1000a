"""The input: what storage and cores can make, and what is left of a step's pace behind it.

Input and computing are two stations with a buffer of batches between them. Both take varying
times, so the faster one waits at times even when it is faster on average: with exponential
times the pace is that of the queue M/M/1/K, computing's times (1 - r^K) / (1 - r^(K+1)), r
the demand over the supply and K the batches in the buffer. It tends to the smaller of both.

The old pipeline makes image after image on one core, and none ahead: every step waits for its
whole batch to be read, by all ranks from one storage, and decoded.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcdl import facts
from hpcdl.predict.hardware import Machine
from hpcdl.predict.network import Network

SYNTHETIC = "synthetic"
IMAGENET = "imagenet"
PIPELINES = ("new", "old")


@dataclass(frozen=True)
class Feed:
    """Supply in images per second of a node's cores and of the whole storage.

    `buffer` is the number of batches between input and computing. `one_core` is what a core
    makes, in images per second; where nothing is made ahead, each rank has one.
    """

    decode: float
    storage: float
    buffer: int
    one_core: float = float("inf")
    ahead: bool = True

    def supply(self, nodes: int) -> float:
        """Images per second on `nodes` nodes."""
        return min(self.decode * nodes, self.storage)

    def wait(self, unfed: float, batch: int, gpus: int, nodes: int) -> float:
        """Seconds by which input makes a step of `unfed` seconds longer; `batch` per GPU."""
        if not self.ahead:
            return batch * (1 / self.one_core + gpus / self.storage)
        return unfed / pace(gpus * batch / unfed, self.supply(nodes), self.buffer) - unfed


ENDLESS = Feed(float("inf"), float("inf"), 2)
"""Synthetic data: made once, always there."""


def decode_seconds(net: Network) -> float:
    """Seconds of one core to make one training image of `net`: read, decode, crop, resize."""
    known = facts.load("links")["input"]
    parts = [known["decode"]]
    if net.name in known["augmented_models"]:
        parts.append(known["augment"])
    return float(sum(part["fixed_s"] + part["per_pixel_s"] * net.pixels for part in parts))


def feed(
    machine: Machine, net: Network, storage_rate: float | None = None, *, ahead: bool = True
) -> Feed:
    """The input of real images on a machine, whose cores decode them at the network's size.

    `storage_rate` is bytes per second that the storage gives to all nodes (None: enough); `ahead`
    is whether images are made while the step before is computed.
    """
    known = facts.load("links")["input"]
    storage = storage_rate / known["bytes_per_image"] if storage_rate else float("inf")
    one_core = 1 / decode_seconds(net)
    return Feed(machine.cores * one_core, storage, known["buffer"], one_core, ahead)


def pace(demand: float, supply: float, buffer: int) -> float:
    """The part of its pace that computing keeps behind an input of `supply` (1: all of it)."""
    if supply == float("inf") or demand <= 0:
        return 1.0
    ratio = demand / supply
    if abs(ratio - 1) < 1e-6:
        return buffer / (buffer + 1)
    if ratio > 1:  # the same, written with 1/r, so that large powers cannot overflow
        inverse = 1 / ratio
        return float(inverse * (1 - inverse**buffer) / (1 - inverse ** (buffer + 1)))
    return float((1 - ratio**buffer) / (1 - ratio ** (buffer + 1)))
