"""Networks as the model sees them: layers with gradients, work and memory traffic.

Read from facts/layers.yaml, which `tools.layers` writes from real Keras models; transformers are
laid out from their published widths. Images and sequences of other sizes scale the work. The
time of a layer is its roofline: the larger of arithmetic at the GPU's peak and traffic at the
memory's bandwidth (Williams, Waterman, Patterson 2009). Only the shares matter: a measured
step time of one GPU scales them all (`scaled`), so no efficiency is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from hpcdl import facts
from hpcdl.system.errors import BadInput
from hpcdl.system.text import did_you_mean

FLOAT_BYTES = 4
HALF_BYTES = 2
_MACS_TO_FLOPS = 2.0
_USUAL_TOKENS = 512
# Part of the elements a network moves that a training step keeps in memory: RESNET-50 at its
# documented batches (128 in float32, 256 mixed, on 16 GB; NVIDIA DeepLearningExamples; 496 in TF32
# on 48 GB; Lambda).
_KEPT = 0.295


@dataclass(frozen=True)
class Layer:
    """A layer with weights. `macs` and `moved` (elements) are of one image, forward."""

    name: str
    tensors: int
    parameters: int
    macs: float
    moved: float


@dataclass(frozen=True)
class Transformer:
    """The widths of a transformer, see facts/transformers.yaml; `keys` is 0 where as wide."""

    hidden: int
    inner: int
    blocks: int
    heads: int
    vocabulary: int
    gated: bool = False
    keys: int = 0
    untied: bool = False


@dataclass(frozen=True)
class Network:
    """A network: its input (height, width, channels) and layers in forward order.

    The input of a transformer is a sequence: `height` tokens, no channel. Its layers are the
    embedding, attention and feed-forward part of every block, and the output.
    """

    name: str
    height: int
    width: int
    channels: int
    layers: tuple[Layer, ...]
    shape: Transformer = Transformer(0, 0, 0, 0, 0)

    @property
    def parameters(self) -> int:
        """Trainable parameters."""
        return sum(layer.parameters for layer in self.layers)

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
    return (*facts.load("layers")["models"], *facts.load("transformers")["models"])


@cache
def network(name: str, size: int | None = None) -> Network:
    """The network `name` for images of `size` x `size`, or sequences of `size` tokens.

    Of an unknown one the `BadInput` names the nearest.
    """
    known: dict[str, dict[str, Any]] = facts.load("layers")["models"]
    others: dict[str, dict[str, Any]] = facts.load("transformers")["models"]
    if name in others:
        return transformer(name, Transformer(**others[name]), size or _USUAL_TOKENS)
    if name not in known:
        hint = "name one: a forecast is of one network" if "," in name else ""
        raise BadInput(
            f"the layers of model '{name}' are not known", hint=hint or did_you_mean(name, names())
        )
    height, width, channels = known[name]["input"]
    layers = tuple(map(parse_layer, known[name]["layers"].splitlines()))
    if size and size != height:  # layers that slide over an image work in proportion to it
        area = (size / height) * (size / width)
        height = width = size
        layers = tuple(
            layer
            if 0 < layer.macs <= layer.parameters  # dense: each weight is used once
            else replace(layer, macs=layer.macs * area, moved=layer.moved * area)
            for layer in layers
        )
    return Network(name, height, width, channels, layers)


def transformer(name: str, shape: Transformer, tokens: int) -> Network:
    """A transformer laid out from its widths: attention and a feed-forward part per block.

    A token costs every weight one multiply-add, and attention two of the width per other token.
    """
    wide, inner = shape.hidden, shape.inner
    keys = shape.keys or wide  # all key heads together, fewer where groups share them
    attention = 2 * wide * (wide + keys)
    dense = (3 if shape.gated else 2) * wide * inner
    seen = 2.0 * wide * tokens
    block = (
        Layer(
            "attention",
            8,
            attention,
            tokens * (attention + seen),
            tokens * (8.0 * wide + 2 * shape.heads * tokens),
        ),
        Layer("dense", 6, dense, float(tokens * dense), tokens * (4.0 * wide + 2 * inner)),
    )
    ends = wide * shape.vocabulary
    first = Layer("embedding", 1, ends, 0.0, 2.0 * tokens * wide)
    # One table where input and output share it: its gradient is ready last.
    last = Layer(
        "output",
        1,
        ends if shape.untied else 0,
        float(tokens * ends),
        float(tokens * shape.vocabulary),
    )
    return Network(name, tokens, 1, 0, (first, *block * shape.blocks, last), shape)


def parse_layer(line: str) -> Layer:
    """A layer from its line in facts/layers.yaml."""
    name, tensors, parameters, macs, moved = line.split()
    return Layer(name, int(tensors), int(parameters), float(macs), float(moved))


def roofline(
    net: Network, batch: int, flops: float, bandwidth: float, element_bytes: int = FLOAT_BYTES
) -> LayerTimes:
    """Seconds of every layer at a GPU's peaks: `flops` per second, memory bytes per second.

    Backward costs two forward passes (gradients of inputs and of weights), but only one in the
    first layer, whose input needs none. The update reads and writes weights, gradients and momenta
    once (5 passes over the parameters). `batch` is images per GPU, `element_bytes` an activation's.
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
        tuple(factor * v for v in times.forward),
        tuple(factor * v for v in times.backward),
        factor * times.update,
    )
