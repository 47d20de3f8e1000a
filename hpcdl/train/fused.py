"""Batch normalisation of images by TensorFlow's one operation for it, with Keras 3's statistics.

Keras 3 computes it from a dozen element-wise operations, each of which passes over the whole
activation, forward and backward: a fifth of a ResNet-50 step on CPUs. The fused operation gives
the same outputs and gradients. It returns the variance of a sample, n / (n - 1) of what Keras
keeps, which is undone here, so that moving statistics are Keras' own. Exported models are built
anew and have Keras' layers. `--set fit.fused=false` leaves the layers as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

_LEAST_EPSILON = 1.001e-5
"""cuDNN takes no smaller one."""


def fuse(model: Any) -> int:
    """Let plain layers of a built model use the fused operation; returns how many do."""
    layers = [layer for layer in model._flatten_layers() if _can(layer)]
    for layer in layers:
        layer.call = _fused(layer)
    return len(layers)


def _can(layer: Any) -> bool:
    """A plain layer over the channels of images, of a Keras that does not fuse by itself."""
    if type(layer) is not tf.keras.layers.BatchNormalization or hasattr(layer, "fused"):
        return False
    # Not every Keras 3 has them: `renorm` came with 3.14.
    special = any(getattr(layer, name, False) for name in ("renorm", "synchronized"))
    plain = layer.built and not special and layer.input_spec and layer.epsilon >= _LEAST_EPSILON
    return bool(plain) and layer.input_spec.ndim == 4 and layer.axis in (1, 3, -1)


def _fused(layer: Any) -> Callable[..., Any]:
    """The layer's call. The variables are read below Keras, which would give halves of them."""
    usual = layer.call
    mean, variance = layer.moving_mean._value, layer.moving_variance._value
    scale = layer.gamma._value if layer.scale else tf.ones(mean.shape)
    offset = layer.beta._value if layer.center else tf.zeros(mean.shape)
    keep = layer.momentum
    first = layer.axis == 1

    def call(inputs: Any, training: Any = None, mask: Any = None) -> Any:
        if mask is not None:
            return usual(inputs, training=training, mask=mask)
        learning = bool(training and layer.trainable)
        empty = tf.constant([], tf.float32)
        output, new_mean, new_variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=inputs,
            scale=tf.convert_to_tensor(scale),
            offset=tf.convert_to_tensor(offset),
            mean=empty if learning else tf.convert_to_tensor(mean),
            variance=empty if learning else tf.convert_to_tensor(variance),
            epsilon=layer.epsilon,
            data_format="NCHW" if first else "NHWC",
            is_training=learning,
        )
        if learning:
            count = tf.cast(tf.size(inputs) // tf.shape(inputs)[1 if first else 3], tf.float32)
            mean.assign(mean * keep + new_mean * (1.0 - keep))
            biased = new_variance * (count - 1.0) / count
            variance.assign(variance * keep + biased * (1.0 - keep))
        return output

    return call
