"""Transformers in plain Keras 3: a small GPT, ViT-S/16, and a text that is always there.

    hpcdl train --model transformers:gpt --dataset transformers:corpus --optimizer adamw

`hpcdl.examples.transformers` is this file in an installed hpcdl. Blocks normalise before attention
and before the two dense layers, and add what comes out of either.
"""

import sysconfig
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

LENGTH = 256
_MOST_BYTES = 4 << 20


def gpt(shape: tuple[int, ...], classes: int) -> Any:
    """6 layers, 6 heads, 384 channels, as nanoGPT's train_shakespeare_char; tokens to logits."""
    inputs = keras.Input(shape, dtype="int32")
    x = layers.Embedding(classes, 384, name="tokens")(inputs)
    x = _with_positions(x)
    for number in range(6):
        x = _block(x, 6, f"block{number}", causal=True)
    x = layers.LayerNormalization(epsilon=1e-5, name="norm")(x)
    outputs = layers.Dense(classes, use_bias=False, dtype="float32", name="logits")(x)
    return keras.Model(inputs, outputs, name="gpt")


def vit_s16(shape: tuple[int, ...], classes: int) -> Any:
    """12 layers, 6 heads, 384 channels on patches of 16 x 16 pixels (arXiv 2010.11929).

    The mean of the patches is classified, not a token of its own (arXiv 2205.01580).
    """
    inputs = keras.Input(shape)
    x = layers.Conv2D(384, 16, 16, name="patches")(inputs)
    x = _with_positions(layers.Reshape((x.shape[1] * x.shape[2], 384))(x))
    for number in range(12):
        x = _block(x, 6, f"block{number}")
    x = layers.LayerNormalization(epsilon=1e-6, name="norm")(x)
    x = layers.GlobalAveragePooling1D()(x)
    outputs = layers.Dense(classes, dtype="float32", name="logits")(x)
    return keras.Model(inputs, outputs, name="vit_s16")


def _with_positions(x: Any) -> Any:
    """Add a learnt embedding of each position."""
    places = keras.ops.cumsum(keras.ops.ones_like(x[:, :, 0], dtype="int32"), axis=1) - 1
    return x + layers.Embedding(x.shape[1], x.shape[2], name="positions")(places)


def _block(x: Any, heads: int, name: str, *, causal: bool = False) -> Any:
    width = x.shape[-1]
    attention = layers.MultiHeadAttention(heads, width // heads, name=f"{name}_attention")
    y = layers.LayerNormalization(epsilon=1e-6, name=f"{name}_norm1")(x)
    x = x + attention(y, y, use_causal_mask=causal)
    y = layers.LayerNormalization(epsilon=1e-6, name=f"{name}_norm2")(x)
    y = layers.Dense(4 * width, "gelu", name=f"{name}_wide")(y)
    return x + layers.Dense(width, name=f"{name}_narrow")(y)


def corpus(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels of a split, of shape (sequences, 256); bytes, 0 to 255."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = b"".join(path.read_bytes() for path in files)[:_MOST_BYTES]
    count = (len(text) - 1) // LENGTH
    values = np.frombuffer(text, np.uint8).astype(np.int64)
    inputs, labels = (values[at : at + count * LENGTH].reshape(count, LENGTH) for at in (0, 1))
    border = count * 9 // 10
    part = slice(None, border) if split == "train" else slice(border, None)
    return inputs[part], labels[part]
