"""From options to the numbers of a run: batch, steps, learning rate. Pure, no TensorFlow.

Kept apart from the loop so that every refusal of bad numbers is one place and one test away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcdl.system.errors import BadInput
from hpcdl.train.options import TrainOptions

DEFAULT_STEPS = 100


@dataclass(frozen=True)
class RunPlan:
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


def global_batch(options: TrainOptions, model: dict[str, Any], ranks: int) -> int:
    """Images per step over all ranks.

    Raises:
        BadInput: it cannot be shared equally; names the nearest sizes that can.
    """
    if options.batch_per_rank:
        return options.batch_per_rank * ranks
    if options.global_batch is None:
        return int(-(-model["global_batch"] // ranks) * ranks)
    batch = options.global_batch
    if batch % ranks:
        below, above = batch // ranks * ranks, -(-batch // ranks) * ranks
        fits = f"{below} or {above}" if below else str(above)
        raise BadInput(
            f"a global batch of {batch} cannot be shared equally by {ranks} ranks",
            hint=f"--global-batch {fits} can",
        )
    return batch


def make_plan(
    options: TrainOptions, model: dict[str, Any], batch: int, steps_per_epoch: int
) -> RunPlan:
    """The numbers of the run, once the data's length is known."""
    epochs = options.epochs or model["epochs"]
    steps = options.steps or (steps_per_epoch * epochs if steps_per_epoch else DEFAULT_STEPS)
    every = options.checkpoint_every
    return RunPlan(
        global_batch=batch,
        steps=steps,
        steps_per_epoch=steps_per_epoch,
        lr=model["lr"] if options.lr is None else options.lr,
        checkpoint_every=steps_per_epoch if every is None else every,
    )
