"""Keras' optimizers, schedules, losses, metrics and callbacks by name, with `--set`.

A name is that of Keras in any case of letters (`adamw`), or `package.module:function`.
`--set optimizer.weight_decay=0.05` is an argument of the part. A typo in either gets the nearest
name. What a model's outputs mean is read from its last activation, never from numbers: where that
says nothing, `--set loss.from_logits=true` or `false` must.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from hpcdl.system.errors import BadInput
from hpcdl.system.text import did_you_mean
from hpcdl.train.data.source import DataSource
from hpcdl.train.models import origin, user_function
from hpcdl.train.options import SHORT_SCHEDULES, RunNumbers, TrainOptions, settings_of

_WRITERS = {"ModelCheckpoint", "CSVLogger", "TensorBoard", "RemoteMonitor"}
_EPOCHWISE = {"EarlyStopping", "ReduceLROnPlateau", "CSVLogger", "LearningRateScheduler"}
_LEAST_EPSILON = 1.001e-5
"""cuDNN takes no smaller one."""
_SURE = (
    "choose one: --set loss.from_logits=true (the model gives logits), "
    "or --set loss.from_logits=false (it gives probabilities)"
)


def make(
    module: Any,
    base: type,
    option: str,
    name: str,
    arguments: dict[str, Any],
    usual: Mapping[str, Any] | None = None,
) -> Any:
    """Return an object of the class of that name in any case of letters, which derives from `base`.

    `option` is for messages; `usual` are arguments where the class takes them.
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
    accepted = inspect.signature(kind).parameters
    usual = {name: value for name, value in (usual or {}).items() if name in accepted}
    try:
        return kind(**{**usual, **arguments})
    except (TypeError, ValueError) as fault:
        raise BadInput(
            f"{option} {name}: {str(fault).splitlines()[0]}",
            hint=f"`--set` gives the arguments of Keras' class: {', '.join(accepted)}",
        ) from fault


def check_settings(options: TrainOptions, *, compiled: bool) -> None:
    """Refuse `--set` of a part that the run does not have, and what a `compiled` model decides."""
    default = TrainOptions()
    for name in ("optimizer", "loss", "metrics", "lr_schedule", "lr") if compiled else ():
        if getattr(options, name) != getattr(default, name):
            raise BadInput(
                f"--{name.replace('_', '-')}: the model's function has compiled the model",
                hint="give it to `compile` there, or return the model uncompiled",
            )
    used = {
        "optimizer": not compiled,
        "schedule": options.lr_schedule != "constant",
        "loss": not compiled,
        "callback": bool(options.callback),
        "fit": True,
    }
    for part, there in used.items():
        if settings_of(options.settings, part) and not there:
            hint = {"callback": "--callback names one", "schedule": "--lr-schedule names one"}
            raise BadInput(
                f"--set {part}.…: this run has no {part} to set",
                hint=hint.get(part, f"the model was compiled with its own {part}: give it there"),
            )
    for name in settings_of(options.settings, "fit"):
        if name not in {"class_weight", "fused"}:
            raise BadInput(f"--set fit.{name}: there are fit.class_weight and fit.fused")


def class_weight(options: TrainOptions, classes: int) -> dict[int, float] | None:
    """The weights of classes by `--set fit.class_weight={"0": 2.0}`; None without.

    Raises BadInput: they are no such table, or name none of `classes`, where their number is known
    (Keras would leave that weight out without a word).
    """
    given = settings_of(options.settings, "fit").get("class_weight")
    if given is None:
        return None
    try:
        weights = {int(label): float(weight) for label, weight in dict(given).items()}
    except (TypeError, ValueError) as fault:
        raise BadInput(
            f"--set fit.class_weight={given}: not a weight for each class",
            hint='--set \'fit.class_weight={"0": 1, "1": 2.5}\'',
        ) from fault
    absent = [label for label in weights if not 0 <= label < (classes or label + 1)]
    if absent:
        raise BadInput(
            f"--set fit.class_weight: there is no class {absent[0]}",
            hint=f"the data have the classes 0 to {classes - 1}",
        )
    return weights


# ---- the model ----


def check_layers(model: Any, size: int) -> None:
    """Refuse layers that are to speak with other replicas: Keras knows no ranks but its own.

    Raises BadInput: a normalisation is synchronised, and there are several ranks.
    """
    for layer in model._flatten_layers():
        kind = type(layer).__name__
        if size > 1 and (getattr(layer, "synchronized", False) or kind.startswith("Sync")):
            raise BadInput(
                f"the layer '{layer.name}' is to normalise over all ranks, and each of {size} "
                "would normalise its own batch",
                hint="leave `synchronized` out, or use a larger batch per rank; "
                "examples/strategies/multiworker.py shows tf.distribute, which synchronises",
            )


def fuse(model: Any) -> int:
    """Let batch normalisation of images be TensorFlow's one operation; returns how many are.

    Keras 3 computes it from a dozen element-wise operations, each of which passes over the whole
    activation, forward and backward: a fifth of a ResNet-50 step on CPUs. The fused operation gives
    the same outputs and gradients. It returns the variance of a sample, n / (n - 1) of what Keras
    keeps, which is undone here, so that moving statistics are Keras' own. Exported models are built
    anew and have Keras' layers.
    """
    layers = [layer for layer in model._flatten_layers() if _can(layer)]
    for layer in layers:
        layer.call = _fused(layer)
    return len(layers)


def _can(layer: Any) -> bool:
    """A plain layer over the channels of images, of a Keras that does not fuse by itself."""
    if type(layer) is not tf.keras.layers.BatchNormalization or hasattr(layer, "fused"):
        return False
    # Not every Keras 3 has them: `renorm` came with 3.14.
    special = any(getattr(layer, name, False) for name in ("renorm", "synchronized"))
    plain = layer.built and not special and layer.input_spec and layer.epsilon >= _LEAST_EPSILON
    return bool(plain) and layer.input_spec.ndim == 4 and layer.axis in (1, 3, -1)


def _fused(layer: Any) -> Callable[..., Any]:
    """The layer's call. The variables are read below Keras, which would give halves of them."""
    usual = layer.call
    mean, variance = layer.moving_mean._value, layer.moving_variance._value
    scale = layer.gamma._value if layer.scale else tf.ones(mean.shape)
    offset = layer.beta._value if layer.center else tf.zeros(mean.shape)
    keep = layer.momentum
    first = layer.axis == 1

    def call(inputs: Any, training: Any = None, mask: Any = None) -> Any:
        if mask is not None:
            return usual(inputs, training=training, mask=mask)
        learning = bool(training and layer.trainable)
        empty = tf.constant([], tf.float32)
        output, new_mean, new_variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=inputs,
            scale=tf.convert_to_tensor(scale),
            offset=tf.convert_to_tensor(offset),
            mean=empty if learning else tf.convert_to_tensor(mean),
            variance=empty if learning else tf.convert_to_tensor(variance),
            epsilon=layer.epsilon,
            data_format="NCHW" if first else "NHWC",
            is_training=learning,
        )
        if learning:
            count = tf.cast(tf.size(inputs) // tf.shape(inputs)[1 if first else 3], tf.float32)
            mean.assign(mean * keep + new_mean * (1.0 - keep))
            biased = new_variance * (count - 1.0) / count
            variance.assign(variance * keep + biased * (1.0 - keep))
        return output

    return call


# ---- the optimizer ----


def make_optimizer(options: TrainOptions, numbers: RunNumbers) -> Any:
    """Return the Keras optimizer with its learning rate, or schedule, and what `--set` gives."""
    module = tf.keras.optimizers
    arguments = settings_of(options.settings, "optimizer")
    usual = {"learning_rate": _rate(options, numbers), "momentum": 0.9}
    if options.optimizer.lower() != "sgd":
        del usual["momentum"]
    made = make(module, module.Optimizer, "--optimizer", options.optimizer, arguments, usual)
    if options.precision == "fp16":
        made = tf.keras.mixed_precision.LossScaleOptimizer(made)
    return made


def _rate(options: TrainOptions, numbers: RunNumbers) -> Any:
    given = settings_of(options.settings, "schedule")
    name, schedules = options.lr_schedule.lower(), tf.keras.optimizers.schedules
    if name == "constant":
        return numbers.lr
    usual: dict[str, Any] = {"initial_learning_rate": numbers.lr}
    if name in SHORT_SCHEDULES:
        warmup = int(given.get("warmup_steps", 0))
        once_in = settings_of(options.settings, "optimizer").get("gradient_accumulation_steps", 1)
        updates = numbers.steps // int(once_in or 1)
        usual |= {"decay_steps": max(1, updates - warmup), "end_learning_rate": 0.0}
        usual |= {"initial_learning_rate": 0.0, "warmup_target": numbers.lr} if warmup else {}
    kind = SHORT_SCHEDULES.get(name, name)
    base = schedules.LearningRateSchedule
    return make(schedules, base, "--lr-schedule", kind, given, usual)


# ---- losses and metrics ----


def last_activation(model: Any, output: int = 0) -> str | None:
    """Return the name of the activation of the layer that gives an output; None: unknown."""
    if getattr(model, "outputs", None):
        history = model.outputs[output]._keras_history
        layer, place = getattr(history, "operation", None) or history.layer, history.tensor_index
    elif isinstance(model, tf.keras.Sequential):
        layer, place = model.layers[-1], 0
    else:
        return None
    if isinstance(layer, tf.keras.Model):
        return last_activation(layer, place)
    kind = type(layer).__name__
    if kind in {"Softmax", "ReLU", "LeakyReLU", "ELU"}:
        return kind.lower()
    activation = getattr(layer, "activation", None)
    return activation and str(getattr(activation, "__name__", type(activation).__name__))


_FITS = {"Binary": "sigmoid", "Categorical": "softmax", "Sparse": "softmax"}


def make_losses(
    options: TrainOptions, model: Any, outputs: Sequence[Any], source: DataSource
) -> Any:
    """Return the loss of every output, a list where there are several.

    Raises BadInput: the loss does not fit the last activation or the labels, or nothing says
    which loss is meant.
    """
    names = [name for name in (options.loss or "").split(",") if name]
    labels = by_output(source.label_spec, model)
    if not names:
        names = [_usual_loss(labels[0], outputs, source.task)]
    if len(names) != len(outputs):
        raise BadInput(
            f"the model has {len(outputs)} outputs, and --loss names {len(names)} losses",
            hint="name one per output, such as --loss=mse,sparsecategoricalcrossentropy, or "
            "compile the model in its function",
        )
    arguments = settings_of(options.settings, "loss")
    losses = []
    for place, (name, output) in enumerate(zip(names, outputs, strict=True)):
        loss = _one_loss(name, dict(arguments), last_activation(model, place))
        if place < len(labels):
            check_labels(loss, labels[place])
            _check_shapes(loss, labels[place], output, source)
        losses.append(loss)
    return losses if len(losses) > 1 else losses[0]


def by_output(parts: Any, model: Any) -> list[Any]:
    """Return losses or labels in the order of the model's outputs, by whose names they may be."""
    names = getattr(model, "output_names", None) or ()
    if isinstance(parts, dict) and names and set(names) == set(parts):
        return [parts[name] for name in names]
    return list(tf.nest.flatten(parts))


def _usual_loss(spec: Any, outputs: Sequence[Any], task: str) -> str:
    if task == "findings":
        return "binarycrossentropy"
    rank, column = spec.shape.rank, spec.shape.rank and spec.shape[-1] == 1
    # A class for each place, or one; Keras' own data sets have them as a column.
    places = rank == outputs[0].shape.rank - (1 if column else 2)
    if len(outputs) == 1 and spec.dtype.is_integer and places:
        return "sparsecategoricalcrossentropy"
    labels = f"labels are {spec.dtype.name} of shape {tuple(spec.shape)}"
    raise BadInput(
        f"{labels}: choose the loss"
        if len(outputs) == 1
        else f"the model has {len(outputs)} outputs: choose the losses",
        hint="--loss: meansquarederror for regression, categoricalcrossentropy for one-hot or "
        "soft labels, binarycrossentropy for several yes or no; or compile the model",
    )


def _check_shapes(loss: Any, spec: Any, output: Any, source: DataSource) -> None:
    """Refuse labels that a loss of Keras would broadcast, or classes that no output is for."""
    kind = type(loss).__name__
    if not isinstance(loss, tf.keras.losses.Loss) or None in tuple(output.shape[1:]):
        return
    if kind.startswith("Sparse"):
        width = int(output.shape[-1])
        if source.classes > width:
            raise BadInput(
                f"the model gives {(None, *output.shape[1:])}, but {source.classes} classes are "
                "in the labels",
                hint="its last layer is Dense(classes), without an activation",
            )
        return
    squeezed = [tuple(n for n in shape if n != 1) for shape in (spec.shape, output.shape[1:])]
    one_hot = spec.dtype.is_integer and not spec.shape.rank and source.own
    if squeezed[0] != squeezed[1] and not one_hot:
        raise BadInput(
            f"labels are of shape {tuple(spec.shape)}, and the model gives "
            f"{tuple(output.shape[1:])}: {kind} compares them one by one",
            hint="give labels of the outputs' shape (one-hot ones, say), or --loss="
            "sparsecategoricalcrossentropy for numbers of classes",
        )


def _one_loss(name: str, arguments: dict[str, Any], activation: str | None) -> Any:
    if ":" in name:
        return user_function("--loss", name)
    module = tf.keras.losses
    name = {"mse": "meansquarederror", "mae": "meanabsoluteerror"}.get(name.lower(), name)
    probe = make(module, module.Loss, "--loss", name, arguments)
    kind = type(probe)
    if "from_logits" not in inspect.signature(kind).parameters or "from_logits" in arguments:
        return probe
    fits = next((shape for part, shape in _FITS.items() if kind.__name__.startswith(part)), "")
    if activation == "linear":
        return make(module, module.Loss, "--loss", name, {**arguments, "from_logits": True})
    if activation == fits:
        return probe
    ends = (
        f"the model ends in '{activation}'"
        if activation
        else "the last layer's activation is unknown"
    )
    raise BadInput(
        f"{ends}; are outputs logits? {kind.__name__} takes '{fits}' or no activation", hint=_SURE
    )


def check_labels(loss: Any, spec: Any) -> None:
    """Refuse labels of a type that a loss would cut to integers."""
    name = getattr(loss, "__name__", None) or type(loss).__name__
    if isinstance(loss, str):
        name = loss
    sparse = name.lower().replace("_", "").startswith("sparse")
    if sparse and not spec.dtype.is_integer:
        raise BadInput(
            f"labels are {spec.dtype.name}, and {name} takes the numbers of classes, integers",
            hint="give integers, or another loss, such as --loss=meansquarederror",
        )


def make_metrics(options: TrainOptions, model: Any, losses: Any, findings: int) -> list[Any]:
    """Return the metrics: accuracy where the loss is one of classes, and those that are asked.

    Of `findings`, if not 0, the areas under ROC curves (callbacks.areas_of).
    """
    name = type(losses).__name__ if not isinstance(losses, list) else ""
    metrics: list[Any] = (
        ["accuracy"]
        if "CategoricalCross" in name or name.startswith(("CategoricalFocal", "CategoricalHinge"))
        else []
    )
    module = tf.keras.metrics
    if findings:
        # A sigmoid of what is none changes no order, and so no area.
        logits = last_activation(model) != "sigmoid"
        shape = {"num_thresholds": 1000, "multi_label": True, "num_labels": findings}
        metrics.append(module.AUC(**shape, from_logits=logits, name="auroc"))
    for asked in filter(None, options.metrics.split(",")):
        short = asked.lower().replace("_", "")
        if short == "accuracy":  # Keras chooses which one by the loss and the shapes
            metrics += [] if "accuracy" in metrics else ["accuracy"]
        elif ":" in asked:
            metrics.append(user_function("--metrics", asked))
        else:
            named = {"name": asked.lower()}
            metrics.append(make(module, module.Metric, "--metrics", short, {}, named))
    return metrics


# ---- callbacks ----


def make_callbacks(options: TrainOptions, *, first: bool) -> list[Any]:
    """Return callbacks by name; those that write files only where this is the `first` rank."""
    given, module = settings_of(options.settings, "callback"), tf.keras.callbacks
    callbacks: list[Any] = []
    names = [name for name in options.callback.split(",") if name]
    owners = [name.rpartition(":")[2].lower() for name in names]
    for setting in given:
        owner, dot, _ = setting.partition(".")
        if dot and owner.lower() not in owners:
            raise BadInput(
                f"--set callback.{setting}: this run has no callback '{owner}'",
                hint=did_you_mean(owner.lower(), owners),
            )
    for name in names:
        if name.lower() == "backupandrestore":
            raise BadInput(
                "--callback backupandrestore would put older weights in place of a checkpoint's",
                hint="leave it out: the same command resumes from the newest checkpoint",
            )
        if ":" not in name:
            made = make(module, module.Callback, "--callback", name, _of(name, given))
            if first or type(made).__name__ not in _WRITERS:
                callbacks.append(made)
            continue
        kind = user_function("--callback", name)
        try:
            made = kind(**_of(name, given))
            if not isinstance(made, module.Callback):
                raise TypeError(f"it gives {type(made).__name__}, no callback of Keras")
            callbacks.append(made)
        except Exception as fault:  # it is the user's: anything may go wrong in it
            raise BadInput(f"--callback {name} cannot be made", details=origin(fault)) from fault
    return callbacks


def _of(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments for all callbacks, and those for this one: `callback.csvlogger.filename`."""
    own = name.rpartition(":")[2].lower()
    dotted = {key.partition(".")[::2]: value for key, value in arguments.items() if "." in key}
    shared = {key: value for key, value in arguments.items() if "." not in key}
    return shared | {key: value for (owner, key), value in dotted.items() if owner.lower() == own}


def need_every_batch(callbacks: Sequence[Any]) -> bool:
    """Return whether a callback must be called after every step."""
    return any(
        type(callback).__name__ not in _EPOCHWISE
        and getattr(callback, "save_freq", None) != "epoch"
        for callback in callbacks
    )
