"""`--augment mixup,randaugment`: images changed at random, in the step, by Keras' own layers.

What a layer draws follows from seed, step and rank: a resumed run draws the same. Images of our own
data sets have values from 0 to 255 meanwhile, as Keras' layers expect them. MixUp and CutMix mix
the examples of a rank's part of the batch, and make of each label a share for every class.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.train.data.source import Source
from hpcdl.train.keras_parts import make, settings_of
from hpcdl.train.models import Draws, origin
from hpcdl.train.options import TrainOptions

Change = Callable[[Any, Any], tuple[Any, Any]]
_MIXERS = {"mixup", "cutmix"}


def make_augment(options: TrainOptions, source: Source, random: Draws | None, rank: int) -> Change:
    """What changes (images, labels) of a step; `random` is the network's."""
    names = [name for name in options.augment.lower().split(",") if name]
    if not names or random is None:
        return lambda images, labels: (images, labels)
    if len(source.shape) != 3:
        raise BadInput(f"--augment is for images; an example here has the shape {source.shape}",
                       hint="leave out --augment")  # fmt: skip
    keras = tf.keras
    if not hasattr(keras.layers, "CutMix"):
        raise MissingPrerequisite(f"Keras {keras.__version__} lacks layers that --augment needs",
                                  hint="Keras 3.9 and newer have them")  # fmt: skip
    base, given = keras.layers.MixUp.__base__, _arguments(options, names)
    # Not what the network computes in, nor in its layout.
    ours = {"dtype": "float32", "data_format": "channels_last"}
    chosen = partial(make, keras.layers, base, "--augment")
    layers = [chosen(name, given[name], {}, **ours) for name in names]
    if (options.loss or "").lower().startswith("sparse") and _MIXERS.intersection(names):
        raise BadInput(f"--loss {options.loss} takes no labels that are mixed",
                       hint="categoricalcrossentropy does, or leave out --loss")  # fmt: skip
    states = [v for layer in layers for v in layer.variables if v.name == "seed_generator_state"]
    # A place that no part of a batch has: the network draws other numbers.
    draws = Draws(random.seeds, -1 - rank, tuple(state._value for state in states))
    low, high = source.limits

    def change(images: Any, labels: Any) -> tuple[Any, Any]:
        draws.renew()
        images = (images - low) * (255.0 / (high - low))
        for name, layer in zip(names, layers, strict=True):
            if name not in _MIXERS:
                images = layer(images, training=True)
                continue
            shares = tf.one_hot(labels, source.classes) if labels.shape.rank == 1 else labels
            both = {"images": images, "labels": tf.cast(shares, tf.float32)}
            images, labels = layer(both, training=True).values()
        return images * ((high - low) / 255.0) + low, labels

    _try(options.augment, change, source)
    return change


def _arguments(options: TrainOptions, names: list[str]) -> dict[str, dict[str, Any]]:
    """What `--set augment.LAYER.ARGUMENT=VALUE` gives to each of the layers."""
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    for place, value in settings_of(options.settings, "augment").items():
        name, _, argument = place.partition(".")
        if name.lower() not in found:
            raise BadInput(f"--set augment.{place}: --augment has no '{name}'",
                           hint="like augment.mixup.alpha=0.4")  # fmt: skip
        found[name.lower()][argument] = value
    return found


def _try(names: str, change: Change, source: Source) -> None:
    """Two black images: a layer may want other channels, or give other sizes."""
    images = tf.zeros((2, *source.shape))
    try:
        changed, _ = tf.function(change, autograph=False)(images, tf.zeros(2, tf.int64))
        if changed.shape != images.shape:
            raise ValueError(f"it gives images of {tuple(changed.shape[1:])}")
    except Exception as fault:  # Keras' layers raise whatever comes to them
        size = " x ".join(map(str, source.shape))
        raise BadInput(f"--augment {names} does not take images of {size}", details=origin(fault),
                       hint="`keras.layers` says what each layer takes") from fault  # fmt: skip
