"""Options of a training run, and its numbers: batch, steps, learning rate. Pure.

No TensorFlow here: `hpcdl train --help`, expectations and the command line's checks need none. A
field of `TrainOptions` declares its option; `from_namespace` reads a parsed command line and
`to_argv` writes one. Every refusal of bad numbers is here, too.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

from hpcdl import facts
from hpcdl.system.amounts import amount, fraction, not_negative, positive, seed
from hpcdl.system.errors import BadInput
from hpcdl.system.text import did_you_mean

SCHEDULES = ("constant", "cosine", "linear")
LAYOUTS = ("auto", "nhwc", "nchw")
PRECISIONS = ("fp32", "fp16", "bf16")
SYNTHETIC = "synthetic"
DEFAULT_STEPS = 100
PARTS = ("optimizer", "schedule", "loss", "callback", "fit")
"""What `--set PART.NAME=VALUE` can name."""
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

    model: str = _option("mlp", "network to train (default mlp), or package.module:function")
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
    global_batch: int | None = _option(None, "examples per step over all ranks", positive)
    batch_per_rank: int | None = _option(None, "examples per step and rank", positive)
    epochs: int | None = _option(
        None, "passes over the data (default by the model); 0: only score", not_negative
    )
    steps: int | None = _option(None, "number of steps, instead of epochs", positive)
    job_dir: str | None = _option(
        None, "directory of the results (default: HPCDL_JOB_DIR, or .)", metavar="DIR"
    )
    seed: int = _option(1, "random seed (default 1)", seed)
    fresh: bool = _option(
        False, "start over and keep earlier checkpoints aside; a requeued job resumes", bool
    )
    hang_limit: float = _option(
        600.0,
        "seconds without a step until the run is stopped; 0: never (default 600)",
        amount,
        metavar="S",
    )
    lr: float | None = _option(None, "learning rate (default by the model)", amount)
    lr_schedule: str = _option(
        "constant", "constant (default), cosine, linear, or one of Keras, such as exponentialdecay"
    )
    optimizer: str = _option("sgd", "one of Keras, such as adamw (default sgd with momentum 0.9)")
    loss: str | None = _option(
        None, "one of Keras, or package.module:function; one per output, with commas"
    )
    metrics: str = _option(
        "", "metrics of Keras, or package.module:function, with commas", metavar="NAMES"
    )
    callback: str = _option(
        "",
        "callbacks of Keras, or package.module:Class; the test set is scored after every epoch",
        metavar="NAMES",
    )
    settings: tuple[str, ...] = _option(
        (),
        "argument of Keras' optimizer, schedule, loss, callback or fit, "
        "such as optimizer.weight_decay=0.05",
        list,
        metavar="PART.NAME=VALUE",
    )
    accumulate: int = _option(1, "compute a batch in N parts, to save memory", positive)
    precision: str = _option(
        "fp32", "precision of compute (default fp32); fp16 scales the loss", choices=PRECISIONS
    )
    xla: bool = _option(False, "compile forward and backward with XLA", bool)
    compress: bool = _option(False, "send gradients as fp16", bool)
    deterministic: bool = _option(False, "bit-identical results; slower on GPUs", bool)
    target_accuracy: float | None = _option(
        None, "exit with status 1 if the test accuracy stays below", fraction
    )
    profile: bool = _option(
        False, "write timeline.json: all ranks' steps and threads, for Perfetto", bool
    )
    checkpoint_every: int | None = _option(
        None, "steps between checkpoints; 0: only at the end (default: an epoch)", not_negative
    )
    weights: str | None = _option(
        None,
        "start from these weights: a directory of --export, a "
        ".keras or .weights.h5 file, or a checkpoint",
        metavar="PATH",
    )
    export: str | None = _option(
        None, "write the trained model for Keras and TensorFlow; FILE.onnx: for ONNX", metavar="DIR"
    )
    predict: str | None = _option(
        None,
        "write a table of the test set's predictions; FILE.parquet: as Parquet",
        metavar="FILE.csv",
    )
    # For measurements; `--help` does not list them.
    warmup_steps: int = _option(5, argparse.SUPPRESS, not_negative)
    layout: str = _option("auto", argparse.SUPPRESS, choices=LAYOUTS)
    pipeline: str = _option("new", argparse.SUPPRESS, choices=("new", "old"))
    delay_ms: float = _option(0.0, argparse.SUPPRESS, amount, metavar="MS")
    json: bool = False  # of the whole command line

    @property
    def folder(self) -> Path:
        """Where results go: --job-dir, else HPCDL_JOB_DIR, else the current directory."""
        return Path(self.job_dir or os.environ.get("HPCDL_JOB_DIR") or ".").absolute()


_SECTIONS = {
    "model": "run",
    "lr": "Keras",
    "accumulate": "compute",
    "target_accuracy": "results",
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
    for one, other in (("global_batch", "batch_per_rank"), ("epochs", "steps")):
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


class _Raising(argparse.ArgumentParser):
    """A parser that raises BadInput where argparse would exit."""

    def error(self, message: str) -> NoReturn:
        """Raise the message."""
        raise BadInput(message)


def parse(argv: Sequence[str], *, exits: bool = True) -> TrainOptions:
    """The options of an argument list; a bad one: argparse's own exit, else BadInput."""
    parser = (argparse.ArgumentParser if exits else _Raising)(
        prog="hpcdl train", allow_abbrev=False
    )
    configure(parser)
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    return from_namespace(parser.parse_args(argv))


def settings_of(settings: Sequence[str], part: str) -> dict[str, Any]:
    """The arguments that `--set` gives to a part; BadInput: one is not `part.argument=value`.

    Values are JSON, and what is no JSON is text.
    """
    arguments: dict[str, Any] = {}
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
            arguments[name] = value
    return arguments


# ---- the numbers ----


@dataclass(frozen=True)
class RunNumbers:
    """The numbers of a run. `steps_per_epoch` is 0 where an epoch has no end."""

    global_batch: int
    steps: int
    steps_per_epoch: int
    lr: float
    checkpoint_every: int

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
    """Examples per step over all ranks; BadInput: not shared equally, and the nearest that are."""
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


def steps_of(options: TrainOptions, model: dict[str, Any], steps_per_epoch: int) -> int:
    """Steps of the whole run; BadInput: epochs of data without an end."""
    if options.epochs and not steps_per_epoch:
        raise BadInput("synthetic data has no epochs", hint="give --steps")
    if options.epochs == 0:
        return 0
    epochs = options.epochs or model["epochs"]
    return int(options.steps or steps_per_epoch * epochs or DEFAULT_STEPS)


def make_numbers(
    options: TrainOptions, model: dict[str, Any], batch: int, steps_per_epoch: int
) -> RunNumbers:
    """The numbers of the run, once the data's length is known; BadInput: epochs without an end."""
    every = options.checkpoint_every
    # A model's own rate is for SGD; the others' is Keras' usual one.
    usual = model["lr"] if options.optimizer.lower() == "sgd" else _KERAS_LR
    return RunNumbers(
        global_batch=batch,
        steps=steps_of(options, model, steps_per_epoch),
        steps_per_epoch=steps_per_epoch,
        lr=usual if options.lr is None else options.lr,
        checkpoint_every=steps_per_epoch if every is None else every,
    )


def check_target(options: TrainOptions, task: str, *, tested: bool) -> None:
    """Refuse a target that nothing is measured for; `tested`: there is a test set."""
    if options.target_accuracy is None or (task == "classes" and tested):
        return
    if task != "classes":
        why = f"{task} are scored by areas"
    else:
        named = "synthetic data" if options.data == SYNTHETIC else options.data
        why = f"there are no images to test with in {options.dataset or named}"
    raise BadInput(
        f"--target-accuracy cannot be evaluated: {why}",
        hint="leave it out, or train on a data set with classes and a test split",
    )
