"""The compiled step: forward, backward, all-reduce, update, and the time each of them took.

A call from Python costs as much as half a step of a small network, so there the one tf.function is
a loop over a group of steps; networks of many layers are called step by step, for the loop would
cost them 1 %. Four clock readings sit in every step, tied by control dependencies: start; all local
gradients ready; all averaged gradients ready; all variables updated. So "communication" is what
back-propagation did not hide, and "update" what neither did.

In the all-reduce the ranks also agree on how many steps come next, and on stop signals, which are
numbers for it: USR1 and USR2 (walltime or preemption is near) ask for a checkpoint and exit code
75, TERM for exit code 5; TERM outranks both. Not every rank need get the signal, nor
in the same step: the sum over the ranks reaches all of them in one step.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

import tensorflow as tf

from hpcdl.train import keras_parts, models
from hpcdl.train.communicate import Communicator, compiled
from hpcdl.train.data.source import Group, Source
from hpcdl.train.fused import synchronize
from hpcdl.train.keras_parts import KerasOptimizer, settings_of
from hpcdl.train.models import Network
from hpcdl.train.optimizers import LossScale, Optimizer, make_loss_scale, make_optimizer
from hpcdl.train.options import TrainOptions
from hpcdl.train.tasks import Task, make_task

USR2 = 1.0
TERM = 100_000.0


class StopRequest:
    """The signals received; 0 until one comes."""

    def __init__(self) -> None:
        self.value = 0.0

    def listen(self) -> None:
        """Take over SIGUSR1, SIGUSR2 and SIGTERM."""
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._told)

    def _told(self, number: int, frame: FrameType | None) -> None:
        self.value = max(self.value, TERM if number == signal.SIGTERM else USR2)


def meaning(agreed: float) -> str | None:
    """`requeue`, `stopped` or None, from the sum over the ranks."""
    if agreed >= TERM / 2:
        return "stopped"
    return "requeue" if agreed >= USR2 / 2 else None


_FEW_VARIABLES = 50


class RankSignal(NamedTuple):
    """What a rank sends to all ranks in every step; the sum comes back.

    `stop` is the stop signal's value; `level` says that two to this power steps may come next.
    """

    stop: float = 0.0
    level: int = 0


@dataclass(frozen=True)
class StepResult:
    """Mean loss over all ranks, the sum of their signals, and the phases in seconds."""

    loss: float
    signals: RankSignal
    compute: float
    communication: float
    update: float

    @property
    def seconds(self) -> float:
        """The phases together."""
        return self.compute + self.communication + self.update


@dataclass(frozen=True)
class StepParts:
    """What a step is made of.

    `clocked`: read clocks in the graph; TensorFlow refuses that when it must be deterministic,
    and then the whole step counts as compute. `accumulate` parts of a batch go through one by
    one and their gradients are averaged, which needs less memory. `xla` compiles forward and
    backward; the all-reduce stays outside, for XLA cannot compile Horovod's operation.
    """

    network: Network
    task: Task
    optimizer: Optimizer | KerasOptimizer
    ranks: Communicator
    prepare: Callable[[Any], Any]
    augment: Callable[[Any, Any], tuple[Any, Any]] = lambda images, labels: (images, labels)
    scale: LossScale | None = None
    clocked: bool = True
    accumulate: int = 1
    precision: str = "fp32"
    xla: bool = False
    compress: bool = False

    @property
    def grouped(self) -> bool:
        """Whether one call may run several steps: by the network, so that a resume is the same."""
        return len(self.network.trainable) <= _FEW_VARIABLES


Step = Callable[[Group, Sequence[float], RankSignal, int], list[StepResult]]


def make_step(parts: StepParts) -> Step:
    """The step `step(group, rates, signal, number)`: one per learning rate, from `number` on."""
    single = parts.ranks.replica(_make_single(parts))

    def alone(images: Any, labels: Any, rates: Any, signal: Any, number: Any) -> Any:
        first = tf.nest.map_structure(lambda whole: whole[0], images)
        return single(first, labels[0], rates[0], signal, number)[None]

    body = _looped(single) if parts.grouped else alone
    return _call(parts, body)


def _looped(single: Callable[..., Any]) -> Callable[..., Any]:
    def several(images: Any, labels: Any, rates: Any, signal: Any, number: Any) -> Any:
        count = tf.shape(rates)[0]

        def one(index: Any, rows: Any) -> tuple[Any, Any]:
            row = single(
                tf.nest.map_structure(lambda all_: _entry(all_, index), images),
                _entry(labels, index),
                rates[index],
                signal,
                number + index,
            )
            return index + 1, rows.write(index, row)

        rows = tf.TensorArray(tf.float64, count, element_shape=(6,))
        _, rows = tf.while_loop(
            lambda index, _: index < count, one, (0, rows), parallel_iterations=1
        )
        return rows.stack()

    return several


def _entry(whole: Any, index: Any) -> Any:
    """The batch of a group for the step `index` in it; the only one, where there is one."""
    return whole[tf.minimum(index, tf.shape(whole)[0] - 1)]


def _call(parts: StepParts, body: Callable[..., Any]) -> Step:
    """What Python calls: compiled at the first call; groups may differ in length."""
    made: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def step(
        group: Group, rates: Sequence[float], signal: RankSignal, number: int
    ) -> list[StepResult]:
        begun = time.perf_counter()
        arguments = (
            tf.nest.map_structure(tf.convert_to_tensor, group.images),
            tf.convert_to_tensor(group.labels),
            tf.constant(rates, tf.float32),
            tf.constant(signal, tf.float32),
            tf.constant(number, tf.int32),
        )
        if (signature := _signature(arguments)) not in made:
            made[signature] = compiled(body, signature)
        rows = made[signature](*arguments).numpy().tolist()
        if not parts.clocked:
            each = (time.perf_counter() - begun) / len(rows)
            rows = [[*row[:3], each, 0.0, 0.0] for row in rows]
        return [
            StepResult(
                loss / parts.ranks.size,
                RankSignal(stop, round(level)),
                *(max(0.0, seconds) for seconds in phases),
            )
            for loss, stop, level, *phases in rows
        ]

    return step


def _signature(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments' shapes with their first axis left open."""

    def spec(tensor: Any) -> Any:
        return tf.TensorSpec((None, *tensor.shape[1:]), tensor.dtype)

    images, labels, rates, signal, number = arguments
    return (
        tf.nest.map_structure(spec, images),
        spec(labels),
        spec(rates),
        tf.TensorSpec(signal.shape, signal.dtype),
        tf.TensorSpec((), number.dtype),
    )


def _make_single(parts: StepParts) -> Callable[..., Any]:
    """One step in the graph; gives loss, stop, level and the three phases as one row."""
    now = tf.timestamp if parts.clocked else lambda: tf.constant(0.0, tf.float64)
    backward = make_backward(parts)
    variables = parts.network.trainable

    def single(images: Any, labels: Any, lr: Any, signal: Any, number: Any) -> Any:
        started = now()
        if parts.network.random is not None:
            seeds = parts.network.random.seeds
            seeds.assign(tf.stack([seeds[0], number]))
        # The executor runs what has no inputs when it likes: the batch waits for the clock.
        with tf.control_dependencies([started]):
            images, labels = tf.nest.map_structure(tf.identity, (images, labels))
        loss, gradients = backward(*parts.augment(parts.prepare(images), labels))
        with tf.control_dependencies(gradients):
            computed = now()
        *reduced, signals = _total(parts, gradients, tf.concat([[loss], signal], axis=0))
        with tf.control_dependencies([*reduced, signals]):
            communicated = now()
        # Not held back until all gradients are there: an update frees its gradient's memory.
        with tf.control_dependencies(update(parts, variables, reduced, lr)):
            updated = now()
        times = tf.stack([computed - started, communicated - computed, updated - communicated])
        return tf.concat([tf.cast(signals, tf.float64), times], axis=0)

    return single


def _total(parts: StepParts, gradients: list[Any], signals: Any) -> list[Any]:
    if not parts.compress:
        return parts.ranks.total([*gradients, signals])
    # The stop signal and the loss do not fit into fp16.
    return [*parts.ranks.total(gradients, compress=True), *parts.ranks.total([signals])]


def make_backward(parts: StepParts) -> Callable[[Any, Any], tuple[Any, list[Any]]]:
    """(mean loss, gradients in float32, still multiplied by the loss scale) of a batch.

    The gradients are divided by the number of ranks, so that their sum is the mean: dividing the
    loss costs nothing, dividing what was summed costs a pass over all gradients.
    """
    half = {"fp16": tf.float16, "bf16": tf.bfloat16}.get(parts.precision, tf.float32)
    variables = parts.network.trainable

    def one(images: Any, labels: Any, part: int = 0) -> tuple[Any, list[Any]]:
        if parts.network.random is not None:
            parts.network.random.place = parts.ranks.rank * parts.accumulate + part
        placed = parts.network.stages > 1
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            if not placed:
                tape.watch(variables)
            # Tokens are no numbers to compute with.
            values = images if images.dtype.is_integer else tf.cast(images, half)
            outputs = parts.network.forward(values, True)
            loss = parts.network.penalized(parts.task.loss(outputs, labels))
            scaled = loss / parts.ranks.size if parts.ranks.size > 1 else loss
            scaled = scaled * parts.scale.state[0] if parts.scale else scaled
        none = tf.UnconnectedGradients.ZERO  # of what the loss does not depend on
        # These are computed where the layers are; a tape's wherever there is no other reason.
        derive = tf.gradients if placed else tape.gradient
        gradients = derive(scaled, variables, unconnected_gradients=none)
        return loss, [tf.cast(gradient, tf.float32) for gradient in gradients]

    def several(images: Any, labels: Any) -> tuple[Any, list[Any]]:
        count = parts.accumulate
        loss, sums = 0.0, [0.0] * len(variables)
        pairs = zip(tf.split(images, count), tf.split(labels, count), strict=True)
        for part, (some, wanted) in enumerate(pairs):
            # Each part waits for the one before: they must not share the memory at one time. On
            # several devices they overlap: a stage takes the next part when it has done its own.
            waits = part and parts.network.stages == 1
            with tf.control_dependencies(sums if waits else []):
                part_loss, gradients = one(tf.identity(some), wanted, part)
            loss += part_loss / count
            sums = [total + g / count for total, g in zip(sums, gradients, strict=True)]
        return loss, sums

    chosen = several if parts.accumulate > 1 else one
    if not parts.xla:
        return chosen
    fused: Callable[[Any, Any], tuple[Any, list[Any]]] = tf.function(
        chosen, autograph=False, jit_compile=True
    )
    return fused


def update(
    parts: StepParts, variables: tuple[Any, ...], gradients: list[Any], lr: Any
) -> list[Any]:
    """Update the variables; with a loss scale, only where all gradients are finite."""
    scale = parts.scale
    if scale is None:
        return parts.optimizer.apply(variables, gradients, lr)
    finite = scale.finite(gradients)

    def good() -> Any:
        divided = [gradient / scale.state[0] for gradient in gradients]
        with tf.control_dependencies(parts.optimizer.apply(variables, divided, lr)):
            return tf.constant(True)

    done = tf.cond(finite, good, lambda: tf.constant(False))
    scale.renew(finite)
    return [done]


def make_parts(
    options: TrainOptions,
    model: dict[str, Any],
    source: Source,
    ranks: Communicator,
    *,
    keras: bool,
) -> StepParts:
    """The parts of a run's step; `keras` makes a Keras model even of the smallest network."""
    settings_of(options.settings, "")  # a typo is refused before the network is built
    network = models.build(
        options.model,
        source.shape,
        source.classes,
        options.seed,
        precision=options.precision,
        channels_first=channels_first(options),
        keras=keras,
        freeze=options.freeze,
        split=options.model_parallel,
        adapt=partial(synchronize, ranks=ranks, wanted=options.sync_bn, xla=options.xla),
    )
    task = make_task(str(options.task or model["task"]), options.label_smoothing)
    if options.loss:
        arguments = settings_of(options.settings, "loss")
        task = replace(task, loss=keras_parts.make_loss(options.loss, source.classes, arguments))
    task = replace(task, metrics=keras_parts.make_metrics(options.metrics))
    optimizer: Optimizer | KerasOptimizer
    if options.keras_optimizer:
        arguments = settings_of(options.settings, "optimizer")
        optimizer = KerasOptimizer(network, options.optimizer, arguments)
    else:
        optimizer = make_optimizer(
            network, options.optimizer, options.momentum, options.weight_decay
        )
    return StepParts(
        network=network,
        task=task,
        optimizer=optimizer,
        ranks=ranks,
        prepare=source.prepare,
        augment=keras_parts.make_augment(options, source, network.random, ranks.rank),
        scale=make_loss_scale() if options.precision == "fp16" else None,
        clocked=not options.deterministic,
        accumulate=options.accumulate,
        precision=options.precision,
        xla=options.xla,
        compress=options.compress,
    )


def channels_first(options: TrainOptions) -> bool:
    """Whether images lie channel by channel: pays for fp32 on GPUs without tensor cores."""
    gpus = tf.config.get_visible_devices("GPU")
    if options.layout == "nchw" and not gpus:
        print("no GPU here: --layout nchw is for GPUs, nhwc is used", file=sys.stderr, flush=True)
        return False
    if options.layout != "auto" or not gpus:
        return options.layout == "nchw"
    details = tf.config.experimental.get_device_details(gpus[0])
    capability = details.get("compute_capability", (7, 0))
    return bool(capability < (7, 0)) and options.precision == "fp32"
