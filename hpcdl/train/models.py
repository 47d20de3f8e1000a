"""The networks, all with one interface: a forward pass and the variables it has.

`Network` hides whether Keras made it. Loss and scores belong to the task, not to the network:
`forward` gives logits. Facts about a model (input size, parameters, default batch) are rows of
facts/models.yaml. A user's own model is `package.module:function`: called with (shape, classes),
it returns a Keras model that gives logits.
"""

from __future__ import annotations

import importlib
import math
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import tensorflow as tf

from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.text import did_you_mean
from hpcdl.train import networks
from hpcdl.train.fused import split as split_layers
from hpcdl.train.options import facts_of


@dataclass
class Draws:
    """What a network draws numbers from.

    `seeds` is a variable of two integers that the step sets to (seed, step). `place` is the number
    of the part of a batch, over all ranks, that is being traced: each draws numbers of its own.
    `states` are those of Keras 3's seed generators: set from both before every forward pass.
    """

    seeds: Any
    place: int = 0
    states: tuple[Any, ...] = ()

    def renew(self) -> None:
        """Let Keras' seed generators draw what only seed, step, place and their number decide."""
        seed = tf.cast(self.seeds, tf.int64) + tf.constant([104_729 * self.place, 0], tf.int64)
        many = len(self.states)
        drawn = tf.random.stateless_uniform((many, 1), seed, maxval=2**31 - 1, dtype=tf.int64)
        for state, row in zip(self.states, tf.unstack(drawn, many), strict=True):
            state.assign(tf.cast(tf.concat([row, [0]], 0), state.dtype))


@dataclass(frozen=True)
class Network:
    """A built network.

    `forward(images, training)` gives logits of shape (batch, classes). `trainable` and `state`
    (moving averages) are tf.Variables in a fixed order, the same on every rank. `random` is there
    where the network may draw numbers. `penalties()` are the scalars that the latest forward pass
    adds to the loss: regularizers, and what layers gave to `add_loss`. `weights` are all of these
    variables in the order of Keras' model, with their names; `plain()` builds that model anew.
    `stages` are the devices it is on, `model` is Keras' own.
    """

    name: str
    forward: Callable[[Any, bool], Any]
    trainable: tuple[Any, ...]
    state: tuple[Any, ...]
    random: Draws | None = None
    penalties: Callable[[], list[Any]] = list
    weights: tuple[Any, ...] = ()
    names: tuple[str, ...] = ()
    plain: Callable[[], Any] = object
    stages: int = 1
    model: Any = None

    def penalized(self, loss: Any) -> Any:
        """The loss of the latest forward pass with the network's own part of it."""
        return sum(self.penalties(), loss)

    def order(self) -> list[int]:
        """The places in `weights` of the trainable variables and the state; -1 of random states."""
        place = {id(variable): index for index, variable in enumerate(self.weights)}
        return [place.get(id(variable), -1) for variable in (*self.trainable, *self.state)]

    @property
    def parameters(self) -> int:
        """Number of trainable values."""
        return sum(int(math.prod(v.shape)) for v in self.trainable)

    @property
    def by_device(self) -> dict[str, int]:
        """Number of trainable values on each device, by its name."""
        found: dict[str, int] = {}
        for variable in self.trainable:
            name = ":".join(variable.device.split(":")[-2:])
            found[name] = found.get(name, 0) + int(math.prod(variable.shape))
        return found


def build(
    model: str,
    shape: tuple[int, ...],
    classes: int,
    seed: int,
    *,
    precision: str = "fp32",
    channels_first: bool = False,
    keras: bool = False,
    freeze: str = "",
    split: int = 1,
    adapt: Callable[[Any], None] | None = None,
) -> Network:
    """The network for images of `shape` (height, width, channels), weights drawn from `seed`."""
    if facts_of(model)["builder"] == "mlp" and not keras:
        return _mlp(model, shape, classes, seed)
    policy = _set_up(seed, precision, channels_first)
    channels_first = channels_first and len(shape) == 3
    ordered = (shape[2], *shape[:2]) if channels_first else shape
    random = Draws(tf.Variable([seed, 0], dtype=tf.int32, trainable=False, name="random"))
    with tf.device("CPU:0") if split > 1 else nullcontext():
        made = _make(model, _builder(model, random), ordered, classes)
    looked_at = ":" in model and len(shape) == 3
    logits = _logits(made, ordered) if looked_at else tf.identity
    _freeze(made, freeze)
    if adapt:
        adapt(made)
    split_layers(made, split)
    random.states = tuple(
        _variable(v) for v in made.non_trainable_variables if v.name == "seed_generator_state"
    )

    def forward(images: Any, training: bool) -> Any:
        if channels_first:
            images = tf.transpose(images, (0, 3, 1, 2))
        if training and random.states:
            random.renew()
        return logits(made(images, training=training))

    def penalties() -> list[Any]:
        return [tf.cast(tf.reduce_sum(loss), tf.float32) for loss in made.losses]

    trainable = tuple(map(_variable, made.trainable_variables))
    state = tuple(map(_variable, made.non_trainable_variables))
    weights = tuple(map(_variable, made.weights))
    names = tuple(getattr(weight, "path", weight.name) for weight in made.weights)

    def plain() -> Any:
        tf.keras.mixed_precision.set_global_policy("float32")
        try:
            return _builder(model, None)(ordered, classes)
        finally:
            tf.keras.mixed_precision.set_global_policy(policy)

    return Network(
        model,
        forward,
        trainable,
        state,
        random,
        penalties,
        weights,
        names,
        plain,
        split,
        made,
    )


def _mlp(model: str, shape: tuple[int, ...], classes: int, seed: int) -> Network:
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
            values = tf.matmul(values, tf.cast(weight, values.dtype))
            values = tf.nn.bias_add(values, tf.cast(bias, values.dtype))
            if layer < len(weights) - 1:
                values = tf.nn.relu(values)
        return values

    # As Keras has them: a run may resume with an option for which it is a model of Keras'.
    ordered = tuple(chain.from_iterable(zip(weights, biases, strict=True)))
    return Network(model, forward, ordered, (), weights=ordered)


def _set_up(seed: int, precision: str, channels_first: bool) -> str:
    """Keras' seed, layout and policy of precision, which is returned."""
    try:
        tf.keras.utils.set_random_seed(seed)
    except ImportError as fault:
        hint = "TF_USE_LEGACY_KERAS=1 needs tf_keras of the same release; Keras 3 is without it"
        raise MissingPrerequisite(f"Keras cannot be imported: {fault}", hint=hint) from fault
    policy = {"fp16": "mixed_float16", "bf16": "mixed_bfloat16"}.get(precision, "float32")
    tf.keras.mixed_precision.set_global_policy(policy)
    tf.keras.backend.set_image_data_format("channels_first" if channels_first else "channels_last")
    return policy


def _freeze(made: Any, patterns: str) -> None:
    layers = list(made._flatten_layers(include_self=False))
    for pattern in filter(None, patterns.split(",")):
        chosen = [layer for layer in layers if fnmatch(layer.name, pattern)]
        if not chosen:
            hint = did_you_mean(pattern, [layer.name for layer in layers])
            raise BadInput(f"--freeze: no layer is named '{pattern}'", hint=hint)
        for layer in chosen:
            layer.trainable = False
    if not made.trainable_variables:
        raise BadInput("--freeze leaves nothing to train", hint="leave out the last layer at least")


def _logits(made: Any, shape: tuple[int, ...]) -> Callable[[Any], Any]:
    """What makes logits of a user's model's outputs: nothing, or the inverse of its activation.

    Some outputs are looked at: only a softmax's are positive and add up to 1, and only a sigmoid's
    lie between 0 and 1 for large inputs, too.
    """
    images = 10.0 * tf.random.stateless_normal((4, *shape), seed=(1, 2))
    some = tf.cast(made(images, training=False), tf.float32)
    if not bool(tf.reduce_all((some >= 0.0) & (some <= 1.0))) or not bool(tf.reduce_any(some > 0)):
        return tf.identity  # type: ignore[no-any-return]

    def log(values: Any) -> Any:
        return tf.math.log(tf.maximum(tf.cast(values, tf.float32), 1e-7))

    if bool(tf.reduce_all(tf.abs(tf.reduce_sum(some, axis=-1) - 1.0) < 0.01)):
        return log
    return lambda values: log(values) - log(1.0 - tf.cast(values, tf.float32))


def _builder(model: str, random: Draws | None) -> Callable[..., Any]:
    if ":" in model:
        return user_function("--model", model)
    row = facts_of(model)
    if row["builder"] == "keras":
        application = getattr(tf.keras.applications, row["application"])
        return lambda shape, classes: application(
            weights=None, input_shape=shape, classes=classes, classifier_activation=None
        )
    return partial(getattr(networks, row["builder"]), random=random)


def _make(model: str, builder: Callable[..., Any], shape: tuple[int, ...], classes: int) -> Any:
    try:
        made = builder(shape, classes)
        if ":" not in model:
            return made
        if not isinstance(made, tf.keras.Model):
            raise TypeError(f"it gives {type(made).__name__}, no Keras model")
        logits = tuple(made(tf.keras.Input(shape)).shape)
    except (MemoryError, tf.errors.ResourceExhaustedError):
        raise
    except Exception as fault:
        size = " x ".join(map(str, shape))
        hint = (
            "the function is called with (shape, classes) and returns a Keras model"
            if ":" in model
            else "give another --image-size, or --model"
        )
        raise BadInput(
            f"the model '{model}' cannot be made for images of {size}",
            details=origin(fault),
            hint=hint,
        ) from fault
    # What is no image may have a logit per class at each of several places.
    if logits[-1:] != (classes,) or (len(shape) == 3 and len(logits) != 2):
        raise BadInput(
            f"the model '{model}' gives {logits}, but {(None, classes)} is wanted: a logit per "
            "class",
            hint="its last layer is Dense(classes), without an activation",
        )
    return made


def origin(fault: BaseException) -> list[str]:
    """What was raised, and where."""
    *_, last = traceback.extract_tb(fault.__traceback__)
    text = next(iter(str(fault).strip().splitlines()), "")[:300]
    return [f"{type(fault).__name__}: {text}", f"{last.filename}, line {last.lineno}"]


def user_function(option: str, named: str) -> Callable[..., Any]:
    """A user's `package.module:function`; BadInput: it cannot be imported, and why."""
    module, _, name = named.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
        if not callable(found):
            raise TypeError(f"{name} is no function")
    except Exception as fault:  # the module is the user's: anything may go wrong in it
        raise BadInput(
            f"{option} {named} cannot be imported",
            details=origin(fault),
            hint="package.module:function, importable from the current directory or PYTHONPATH",
        ) from fault
    return found


def _variable(variable: Any) -> Any:
    """The tf.Variable behind a Keras 3 variable or a Keras 2 variable that casts itself."""
    inner = getattr(variable, "_value", None)
    if inner is not None and hasattr(inner, "handle"):
        return inner
    return getattr(variable, "_variable", variable)
