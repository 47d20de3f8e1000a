"""What a training run is asked to do, and the numbers of it: batch, steps, learning rate. Pure.

No TensorFlow here: `hpcdl train --help` and the command line's checks need none. A field of
`TrainOptions` declares its option; `from_namespace` reads a parsed command line and `to_argv`
writes one, so that the command line can hand a run to another Python unchanged. Every refusal of
bad numbers is here, too.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.system.amounts import amount, fraction, not_negative, positive, seed
from hpcdl.system.errors import BadInput
from hpcdl.system.text import did_you_mean

STRATEGIES = ("auto", "horovod", "multiworker", "parameter-server", "single")
OPTIMIZERS = ("sgd", "lars")
"""Ours; all others are Keras'."""
SCHEDULES = ("constant", "cosine", "linear")
LAYOUTS = ("auto", "nhwc", "nchw")
PRECISIONS = ("fp32", "fp16", "bf16")
SYNTHETIC = "synthetic"
DEFAULT_STEPS = 100
_KERAS_LR = 0.001
_USER_MODEL: dict[str, Any] = {
    "builder": "keras",
    "input": [224, 224, 3],
    "classes": 1000,
    "global_batch": 64,
    "epochs": 1,
    "lr": 0.1,
    "task": "classes",
    "source": "the user",
    "proof": "doubtful",
}

_METAVARS = {str: "NAME", positive: "N", not_negative: "N", seed: "N", amount: "X", fraction: "X"}


@dataclass(frozen=True)
class Argument:
    """One option of the command line; its default is the field's of `TrainOptions`."""

    field: str
    help: str
    type: Any
    choices: tuple[str, ...] | None
    metavar: str | None

    @property
    def flag(self) -> str:
        """The option as typed."""
        return "--set" if self.field == "settings" else "--" + self.field.replace("_", "-")


def _option(
    default: Any,
    text: str,
    kind: Any = str,
    *,
    choices: tuple[str, ...] | None = None,
    metavar: str | None = None,
) -> Any:
    """A field with its option: help, and the function that reads its value; list: given often."""
    metavar = metavar or (None if choices else _METAVARS.get(kind))
    return field(
        default=default,
        metadata={"help": text, "type": kind, "choices": choices, "metavar": metavar},
    )


@dataclass(frozen=True)
class TrainOptions:
    """One run. Times in seconds unless the name says otherwise; None means "by the model"."""

    model: str = _option("mlp", "network to train (default mlp)")
    data: str = _option(
        SYNTHETIC, "directory made by `hpcdl data make`, or 'synthetic'", metavar="DIR"
    )
    dataset: str | None = _option(
        None,
        "data of your own: package.module:function, called with "
        "'train' and 'test', returns arrays or a tf.data.Dataset",
    )
    image_size: int | None = _option(
        None, "side of the images in pixels (default by the model)", positive, metavar="PX"
    )
    task: str | None = _option(
        None,
        "one class, or several findings per image (default by the model)",
        choices=("classes", "findings"),
    )
    pipeline: str = _option(
        "new", "input pipeline for JPEG records; old: slow, for comparison", choices=("new", "old")
    )
    max_damaged: int = _option(16, "damaged records a rank may skip (default 16)", not_negative)
    global_batch: int | None = _option(None, "images per step over all ranks", positive)
    batch_per_rank: int | None = _option(None, "images per step and rank", positive)
    epochs: int | None = _option(None, "passes over the data (default by the model)", positive)
    steps: int | None = _option(None, "number of steps, instead of epochs", positive)
    strategy: str = _option("auto", "how ranks communicate (default auto)", choices=STRATEGIES)
    servers: int = _option(
        1, "servers that hold the weights with --strategy parameter-server (default 1)", positive
    )
    model_parallel: int = _option(
        1, "devices of a node to split the model's layers over (default 1)", positive
    )
    job_dir: str | None = _option(
        None, "directory of the results (default: HPCDL_JOB_DIR, or .)", metavar="DIR"
    )
    seed: int = _option(1, "random seed (default 1)", seed)
    hang_limit: float = _option(
        600.0,
        "seconds without a step until the run is stopped; 0: never (default 600)",
        amount,
        metavar="S",
    )
    lr: float | None = _option(None, "learning rate (default by the model)", amount)
    momentum: float = _option(0.9, "momentum of SGD (default 0.9)", fraction)
    optimizer: str = _option("sgd", "sgd (default), lars, or one of Keras, such as adamw")
    settings: tuple[str, ...] = _option(
        (),
        "argument of Keras' optimizer, schedule, loss, "
        "callback or augment, such as optimizer.weight_decay=0.05",
        list,
        metavar="PART.NAME=VALUE",
    )
    loss: str | None = _option(
        None, "one of Keras, or package.module:function of (labels, outputs)"
    )
    augment: str = _option(
        "",
        "Keras' layers that change images while training, such as mixup,randaugment",
        metavar="NAMES",
    )
    sync_bn: bool = _option(False, "batch normalisation takes its statistics over all ranks", bool)
    weight_decay: float = _option(0.0, "L2 penalty on kernels (default 0)", amount)
    label_smoothing: float = _option(0.0, "label smoothing (default 0)", fraction)
    lr_schedule: str = _option(
        "constant", "constant (default), cosine, linear, or one of Keras, such as exponentialdecay"
    )
    lr_warmup_steps: int = _option(
        0, "steps over which the rate rises from 0 (default 0)", not_negative
    )
    scale_lr: bool = _option(
        False, "multiply the learning rate by global batch / default batch", bool
    )
    precision: str = _option(
        "fp32", "precision of compute (default fp32); fp16 scales the loss", choices=PRECISIONS
    )
    accumulate: int = _option(1, "compute a batch in N parts, to save memory", positive)
    compress: bool = _option(False, "send gradients as fp16", bool)
    xla: bool = _option(False, "compile forward and backward with XLA", bool)
    layout: str = _option(
        "auto", "layout of images in memory (default: by the device)", choices=LAYOUTS
    )
    deterministic: bool = _option(False, "bit-identical results; slower on GPUs", bool)
    metrics: str = _option(
        "", "functions of Keras, or package.module:function, to score by as well", metavar="NAMES"
    )
    validate_every: int = _option(
        0, "epochs between validations on the test set (default: at the end)", not_negative
    )
    validate_steps: int = _option(0, "the same in steps", not_negative)
    best: str | None = _option(
        None,
        "metric by which the best validated weights are kept and used at the end",
        metavar="METRIC",
    )
    patience: int = _option(0, "end after N validations without anything better", not_negative)
    callback: str = _option(
        "",
        "callbacks of Keras, or package.module:Class, that rank 0 tells of the run",
        metavar="NAMES",
    )
    warmup_steps: int = _option(
        5, "first steps not included in the throughput (default 5)", not_negative
    )
    profile: bool = _option(
        False, "write timeline.json: all ranks' steps and threads, for Perfetto", bool
    )
    tensorboard: bool = _option(False, "write loss and throughput for TensorBoard", bool)
    report_every: float = _option(
        5.0, "seconds between progress lines in a log (default 5)", amount, metavar="S"
    )
    find_batch: bool = _option(
        False, "measure the largest batch per rank that fits into memory, and stop", bool
    )
    target_accuracy: float | None = _option(
        None, "exit with status 1 if the test accuracy stays below", fraction
    )
    delay_ms: float = _option(
        0.0, "sleep in every step, to emulate a slow run", amount, metavar="MS"
    )
    checkpoint_every: int | None = _option(
        None, "steps between checkpoints; 0: only at the end (default: an epoch)", not_negative
    )
    keep_checkpoints: int = _option(3, "newest checkpoints to keep (default 3)", positive)
    fresh: bool = _option(
        False, "start over and keep earlier checkpoints aside; a requeued job resumes", bool
    )
    allow_change: str = _option(
        "",
        "settings that may differ from those of the checkpoint, such as lr,momentum",
        metavar="NAMES",
    )
    weights: str | None = _option(
        None,
        "start from these weights: a directory of --export, a "
        ".keras or .weights.h5 file, or a checkpoint",
        metavar="PATH",
    )
    freeze: str = _option("", "layers that are not trained, such as 'conv*,bn_1'", metavar="NAMES")
    export: str | None = _option(
        None, "write the trained model for Keras and TensorFlow; FILE.onnx: for ONNX", metavar="DIR"
    )
    evaluate: bool = _option(False, "score the checkpoint, or --weights, and train nothing", bool)
    predict: str | None = _option(
        None,
        "write a table of the test set's predictions; FILE.parquet: as Parquet",
        metavar="FILE.csv",
    )
    json: bool = False  # of the whole command line

    @property
    def needs_keras(self) -> bool:
        """Whether even the smallest network must be one of Keras."""
        return any(
            (
                self.loss,
                self.metrics,
                self.settings,
                self.keras_optimizer,
                self.model_parallel > 1,
                self.callback,
                self.augment,
                self.weights,
                self.freeze,
                self.export,
                self.sync_bn,
                self.lr_schedule not in SCHEDULES,
            )
        )

    @property
    def keras_optimizer(self) -> bool:
        """Whether Keras' class is used: for all but ours, and wherever it is given arguments."""
        given = any(setting.startswith("optimizer.") for setting in self.settings)
        return self.optimizer not in OPTIMIZERS or given

    @property
    def folder(self) -> Path:
        """Where results go: --job-dir, else HPCDL_JOB_DIR, else the current directory."""
        return Path(self.job_dir or os.environ.get("HPCDL_JOB_DIR") or ".").absolute()


_SECTIONS = {
    "model": "run",
    "lr": "step",
    "metrics": "validation",
    "callback": "measuring",
    "checkpoint_every": "checkpoints",
    "weights": "models",
}
"""The groups of the help, by the first option of each."""
ARGUMENTS = tuple(
    Argument(one.name, **one.metadata) for one in fields(TrainOptions) if one.metadata
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add every option of `ARGUMENTS` to a parser. Not given means None: see `from_namespace`."""
    group: Any = parser
    for argument in ARGUMENTS:
        if argument.field in _SECTIONS:
            group = parser.add_argument_group(_SECTIONS[argument.field])
        if argument.type is bool:
            group.add_argument(argument.flag, action="store_true", default=None, help=argument.help)
        elif argument.type is list:
            group.add_argument(
                argument.flag,
                action="append",
                dest=argument.field,
                metavar=argument.metavar,
                help=argument.help,
            )
        else:
            group.add_argument(
                argument.flag,
                type=argument.type,
                choices=argument.choices,
                metavar=argument.metavar,
                help=argument.help,
            )


def from_namespace(args: argparse.Namespace) -> TrainOptions:
    """The options of a parsed command line; BadInput: two that exclude each other."""
    names = [one.name for one in fields(TrainOptions)]
    given = {name: getattr(args, name) for name in names if getattr(args, name, None) is not None}
    for one, other in (
        ("global_batch", "batch_per_rank"),
        ("epochs", "steps"),
        ("validate_every", "validate_steps"),
    ):
        if one in given and other in given:
            flags = [f"--{name.replace('_', '-')}" for name in (one, other)]
            raise BadInput(f"{flags[0]} and {flags[1]} exclude each other", hint="give one of them")
    return TrainOptions(**{**given, "settings": tuple(given.get("settings", ()))})


def to_argv(options: TrainOptions) -> list[str]:
    """The command line that means `options`: only what differs from the defaults."""
    argv: list[str] = []
    for argument in ARGUMENTS:
        value = getattr(options, argument.field)
        if value == getattr(TrainOptions(), argument.field):
            continue
        values = value if argument.type is list else [value]
        flag = argument.flag
        argv += [flag] if argument.type is bool else [f"{flag}={each}" for each in values]
    return [*argv, "--json"] if options.json else argv


def parse(argv: list[str]) -> TrainOptions:
    """The options of an argument list; argparse's own exit on a bad one."""
    parser = argparse.ArgumentParser(prog="hpcdl train", allow_abbrev=False)
    configure(parser)
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    return from_namespace(parser.parse_args(argv))


# ---- the numbers ----


@dataclass(frozen=True)
class RunPlan:
    """The numbers of a run. `steps_per_epoch` is 0 where an epoch has no end."""

    global_batch: int
    steps: int
    steps_per_epoch: int
    lr: float
    checkpoint_every: int
    lr_schedule: str = "constant"
    lr_warmup_steps: int = 0
    validate_every: int = 0
    schedule: Callable[[int], float] | None = None

    def lr_at(self, step: int) -> float:
        """The learning rate of the step number `step`, counted from 0.

        Rises linearly over the warm-up (Goyal, arXiv 1706.02677), then follows the schedule
        down to 0 at the end, or stays.
        """
        if step < self.lr_warmup_steps:
            return self.lr * (step + 1) / self.lr_warmup_steps
        rest = max(1, self.steps - self.lr_warmup_steps)
        done = min(1.0, (step - self.lr_warmup_steps) / rest)
        if self.schedule:
            return self.schedule(step - self.lr_warmup_steps)
        if self.lr_schedule == "cosine":
            return self.lr * 0.5 * (1.0 + math.cos(math.pi * done))
        return self.lr * (1.0 - done) if self.lr_schedule == "linear" else self.lr

    def position(self, step: int) -> tuple[int, int]:
        """(epoch, batch in it) of the step number `step`, both counted from 0."""
        if not self.steps_per_epoch:
            return 0, step
        return divmod(step, self.steps_per_epoch)


def facts_of(model: str) -> dict[str, Any]:
    """The row of facts/models.yaml, for a user's model the defaults; BadInput: unknown model."""
    if ":" in model:
        return dict(_USER_MODEL)
    rows: dict[str, dict[str, Any]] = facts.load("models")["models"]
    if model not in rows:
        hint = did_you_mean(model, rows)
        raise BadInput(
            f"unknown model '{model}'",
            hint=f"{hint}; a model of your own is package.module:function",
        )
    return rows[model]


def global_batch(options: TrainOptions, model: dict[str, Any], ranks: int) -> int:
    """Images per step over all ranks; BadInput: not shared equally, with the nearest that are."""
    unit = ranks * options.accumulate
    if options.global_batch is None and options.batch_per_rank is None:
        return int(-(-model["global_batch"] // unit) * unit)
    batch = options.global_batch or (options.batch_per_rank or 1) * ranks
    if batch % unit:
        below, above = batch // unit * unit, -(-batch // unit) * unit
        fits = f"{below} or {above}" if below else str(above)
        parts = f" in {options.accumulate} parts" if options.accumulate > 1 else ""
        raise BadInput(
            f"a global batch of {batch} cannot be shared equally by {ranks} ranks{parts}",
            hint=f"--global-batch {fits} can",
        )
    return batch


def check_parallel(options: TrainOptions, ranks: int) -> None:
    """Refuse, by BadInput, what does not go with a model on several devices."""
    if options.model_parallel == 1:
        return
    unfit = ["--xla"] if options.xla else []
    unfit += ["--strategy parameter-server"] if options.strategy == "parameter-server" else []
    unfit += [f"{ranks} ranks"] if ranks > 1 else []
    if unfit:
        raise BadInput(
            f"--model-parallel cannot be had with {', '.join(unfit)}",
            hint="it is for one process that has several devices",
        )


def make_plan(
    options: TrainOptions, model: dict[str, Any], batch: int, steps_per_epoch: int
) -> RunPlan:
    """The numbers of the run, once the data's length is known; BadInput: epochs without an end."""
    if options.epochs and not steps_per_epoch:
        raise BadInput("synthetic data has no epochs", hint="give --steps")
    if options.validate_every and not steps_per_epoch:
        raise BadInput("synthetic data has no epochs", hint="give --validate-steps")
    validates = options.validate_every or options.validate_steps
    if (options.best or options.patience) and not validates:
        raise BadInput("--best and --patience need validations", hint="give --validate-every N")
    epochs = options.epochs or model["epochs"]
    steps = options.steps or (steps_per_epoch * epochs if steps_per_epoch else DEFAULT_STEPS)
    every = options.checkpoint_every
    # A model's own rate is for SGD; the others' is Keras' usual one.
    usual = _KERAS_LR if options.keras_optimizer and options.optimizer != "sgd" else model["lr"]
    lr = usual if options.lr is None else options.lr
    if options.scale_lr:
        lr *= batch / model["global_batch"]
    return RunPlan(
        global_batch=batch,
        steps=steps,
        steps_per_epoch=steps_per_epoch,
        lr=lr,
        checkpoint_every=steps_per_epoch if every is None else every,
        lr_schedule=options.lr_schedule,
        lr_warmup_steps=options.lr_warmup_steps,
        validate_every=options.validate_steps or options.validate_every * steps_per_epoch,
    )


def check_target(options: TrainOptions, task: str, tested: int) -> None:
    """Refuse a target that nothing is measured for; `tested` images there are to test with."""
    if options.target_accuracy is None or (task == "classes" and tested):
        return
    if task != "classes":
        why = f"{task} are scored by areas"
    else:
        named = "synthetic data" if options.data == SYNTHETIC else options.data
        why = f"there are no images to test with in {named}"
    raise BadInput(
        f"--target-accuracy cannot be evaluated: {why}",
        hint="leave it out, or train on a data set with classes and a test split",
    )
