"""Networks as the model sees them: sums of work, memory traffic and parameters.

Read from facts/networks.yaml, which `tools.networks` writes from real Keras models; transformers
are laid out from their published widths. Images and sequences of other sizes scale the sums. The
roofline of a step is arithmetic at the GPU's peak plus traffic at its memory's bandwidth; what a
GPU reaches of it is measured or learned (rate.py).
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
_USUAL_TOKENS = 512
# Part of the elements a network moves that a training step keeps in memory: ResNet-50 at its
# documented batches (128 in float32, 256 mixed, on 16 GB; NVIDIA DeepLearningExamples; 496 in TF32
# on 48 GB; Lambda).
_KEPT = 0.295


@dataclass(frozen=True)
class TransformerShape:
    """The widths of a transformer, see facts/transformers.yaml; `keys` is 0 where as wide."""

    hidden: int
    inner: int
    blocks: int
    heads: int
    vocabulary: int
    gated: bool = False
    keys: int = 0
    untied: bool = False

    @property
    def block_parameters(self) -> int:
        """Parameters of attention and the feed-forward part of a block."""
        keys = self.keys or self.hidden
        dense = (3 if self.gated else 2) * self.hidden * self.inner
        return 2 * self.hidden * (self.hidden + keys) + dense

    def block_macs(self, tokens: int) -> float:
        """Multiply-adds of a block's forward pass of one sequence.

        A token costs every weight one, and attention two of the width per other token.
        """
        return tokens * (self.block_parameters + 2.0 * self.hidden * tokens)

    def block_moved(self, tokens: int) -> float:
        """Elements of one sequence that a block moves."""
        return tokens * (12.0 * self.hidden + 2 * self.inner + 2 * self.heads * tokens)

    @property
    def table(self) -> int:
        """Parameters of the embedding, and of the output."""
        return self.hidden * self.vocabulary


NO_SHAPE = TransformerShape(0, 0, 0, 0, 0)


@dataclass(frozen=True)
class NetworkSums:
    """A network: its input and the sums over its layers, of one image's or sequence's forward pass.

    `macs` are multiply-adds, `moved` elements; `first_macs` those of the first layer. The input of
    a transformer is a sequence: `height` tokens, no channel, and it has a `shape`.
    """

    name: str
    height: int
    width: int
    channels: int
    parameters: int
    tensors: int
    macs: float
    moved: float
    first_macs: float
    shape: TransformerShape = NO_SHAPE

    @property
    def pixels(self) -> int:
        """Pixels of one input image."""
        return self.height * self.width


def names() -> tuple[str, ...]:
    """The networks that are known."""
    return (*facts.load("networks")["networks"], *facts.load("transformers")["models"])


@cache
def network(name: str, size: int | None = None) -> NetworkSums:
    """The network `name` for images of `size` x `size`, or sequences of `size` tokens.

    Raises:
        BadInput: the network is unknown; the hint names the nearest.
    """
    shapes: dict[str, dict[str, Any]] = facts.load("transformers")["models"]
    if name in shapes:
        return transformer(name, TransformerShape(**shapes[name]), size or _USUAL_TOKENS)
    row = facts.load("networks")["networks"].get(name)
    if row is None:
        hint = "name one: a forecast is of one network" if "," in name else ""
        raise BadInput(
            f"the layers of model '{name}' are not known", hint=hint or did_you_mean(name, names())
        )
    height, width, channels = row["input"]
    area = (size / height) * (size / width) if size else 1.0
    dense, dense_moved = row.get("dense", 0), row.get("dense_moved", 0)
    return NetworkSums(
        name,
        size or height,
        size or width,
        channels,
        row["parameters"],
        row["tensors"],
        dense + area * (row["macs"] - dense),
        dense_moved + area * (row["moved"] - dense_moved),
        area * row["first"],
    )


def transformer(name: str, shape: TransformerShape, tokens: int) -> NetworkSums:
    """A transformer laid out from its widths: embedding, blocks and output."""
    # One table where input and output share it.
    tables = shape.table * (2 if shape.untied else 1)
    ends_moved = tokens * (2.0 * shape.hidden + shape.vocabulary)
    return NetworkSums(
        name,
        tokens,
        1,
        0,
        shape.blocks * shape.block_parameters + tables,
        14 * shape.blocks + 2,
        shape.blocks * shape.block_macs(tokens) + float(tokens * shape.table),
        shape.blocks * shape.block_moved(tokens) + ends_moved,
        0.0,
        shape,
    )


def roofline(
    net: NetworkSums, batch: int, flops: float, bandwidth: float, element_bytes: int = FLOAT_BYTES
) -> float:
    """Seconds of a training step at a GPU's peaks: `flops` per second, memory bytes per second.

    Backward costs two forward passes. The update reads and writes weights, gradients and momenta
    once (5 passes over the parameters). `batch` is images per GPU, `element_bytes` an activation's.
    """
    work = 2 * 3 * net.macs * batch / flops
    traffic = 3 * net.moved * batch * element_bytes / bandwidth
    return work + traffic + 5 * FLOAT_BYTES * net.parameters / bandwidth


def kept_bytes(net: NetworkSums, batch: int, element_bytes: int = FLOAT_BYTES) -> float:
    """About what a step keeps of its activations in a GPU's memory."""
    return _KEPT * element_bytes * batch * net.moved
