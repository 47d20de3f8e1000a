"""Resumes a run from its newest intact checkpoint, or refuses one of another run."""

from __future__ import annotations

import math

import numpy as np

from hpcdl.system.errors import BadInput
from hpcdl.train import checkpoint as checkpoints
from hpcdl.train.fitting import broadcast
from hpcdl.train.training import TrainingProgress, identity_of


def resume(training: TrainingProgress) -> None:
    """Resume from the newest intact checkpoint, if any: rank 0 reads, or refuses, for all."""
    state = np.zeros(4)
    fault: BadInput | None = None
    ranks, source = training.fitting.ranks, training.fitting.source
    if ranks.rank == 0:
        try:
            state[:3] = _restore(training)
        except BadInput as refused:
            fault = refused
            state[3] = 1.0
    state = ranks.sum_on_host(state)
    if state[3]:
        raise fault or BadInput("rank 0 cannot resume from the checkpoints")
    broadcast(training.fitting)
    training.step_number = training.saved_at = int(state[0])
    source.streams = int(state[2]) or source.streams
    if training.step_number:
        training.loss = float(state[1])
        training.reporter.say(f"resumed after step {training.step_number}")
    training.samples.first_step = training.step_number
    if training.history:
        training.history.load(training.step_number)


def _restore(training: TrainingProgress) -> tuple[float, float, float]:
    """Load the newest intact checkpoint into the variables; (step, loss, streams); 0 for none."""
    newest = checkpoints.newest(training.checkpoint_directory, training.reporter.say)
    if newest is None:
        return 0.0, 0.0, 0.0
    _check_identity(training, newest)
    streams = _streams_of(training, newest)
    for variable, array in zip(training.fitting.variables, newest.arrays, strict=True):
        variable.assign(array)
    training.validations = list(newest.meta.get("validations", ()))
    training.callback_states = dict(newest.meta.get("callbacks", {}))
    return float(newest.step), float(newest.meta["last_loss"]), float(streams)


def _streams_of(training: TrainingProgress, newest: checkpoints.Checkpoint) -> int:
    """The streams of a checkpoint's epoch, whose rest is what was not seen; 0 for any number."""
    streams, ranks = int(newest.meta.get("streams", 0)), training.fitting.ranks.size
    if streams % ranks == 0:
        return streams
    if training.fitting.numbers.position(newest.step)[1] == 0:
        return 0
    fitting = ", ".join(str(n) for n in range(1, streams + 1) if streams % n == 0)
    raise BadInput(
        f"{ranks} ranks cannot resume inside an epoch of {streams} interleaved shard streams",
        hint=f"start one of {fitting} ranks, or resume from a checkpoint at an epoch's end",
    )


def _check_identity(training: TrainingProgress, newest: checkpoints.Checkpoint) -> None:
    other = [
        f"{key}: {newest.meta[key]} in the checkpoint, {value} now"
        for key, value in identity_of(training.fitting).items()
        if newest.meta.get(key, value) != value
    ]
    variables = training.fitting.variables
    shapes = [[tuple(each.shape) for each in some] for some in (newest.arrays, variables)]
    if shapes[0] != shapes[1]:
        there, now = (f"{len(some)} arrays of {sum(map(math.prod, some)):,}" for some in shapes)
        other.append(f"{there} values in the checkpoint, {now} now")
    if other:
        raise BadInput(
            f"the checkpoints in {training.checkpoint_directory} are of another run",
            details=other,
            hint="use another --job-dir, or --fresh to start over; --weights CHECKPOINT starts "
            "a new run from its weights",
        )
