"""Keras' own optimizers, schedules, losses, metrics, callbacks and augmentation, with `--set`.

A name is that of Keras in any case of letters (`adamw`), or `package.module:function` where that
makes sense. `--set optimizer.weight_decay=0.05` is an argument of the part: values are JSON, and
what is no JSON is text. A typo in either gets the nearest name there is. Callbacks are told on rank
0 of training, epochs and steps; one that sets `stop_training` ends the run with the epoch.

`--augment mixup,randaugment` changes images at random, in the step. What a layer draws follows from
seed, step and rank: a resumed run draws the same. Images of our own data sets have values from 0 to
255 meanwhile, as Keras' layers expect them. MixUp and CutMix mix the examples of a rank's part of
the batch, and make of each label a share for every class.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType, MethodType
from typing import Any

import tensorflow as tf

from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.text import did_you_mean
from hpcdl.train.data.source import Source
from hpcdl.train.models import Draws, Network, origin, user_function
from hpcdl.train.options import TrainOptions

Change = Callable[[Any, Any], tuple[Any, Any]]
_MIXERS = {"mixup", "cutmix"}
PARTS = ("optimizer", "schedule", "loss", "callback", "augment")


def settings_of(settings: Sequence[str], part: str) -> dict[str, Any]:
    """The arguments that `--set` gives to a part; BadInput: one is not `part.argument=value`."""
    found: dict[str, Any] = {}
    for setting in settings:
        place, equals, text = setting.partition("=")
        owner, _, name = place.partition(".")
        if not (equals and name) or owner not in PARTS:
            raise BadInput(
                f"--set {setting}: not like optimizer.weight_decay=0.05",
                hint=f"it begins with one of {', '.join(PARTS)}",
            )
        value: Any = text
        with suppress(ValueError):
            value = json.loads(text)
        if owner == part:
            found[name] = value
    return found


def make(
    module: Any,
    base: type,
    option: str,
    name: str,
    arguments: dict[str, Any],
    usual: Mapping[str, Any] = MappingProxyType({}),
    **ours: Any,
) -> Any:
    """An object of the class of that name in any case of letters, which derives from `base`.

    `option` is for messages; `usual` are arguments where it takes them, `ours` are not checked.
    Raises BadInput: no such class, or it refuses the arguments.
    """
    kinds = {
        each.lower(): kind
        for each, kind in vars(module).items()
        if inspect.isclass(kind) and issubclass(kind, base) and kind is not base
    }
    kind = kinds.get(name.lower())
    if kind is None:
        raise BadInput(f"{option}: Keras has no '{name}'", hint=did_you_mean(name.lower(), kinds))
    known = [each for each in inspect.signature(kind).parameters if each != "kwargs"]
    for argument in arguments:
        if argument not in known:
            raise BadInput(
                f"{option} {name} has no argument '{argument}'", hint=did_you_mean(argument, known)
            )
    try:
        given = {name: value for name, value in usual.items() if name in known} | arguments
        return kind(**given, **ours)
    except (TypeError, ValueError) as fault:
        raise BadInput(
            f"{option} {name}: {str(fault).splitlines()[0]}",
            hint="`--set` gives the arguments of Keras' class",
        ) from fault


class KerasOptimizer:
    """One of Keras' optimizers in the step; `velocities` is all that it remembers."""

    def __init__(self, network: Network, name: str, arguments: dict[str, Any]) -> None:
        module = tf.keras.optimizers
        usual = {"learning_rate": 0.0}
        self._made = make(module, module.Optimizer, "--optimizer", name, arguments, usual)
        self._variables = tuple(network.model.trainable_variables)
        if network.stages > 1:
            _stay_with_variables(self._made)
        self._made.build(self._variables)
        _leave_distribution_to_us(self._made)
        owned = self._made.variables
        self.velocities = tuple(getattr(variable, "_value", variable) for variable in owned)

    def apply(self, variables: tuple[Any, ...], gradients: list[Any], lr: Any) -> list[Any]:
        """Update every variable; returns an operation that comes after."""
        self._made.learning_rate = lr
        self._made.apply_gradients(zip(gradients, self._variables, strict=True))
        return [variables[-1].read_value()]

    def finalize(self) -> None:
        """Let averages take the weights' place, where the optimizer keeps some (use_ema)."""
        if getattr(self._made, "use_ema", False):
            self._made.finalize_variable_values(self._variables)


def _leave_distribution_to_us(made: Any) -> None:
    """Let an optimizer update plain variables under a strategy, too: each rank has its own.

    Keras 3's TensorFlow backend wraps these two methods into a merge call of the strategy.
    """
    bases = [kind for kind in type(made).__mro__ if kind.__name__ == "BaseOptimizer"]
    for name in ("_apply_weight_decay", "_backend_update_step"):
        if bases and name not in vars(type(made)):
            setattr(made, name, MethodType(getattr(bases[0], name), made))


def _stay_with_variables(made: Any) -> None:
    """Let an optimizer keep what it remembers, and compute, where each variable is."""
    remember, update = made.add_variable_from_reference, made.update_step

    def kept(variable: Any, *arguments: Any, **named: Any) -> Any:
        with tf.device(variable._value.device):
            return remember(variable, *arguments, **named)

    def updated(gradient: Any, variable: Any, rate: Any) -> Any:
        with tf.device(variable._value.device):
            return update(gradient, variable, rate)

    made.add_variable_from_reference, made.update_step = kept, updated


def make_schedule(name: str, lr: float, arguments: dict[str, Any]) -> Any:
    """The learning rate of a step, by one of Keras' schedules."""
    module = tf.keras.optimizers.schedules
    base, usual = module.LearningRateSchedule, {"initial_learning_rate": lr}
    schedule = make(module, base, "--lr-schedule", name, arguments, usual)
    return lambda step: float(schedule(step))


def make_loss(name: str, classes: int, arguments: dict[str, Any]) -> Any:
    """loss(logits, labels): the mean of a loss of Keras, or of a function (labels, logits)."""
    if ":" in name:
        chosen = user_function("--loss", name)
    else:
        module = tf.keras.losses
        chosen = make(module, module.Loss, "--loss", name, arguments, {"from_logits": True})
    sparse = ":" in name or name.lower().startswith("sparse")

    def loss(outputs: Any, labels: Any) -> Any:
        outputs = tf.cast(outputs, tf.float32)
        if not sparse and labels.shape.rank < outputs.shape.rank:
            labels = tf.one_hot(labels, classes)
        return tf.reduce_mean(tf.cast(chosen(labels, outputs), tf.float32))

    return loss


def make_metrics(names: str) -> dict[str, Callable[[Any, Any], Any]]:
    """Functions (labels, logits) of a value per example, or of their mean, by name."""
    found: dict[str, Callable[[Any, Any], Any]] = {}
    for name in filter(None, names.split(",")):
        if ":" in name:
            found[name.partition(":")[2]] = user_function("--metrics", name)
            continue
        known = {
            each: value
            for each, value in vars(tf.keras.metrics).items()
            if inspect.isfunction(value) and each.islower()
        }
        if name.lower() not in known:
            raise BadInput(
                f"--metrics: Keras has no function '{name}'", hint=did_you_mean(name.lower(), known)
            )
        found[name.lower()] = known[name.lower()]
    return found


def make_callbacks(names: str, settings: Sequence[str], network: Network) -> Any:
    """A list of Keras that tells all of them: of Keras by name, or `package.module:Class`."""
    given, module, made = settings_of(settings, "callback"), tf.keras.callbacks, []
    for name in filter(None, names.split(",")):
        if ":" not in name:
            made.append(make(module, module.Callback, "--callback", name, given))
            continue
        kind = user_function("--callback", name)
        try:
            made.append(kind(**given))
        except Exception as fault:  # it is the user's: anything may go wrong in it
            raise BadInput(f"--callback {name} cannot be made", details=origin(fault)) from fault
    network.model.compile("sgd")  # some look at an optimizer; rates are the run's own
    network.model.stop_training = False
    return module.CallbackList(made, model=network.model)


def make_augment(options: TrainOptions, source: Source, random: Draws | None, rank: int) -> Change:
    """What changes (images, labels) of a step; `random` is the network's."""
    names = [name for name in options.augment.lower().split(",") if name]
    if not names or random is None:
        return lambda images, labels: (images, labels)
    if len(source.shape) != 3:
        raise BadInput(
            f"--augment is for images; an example here has the shape {source.shape}",
            hint="leave out --augment",
        )
    keras = tf.keras
    if not hasattr(keras.layers, "CutMix"):
        raise MissingPrerequisite(
            f"Keras {keras.__version__} lacks layers that --augment needs",
            hint="Keras 3.9 and newer have them",
        )
    base, given = keras.layers.MixUp.__base__, _arguments(options, names)
    # Not what the network computes in, nor in its layout.
    ours = {"dtype": "float32", "data_format": "channels_last"}
    chosen = partial(make, keras.layers, base, "--augment")
    layers = [chosen(name, given[name], {}, **ours) for name in names]
    if (options.loss or "").lower().startswith("sparse") and _MIXERS.intersection(names):
        raise BadInput(
            f"--loss {options.loss} takes no labels that are mixed",
            hint="categoricalcrossentropy does, or leave out --loss",
        )
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
            raise BadInput(
                f"--set augment.{place}: --augment has no '{name}'",
                hint="like augment.mixup.alpha=0.4",
            )
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
        raise BadInput(
            f"--augment {names} does not take images of {size}",
            details=origin(fault),
            hint="`keras.layers` says what each layer takes",
        ) from fault
