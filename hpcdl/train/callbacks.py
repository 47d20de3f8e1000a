"""Callbacks of Keras that make a `fit` a run: scores of all ranks, times, checkpoints, signals.

`Scores` is the first callback and `Steps` the last: so users' callbacks get logs that are the same
on all ranks, with Keras' names (`loss`, `val_loss`), and a checkpoint holds what they have changed.
Ranks decide nothing alone: stop requests are summed with the gradients (ranks.py).
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import tensorflow as tf

from hpcdl.system.errors import BadInput, CheckFailed
from hpcdl.train import checkpoint as checkpoints
from hpcdl.train.data.dataset import FINDINGS
from hpcdl.train.fitting import Training, condemn, raw, save
from hpcdl.train.models import random_states
from hpcdl.train.startup import StartupClock
from hpcdl.train.stop_signals import REQUEUE, STOP

CALLBACK = 2.0**-10
"""What a rank whose callback wants to end adds to the stop requests: less than any signal."""
_FP16_PATIENCE = 15
"""fp16 skips bad steps and halves its scale: fifteen in a row reach a scale of 1."""


class Leave(BaseException):
    """Ends `fit` on all ranks at the same step: `requeue` or `stopped`, with a checkpoint."""

    def __init__(self, outcome: str) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class Scores(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Makes the logs of an epoch those of all ranks, and adds the scores on the test set."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self._training = training

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Replace this rank's means by those of all ranks, and score on the test set."""
        training = self._training
        if logs is None or not training.has_callbacks:
            return
        if training.ranks.size > 1:
            logs.update(_merged(training))
        if not training.source.tested:
            return
        scores = evaluate(training)
        logs.update({f"val_{name}": value for name, value in scores.items()})
        training.validations.append({"step": training.step_number, **scores})
        shown = ", ".join(f"val_{name} {value:.4f}" for name, value in scores.items())
        training.reporter.say(f"epoch {epoch + 1}: {shown}")


class Steps(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Notes every step, writes checkpoints, and ends all ranks at the same step when asked."""

    def __init__(self, training: Training, clock: StartupClock) -> None:
        super().__init__()
        self._training = training
        self._clock: StartupClock | None = clock
        self._begun = self._called = time.perf_counter()
        self._waited = 0.0
        self._bad = 0  # losses in a row

    def on_train_begin(self, logs: Any = None) -> None:
        """Restore the state of callbacks that the checkpoint holds."""
        for callback in self._training.callbacks:
            vars(callback).update(self._training.callback_states.get(type(callback).__name__, {}))
        self._begun = time.perf_counter()
        self._waited = float(self._training.waited)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Leave the time between epochs out of a step."""
        self._begun = time.perf_counter()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Send this rank's stop request with the next gradients."""
        training = self._training
        if wanted := training.signals.value:
            training.board.stop.assign(wanted)
        if training.options.delay_ms:
            time.sleep(training.options.delay_ms / 1000)
        self._called = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Note the steps of the call, judge their losses, save, and stop where ranks agree."""
        training = self._training
        rows = training.board.take()
        called = time.perf_counter() - self._called
        if self._clock:  # the first call compiles: it ends the start-up
            self._clock.mark("first step")
            training.reporter.say(self._clock.line())
            self._clock = None
        _require_shown(training, rows, logs or {})
        steps = rows.reshape(training.group, -1, rows.shape[1])
        # The mean loss of a step's updates; Keras' own where a model's train_step shows none.
        shown = steps[:, :, 0].mean(axis=1)
        losses = np.where(np.isnan(shown), (logs or {}).get("loss", np.nan), shown).tolist()
        training.losses += losses
        for number, loss in enumerate(losses, training.step_number):
            self._judge(loss, number)
        training.step_number += training.group
        training.watchdog.step(training.step_number)
        alone = training.ranks.size == 1
        agreed = training.signals.value if alone else float(rows[-1, 1])
        outcome = "stopped" if agreed >= STOP / 2 else "requeue" if agreed >= REQUEUE / 2 else ""
        saved = save(training) if outcome or self._due() else 0.0
        self._note(steps, losses, called, saved)
        epoch, _ = training.numbers.position(training.step_number - 1)
        images = training.numbers.global_batch * training.group
        training.reporter.step(training.step_number, epoch, training.loss, images)
        if outcome:
            raise Leave(outcome)
        self._agree_on_stop(agreed)

    def _judge(self, loss: float, number: int) -> None:
        """Raise CheckFailed for a loss that is no number; checkpoints that led to it are bad.

        A step's loss is that of the weights before its update: a checkpoint is good when the next
        step's loss is.
        """
        training = self._training
        patience = _FP16_PATIENCE if training.options.precision == "fp16" else 0
        self._bad = 0 if math.isfinite(loss) else self._bad + 1
        if self._bad > patience:
            condemn(training, number - patience)
            raise CheckFailed(
                f"the loss is not a number at step {number + 1}",
                hint="a smaller --lr, or --set optimizer.global_clipnorm=1.0; "
                + checkpoints.describe_saved(training.checkpoints),
            )

    def _agree_on_stop(self, agreed: float) -> None:
        """Let what a callback decided on one rank hold on all, one step later."""
        if self._training.ranks.size == 1:
            return
        if self.model.stop_training:
            self._training.board.stop.assign(CALLBACK)
        self.model.stop_training = agreed >= CALLBACK / 2

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Agree on the end that a callback wants; save after callbacks have changed things."""
        training, ranks = self._training, self._training.ranks
        if training.has_callbacks and ranks.size > 1:
            self.model.stop_training = any(ranks.gather(self.model.stop_training))
        every = training.numbers.checkpoint_every
        last = training.step_number >= training.numbers.steps or self.model.stop_training
        if last or (every and training.step_number % every == 0):
            save(training)

    def _due(self) -> bool:
        """Return whether a checkpoint is due inside an epoch; at its end callbacks come first."""
        training, numbers = self._training, self._training.numbers
        every, per_epoch = numbers.checkpoint_every, numbers.steps_per_epoch
        at_end = per_epoch and training.step_number % per_epoch == 0
        wanted = every and training.step_number % every == 0
        return bool(wanted and not (at_end and training.has_callbacks))

    def _note(self, steps: Any, losses: list[float], called: float, saved: float) -> None:
        """Keep the samples: the time between the steps of a call is shared among them."""
        training, samples = self._training, self._training.samples
        count, now = len(steps), time.perf_counter()
        waited = float(training.waited)
        own = min(called, max(0.0, waited - self._waited)) / count
        self._waited = waited
        exchanged = steps[:, :, 2:].sum(axis=1)  # communication and update of each step
        inside = max(0.0, called - float(exchanged.sum()) - own * count) / count
        between = max(0.0, now - self._begun - saved - called) / count
        self._begun = now
        last = np.eye(1, count, count - 1)[0] * saved
        samples.add(
            training.numbers.global_batch,
            losses,
            seconds=own + inside + exchanged.sum(axis=1) + between + last,
            input=own,
            compute=inside,
            communication=exchanged[:, 0],
            update=exchanged[:, 1],
            checkpoint=last,
        )


def _require_shown(training: Training, rows: Any, logs: dict[str, Any]) -> None:
    """Refuse a user's train_step that does not use the model's optimizer, or shows no loss.

    Others' gradients would differ from rank to rank, and a checkpoint would not have their state.
    """
    if not len(rows):
        raise BadInput(
            "the model's train_step does not update by `self.optimizer`",
            hint="compile the model with one optimizer, whose gradients are averaged over ranks "
            "and whose state is in checkpoints; a network of two of them trains in plain Keras",
        )
    if training.board.loss is None and "loss" not in logs:
        raise BadInput(
            "the model's train_step returns no 'loss'",
            hint="return the number to be made small under that name, beside others",
        )


# ---- scores ----


def evaluate(training: Training) -> dict[str, float]:
    """Return Keras' metrics on the test set over all ranks, each example once; {} without one."""
    model, data = training.model, training.source.test()
    if data is None:
        return {}
    states = {id(raw(state)) for state in random_states(model)}
    moving = [raw(v) for v in model.non_trainable_variables]
    training.ranks.broadcast([v for v in moving if id(v) not in states])
    alive = tf.keras.callbacks.LambdaCallback()
    alive.on_test_batch_end = lambda batch, logs=None: training.watchdog.step(training.step_number)
    if training.source.tested > training.ranks.rank:
        scores = model.evaluate(data, verbose=0, callbacks=[alive], return_dict=True)
    else:
        model.reset_metrics()  # there are fewer examples than ranks, and none for this one
        scores = {}
    if training.ranks.size > 1:
        merged = _merged(training)
        scores = {name: merged.get(name, value) for name, value in (scores or merged).items()}
    return {name: float(value) for name, value in scores.items()}


def areas_of(model: Any) -> dict[str, float]:
    """Return the area under the ROC curve of each finding that has both answers, and their mean.

    By what Keras' metric has counted last; {} where the model has none.
    """
    # In Keras 3 those of `compile` are in one metric; in Keras 2 each has an empty list of them.
    several = (one for each in model.metrics for one in getattr(each, "metrics", []) or [each])
    found = [metric for metric in several if metric.name == "auroc" and metric.multi_label]
    if not found:
        return {}
    names = ("true_positives", "false_negatives", "false_positives", "true_negatives")
    hit, missed, false, right = (np.asarray(getattr(found[0], name), float) for name in names)
    with np.errstate(invalid="ignore"):  # a finding that has one answer only has no area
        heights, widths = hit / (hit + missed), false / (false + right)
    areas = ((heights[1:] + heights[:-1]) / 2 * (widths[:-1] - widths[1:])).sum(axis=0)
    labels = FINDINGS if len(areas) == len(FINDINGS) else range(len(areas))
    known = {f"auroc/{name}": float(a) for name, a in zip(labels, areas, strict=True) if a == a}
    return {"auroc": float(np.mean(list(known.values()))), **known} if known else {}


def _merged(training: Training) -> dict[str, float]:
    """Return the metrics over all ranks: what they count is summed, and Keras computes them."""
    model, ranks = training.model, training.ranks
    if ranks.size > 1:
        variables = list(
            {id(raw(v)): raw(v) for metric in model.metrics for v in metric.variables}.values()
        )
        values = [np.asarray(variable.numpy(), np.float64) for variable in variables]
        flat = np.concatenate([value.ravel() for value in values] or [np.zeros(1)])
        sums = ranks.sum_on_host(flat)
        ends = np.cumsum([value.size for value in values])
        for variable, part in zip(variables, np.split(sums, ends[:-1]), strict=True):
            variable.assign(tf.cast(part.reshape(tuple(variable.shape)), variable.dtype))
    if hasattr(model, "get_metrics_result"):
        found = model.get_metrics_result()
    else:
        found = {metric.name: metric.result() for metric in model.metrics}
    return {name: float(np.asarray(value)) for name, value in found.items()}
