"""Networks of the published comparisons that Keras does not ship: AlexNet and GoogLeNet.

Both as in torchvision, whose parameter counts facts/models.yaml names.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def mlp(shape: tuple[int, ...], classes: int) -> Any:
    """Two hidden ReLU layers and linear logits, as in TensorFlow's first tutorials."""
    layers = tf.keras.layers
    hidden = [
        layers.Dense(width, "relu", kernel_initializer="he_normal", name=f"hidden{number}")
        for number, width in enumerate((128, 32))
    ]
    outputs = layers.Dense(classes, dtype="float32", name="logits")
    return tf.keras.Sequential([tf.keras.Input(shape), layers.Flatten(), *hidden, outputs])


def alexnet(shape: tuple[int, ...], classes: int) -> Any:
    """The one-tower AlexNet of "One weird trick" (Krizhevsky, arXiv 1404.5997)."""
    layers = tf.keras.layers
    inputs = tf.keras.Input(shape)
    x = layers.ZeroPadding2D(2)(inputs)
    x = layers.Conv2D(64, 11, 4, activation="relu")(x)
    x = layers.MaxPooling2D(3, 2)(x)
    x = layers.Conv2D(192, 5, padding="same", activation="relu")(x)
    x = layers.MaxPooling2D(3, 2)(x)
    for filters in (384, 256, 256):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    x = layers.Flatten()(layers.MaxPooling2D(3, 2)(x))
    for _ in range(2):
        x = layers.Dense(4096, activation="relu")(layers.Dropout(0.5)(x))
    return tf.keras.Model(inputs, layers.Dense(classes, dtype="float32")(x), name="alexnet")


# Filters of a block: 1x1; 3x3 (reduce, out); second 3x3 (reduce, out); pool projection.
_BLOCKS = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)


def googlenet(shape: tuple[int, ...], classes: int) -> Any:
    """GoogLeNet (Szegedy, arXiv 1409.4842) with batch normalisation, without auxiliary heads."""
    layers = tf.keras.layers
    inputs = tf.keras.Input(shape)
    x = layers.MaxPooling2D(3, 2, "same")(_conv(inputs, 64, 7, 2))
    x = _conv(_conv(x, 64, 1), 192, 3)
    for blocks in _BLOCKS:
        x = layers.MaxPooling2D(3, 2, "same")(x)
        for filters in blocks:
            x = _inception(x, filters)
    x = layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(x))
    return tf.keras.Model(inputs, layers.Dense(classes, dtype="float32")(x), name="googlenet")


def _conv(x: Any, filters: int, size: int, stride: int = 1) -> Any:
    layers = tf.keras.layers
    x = layers.Conv2D(filters, size, stride, "same", use_bias=False)(x)
    return layers.ReLU()(layers.BatchNormalization(epsilon=1e-3)(x))


def _inception(x: Any, filters: tuple[int, ...]) -> Any:
    one, reduce_a, three_a, reduce_b, three_b, project = filters
    pooled = tf.keras.layers.MaxPooling2D(3, 1, "same")(x)
    return tf.keras.layers.Concatenate()(
        [
            _conv(x, one, 1),
            _conv(_conv(x, reduce_a, 1), three_a, 3),
            _conv(_conv(x, reduce_b, 1), three_b, 3),
            _conv(pooled, project, 1),
        ]
    )
