"""Models in and out: what plain Keras and TensorFlow load, without this package.

An export is a directory: `model.keras`, `model.weights.h5`, `saved_model/`, and `model.json`, which
says how pixels become the model's input; or an ONNX file. The model is built anew for it, in
float32, from Keras' layers alone: what this program does to be quick stays out of it. Weights that
come in may be such a directory, a file of Keras, or a checkpoint.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tensorflow as tf

from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.files import explain_os_errors, write_atomic, write_json
from hpcdl.train import checkpoint
from hpcdl.train.models import Network
from hpcdl.train.options import TrainOptions

_KERAS = "model.keras"
_SHOWN = 6


_NEEDED = {".onnx": ("tf2onnx", "onnx"), ".parquet": ("pyarrow",)}


def check_outputs(options: TrainOptions) -> None:
    """Refuse, at the start of a run, files that could not be written later."""
    if options.export and Path(options.export).exists():
        raise BadInput(
            f"the directory of --export exists: {options.export}",
            hint="remove it, or name another one",
        )
    needed = [
        (f"{option} {path}", _NEEDED.get(Path(path or "").suffix, ()))
        for option, path in (("--export", options.export), ("--predict", options.predict))
    ]
    if options.tensorboard:
        needed.append(("--tensorboard", ("tensorboard",)))
    for option, packages in needed:
        for package in packages:
            if find_spec(package) is None:
                why = f"{option} needs {package}, which is not installed"
                raise MissingPrerequisite(why, hint=f"`pip install {package}`")


def export(network: Network, folder: Path, said: Mapping[str, Any]) -> None:
    """Write a network as a whole: aside, then renamed. `said` is what model.json says."""
    model = _plain(network)
    aside = folder.with_name(f".{folder.name}.part")
    with explain_os_errors(folder):
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        model.save(aside / _KERAS)
        model.save_weights(aside / "model.weights.h5")
        model.export(str(aside / "saved_model"), verbose=False)
        write_json(aside / "model.json", {"schema": 1, "model": network.name, **said})
        aside.rename(folder)


def export_onnx(network: Network, path: Path) -> None:
    """Write a network as an ONNX file; MissingPrerequisite: ONNX lacks one of its operations."""
    import onnx
    import tf2onnx

    model = _plain(network)
    given = (tf.TensorSpec(model.inputs[0].shape, model.inputs[0].dtype, "inputs"),)
    forward = tf.function(lambda inputs: model(inputs, training=False), input_signature=given)
    logging.getLogger("tf2onnx").setLevel(logging.CRITICAL)  # what is lacking is said here
    made, _ = tf2onnx.convert.from_function(forward, input_signature=given)
    lacking = {
        node.op_type for node in made.graph.node if not onnx.defs.has(node.op_type, node.domain)
    }
    if lacking:
        raise MissingPrerequisite(
            f"{network.name} cannot be written for ONNX, which lacks {', '.join(sorted(lacking))}",
            hint="an exact GELU is such an operation: its approximation can be written",
        )
    write_atomic(path, made.SerializeToString())


def _plain(network: Network) -> Any:
    """The model built anew, with the weights that the network has now."""
    model = network.plain()
    for variable, value in zip(model.weights, network.weights, strict=True):
        variable.assign(value)
    return model


def load_weights(network: Network, path: Path) -> str:
    """Assign the weights of a file; what to say of it. BadInput: they are of another network.

    A last layer of another width keeps its first weights: so a model is tuned for other classes.
    """
    try:
        found = _read(network, path)
    except BadInput:
        raise
    except Exception as fault:  # Keras' readers raise of everything
        raise BadInput(
            f"the weights in {path} cannot be read: {(str(fault) or repr(fault)).splitlines()[0]}",
            hint="a directory of --export, a .keras or .weights.h5 file, or a checkpoint",
        ) from fault
    wanted = network.weights
    if len(found) != len(wanted):
        raise _mismatch(path, [f"{len(found)} arrays there, {len(wanted)} in {network.name}"])
    names = network.names
    other = [
        index
        for index, (array, variable) in enumerate(zip(found, wanted, strict=True))
        if tuple(array.shape) != tuple(variable.shape)
    ]
    last = names[-1].rpartition("/")[0]
    head = [i for i, name in enumerate(names) if name.rpartition("/")[0] == last]
    if not set(other) <= set(head):
        raise _mismatch(
            path,
            [
                f"{names[i]}: {tuple(found[i].shape)} there, {tuple(wanted[i].shape)} here"
                for i in other
            ],
        )
    for index, (array, variable) in enumerate(zip(found, wanted, strict=True)):
        if not (other and index in head):
            variable.assign(array)
    kept = f"; {last} is of another width and starts anew" if other else ""
    return f"weights of {path}{kept}"


def _mismatch(path: Path, details: Sequence[str]) -> BadInput:
    more = [f"and {len(details) - _SHOWN} more"] if len(details) > _SHOWN else []
    return BadInput(
        f"the weights in {path} are of another network",
        details=[*details[:_SHOWN], *more],
        hint="--model and --image-size must be those of the weights",
    )


def _read(network: Network, path: Path) -> Sequence[Any]:
    """The arrays of a file, in the order of Keras' `model.weights`."""
    if path.is_dir():
        path = path / _KERAS
    if not path.is_file():
        raise BadInput(f"there are no weights at {path}")
    if path.suffix == ".ckpt":
        found = checkpoint.load(path)
        # Which are trained, and stand first, may have been others: --freeze.
        arrays = dict(zip(found.meta["order"], found.arrays, strict=False))
        return [arrays[index] for index in sorted(arrays) if index >= 0]
    if path.suffix == ".keras":
        return list(tf.keras.models.load_model(path, compile=False).weights)
    model = network.plain()
    model.load_weights(path)
    return list(model.weights)
