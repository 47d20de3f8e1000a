"""A run as `keras.Model.fit` has it: the compiled model, its data, and how many steps per call.

Nothing of a step is done here: Keras computes losses, gradients and updates. What is added is the
average over the ranks (ranks.py), what a batch goes through on the device before the model
takes it (`DataSource.prepare`), and the time that a step waits for its batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from hpcdl.system.errors import BadInput
from hpcdl.train import checkpoint, keras_parts
from hpcdl.train.data.source import DataSource
from hpcdl.train.diagnostics import StepWatchdog
from hpcdl.train.models import ModelRecipe, random_states
from hpcdl.train.options import SHORT_SCHEDULES, RunNumbers, TrainOptions, settings_of
from hpcdl.train.ranks import ROWS, Board, Ranks, distribute
from hpcdl.train.result import Reporter, Samples
from hpcdl.train.stop_signals import StopSignals

_FEW_VARIABLES = 50
_SHORT = 0.02
"""Seconds of a forward pass: a call from Python costs less than 1 % of longer steps."""
_AT_ONCE = 0.25
"""Seconds of the forward passes of one call: signals wait for its end."""
_CALLS = 8
"""Of a run at least: the first compiles, and is left out of what is measured."""


@dataclass
class Training:
    """A run in progress: the compiled model, what it is trained on, and what has been done.

    `group` steps are run by one call from Python, `most` at most. `waited` is a variable: the
    seconds that steps have waited for their batches. `fused` layers of normalisation are one
    operation. `step_number` steps are done; `losses` are those of all steps of the run, earlier
    starts included.
    """

    options: TrainOptions
    numbers: RunNumbers
    ranks: Ranks
    recipe: ModelRecipe
    source: DataSource
    signals: StopSignals
    model: Any
    board: Board
    callbacks: list[Any]
    most: int
    fused: int
    class_weight: dict[int, float] | None
    group: int = 1
    waited: Any = field(default_factory=lambda: tf.Variable(0.0, dtype=tf.float64, trainable=False))
    step_number: int = 0
    saved_at: int = -1
    losses: list[float] = field(default_factory=list)
    samples: Samples = field(default_factory=Samples)
    validations: list[dict[str, Any]] = field(default_factory=list)
    callback_states: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        options, rank = self.options, self.ranks.rank
        self.checkpoints = options.folder / "checkpoints"
        self.reporter = Reporter(options.folder, self.numbers.steps, silent=rank != 0)
        self.writer = checkpoint.Writer(self.checkpoints, keep=3)
        self.watchdog = StepWatchdog(self.checkpoints, rank, options.hang_limit)

    @property
    def has_callbacks(self) -> bool:
        """Whether the user asked for callbacks: the same answer on all ranks.

        `callbacks` itself differs, as those that write files are made on rank 0 only. Decided by
        it, rank 0 once merged its scores with ranks that were in the next step already.
        """
        return bool(self.options.callback)

    @property
    def loss(self) -> float:
        """The last step's."""
        return self.losses[-1] if self.losses else math.nan

    @property
    def variables(self) -> list[Any]:
        """All that training changes: weights first, then random states, then the optimizer's."""
        optimizer = self.model.optimizer.variables
        optimizer = optimizer() if callable(optimizer) else optimizer  # in some Keras 2
        own = [*self.model.weights, *random_states(self.model), *optimizer]
        unique = {id(variable): variable for variable in own}
        return [raw(variable) for variable in unique.values()]

    def fit(self, first: int, callbacks: list[Any]) -> None:
        """Train from step `first` to the end: one `fit`, and one more for a part of an epoch."""
        model, steps = self.model, self.numbers.steps
        if first >= steps:
            return
        pieces = list(pieces_of(first, steps, self.numbers.steps_per_epoch))
        most = min(self.most, max(1, steps // _CALLS))
        self.group = group_of(pieces, self.numbers.checkpoint_every, most)
        _set_steps_per_execution(model, self.group)
        callback_list = tf.keras.callbacks.CallbackList(callbacks, add_history=True, model=model)
        # One beginning and one end for all pieces: Keras would restart EarlyStopping at each, and
        # put averaged weights in place.
        begin, end, last = callback_list.on_train_begin, callback_list.on_train_end, [None]

        def once(logs: Any = None) -> None:
            callback_list.on_train_begin = lambda logs=None: None
            begin(logs)

        callback_list.on_train_begin = once
        callback_list.on_train_end = lambda logs=None: last.append(logs)
        finalize = getattr(model.optimizer, "finalize_variable_values", None)
        if finalize:
            model.optimizer.finalize_variable_values = lambda variables: None
        for piece in pieces:
            callback_list.set_params(
                {"verbose": 0, "epochs": pieces[-1].epochs, "steps": piece.steps}
            )
            model.fit(
                self._batches(piece.first, piece.last),
                initial_epoch=piece.epoch,
                epochs=piece.epochs,
                steps_per_epoch=piece.steps,
                class_weight=self.class_weight,
                callbacks=callback_list,
                shuffle=False,
                verbose=0,
            )
            if model.stop_training:
                break
        if finalize:
            finalize(model.trainable_variables)
        end(last[-1])

    def _batches(self, first: int, last: int) -> Any:
        data = self.source.steps(first, last)
        if self.source.waits and not self.options.deterministic:  # which allows no clock in a graph
            data = timed(data, self.waited)
        return data


@dataclass(frozen=True)
class Piece:
    """The steps first to last - 1, in epochs of `steps` steps each."""

    first: int
    last: int
    epoch: int
    epochs: int
    steps: int


def pieces_of(first: int, last: int, per_epoch: int) -> Iterator[Piece]:
    """Yield the rest of an epoch that a run resumes in, whole epochs, and a part of the last."""
    per_epoch = per_epoch or last  # without an end: one epoch
    while first < last:
        epoch, batch = divmod(first, per_epoch)
        whole = last // per_epoch
        if batch == 0 and epoch < whole:
            end, epochs = whole * per_epoch, whole
        else:
            end, epochs = min(last, (epoch + 1) * per_epoch), epoch + 1
        yield Piece(first, end, epoch, epochs, min(per_epoch, end - first))
        first = end


def timed(data: Any, waited: Any) -> Any:
    """Return the data set that adds to `waited` the seconds until each element is there."""
    begins = tf.data.Dataset.range(2**62).map(lambda _: tf.timestamp())

    def note(begun: Any, batch: Any) -> Any:
        with tf.control_dependencies(tf.nest.flatten(batch)):
            took = tf.timestamp() - begun
        with tf.control_dependencies([waited.assign_add(took, read_value=False)]):
            return tf.nest.map_structure(tf.identity, batch)

    return tf.data.Dataset.zip((begins, data)).map(note)


def make_training(
    options: TrainOptions,
    numbers: RunNumbers,
    recipe: ModelRecipe,
    source: DataSource,
    ranks: Ranks,
    signals: StopSignals,
) -> Training:
    """Return the model, compiled, with the gradients of all ranks averaged."""
    model = recipe.build()
    keras_parts.check_layers(model, ranks.size)
    fused = (
        keras_parts.fuse(model) if settings_of(options.settings, "fit").get("fused", True) else 0
    )
    # By the model's own function; the second is Keras 2's.
    own = bool(getattr(model, "compiled", getattr(model, "_is_compiled", False)))
    keras_parts.check_settings(options, compiled=own)
    weights = keras_parts.class_weight(options, source.classes)
    callbacks = keras_parts.make_callbacks(options, first=ranks.rank == 0)
    alone_xla = options.xla and ranks.size == 1
    if own:
        optimizer, losses = model.optimizer, model.loss
        specs = keras_parts.by_output(source.label_spec, model)
        for loss, spec in zip(keras_parts.by_output(losses, model), specs, strict=False):
            keras_parts.check_labels(loss, spec)
    else:
        outputs = tf.nest.flatten(model(recipe.example()))
        losses = keras_parts.make_losses(options, model, outputs, source)
        optimizer = keras_parts.make_optimizer(options, numbers)
    most = _most_at_once(options, model, recipe, ranks, callbacks)
    clocked = not (options.deterministic or alone_xla or (most > 1 and ranks.size == 1))
    if own:
        model.jit_compile = alone_xla
    else:
        findings = source.classes if source.task == "findings" else 0
        metrics = keras_parts.make_metrics(options, model, losses, findings)
        model.compile(optimizer, losses, metrics=metrics, jit_compile=alone_xla)
    optimizer = model.optimizer  # one that scales the loss by now, where the policy wants it
    distribute(optimizer, ranks, board := Board(clocked=clocked), compress=options.compress)
    optimizer.build(model.trainable_variables)
    # Such a loss compares a share for every class.
    shares = not own and type(losses).__name__.startswith("Categorical")
    width = source.classes if source.own and source.task == "classes" and shares else 0
    _prepare_inputs(model, source, width)
    run = (options, numbers, ranks, recipe, source, signals)
    return Training(*run, model, board, callbacks, most, fused, weights)


def raw(variable: Any) -> Any:
    """Return the tf.Variable behind a variable of Keras 3, or one of Keras 2 that casts itself."""
    inner = getattr(variable, "_value", None)
    if inner is not None and hasattr(inner, "handle"):
        return inner
    return getattr(variable, "_variable", variable)


def _set_steps_per_execution(model: Any, steps: int) -> None:
    if hasattr(model, "_steps_per_execution") and hasattr(model._steps_per_execution, "assign"):
        model._steps_per_execution.assign(steps)
    else:
        model.steps_per_execution = steps


def _prepare_inputs(model: Any, source: DataSource, width: int) -> None:
    """Let the steps of the model do on the device what turns a batch into its inputs.

    `width`: labels become shares of so many classes; 0: they stay.
    """
    if type(source).prepare is DataSource.prepare and not width:
        return

    def prepared(data: Any) -> Any:
        inputs, labels, *rest = data
        return (source.prepare(inputs), tf.one_hot(labels, width) if width else labels, *rest)

    for name in ("train_step", "test_step"):
        step = getattr(model, name)
        setattr(model, name, lambda data, step=step: step(prepared(data)))


def group_of(pieces: Sequence[Piece], checkpoint_every: int, most: int) -> int:
    """Return how many short steps one call from Python runs, at `most`.

    A call costs as much as half a step of a small network. The number divides everything after
    which something happens: epochs, checkpoints, the end.
    """
    ends = [count for piece in pieces for count in (piece.steps, piece.last - piece.first)]
    beside = pieces[0].first % checkpoint_every if checkpoint_every else 0
    unit = math.gcd(*ends, checkpoint_every, beside)
    return max(n for n in range(1, most + 1) if unit % n == 0)


def _most_at_once(
    options: TrainOptions, model: Any, recipe: ModelRecipe, ranks: Ranks, callbacks: list[Any]
) -> int:
    """Return how many steps may be run at a time. Rank 0 measures, for all must agree.

    A forward pass of one example is measured once it is warm, by CPU time: on a busy machine a
    short one takes long by the clock.
    """
    several = not options.delay_ms and not keras_parts.need_every_batch(callbacks)
    most = 1
    if several and len(model.trainable_variables) <= _FEW_VARIABLES:
        example = recipe.example()
        model(example)
        begun = time.process_time()
        model(example)
        if (took := time.process_time() - begun) < _SHORT:
            most = max(1, min(ROWS, int(_AT_ONCE / max(took, 1e-6))))
    return int(ranks.gather(most)[0])


def broadcast(training: Training) -> None:
    """Give all ranks rank 0's variables; random states differ by rank, so that dropout does."""
    training.ranks.broadcast(training.variables)
    if training.ranks.rank:
        for state in map(raw, random_states(training.model)):
            with suppress(tf.errors.OpError, ValueError):
                first = tf.one_hot(0, int(state.shape[0]), dtype=state.dtype)
                state.assign(state + first * tf.cast(training.ranks.rank, state.dtype))


# ---- checkpoints ----


def condemn(training: Training, first: int) -> None:
    """Set aside the checkpoints after `first` steps and later, on rank 0."""
    if training.ranks.rank == 0:
        training.writer.wait()
        checkpoint.discard(training.checkpoints, first)


def save(training: Training) -> float:
    """Begin a checkpoint of the state now, on rank 0; returns the seconds that training waited."""
    if training.saved_at == training.step_number:
        return 0.0
    start = time.perf_counter()
    training.saved_at = training.step_number
    if training.ranks.rank == 0:
        meta = {
            **identity_of(training),
            "streams": training.source.streams,
            "weights": len(training.model.weights),
            "validations": training.validations,
            "callbacks": {type(c).__name__: _state_of(c) for c in training.callbacks},
        }
        arrays = [variable.numpy() for variable in training.variables]  # copies
        losses = np.array(training.losses)  # of ranks they have more bits than float32
        state = checkpoint.Checkpoint(training.step_number, meta, (*arrays, losses))
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


def resume(training: Training) -> None:
    """Resume from the newest intact checkpoint, if any: rank 0 reads, or refuses, for all."""
    state: tuple[int, int] | BadInput = 0, 0
    ranks, source = training.ranks, training.source
    if ranks.rank == 0:
        try:
            state = _restore(training)
        except BadInput as refused:
            state = refused
    state = ranks.gather(state)[0]
    if isinstance(state, BadInput):
        raise state
    step, streams = state
    broadcast(training)
    training.step_number = training.saved_at = training.samples.first_step = step
    source.streams = streams or source.streams
    if step:
        training.reporter.say(f"resumed after step {step}")


def _restore(training: Training) -> tuple[int, int]:
    """Load the newest intact checkpoint into the variables; returns (step, streams), 0 for none."""
    newest = checkpoint.newest(training.checkpoints, training.reporter.say)
    if newest is None:
        return 0, 0
    _check_identity(training, newest)
    streams = _streams_of(training, newest)
    *arrays, losses = newest.arrays
    for variable, array in zip(training.variables, arrays, strict=True):
        variable.assign(tf.cast(array, variable.dtype))
    training.losses = losses.tolist()
    training.validations = list(newest.meta.get("validations", ()))
    training.callback_states = dict(newest.meta.get("callbacks", {}))
    return newest.step, streams


def _streams_of(training: Training, newest: checkpoint.Checkpoint) -> int:
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


def _check_identity(training: Training, newest: checkpoint.Checkpoint) -> None:
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
