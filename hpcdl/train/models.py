"""The networks, all with one face: a forward pass and the variables it has.

`Network` hides whether Keras made it. Loss and scores belong to the task, not to the network:
`forward` gives logits. Facts about a model (input size, parameters, default batch) are rows of
facts/models.yaml.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hpcdl import facts
from hpcdl.system.errors import BadInput
from hpcdl.system.text import did_you_mean


@dataclass(frozen=True)
class Network:
    """A built network.

    `forward(images, training)` gives logits of shape (batch, classes). `trainable` and `state`
    (moving averages) are tf.Variables in a fixed order, the same on every rank.
    """

    name: str
    forward: Callable[[Any, bool], Any]
    trainable: tuple[Any, ...]
    state: tuple[Any, ...]

    @property
    def parameters(self) -> int:
        """Number of trainable and moving values."""
        return sum(math.prod(v.shape) for v in (*self.trainable, *self.state))


def facts_of(model: str) -> dict[str, Any]:
    """The row of facts/models.yaml.

    Raises:
        BadInput: nobody knows the model; the hint names the nearest.
    """
    rows: dict[str, dict[str, Any]] = facts.load("models")["models"]
    if model not in rows:
        raise BadInput(f"there is no model '{model}'", hint=did_you_mean(model, rows))
    return rows[model]


def build(tf: Any, model: str, shape: tuple[int, ...], classes: int, seed: int) -> Network:
    """The network for images of `shape` (height, width, channels), weights drawn from `seed`."""
    builders: dict[str, Callable[..., Network]] = {"mlp": _mlp}
    return builders[facts_of(model)["builder"]](tf, model, shape, classes, seed)


def _mlp(tf: Any, model: str, shape: tuple[int, ...], classes: int, seed: int) -> Network:
    """Two hidden ReLU layers and linear logits, as in TensorFlow's first tutorials."""
    hidden: list[int] = facts_of(model)["hidden"]
    widths = [math.prod(shape), *hidden, classes]
    weights, biases = [], []
    for layer, (fan_in, fan_out) in enumerate(pairwise(widths)):
        draw = tf.random.stateless_truncated_normal((fan_in, fan_out), seed=(seed, layer))
        weights.append(tf.Variable(draw * math.sqrt(2.0 / fan_in), name=f"layer{layer}/weights"))
        biases.append(tf.Variable(tf.zeros(fan_out), name=f"layer{layer}/biases"))

    def forward(images: Any, training: bool) -> Any:
        values = tf.reshape(images, (-1, widths[0]))
        for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            values = tf.nn.bias_add(tf.matmul(values, tf.cast(weight, values.dtype)),
                                    tf.cast(bias, values.dtype))  # fmt: skip
            if layer < len(weights) - 1:
                values = tf.nn.relu(values)
        return values

    return Network(model, forward, (*weights, *biases), ())
