"""The networks, all of them Keras models: those that facts/models.yaml names, and users' own.

A user's model is `package.module:function`, called with (shape, classes), or with as many of these
as it takes. It returns a Keras model; one that it has compiled keeps its loss, metrics and
optimizer.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.resources import folder
from hpcdl.train.options import facts_of


@dataclass(frozen=True)
class ModelRecipe:
    """How a model is built, again and again: for training, and in float32 for an export.

    `spec` is the TensorSpec of an example without the batch, or a structure of them where inputs
    are several.
    """

    name: str
    spec: Any
    classes: int
    precision: str = "fp32"

    def example(self) -> Any:
        """Return a batch of one example of zeros, as the model takes it."""
        return tf.nest.map_structure(lambda s: tf.zeros((1, *s.shape), s.dtype), self.spec)

    def plain(self) -> Any:
        """Return the model in float32."""
        return replace(self, precision="fp32").build()

    def build(self) -> Any:
        """Return the Keras model for training."""
        policies = {"fp16": "mixed_float16", "bf16": "mixed_bfloat16"}
        policy = policies.get(self.precision, "float32")
        before = tf.keras.mixed_precision.global_policy()
        tf.keras.mixed_precision.set_global_policy(policy)
        try:
            return _make(self)
        finally:
            tf.keras.mixed_precision.set_global_policy(before)


def set_up_keras(seed: int) -> None:
    """Set Keras' seeds; MissingPrerequisite: Keras cannot be imported."""
    try:
        tf.keras.utils.set_random_seed(seed)
    except ImportError as fault:
        hint = "TF_USE_LEGACY_KERAS=1 needs tf_keras of the same release; Keras 3 is without it"
        raise MissingPrerequisite(f"Keras cannot be imported: {fault}", hint=hint) from fault
    backend = tf.keras.backend
    if hasattr(getattr(backend, "experimental", None), "enable_tf_random_generator"):
        # Keras 2: random numbers from variables, which checkpoints keep.
        backend.experimental.enable_tf_random_generator()


def random_states(model: Any) -> list[Any]:
    """Return the variables that the model's layers draw random numbers from."""
    if hasattr(model, "non_trainable_variables") and not hasattr(model, "_self_tracked_trackables"):
        return [v for v in model.variables if v.name == "seed_generator_state"]
    states = []
    for layer in model._flatten_layers(include_self=False):
        generator = getattr(getattr(layer, "_random_generator", None), "_generator", None)
        if generator is not None:
            states.append(generator.state)
    return states


def parameters_of(model: Any) -> int:
    """Return the number of trainable values."""
    return sum(int(np.prod(tuple(v.shape))) for v in model.trainable_variables)


def takes_classes(name: str) -> bool:
    """Return whether a user's model function wants the number of classes."""
    return ":" not in name or _taken(user_function("--model", name)) > 1


def _taken(function: Callable[..., Any]) -> int:
    """How many of (shape, classes) a function takes."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in kinds for one in inspect.signature(function).parameters.values())


def _builder(name: str) -> Callable[..., Any]:
    if ":" in name:
        function = user_function("--model", name)
        return lambda *shape_and_classes: function(*shape_and_classes[: _taken(function)])
    row = facts_of(name)
    if row["builder"] == "keras":
        application = getattr(tf.keras.applications, row["application"])
        return lambda shape, classes: application(
            weights=None, input_shape=shape, classes=classes, classifier_activation=None
        )
    builder: Callable[..., Any] = getattr(_networks(), row["builder"])
    return builder


def _networks() -> ModuleType:
    """examples/frameworks/keras_networks.py by its place: not what the current directory has."""
    package = ModuleType("hpcdl_frameworks")
    package.__path__ = [str(folder("examples") / "frameworks")]
    sys.modules[package.__name__] = package
    return importlib.import_module(f"{package.__name__}.keras_networks")


def _make(recipe: ModelRecipe) -> Any:
    shape = tf.nest.map_structure(lambda spec: tuple(spec.shape), recipe.spec)
    try:
        model = _builder(recipe.name)(shape, recipe.classes)
        if not isinstance(model, tf.keras.Model):
            raise TypeError(f"it gives {type(model).__name__}, no Keras model")
        # The first call makes the variables of a subclassed model, or a Sequential without Input.
        model(recipe.example())
    except (MemoryError, tf.errors.ResourceExhaustedError):
        raise
    except Exception as fault:
        size = " x ".join(map(str, shape)) if isinstance(recipe.spec, tf.TensorSpec) else str(shape)
        hint = (
            "the function is called with (shape, classes) and returns a Keras model"
            if ":" in recipe.name
            else "give another --image-size, or --model"
        )
        raise BadInput(
            f"the model '{recipe.name}' cannot be made for inputs of {size}",
            details=origin(fault),
            hint=hint,
        ) from fault
    if not model.trainable_variables:
        raise BadInput(f"the model '{recipe.name}' has nothing to train")
    return model


def origin(fault: BaseException) -> list[str]:
    """Return what was raised, and where."""
    *_, last = traceback.extract_tb(fault.__traceback__)
    text = next(iter(str(fault).strip().splitlines()), "")[:300]
    return [f"{type(fault).__name__}: {text}", f"{last.filename}, line {last.lineno}"]


def user_function(option: str, named: str) -> Callable[..., Any]:
    """Return a user's `package.module:function`; BadInput: it cannot be imported, and why."""
    module, _, name = named.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        if not callable(function):
            raise TypeError(f"{name} is no function")
    except Exception as fault:  # the module is the user's: anything may go wrong in it
        raise BadInput(
            f"{option} {named} cannot be imported",
            details=origin(fault),
            hint="package.module:function, importable from the current directory or PYTHONPATH",
        ) from fault
    return function
