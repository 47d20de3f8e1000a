"""A network that computes next to nothing, to measure how fast images are read and decoded.

    hpcdl train --model input_alone:network --data DIR --steps 200 --checkpoint-every 0

`hpcdl.examples.input_alone` is this file in an installed hpcdl.
"""

import keras
from keras import layers


def network(shape: tuple[int, ...], classes: int) -> keras.Model:
    """The mean colours of a few areas, and a linear layer."""
    inputs = keras.Input(shape)
    x = layers.Flatten()(layers.AveragePooling2D(shape[0] // 2)(inputs))
    return keras.Model(inputs, layers.Dense(classes, dtype="float32")(x))
