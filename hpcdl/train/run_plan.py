"""From options to the numbers of a run: batch, steps, learning rate. Pure, no TensorFlow.

Kept apart from the loop so that every refusal of bad numbers is one place and one test away.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hpcdl import facts
from hpcdl.system.errors import BadInput
from hpcdl.system.text import did_you_mean
from hpcdl.train.options import SYNTHETIC, TrainOptions

DEFAULT_STEPS = 100
_KERAS_LR = 0.001
_USER_MODEL: dict[str, Any] = {
    "builder": "keras", "input": [224, 224, 3], "classes": 1000, "global_batch": 64, "epochs": 1,
    "lr": 0.1, "task": "classes", "source": "the user", "proof": "doubtful",
}  # fmt: skip


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
        raise BadInput(f"--model-parallel cannot be had with {', '.join(unfit)}",
                       hint="it is for one process that has several devices")  # fmt: skip


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
