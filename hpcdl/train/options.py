"""What a training run is asked to do: the arguments and the frozen value made of them.

No TensorFlow here: `hpcdl train --help` and the command line's checks need none. One table,
`ARGUMENTS`, declares every option; `from_namespace` reads a parsed command line and `to_argv`
writes one, so that the command line can hand a run to another Python unchanged.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hpcdl.system.amounts import amount, fraction, not_negative, positive, seed
from hpcdl.system.errors import BadInput

STRATEGIES = ("auto", "horovod", "multiworker", "parameter-server", "single")
OPTIMIZERS = ("sgd", "lars")
"""Ours; all others are Keras'."""
SCHEDULES = ("constant", "cosine", "linear")
LAYOUTS = ("auto", "nhwc", "nchw")
PRECISIONS = ("fp32", "fp16", "bf16")
SYNTHETIC = "synthetic"


@dataclass(frozen=True)
class TrainOptions:
    """One run. Times in seconds unless the name says otherwise; None means "by the model"."""

    model: str = "mlp"
    data: str = SYNTHETIC
    dataset: str | None = None
    image_size: int | None = None
    task: str | None = None
    pipeline: str = "new"
    max_damaged: int = 16
    global_batch: int | None = None
    batch_per_rank: int | None = None
    epochs: int | None = None
    steps: int | None = None
    lr: float | None = None
    momentum: float = 0.9
    optimizer: str = "sgd"
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    lr_schedule: str = "constant"
    loss: str | None = None
    metrics: str = ""
    augment: str = ""
    sync_bn: bool = False
    callback: str = ""
    settings: tuple[str, ...] = ()
    lr_warmup_steps: int = 0
    scale_lr: bool = False
    accumulate: int = 1
    compress: bool = False
    xla: bool = False
    layout: str = "auto"
    seed: int = 1
    precision: str = "fp32"
    strategy: str = "auto"
    servers: int = 1
    model_parallel: int = 1
    job_dir: str | None = None
    checkpoint_every: int | None = None
    keep_checkpoints: int = 3
    fresh: bool = False
    allow_change: str = ""
    profile: bool = False
    tensorboard: bool = False
    hang_limit: float = 600.0
    deterministic: bool = False
    warmup_steps: int = 5
    report_every: float = 5.0
    target_accuracy: float | None = None
    delay_ms: float = 0.0
    find_batch: bool = False
    weights: str | None = None
    freeze: str = ""
    export: str | None = None
    evaluate: bool = False
    predict: str | None = None
    validate_every: int = 0
    validate_steps: int = 0
    best: str | None = None
    patience: int = 0
    json: bool = False

    @property
    def needs_keras(self) -> bool:
        """Whether even the smallest network must be one of Keras."""
        parts = self.loss or self.metrics or self.settings or self.keras_optimizer
        parts = parts or self.model_parallel > 1 or self.callback or self.augment
        return bool(self.weights or self.freeze or self.export or self.sync_bn or parts) or (
            self.lr_schedule not in SCHEDULES
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


@dataclass(frozen=True)
class Argument:
    """One option of the command line; its default is the field's of `TrainOptions`."""

    field: str
    help: str
    type: Any = str
    choices: tuple[str, ...] | None = None
    metavar: str | None = None
    group: str = "run"

    @property
    def flag(self) -> str:
        """The option as typed."""
        return "--set" if self.field == "settings" else "--" + self.field.replace("_", "-")


ARGUMENTS: tuple[Argument, ...] = (
    Argument("model", "network to train (default mlp)", metavar="NAME"),
    Argument("data", "directory made by `hpcdl data make`, or 'synthetic'", metavar="DIR"),
    Argument("dataset", "data of your own: package.module:function, called with 'train' and "
             "'test', returns arrays or a tf.data.Dataset", metavar="NAME"),
    Argument("image_size", "side of the images in pixels (default by the model)", positive,
             metavar="PX"),
    Argument("task", "one class, or several findings per image (default by the model)",
             choices=("classes", "findings")),
    Argument("pipeline", "input pipeline for JPEG records; old: slow, for comparison",
             choices=("new", "old")),
    Argument("max_damaged", "damaged records a rank may skip (default 16)", not_negative,
             metavar="N"),
    Argument("global_batch", "images per step over all ranks", positive, metavar="N"),
    Argument("batch_per_rank", "images per step and rank", positive, metavar="N"),
    Argument("epochs", "passes over the data (default by the model)", positive, metavar="N"),
    Argument("steps", "number of steps, instead of epochs", positive, metavar="N"),
    Argument("strategy", "how ranks communicate (default auto)", choices=STRATEGIES),
    Argument("servers", "servers that hold the weights with --strategy parameter-server "
             "(default 1)", positive, metavar="N"),
    Argument("model_parallel", "devices of a node to split the model's layers over (default 1)",
             positive, metavar="N"),
    Argument("job_dir", "directory of the results (default: HPCDL_JOB_DIR, or .)", metavar="DIR"),
    Argument("seed", "random seed (default 1)", seed, metavar="N"),
    Argument("lr", "learning rate (default by the model)", amount, group="step"),
    Argument("momentum", "momentum of SGD (default 0.9)", fraction, group="step"),
    Argument("optimizer", "sgd (default), lars, or one of Keras, such as adamw", metavar="NAME",
             group="step"),
    Argument("settings", "argument of Keras' optimizer, schedule, loss, callback or augment, such "
             "as optimizer.weight_decay=0.05", list, metavar="PART.NAME=VALUE", group="step"),
    Argument("loss", "one of Keras, or package.module:function of (labels, outputs)",
             metavar="NAME", group="step"),
    Argument("metrics", "functions of Keras, or package.module:function, to score by as well",
             metavar="NAMES", group="validation"),
    Argument("callback", "callbacks of Keras, or package.module:Class, that rank 0 tells of the "
             "run", metavar="NAMES", group="measuring"),
    Argument("augment", "Keras' layers that change images while training, such as "
             "mixup,randaugment", metavar="NAMES", group="step"),
    Argument("sync_bn", "batch normalisation takes its statistics over all ranks", bool,
             group="step"),
    Argument("weight_decay", "L2 penalty on kernels (default 0)", amount, group="step"),
    Argument("label_smoothing", "label smoothing (default 0)", fraction,
             group="step"),
    Argument("lr_schedule", "constant (default), cosine, linear, or one of Keras, such as "
             "exponentialdecay", metavar="NAME", group="step"),
    Argument("lr_warmup_steps", "steps over which the rate rises from 0 (default 0)",
             not_negative, metavar="N", group="step"),
    Argument("scale_lr", "multiply the learning rate by global batch / default batch", bool,
             group="step"),
    Argument("precision", "precision of compute (default fp32); fp16 scales the loss",
             choices=PRECISIONS, group="step"),
    Argument("accumulate", "compute a batch in N parts, to save memory", positive,
             metavar="N", group="step"),
    Argument("compress", "send gradients as fp16", bool, group="step"),
    Argument("xla", "compile forward and backward with XLA", bool, group="step"),
    Argument("layout", "layout of images in memory (default: by the device)", choices=LAYOUTS,
             group="step"),
    Argument("deterministic", "bit-identical results; slower on GPUs", bool, group="step"),
    Argument("checkpoint_every", "steps between checkpoints; 0: only at the end (default: "
             "an epoch)", not_negative, metavar="N", group="checkpoints"),
    Argument("keep_checkpoints", "newest checkpoints to keep (default 3)", positive, metavar="N",
             group="checkpoints"),
    Argument("fresh", "start over and keep earlier checkpoints aside; a requeued job resumes",
             bool, group="checkpoints"),
    Argument("allow_change", "settings that may differ from those of the checkpoint, such as "
             "lr,momentum", metavar="NAMES", group="checkpoints"),
    Argument("weights", "start from these weights: a directory of --export, a .keras or "
             ".weights.h5 file, or a checkpoint", metavar="PATH", group="models"),
    Argument("freeze", "layers that are not trained, such as 'conv*,bn_1'", metavar="NAMES",
             group="models"),
    Argument("export", "write the trained model for Keras and TensorFlow; FILE.onnx: for ONNX",
             metavar="DIR",
             group="models"),
    Argument("evaluate", "score the checkpoint, or --weights, and train nothing", bool,
             group="models"),
    Argument("predict", "write a table of the test set's predictions; FILE.parquet: as Parquet",
             metavar="FILE.csv",
             group="models"),
    Argument("validate_every", "epochs between validations on the test set (default: at the end)",
             not_negative, metavar="N", group="validation"),
    Argument("validate_steps", "the same in steps", not_negative, metavar="N",
             group="validation"),
    Argument("best", "metric by which the best validated weights are kept and used at the end",
             metavar="METRIC", group="validation"),
    Argument("patience", "end after N validations without anything better", not_negative,
             metavar="N", group="validation"),
    Argument("hang_limit", "seconds without a step until the run is stopped; 0: never "
             "(default 600)", amount, metavar="S"),
    Argument("warmup_steps", "first steps not included in the throughput (default 5)", not_negative,
             metavar="N", group="measuring"),
    Argument("profile", "write timeline.json: all ranks' steps and threads, for Perfetto", bool,
             group="measuring"),
    Argument("tensorboard", "write loss and throughput for TensorBoard", bool,
             group="measuring"),
    Argument("report_every", "seconds between progress lines in a log (default 5)", amount,
             metavar="S", group="measuring"),
    Argument("find_batch", "measure the largest batch per rank that fits into memory, and stop",
             bool, group="measuring"),
    Argument("target_accuracy", "exit with status 1 if the test accuracy stays below", fraction,
             metavar="X", group="measuring"),
    Argument("delay_ms", "sleep in every step, to emulate a slow run", amount,
             metavar="MS", group="measuring"),
)  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    """Add every option of `ARGUMENTS` to a parser. Not given means None: see `from_namespace`."""
    groups: dict[str, Any] = {}
    for argument in ARGUMENTS:
        if argument.group not in groups:
            groups[argument.group] = parser.add_argument_group(argument.group)
        group = groups[argument.group]
        if argument.type is bool:
            group.add_argument(argument.flag, action="store_true", default=None, help=argument.help)
        elif argument.type is list:
            group.add_argument(argument.flag, action="append", dest=argument.field,
                               metavar=argument.metavar, help=argument.help)  # fmt: skip
        else:
            group.add_argument(
                argument.flag,
                type=argument.type,
                choices=argument.choices,
                metavar=argument.metavar if argument.choices else argument.metavar or "X",
                help=argument.help,
            )


def from_namespace(args: argparse.Namespace) -> TrainOptions:
    """The options of a parsed command line; BadInput: two that exclude each other."""
    given = {
        field.name: getattr(args, field.name)
        for field in fields(TrainOptions)
        if getattr(args, field.name, None) is not None
    }
    for one, other in (("global_batch", "batch_per_rank"), ("epochs", "steps"),
                       ("validate_every", "validate_steps")):  # fmt: skip
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
