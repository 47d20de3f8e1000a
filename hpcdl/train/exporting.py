"""Models in and out: what plain Keras and TensorFlow load, without this package.

An export is a directory: `model.keras`, `model.weights.h5`, `saved_model/`, and `model.json`, which
says how pixels become the model's input. The model is built anew for it, in float32. Weights that
come in may be such a directory, a file of Keras, or a checkpoint.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from hpcdl.system.errors import BadInput
from hpcdl.system.files import explain_os_errors, write_json
from hpcdl.system.trust import require_known_owner
from hpcdl.train import checkpoint
from hpcdl.train.models import ModelRecipe, origin
from hpcdl.train.options import TrainOptions

_KERAS = "model.keras"
_SHOWN = 6


def check_outputs(options: TrainOptions, recipe: ModelRecipe) -> None:
    """Refuse, before training, files that could not be written later."""
    if options.export and Path(options.export).exists():
        raise BadInput(
            f"the directory of --export exists: {options.export}",
            hint="remove it, or name another one",
        )
    if options.export:
        _rehearse(recipe)


def _rehearse(recipe: ModelRecipe) -> None:
    """Write the untrained model, to learn now whether the trained one can be written."""
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
