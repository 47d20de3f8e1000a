"""Checkpoints of a run, how it resumes from one, and what it has measured."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import tensorflow as tf

from hpcdl.results.records import RESULT, at
from hpcdl.system.errors import BadInput
from hpcdl.train import checkpoint as checkpoints
from hpcdl.train.fitting import Training, broadcast
from hpcdl.train.models import parameters_of
from hpcdl.train.options import SHORT_SCHEDULES, TrainOptions
from hpcdl.train.result import curve_of, finite, nothing_measured, summarize


def condemn(training: Training, first: int) -> None:
    """Set aside the checkpoints after `first` steps and later, on rank 0."""
    if training.ranks.rank == 0:
        training.writer.wait()
        checkpoints.discard(training.checkpoints, first)


def save(training: Training) -> float:
    """Begin a checkpoint of the state now, on rank 0; returns the seconds that training waited."""
    if training.saved_at == training.step_number:
        return 0.0
    start = time.perf_counter()
    training.saved_at = training.step_number
    if training.ranks.rank == 0:
        meta = {
            **identity_of(training),
            "last_loss": training.loss,
            "ranks": training.ranks.size,
            "streams": training.source.streams,
            "weights": len(training.model.weights),
            "validations": training.validations,
            "callbacks": {type(c).__name__: _state_of(c) for c in training.callbacks},
        }
        arrays = [variable.numpy() for variable in training.variables]  # copies
        losses = np.array(training.losses)  # of ranks they have more bits than float32
        state = checkpoints.Checkpoint(training.step_number, meta, (*arrays, losses))
        training.writer.submit(state)
    return time.perf_counter() - start


def _state_of(callback: Any) -> dict[str, Any]:
    """Return a callback's numeric state, such as the best value and its age."""
    numbers = (bool, int, float, np.number)
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in vars(callback).items()
        if isinstance(value, numbers) and not name.startswith("_")
    }


_IDENTITY = ("model", "seed", "loss", "optimizer", "lr_schedule", "precision")


def identity_of(training: Training) -> dict[str, Any]:
    """Return what must agree between a checkpoint and the run that resumes from it."""
    options, numbers, source = training.options, training.numbers, training.source
    return {
        **{name: getattr(options, name) for name in _IDENTITY},
        "settings": list(options.settings),
        "lr": numbers.lr,
        "data": source.digest,
        "shape": list(source.shape),
        "global_batch": numbers.global_batch,
        "steps_per_epoch": numbers.steps_per_epoch,
        **({"steps": numbers.steps} if options.lr_schedule in SHORT_SCHEDULES else {}),
    }


def measured(
    training: Training | None, options: TrainOptions, metrics: dict[str, float]
) -> dict[str, Any]:
    """Return the numbers, as far as a training came; None where it never began."""
    if training is None:
        return nothing_measured()
    samples = training.samples
    before = RESULT.find(training.options.folder)
    if not len(samples) and at(before, "steps", "done") == training.step_number:
        samples.take(at(before, "samples"))  # scored again: what was measured stays
    warmup = max(options.warmup_steps, training.group)  # the first call compiles
    summary = summarize(samples, warmup)
    if not training.board.clocked and "phases" in summary:
        del summary["phases"]["update"]
        if training.ranks.size > 1:  # one rank has none
            del summary["phases"]["communication"]
    spec = tf.nest.flatten(training.source.spec)[0]
    if spec.shape.rank == 1 and spec.dtype.is_integer:  # an example is a sequence of tokens
        tokens = summary["images_per_second"] * int(spec.shape[0])
        summary["tokens_per_second"] = round(tokens, 1)
    batch = training.numbers.global_batch
    numbers = {
        "samples": samples.as_json(),
        "summary": {**summary, "loss": finite(training.loss), "metrics": metrics},
        "parameters": parameters_of(training.model),
        "fused_layers": training.fused,
        "batch_per_rank": batch // training.ranks.size,
        "global_batch": batch,
        "steps": {"done": training.step_number, "planned": training.numbers.steps},
        "validations": training.validations,
    }
    return {**numbers, "curve": curve_of(training.losses)}


# ---- resuming ----


def resume(training: Training) -> None:
    """Resume from the newest intact checkpoint, if any: rank 0 reads, or refuses, for all."""
    state, fault = (0, math.nan, 0), None
    ranks, source = training.ranks, training.source
    if ranks.rank == 0:
        try:
            state = _restore(training)
        except BadInput as refused:
            fault = refused
    (step, loss, streams), refuses = ranks.gather((state, fault is not None))[0]
    if refuses:
        raise fault or BadInput("rank 0 cannot resume from the checkpoints")
    broadcast(training)
    training.step_number = training.saved_at = step
    source.streams = streams or source.streams
    if step:
        training.loss = loss
        training.reporter.say(f"resumed after step {training.step_number}")
    training.samples.first_step = training.step_number


def _restore(training: Training) -> tuple[int, float, int]:
    """Load the newest intact checkpoint into the variables; (step, loss, streams); 0 for none."""
    newest = checkpoints.newest(training.checkpoints, training.reporter.say)
    if newest is None:
        return 0, math.nan, 0
    _check_identity(training, newest)
    streams = _streams_of(training, newest)
    *arrays, losses = newest.arrays
    for variable, array in zip(training.variables, arrays, strict=True):
        variable.assign(tf.cast(array, variable.dtype))
    training.losses = losses.tolist()
    training.validations = list(newest.meta.get("validations", ()))
    training.callback_states = dict(newest.meta.get("callbacks", {}))
    return newest.step, float(newest.meta["last_loss"]), streams


def _streams_of(training: Training, newest: checkpoints.Checkpoint) -> int:
    """The streams of a checkpoint's epoch, whose rest is what was not seen; 0 for any number."""
    streams, ranks = int(newest.meta.get("streams", 0)), training.ranks.size
    if streams % ranks == 0:
        return streams
    if training.numbers.position(newest.step)[1] == 0:
        return 0
    fitting = ", ".join(str(n) for n in range(1, streams + 1) if streams % n == 0)
    raise BadInput(
        f"{ranks} ranks cannot resume inside an epoch of {streams} interleaved shard streams",
        hint=f"start one of {fitting} ranks, or resume from a checkpoint at an epoch's end",
    )


def _check_identity(training: Training, newest: checkpoints.Checkpoint) -> None:
    other = [
        f"{key}: {newest.meta[key]} in the checkpoint, {value} now"
        for key, value in identity_of(training).items()
        if newest.meta.get(key, value) != value
    ]
    variables = training.variables
    shapes = [[tuple(each.shape) for each in some] for some in (newest.arrays[:-1], variables)]
    if shapes[0] != shapes[1]:
        there, now = (f"{len(some)} arrays of {sum(map(math.prod, some)):,}" for some in shapes)
        other.append(f"{there} values in the checkpoint, {now} now")
    if other:
        raise BadInput(
            f"the checkpoints in {training.checkpoints} are of another run",
            details=other,
            hint="use another --job-dir, or --fresh to start over; --weights CHECKPOINT starts "
            "a new run from its weights",
        )
