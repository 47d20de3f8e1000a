"""The networks, all of them Keras models: those that facts/models.yaml names, and users' own.

A user's model is `package.module:function`, called with (shape, classes), or with as many of these
as it takes. It returns a Keras model; one that it has compiled keeps its loss, metrics and
optimizer.

An export is a directory: `model.keras`, `model.weights.h5`, `saved_model/`, and `model.json`, which
says how pixels become the model's input. The model is built anew for it, in float32. Weights that
come in may be such a directory, a file of Keras, or a checkpoint.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.files import explain_os_errors, write_json
from hpcdl.system.resources import folder
from hpcdl.system.trust import require_known_owner
from hpcdl.train import checkpoint
from hpcdl.train.options import TrainOptions, facts_of

_KERAS = "model.keras"
_SHOWN = 6


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


# ---- models in and out ----


def check_outputs(options: TrainOptions, recipe: ModelRecipe) -> None:
    """Refuse, before training, files that could not be written later."""
    if not options.export:
        return
    if Path(options.export).exists():
        raise BadInput(
            f"the directory of --export exists: {options.export}",
            hint="remove it, or name another one",
        )
    # The untrained model is written, to learn now whether the trained one can be.
    with tempfile.TemporaryDirectory(prefix="hpcdl-export-") as folder:
        try:
            _write(recipe.plain(), Path(folder) / "rehearsal", recipe, {})
        except Exception as fault:  # of the model's own layers
            raise BadInput(
                f"--export: Keras cannot write the model '{recipe.name}'",
                details=origin(fault),
                hint="leave out --export, or give the model's layers a get_config",
            ) from fault


def export(model: Any, path: Path, recipe: ModelRecipe, description: Mapping[str, Any]) -> None:
    """Write a model with its weights as a whole: aside, then renamed."""
    plain = recipe.plain()
    for variable, value in zip(plain.weights, model.weights, strict=True):
        variable.assign(value.numpy())
    # A name that nobody can foretell: a link that was left under it would be written through.
    with explain_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with (
        explain_os_errors(path),
        tempfile.TemporaryDirectory(prefix=f".{path.stem}.", dir=path.parent) as aside,
    ):
        _write(plain, Path(aside, path.name), recipe, description)
        Path(aside, path.name).rename(path)


def _write(model: Any, path: Path, recipe: ModelRecipe, description: Mapping[str, Any]) -> None:
    path.mkdir(parents=True)
    model.save(path / _KERAS)
    model.save_weights(path / "model.weights.h5")
    quiet = {"verbose": False} if getattr(tf.keras, "__version__", "2") >= "3" else {}
    model.export(str(path / "saved_model"), **quiet)
    write_json(path / "model.json", {"schema": 1, "model": recipe.name, **description})


def load_weights(model: Any, recipe: ModelRecipe, path: Path) -> str:
    """Assign the weights of a file; returns what to say. BadInput: they are of another network.

    A last layer of another width keeps its first weights: so a model is tuned for other classes.
    """
    try:
        arrays = _read(recipe, path)
    except BadInput:
        raise
    except Exception as fault:  # Keras' readers raise of everything
        raise BadInput(
            f"the weights in {path} cannot be read: {(str(fault) or repr(fault)).splitlines()[0]}",
            hint="a directory of --export, a .keras or .weights.h5 file, or a checkpoint",
        ) from fault
    wanted = model.weights
    names = [getattr(weight, "path", weight.name) for weight in wanted]
    shapes = [[tuple(each.shape) for each in some] for some in (arrays, wanted)]
    rows = zip(names, *shapes, strict=False)
    other = [f"{name}: {there} there, {here} here" for name, there, here in rows if there != here]
    if len(arrays) != len(wanted):
        other = [f"{len(arrays)} arrays there, {len(wanted)} in {recipe.name}"]
    last = names[-1].rpartition("/")[0]
    if not all(text.startswith(f"{last}/") for text in other):
        more = [f"and {len(other) - _SHOWN} more"] if len(other) > _SHOWN else []
        raise BadInput(
            f"the weights in {path} are of another network",
            details=[*other[:_SHOWN], *more],
            hint="--model and --image-size must be those of the weights",
        )
    for name, array, variable in zip(names, arrays, wanted, strict=True):
        if not (other and name.startswith(f"{last}/")):
            variable.assign(array)
    kept = f"; {last} is of another width and starts anew" if other else ""
    return f"weights of {path}{kept}"


def _read(recipe: ModelRecipe, path: Path) -> Sequence[Any]:
    """The arrays of a file, in the order of Keras' `model.weights`."""
    if path.is_dir():
        path = path / _KERAS
    if not path.is_file():
        raise BadInput(f"there are no weights at {path}")
    if path.suffix == ".ckpt":
        saved = checkpoint.load(path)
        return saved.arrays[: saved.meta["weights"]]
    if path.suffix == ".keras":
        # It names classes and functions that Keras calls, which some releases let be any.
        require_known_owner(path, path.stat())
        loaded = tf.keras.models.load_model(path, compile=False)
        return [weight.numpy() for weight in loaded.weights]
    _require_own_arrays(path)
    model = recipe.plain()
    model.load_weights(path)
    return [weight.numpy() for weight in model.weights]


def _require_own_arrays(path: Path) -> None:
    """Raise BadInput where arrays are kept in other files: Keras before 3.13 reads any file so.

    Whoever gives weights away would find a secret file of their user in what is trained from them.
    """
    import h5py

    others: list[str] = []

    def of_link(name: bytes, info: Any) -> None:
        if info.type == h5py.h5l.TYPE_EXTERNAL:
            others.append(name.decode(errors="replace"))

    def of_array(name: str, one: Any) -> None:
        if isinstance(one, h5py.Dataset) and (one.external or one.is_virtual):
            others.append(name)

    with h5py.File(path) as file:
        file.id.links.visit(of_link, info=True)
        file.visititems(of_array)
    if others:
        raise BadInput(f"{path} keeps '{others[0]}' in another file, which is not read")
