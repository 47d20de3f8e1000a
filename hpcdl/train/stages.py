"""`--model-parallel N`: a model's layers on N devices of a node, in stages one after the other.

By tf.device: Keras' distribution API places nothing with TensorFlow (3.15), and its layers do not
take DTensor's variables. A stage has about an Nth of the parameters. The model is made in the
host's memory, and its variables move then: no device needs to hold all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import tensorflow as tf

from hpcdl.system.errors import BadInput, MissingPrerequisite


def split(model: Any, wanted: int, change: Callable[[Any], object]) -> None:
    """Place a model's layers in `wanted` stages; `change` is called with its variables there."""
    parts = list(_operations(model)) if wanted > 1 else []
    held = [getattr(part, "variables", ()) for part in parts]
    if any(not hasattr(variable, "_value") for variables in held for variable in variables):
        raise MissingPrerequisite("--model-parallel needs Keras 3", hint="a newer TensorFlow")
    # GPUs, or the parts of a CPU that startup.py makes.
    found = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    names = [device.name for device in found]
    stages = _stages([sum(math.prod(v.shape) for v in one) for one in held], wanted)
    for variables, stage in zip(held, stages, strict=True):
        for variable in variables:
            whole = variable._value
            with tf.device(names[stage]):
                variable._value = tf.Variable(whole, trainable=whole.trainable, name=variable.name)
    change(model)
    for part, stage in zip(parts, stages, strict=True):
        part.call = _on(names[stage], part.call)


def _stages(sizes: Sequence[int], wanted: int) -> list[int]:
    """The stage of each part of a model: by where the middle of its parameters lies."""
    middles = [
        before + size / 2 for before, size in zip(accumulate([0, *sizes]), sizes, strict=False)
    ]
    stages = [min(wanted - 1, int(wanted * middle / max(sum(sizes), 1))) for middle in middles]
    if sizes and len({stage for stage, size in zip(stages, sizes, strict=True) if size}) < wanted:
        raise BadInput(f"the model's layers cannot be divided among {wanted} devices",
                       hint="a smaller --model-parallel, or smaller layers")  # fmt: skip
    return stages


def _operations(model: Any) -> Iterator[Any]:
    """What a model computes, in order, without the models around it."""
    for part in getattr(model, "operations", None) or model.layers:
        if isinstance(part, tf.keras.Model):
            yield from _operations(part)
        else:
            yield part


def _on(device: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def placed(*arguments: Any, **named: Any) -> Any:
        with tf.device(device):
            return call(*arguments, **named)

    return placed
