"""Networks as the model sees them: layers with gradients, work and memory traffic.

Read from facts/layers.yaml, which `tools.layers` writes from real Keras models. The
time of a layer is its roofline: the larger of arithmetic at the GPU's peak and traffic at the
memory's bandwidth (Williams, Waterman, Patterson 2009). Only the shares matter: a measured
step time of one GPU scales them all (`scaled`), so no efficiency is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from hpcdl import facts
from hpcdl.system.errors import BadInput
from hpcdl.system.text import did_you_mean

FLOAT_BYTES = 4
HALF_BYTES = 2
_MACS_TO_FLOPS = 2.0
# Part of the elements a network moves that a training step keeps in memory: RESNET-50 at its
# documented batches (128 in float32, 256 mixed, on 16 GB; NVIDIA DeepLearningExamples).
_KEPT = 0.3


@dataclass(frozen=True)
class Layer:
    """A layer with weights. `macs` and `moved` (elements) are of one image, forward."""

    name: str
    tensors: int
    parameters: int
    macs: float
    moved: float


@dataclass(frozen=True)
class Network:
    """A network: its input (height, width, channels) and layers in forward order."""

    name: str
    height: int
    width: int
    channels: int
    layers: tuple[Layer, ...]

    @property
    def parameters(self) -> int:
        """Trainable parameters."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def tensors(self) -> int:
        """Gradient tensors."""
        return sum(layer.tensors for layer in self.layers)

    @property
    def macs(self) -> float:
        """Multiply-adds of the forward pass of one image."""
        return sum(layer.macs for layer in self.layers)

    @property
    def pixels(self) -> int:
        """Pixels of one input image."""
        return self.height * self.width


@dataclass(frozen=True)
class LayerTimes:
    """Seconds of one step on one GPU, layer by layer in forward order, and of what is left."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    update: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return sum(self.forward) + sum(self.backward) + self.update


def names() -> tuple[str, ...]:
    """The networks whose layers are known."""
    return tuple(facts.load("layers")["models"])


@cache
def network(name: str) -> Network:
    """The network `name`.

    Raises:
        BadInput: its layers are not known; the hint names the nearest.
    """
    known: dict[str, dict[str, Any]] = facts.load("layers")["models"]
    if name not in known:
        raise BadInput(
            f"the layers of model '{name}' are not known", hint=did_you_mean(name, known)
        )
    row = known[name]
    height, width, channels = row["input"]
    layers = tuple(parse_layer(line) for line in row["layers"].splitlines())
    return Network(name, height, width, channels, layers)


def parse_layer(line: str) -> Layer:
    """A layer from its line in facts/layers.yaml."""
    name, tensors, parameters, macs, moved = line.split()
    return Layer(name, int(tensors), int(parameters), float(macs), float(moved))


def roofline(
    net: Network, batch: int, flops: float, bandwidth: float, element_bytes: int = FLOAT_BYTES
) -> LayerTimes:
    """Times of every layer at the hardware's peaks.

    Args:
        net: the network.
        batch: images per GPU and step.
        flops: peak floating-point operations per second of the GPU.
        bandwidth: peak bytes per second of its memory.
        element_bytes: bytes of an activation.

    Returns:
        Seconds; backward costs two forward passes (gradients of inputs and of weights), but
        only one in the first layer, whose input needs none. The update reads and writes
        weights, gradients and momenta once (5 passes over the parameters).
    """
    forward, backward = [], []
    for index, layer in enumerate(net.layers):
        work = _MACS_TO_FLOPS * layer.macs * batch / flops
        traffic = layer.moved * batch * element_bytes + layer.parameters * FLOAT_BYTES
        seconds = max(work, traffic / bandwidth)
        forward.append(seconds)
        backward.append(seconds * (1.0 if index == 0 else 2.0))
    update = 5 * FLOAT_BYTES * net.parameters / bandwidth
    return LayerTimes(tuple(forward), tuple(backward), update)


def kept_bytes(net: Network, batch: int, element_bytes: int = FLOAT_BYTES) -> float:
    """About what a step keeps of its activations in a GPU's memory."""
    return _KEPT * element_bytes * batch * sum(layer.moved for layer in net.layers)


def scaled(times: LayerTimes, seconds: float) -> LayerTimes:
    """`times` stretched to a measured step of `seconds`; the shares stay."""
    factor = seconds / times.total
    return LayerTimes(
        tuple(factor * value for value in times.forward),
        tuple(factor * value for value in times.backward),
        factor * times.update,
    )
