"""Transformers in plain Keras 3, to train and to copy from: a small GPT and ViT-S/16.

`--model hpcdl.train.transformers:gpt` and `:vit_s16`; Keras is imported when they are built.
Blocks normalise before attention and before the two dense layers, and add what comes out of either.
"""

from __future__ import annotations

from typing import Any


def gpt(shape: tuple[int, ...], classes: int) -> Any:
    """6 layers, 6 heads, 384 channels, as nanoGPT's train_shakespeare_char; tokens to logits."""
    import keras

    inputs = keras.Input(shape, dtype="int32")
    x = keras.layers.Embedding(classes, 384, name="tokens")(inputs)
    x = _with_positions(x)
    for number in range(6):
        x = _block(x, 6, f"block{number}", causal=True)
    x = keras.layers.LayerNormalization(epsilon=1e-5, name="norm")(x)
    outputs = keras.layers.Dense(classes, use_bias=False, dtype="float32", name="logits")(x)
    return keras.Model(inputs, outputs, name="gpt")


def vit_s16(shape: tuple[int, ...], classes: int) -> Any:
    """12 layers, 6 heads, 384 channels on patches of 16 x 16 pixels (arXiv 2010.11929).

    The mean of the patches is classified, not a token of its own (arXiv 2205.01580).
    """
    import keras

    inputs = keras.Input(shape)
    x = keras.layers.Conv2D(384, 16, 16, name="patches")(inputs)
    x = _with_positions(keras.layers.Reshape((x.shape[1] * x.shape[2], 384))(x))
    for number in range(12):
        x = _block(x, 6, f"block{number}")
    x = keras.layers.LayerNormalization(epsilon=1e-6, name="norm")(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    outputs = keras.layers.Dense(classes, dtype="float32", name="logits")(x)
    return keras.Model(inputs, outputs, name="vit_s16")


def _with_positions(x: Any) -> Any:
    """Add a learnt embedding of each position."""
    import keras

    places = keras.ops.cumsum(keras.ops.ones_like(x[:, :, 0], dtype="int32"), axis=1) - 1
    return x + keras.layers.Embedding(x.shape[1], x.shape[2], name="positions")(places)


def _block(x: Any, heads: int, name: str, *, causal: bool = False) -> Any:
    from keras import layers

    width = x.shape[-1]
    attention = layers.MultiHeadAttention(heads, width // heads, name=f"{name}_attention")
    y = layers.LayerNormalization(epsilon=1e-6, name=f"{name}_norm1")(x)
    x = x + attention(y, y, use_causal_mask=causal)
    y = layers.LayerNormalization(epsilon=1e-6, name=f"{name}_norm2")(x)
    y = layers.Dense(4 * width, "gelu", name=f"{name}_wide")(y)
    return x + layers.Dense(width, name=f"{name}_narrow")(y)
