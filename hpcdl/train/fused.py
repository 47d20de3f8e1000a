"""Gives Keras 3's batch normalisation back the one operation that Keras 2 had for it; GELU, too.

Keras 3 computes it from a dozen element-wise operations, each of which passes over the whole
activation, forward and backward: a fifth of a ResNet-50 step on CPUs. The fused operation gives
the same output; its moving variance is that of a sample (n / (n - 1)), as in Keras 2.

The bias of a convolution just before it is not added: the mean that is subtracted takes it away
again, and its gradient is zero. Moving means count it, so scores are the same whatever it is.

`--model-parallel N` puts a model's layers on N devices of a node, in stages one after the other, by
tf.device: Keras' distribution API places nothing with TensorFlow (3.15), and its layers do not take
DTensor's variables. A stage has about an Nth of the parameters. The model is made in the host's
memory, and its variables move then: no device needs to hold all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import tensorflow as tf

from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.train.communicate import Communicator


def synchronize(model: Any, ranks: Communicator, *, wanted: bool, xla: bool) -> None:
    """Let layers that are `synchronized`, or all if `wanted`, take their statistics over all ranks.

    Raises BadInput where there is no such layer, or nothing that would synchronize it, such as XLA.
    """
    kind = tf.keras.layers.BatchNormalization
    layers = [
        each
        for each in model._flatten_layers()
        if isinstance(each, kind) and (wanted or getattr(each, "synchronized", False))
    ]
    if wanted and not layers:
        raise BadInput("--sync-bn: the model has no batch normalisation", hint="leave it out")
    apart = ranks.name == "parameter-server"  # its workers do not wait for each other
    alone = ranks.size == 1 and not apart
    unfit = {
        "--xla": xla,
        "--strategy parameter-server": apart,
        "Keras 2": not hasattr(kind, "_moments"),
    }
    if layers and not alone and any(unfit.values()):
        raise BadInput(
            "batch normalisation over all ranks cannot be had with "
            + next(name for name, here in unfit.items() if here)
        )
    for layer in layers:
        layer.synchronized = not alone
        if not alone:
            layer._moments = partial(_moments, ranks, layer._reduction_axes)


def _moments(ranks: Communicator, axes: list[int], inputs: Any, mask: Any) -> tuple[Any, Any]:
    """Mean and variance over the parts of a batch of all ranks, which are equally long."""
    if mask is not None:
        raise BadInput("batch normalisation over all ranks takes no mask", hint="leave one out")
    mean, variance = tf.nn.moments(inputs, axes)
    mean, square = ranks.total([mean / ranks.size, (variance + tf.square(mean)) / ranks.size])
    return mean, tf.maximum(square - tf.square(mean), 0.0)


def fuse(model: Any) -> int:
    """Replace the computation where it is the same; how many normalisations were changed."""
    layers = [layer for layer in model._flatten_layers() if _can(layer)]
    for layer in layers:
        layer.call = _fused(layer, _without_bias(model, layer))
    for layer in model._flatten_layers():
        if getattr(layer, "activation", None) is tf.keras.activations.gelu:
            layer.activation = tf.custom_gradient(_gelu)
    return len(layers)


def _gelu(x: Any) -> tuple[Any, Callable[..., Any]]:
    """Keras' GELU (arXiv 1606.08415); its gradient takes fewer passes over x than a tape's."""
    share = 0.5 * (1.0 + tf.math.erf(x * 0.5**0.5))

    def gradient(upstream: Any) -> Any:
        return upstream * (share + x * (tf.exp(-0.5 * tf.square(x)) * (2.0 * math.pi) ** -0.5))

    return x * share, gradient


def _can(layer: Any) -> bool:
    """A plain layer over the channels of images, of a Keras that does not fuse by itself."""
    if type(layer) is not tf.keras.layers.BatchNormalization or hasattr(layer, "fused"):
        return False
    # Not every Keras 3 has them: `renorm` came with 3.14.
    special = any(getattr(layer, name, False) for name in ("renorm", "synchronized"))
    plain = layer.built and not special and layer.input_spec
    return bool(plain) and layer.input_spec.ndim == 4 and layer.axis in (1, 3, -1)


def _without_bias(model: Any, layer: Any) -> Any:
    """The bias that the convolution before this layer adds no longer; None where it must."""
    before = layer._inbound_nodes
    if len(before) != 1 or not layer.trainable:
        return None
    made = before[0].input_tensors[0]._keras_history
    convolution = made.operation
    if type(convolution) is not tf.keras.layers.Conv2D or not convolution.use_bias:
        return None
    alone = len(convolution._inbound_nodes) == len(convolution._outbound_nodes) == 1
    shown = [given._keras_history.operation for given in getattr(model, "outputs", None) or ()]
    if not (alone and convolution in model.layers and convolution not in shown):
        return None
    if convolution.activation is not tf.keras.activations.linear:
        return None
    convolution.use_bias = False  # the variable stays, for checkpoints and counts
    return convolution.bias._value


def _fused(layer: Any, bias: Any) -> Callable[..., Any]:
    """The layer's call. The variables are read below Keras, which would give halves of them."""
    usual = layer.call
    mean, variance = layer.moving_mean._value, layer.moving_variance._value
    missing = tf.zeros(mean.shape) if bias is None else bias
    scale = layer.gamma._value if layer.scale else tf.ones(mean.shape)
    offset = layer.beta._value if layer.center else tf.zeros(mean.shape)
    keep = layer.momentum

    def call(inputs: Any, training: Any = None, mask: Any = None) -> Any:
        if mask is not None:
            return usual(inputs, training=training, mask=mask)
        learning = bool(training and layer.trainable)
        empty = tf.constant([], tf.float32)
        output, new_mean, new_variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=inputs,
            scale=tf.convert_to_tensor(scale),
            offset=tf.convert_to_tensor(offset),
            mean=empty if learning else mean - missing,
            variance=empty if learning else tf.convert_to_tensor(variance),
            epsilon=layer.epsilon,
            data_format="NCHW" if layer.axis == 1 else "NHWC",
            is_training=learning,
        )
        if learning:
            mean.assign(mean * keep + (new_mean + missing) * (1.0 - keep))
            variance.assign(variance * keep + new_variance * (1.0 - keep))
        return output

    return call


# ---- stages ----


def split(model: Any, wanted: int) -> None:
    """Place a model's layers in `wanted` stages, and fuse what can be."""
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
    fuse(model)
    for part, stage in zip(parts, stages, strict=True):
        part.call = _on(names[stage], part.call)


def _stages(sizes: Sequence[int], wanted: int) -> list[int]:
    """The stage of each part of a model: by where the middle of its parameters lies."""
    middles = [
        before + size / 2 for before, size in zip(accumulate([0, *sizes]), sizes, strict=False)
    ]
    stages = [min(wanted - 1, int(wanted * middle / max(sum(sizes), 1))) for middle in middles]
    if sizes and len({stage for stage, size in zip(stages, sizes, strict=True) if size}) < wanted:
        raise BadInput(
            f"the model's layers cannot be divided among {wanted} devices",
            hint="a smaller --model-parallel, or smaller layers",
        )
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
