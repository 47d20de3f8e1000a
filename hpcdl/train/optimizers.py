"""SGD with momentum, LARS, and dynamic loss scaling, on plain variables and fused kernels.

Weight decay is part of the gradient (L2), on kernels only: biases and the scales and shifts of
normalisation, which have one dimension, are left alone. LARS (You, arXiv 1708.03888) gives every
kernel its own rate, by the ratio of the norms of weight and gradient.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from hpcdl.train.models import Network

_TRUST = 0.001
_SCALE_START = 2.0**15
_SCALE_EVERY = 2000.0


@dataclass(frozen=True)
class Optimizer:
    """v = momentum v + rate g; w = w - lr v, on the variable's own device where `placed`."""

    kind: str
    momentum: float
    weight_decay: float
    velocities: tuple[Any, ...]
    placed: bool = False

    def finalize(self) -> None:
        """Nothing to do at the end."""

    def apply(self, variables: tuple[Any, ...], gradients: list[Any], lr: Any) -> list[Any]:
        """Update every variable as soon as its gradient is there; returns the operations."""
        operations = []
        for variable, velocity, gradient in zip(variables, self.velocities, gradients, strict=True):
            with tf.device(variable.device) if self.placed else nullcontext():
                operations.append(
                    tf.raw_ops.ResourceApplyMomentum(
                        var=variable.handle,
                        accum=velocity.handle,
                        lr=lr,
                        grad=self._direction(variable, gradient),
                        momentum=self.momentum,
                        use_locking=False,
                        use_nesterov=False,
                    )
                )
        return operations

    def _direction(self, variable: Any, gradient: Any) -> Any:
        if len(variable.shape) < 2:
            return gradient
        if not self.weight_decay and self.kind == "sgd":
            return gradient
        weight = variable.read_value()
        direction = gradient + self.weight_decay * weight
        if self.kind != "lars":
            return direction
        length = tf.norm(weight)
        steep = tf.norm(gradient) + self.weight_decay * length
        both = tf.logical_and(length > 0.0, steep > 0.0)
        return direction * tf.where(both, _TRUST * length / tf.maximum(steep, 1e-30), 1.0)


def make_optimizer(network: Network, kind: str, momentum: float, weight_decay: float) -> Optimizer:
    """The optimizer with its velocities at zero."""
    placed = network.stages > 1
    velocities = []
    for variable in network.trainable:
        with tf.device(variable.device) if placed else nullcontext():
            velocities.append(tf.Variable(tf.zeros_like(variable), trainable=False))
    return Optimizer(kind, momentum, weight_decay, tuple(velocities), placed)


@dataclass(frozen=True)
class LossScale:
    """Keeps fp16 gradients from vanishing: the loss is multiplied, gradients are divided.

    `state` is (scale, good steps since its last change): after 2,000 good steps the scale
    doubles; a step whose gradients are not finite is left out and halves it.
    """

    state: Any

    def finite(self, gradients: list[Any]) -> Any:
        """Whether all averaged gradients are finite; the same on every rank."""
        return tf.reduce_all(tf.stack([tf.reduce_all(tf.math.is_finite(g)) for g in gradients]))

    def renew(self, finite: Any) -> None:
        """The state after a step."""
        scale, good = tf.unstack(self.state.read_value())
        doubles = good + 1.0 >= _SCALE_EVERY
        kept = tf.stack([tf.where(doubles, scale * 2.0, scale), tf.where(doubles, 0.0, good + 1.0)])
        halved = tf.stack([tf.maximum(scale / 2.0, 1.0), 0.0])
        self.state.assign(tf.where(finite, kept, halved))


def make_loss_scale() -> LossScale:
    """A loss scale at its start."""
    return LossScale(tf.Variable([_SCALE_START, 0.0], trainable=False, name="loss_scale"))
