"""Options of a training run, and its numbers: batch, steps, learning rate. Pure.

No TensorFlow here: `hpcdl train --help`, expectations and the command line's checks need none.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from hpcdl import facts
from hpcdl.system.declare import (
    COUNT,
    SWITCH,
    build,
    choice,
    configure,
    entries,
    number,
    option,
    typed,
    whole,
)
from hpcdl.system.declare import to_argv as declared_argv
from hpcdl.system.errors import BadInput
from hpcdl.system.frozen import dataclass
from hpcdl.system.text import did_you_mean

SHORT_SCHEDULES = {"cosine": "cosinedecay", "linear": "polynomialdecay"}
"""Names of ours for schedules of Keras over the whole run, down to 0."""
PRECISIONS = ("fp32", "fp16", "bf16")
SYNTHETIC = "synthetic"
DEFAULT_STEPS = 100
PARTS = ("optimizer", "schedule", "loss", "callback", "fit")
"""What `--set PART.NAME=VALUE` can name."""
_KERAS_LR = 0.001

_STEPS = whole(0, 10**9)
_SEED = whole(0, 2**31 - 1)
"""What fits into 31 bits: TensorFlow and NumPy take no other."""
_POSITIVE = number(0, sys.float_info.max)
_TEXT: dict[str, Any] = {"type": "string"}


@dataclass(frozen=True)
class TrainOptions:
    """One run. Times in seconds unless the name says otherwise; None means "by the model"."""

    model: str = option(
        "network to train (default mlp), or package.module:function", "mlp", section="run", **_TEXT
    )
    data: str = option(
        "directory made by `hpcdl data make`, or 'synthetic'", SYNTHETIC, metavar="DIR", **_TEXT
    )
    dataset: str | None = option(
        "data of your own: package.module:function, called with "
        "'train' and 'test', returns arrays or a tf.data.Dataset",
        None,
        **_TEXT,
    )
    image_size: int | None = option(
        "side of the images in pixels (default by the model)", None, metavar="PX", **COUNT
    )
    global_batch: int | None = option("examples per step over all ranks", None, **COUNT)
    batch_per_rank: int | None = option("examples per step and rank", None, **COUNT)
    epochs: int | None = option(
        "passes over the data (default by the model); 0: only score", None, **_STEPS
    )
    steps: int | None = option("number of steps, instead of epochs", None, **whole(1, 10**9))
    job_dir: str | None = option(
        "directory of the results (default: HPCDL_JOB_DIR, or .)", None, metavar="DIR", **_TEXT
    )
    seed: int = option("random seed (default 1)", 1, **_SEED)
    fresh: bool = option(
        "start over and keep earlier checkpoints aside; a requeued job resumes", False, **SWITCH
    )
    hang_limit: float = option(
        "seconds without a step until the run is stopped; 0: never (default 600)",
        600.0,
        metavar="S",
        **_POSITIVE,
    )
    lr: float | None = option(
        "learning rate (default by the model)", None, section="Keras", **_POSITIVE
    )
    lr_schedule: str = option(
        "constant (default), cosine, linear, or one of Keras, such as exponentialdecay",
        "constant",
        **_TEXT,
    )
    optimizer: str = option(
        "one of Keras, such as adamw (default sgd with momentum 0.9)", "sgd", **_TEXT
    )
    loss: str | None = option(
        "one of Keras, or package.module:function; one per output, with commas", None, **_TEXT
    )
    metrics: str = option(
        "metrics of Keras, or package.module:function, with commas", "", metavar="NAMES", **_TEXT
    )
    callback: str = option(
        "callbacks of Keras, or package.module:Class; the test set is scored after every epoch",
        "",
        metavar="NAMES",
        **_TEXT,
    )
    settings: tuple[str, ...] = option(
        "argument of Keras' optimizer, schedule, loss, callback or fit, "
        "such as optimizer.weight_decay=0.05",
        (),
        key="set",
        type="array",
        items=_TEXT,
        metavar="PART.NAME=VALUE",
    )
    precision: str = option(
        "precision of compute (default fp32); fp16 scales the loss",
        "fp32",
        section="compute",
        **choice(*PRECISIONS),
    )
    xla: bool = option("compile forward and backward with XLA", False, **SWITCH)
    compress: bool = option("send gradients as fp16", False, **SWITCH)
    deterministic: bool = option("bit-identical results; slower on GPUs", False, **SWITCH)
    target_accuracy: float | None = option(
        "exit with status 1 if the test accuracy stays below",
        None,
        section="results",
        **number(0, 1),
    )
    checkpoint_every: int | None = option(
        "steps between checkpoints; 0: only at the end (default: an epoch)", None, **_STEPS
    )
    weights: str | None = option(
        "start from these weights: a directory of --export, a "
        ".keras or .weights.h5 file, or a checkpoint",
        None,
        metavar="PATH",
        **_TEXT,
    )
    export: str | None = option(
        "write the trained model for Keras and TensorFlow", None, metavar="DIR", **_TEXT
    )
    # For measurements; `--help` does not list them.
    warmup_steps: int = option(argparse.SUPPRESS, 5, **_STEPS)
    delay_ms: float = option(argparse.SUPPRESS, 0.0, metavar="MS", **_POSITIVE)
    json: bool = False  # of the whole command line

    @property
    def folder(self) -> Path:
        """Where results go: --job-dir, else HPCDL_JOB_DIR, else the current directory."""
        return Path(self.job_dir or os.environ.get("HPCDL_JOB_DIR") or ".").absolute()


OPTIONS = entries(TrainOptions)


def from_namespace(args: argparse.Namespace) -> TrainOptions:
    """The options of a parsed command line; BadInput: a bad value, or two that exclude others."""
    given = typed(TrainOptions, args)
    for one, other in (("global_batch", "batch_per_rank"), ("epochs", "steps")):
        if one in given and other in given:
            flags = [f"--{name.replace('_', '-')}" for name in (one, other)]
            raise BadInput(f"{flags[0]} and {flags[1]} exclude each other", hint="give one of them")
    return replace(build(TrainOptions, given), json=bool(getattr(args, "json", False)))


def to_argv(options: TrainOptions) -> list[str]:
    """The command line that means `options`: only what differs from the defaults."""
    return [*declared_argv(options), *(["--json"] if options.json else [])]


class _Raising(argparse.ArgumentParser):
    """A parser that raises BadInput where argparse would exit."""

    def error(self, message: str) -> NoReturn:
        """Raise the message."""
        raise BadInput(message, hint="`hpcdl train --help` lists the options")


def parse(argv: Sequence[str]) -> TrainOptions:
    """The options of an argument list; BadInput: one is unknown, or has no such value."""
    parser = _Raising(prog="hpcdl train", allow_abbrev=False)
    configure(parser, TrainOptions)
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
    known = facts.load("models")
    rows: dict[str, dict[str, Any]] = known["models"]
    if ":" in model:
        return dict(known["own"])
    if model not in rows:
        hint = did_you_mean(model, rows)
        raise BadInput(
            f"unknown model '{model}'",
            hint=f"{hint} (a model of your own: package.module:function)",
        )
    return rows[model]


def global_batch(options: TrainOptions, model: dict[str, Any], ranks: int) -> int:
    """Examples per step over all ranks; BadInput: not shared equally, and the nearest that are."""
    if options.global_batch is None and options.batch_per_rank is None:
        return int(-(-model["global_batch"] // ranks) * ranks)
    batch = options.global_batch or (options.batch_per_rank or 1) * ranks
    if batch % ranks:
        below, above = batch // ranks * ranks, -(-batch // ranks) * ranks
        fits = f"{below} or {above}" if below else str(above)
        raise BadInput(
            f"a global batch of {batch} cannot be shared equally by {ranks} ranks",
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
    if options.target_accuracy is not None and not (tested and task == "classes"):
        data = options.dataset or ("synthetic data" if options.data == SYNTHETIC else options.data)
        why = f"no images to test with in {data}" if not tested else f"{task} are scored by areas"
        raise BadInput(
            f"--target-accuracy cannot be evaluated: {why}",
            hint="leave it out, or train on a data set with classes and a test split",
        )
