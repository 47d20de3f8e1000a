"""Drives the step: input, step, samples, checkpoints, signals, until done or stopped by a signal.

The loop decides nothing that ranks could decide differently: they stop together, because the stop
value is agreed in the all-reduce.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hpcdl.system.errors import BadInput, CheckFailed, HpcdlError
from hpcdl.train import checkpoint as checkpoints
from hpcdl.train.communicate import Communicator
from hpcdl.train.data.pipeline import Records
from hpcdl.train.data.source import BATCHES, Ahead, Group, Source
from hpcdl.train.diagnostics import LossGuard, Watchdog
from hpcdl.train.options import RunPlan, TrainOptions
from hpcdl.train.result import History, Samples
from hpcdl.train.scalars import Scalars
from hpcdl.train.step import RankSignal, Step, StepParts, StepResult, StopRequest, meaning
from hpcdl.train.tasks import Validation, scores_line
from hpcdl.train.train_report import Reporter

_CHANGEABLE = (
    "task",
    "loss",
    "optimizer",
    "settings",
    "momentum",
    "weight_decay",
    "label_smoothing",
    "lr_schedule",
    "lr_warmup_steps",
    "precision",
    "augment",
    "sync_bn",
)
_FIXED = ("model", "seed", "shape", "global_batch", "steps_per_epoch")
"""What --allow-change cannot name: the place in the data, or the weights, depend on it."""
_GROUP_SECONDS = 0.025
_MOST_LEVEL = 6


@dataclass
class Training:
    """A run in progress. `step_number` steps are done; `loss` is the last one's.

    Two to the power of `level` steps may be run at a time, as the ranks agreed;
    `pace` is the seconds of a step by this rank's clock.
    """

    options: TrainOptions
    plan: RunPlan
    ranks: Communicator
    parts: StepParts
    source: Source
    step: Step
    reporter: Reporter
    stop: StopRequest
    watchdog: Watchdog
    guard: LossGuard
    scalars: Scalars
    step_number: int = 0
    loss: float = float("nan")
    level: int = 0
    pace: float = math.inf
    samples: Samples = field(default_factory=Samples)
    saved_at: int = -1
    writer: checkpoints.Writer = field(init=False)
    history: History | None = None
    validation: Validation | None = None
    ahead: Ahead | None = None
    callbacks: Any = None

    def __post_init__(self) -> None:
        self.writer = checkpoints.Writer(self.checkpoint_directory, self.options.keep_checkpoints)

    @property
    def checkpoint_directory(self) -> Path:
        """Where this run's checkpoints lie; the best one in `best`."""
        return self.options.folder / "checkpoints"

    @property
    def variables(self) -> tuple[Any, ...]:
        """All that training changes: weights, moving averages, velocities, loss scale."""
        network, scale = self.parts.network, self.parts.scale
        own = (*network.trainable, *network.state, *self.parts.optimizer.velocities)
        return (*own, *((scale.state,) if scale else ()))


def identity_of(training: Training) -> dict[str, Any]:
    """What must agree between a checkpoint and the run that resumes from it."""
    options, plan, source = training.options, training.plan, training.source
    return {
        **{name: getattr(options, name) for name in ("model", "seed", *_CHANGEABLE)},
        "settings": list(options.settings),
        "lr": plan.lr,
        "data": source.digest,
        "shape": list(source.shape),
        "global_batch": plan.global_batch,
        "steps_per_epoch": plan.steps_per_epoch,
        **({"steps": plan.steps} if plan.lr_schedule != "constant" else {}),
    }


def resume(training: Training) -> None:
    """Resume from the newest intact checkpoint, if any: rank 0 reads, or refuses, for all."""
    state = np.zeros(4)
    fault: BadInput | None = None
    if training.ranks.rank == 0:
        try:
            state[:3] = _restore(training)
        except BadInput as refused:
            fault = refused
            state[3] = 1.0
    state = training.ranks.sum_on_host(state)
    if state[3]:
        raise fault or BadInput("rank 0 cannot resume from the checkpoints")
    training.ranks.broadcast(training.variables)
    training.step_number = training.saved_at = int(state[0])
    training.source.streams = int(state[2]) or training.source.streams
    if training.step_number:
        training.loss = float(state[1])
        training.reporter.say(f"resumed after step {training.step_number}")
    training.samples.first_step = training.step_number
    if training.history:
        training.history.load(training.step_number)


def _restore(training: Training) -> tuple[float, float, float]:
    """Load the newest intact checkpoint into the variables; (step, loss, streams); 0 for none."""
    found = checkpoints.newest(training.checkpoint_directory, training.reporter.say)
    if found is None:
        return 0.0, 0.0, 0.0
    _check_identity(training, found)
    streams = _streams_of(training, found)
    assign(training, found)
    if training.validation:
        training.validation.found = list(found.meta.get("validations", ()))
    return float(found.step), float(found.meta["last_loss"]), float(streams)


def assign(training: Training, found: checkpoints.Checkpoint) -> None:
    """Give the variables the values of a checkpoint."""
    for variable, array in zip(training.variables, found.arrays, strict=True):
        variable.assign(array)


def _streams_of(training: Training, found: checkpoints.Checkpoint) -> int:
    """The streams of a checkpoint's epoch, whose rest is what was not seen; 0 for any number."""
    streams, ranks = int(found.meta.get("streams", 0)), training.ranks.size
    if streams % ranks == 0:
        return streams
    if training.plan.position(found.step)[1] == 0:
        return 0
    fitting = ", ".join(str(n) for n in range(1, streams + 1) if streams % n == 0)
    raise BadInput(
        f"{ranks} ranks cannot resume inside an epoch of {streams} interleaved shard streams",
        hint=f"start one of {fitting} ranks, or resume from a checkpoint at an epoch's end",
    )


def _check_identity(training: Training, found: checkpoints.Checkpoint) -> None:
    allowed = set(training.options.allow_change.split(",")) - set(_FIXED)
    changed = {
        key: f"{key}: {found.meta[key]} there, {value} now"
        for key, value in identity_of(training).items()
        if key not in allowed and found.meta.get(key, value) != value
    }
    other = list(changed.values())
    shapes = [[tuple(one.shape) for one in some] for some in (found.arrays, training.variables)]
    if shapes[0] != shapes[1]:
        there, now = (f"{len(some)} arrays of {sum(map(math.prod, some)):,}" for some in shapes)
        other.append(f"{there} values there, {now} now")
    if other:
        names = ",".join(key for key in changed if key not in _FIXED)
        advice = f"; --allow-change {names} accepts the difference" if names else ""
        raise BadInput(
            f"the checkpoints in {training.checkpoint_directory} are of another run",
            details=other,
            hint="use another --job-dir, or --fresh to start over" + advice,
        )


def save(training: Training) -> float:
    """Begin a checkpoint of the state now, on rank 0; returns the seconds that training waited.

    The arrays are the variables' own buffers: TensorFlow copies a buffer that someone else
    holds before it writes to the variable, so they stay as they are now.
    """
    if training.saved_at == training.step_number:
        return 0.0
    start = time.perf_counter()
    training.saved_at = training.step_number
    if training.ranks.rank == 0:
        training.writer.submit(_checkpoint(training))
    return time.perf_counter() - start


def _checkpoint(training: Training) -> checkpoints.Checkpoint:
    meta = {
        **identity_of(training),
        "last_loss": training.loss,
        "ranks": training.ranks.size,
        "streams": training.source.streams,
        "order": training.parts.network.order(),
        "validations": training.validation.found if training.validation else [],
    }
    arrays = tuple(variable.numpy() for variable in training.variables)
    return checkpoints.Checkpoint(training.step_number, meta, arrays)


def _validate(training: Training) -> bool:
    validation, step = training.validation, training.step_number
    if validation is None or not validation.due(step):
        return False
    metrics = validation.score()
    training.reporter.say(f"validation after step {step}: {scores_line(metrics)}")
    named = {f"validation/{name}": value for name, value in metrics.items()}
    training.scalars.step(step, every=1, **named)
    better = validation.add(step, metrics)
    if better and training.ranks.rank == 0:
        checkpoints.save(training.checkpoint_directory / "best", _checkpoint(training), keep=1)
    said = np.array([float(validation.in_vain and training.ranks.rank == 0)])
    return bool(training.ranks.sum_on_host(said)[0])


def train(training: Training) -> str:
    """Run to the end, with the last checkpoint on disk; `completed`, `requeue` or `stopped`."""
    outcome = None if training.step_number < training.plan.steps else "completed"
    told = training.callbacks
    if told:
        told.on_train_begin()
    while outcome is None:
        epoch, first = training.plan.position(training.step_number)
        if told:
            told.on_epoch_begin(epoch)
        outcome = _epoch(training, epoch, first)
        if training.options.callback and outcome in (None, "completed"):
            outcome = _end_epoch(training, epoch) or outcome
    if told:
        told.on_train_end({"loss": training.loss})
    if training.ahead:
        training.ahead.wait()
    training.scalars.close()
    training.writer.wait()
    return outcome


def _end_epoch(training: Training, epoch: int) -> str | None:
    """Tell the callbacks, on rank 0; whether one of them ends the run, as all ranks then do."""
    stop = np.zeros(1)
    if training.callbacks:
        found = training.validation.found[-1:] if training.validation else []
        logs = {f"val_{name}": value for scores in found for name, value in scores.items()}
        rate = training.plan.lr_at(training.step_number - 1)
        logs |= {"loss": training.loss, "learning_rate": rate}
        training.callbacks.on_epoch_end(epoch, logs)
        stop[0] = bool(training.parts.network.model.stop_training)
    if not training.ranks.sum_on_host(stop)[0]:
        return None
    save(training)
    return "completed"


def level_for(seconds: float) -> int:
    """The level at which a group of steps of `seconds` takes about 25 ms; 0 for long steps.

    So a call from Python does not count, and signals and progress do not wait.
    """
    if not 0.0 < seconds < _GROUP_SECONDS:
        return 0
    return min(_MOST_LEVEL, int(math.log2(_GROUP_SECONDS / seconds)))


def _wanted(training: Training) -> int:
    """Steps to run in the next group: none beyond the next checkpoint or the end."""
    if training.options.delay_ms or not training.parts.grouped:
        return 1
    done, every = training.step_number, training.plan.checkpoint_every
    ends = [n - done % n for n in (every, training.plan.validate_every) if n]
    return min(1 << training.level, training.plan.steps - done, *ends)


def _epoch(training: Training, epoch: int, first: int) -> str | None:
    """The rest of an epoch from batch `first` on; the outcome where it ended early."""
    begun = asked = time.perf_counter()  # waiting for an epoch that is being opened is input
    ahead, training.ahead = training.ahead, None
    if ahead and not first:
        groups = ahead.take()
    else:
        groups = training.source.batches(epoch, first, lambda: _wanted(training))
    while (group := next(groups, None)) is not None:
        waited = time.perf_counter() - asked
        number = training.step_number
        results = _run(training, group)
        for done, result in enumerate(results):
            if training.callbacks:
                training.callbacks.on_train_batch_end(number + done, {"loss": result.loss})
            training.loss = result.loss
            _judge(training, result.loss, number + done)
        outcome = meaning(results[-1].signals.stop)
        asked = time.perf_counter()
        if not outcome and (_validate(training) or training.step_number == training.plan.steps):
            outcome = "completed"
        begun += time.perf_counter() - asked  # no part of a step
        every = training.plan.checkpoint_every
        due = outcome or (every and training.step_number % every == 0)
        saved = save(training) if due else 0.0
        now = time.perf_counter()
        _note(training, results, now - begun, waited, saved)
        if training.history and training.saved_at == training.step_number:
            training.history.append(training.samples)
        images = training.plan.global_batch * len(results)
        training.reporter.step(training.step_number, epoch, training.loss, images)
        begun = now
        if outcome:
            return outcome
        _look_ahead(training, epoch)
        asked = time.perf_counter()
    return None


def _look_ahead(training: Training, epoch: int) -> None:
    """Open the next epoch of records when this one is nearly over."""
    plan, source, done = training.plan, training.source, training.step_number
    length = plan.steps_per_epoch
    if not isinstance(source, Records) or length < 2:
        return
    left = length - plan.position(done)[1]
    if left == min(BATCHES, length - 1) and done + left < plan.steps:
        training.ahead = Ahead(lambda: source.batches(epoch + 1, 0), lambda: source.damaged)


def _run(training: Training, group: Group) -> list[StepResult]:
    begun = time.perf_counter()
    number = training.step_number
    if training.options.delay_ms:
        time.sleep(training.options.delay_ms / 1000)
    rates = [training.plan.lr_at(number + step) for step in range(group.steps)]
    signal = RankSignal(training.stop.value, level_for(training.pace))
    results = training.step(group, rates, signal, number)
    training.level = results[-1].signals.level // training.ranks.size
    training.step_number += group.steps
    training.watchdog.step(training.step_number)
    training.pace = (time.perf_counter() - begun) / group.steps
    return results


def _judge(training: Training, loss: float, number: int) -> None:
    """Check a loss; a bad one invalidates the checkpoints of the steps before it.

    A step's loss is that of the weights before its update: a checkpoint is good when the next
    step's loss is.
    """
    try:
        training.guard.check(loss, number + 1, training.plan.lr_at(number))
    except HpcdlError as fault:
        folder = training.checkpoint_directory
        if training.ranks.rank == 0:
            training.writer.wait()
            checkpoints.discard(folder, number - training.guard.patience)
        hint = f"{fault.hint}; {checkpoints.describe_saved(folder)}"
        raise CheckFailed(fault.message, hint=hint) from None


def _note(
    training: Training, results: list[StepResult], seconds: float, waited: float, saved: float
) -> None:
    """Keep the samples of a group: what lies between its steps is shared out among them."""
    count, batch = len(results), training.plan.global_batch
    between = (seconds - saved - sum(result.seconds for result in results)) / count
    for number, result in enumerate(results, training.step_number - count):
        last = saved if number == training.step_number - 1 else 0.0
        took = result.seconds + between + last
        training.samples.add(
            batch,
            result.loss,
            seconds=took,
            input=waited / count,
            compute=result.compute,
            communication=result.communication,
            update=result.update,
            checkpoint=last,
        )
        training.scalars.step(
            number + 1,
            loss=result.loss,
            learning_rate=training.plan.lr_at(number),
            images_per_second=batch / max(took, 1e-9),
        )
