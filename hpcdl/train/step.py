"""The compiled step: forward, backward, all-reduce, update, and the time each of them took.

One tf.function holds all of it, as a bare loop would. Four clock readings sit in the graph,
tied by control dependencies: start; all local gradients ready; all averaged gradients ready;
all variables updated. So "communication" is what back-propagation did not hide, and "update"
what neither did. The ranks also
agree in the all-reduce on the stop signal: the sum of what each was told.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hpcdl.train.communicate import Communicator
from hpcdl.train.models import Network
from hpcdl.train.optimizers import LossScale, Optimizer
from hpcdl.train.tasks import Task


@dataclass(frozen=True)
class StepResult:
    """Mean loss over all ranks, the stop value they agreed on, and the phases in seconds."""

    loss: float
    stop: float
    compute: float
    communication: float
    update: float


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
    optimizer: Optimizer
    ranks: Communicator
    prepare: Callable[[Any], Any]
    scale: LossScale | None = None
    clocked: bool = True
    accumulate: int = 1
    precision: str = "fp32"
    xla: bool = False
    compress: bool = False


Step = Callable[[Any, Any, float, float, int], StepResult]


def make_step(tf: Any, parts: StepParts) -> Step:
    """The training step `step(images, labels, lr, stop, number)`; `number` counts steps."""
    now = tf.timestamp if parts.clocked else lambda: tf.constant(0.0, tf.float64)
    backward = _make_backward(tf, parts)
    variables = parts.network.trainable

    def body(images: Any, labels: Any, lr: Any, stop: Any, number: Any) -> Any:
        started = now()
        if parts.network.random is not None:
            parts.network.random.assign(tf.stack([parts.network.random[0], number]))
        loss, gradients = backward(parts.prepare(images), labels)
        with tf.control_dependencies(gradients):
            computed = now()
        *reduced, told = _average(tf, parts, gradients, tf.stack([loss, stop]))
        with tf.control_dependencies([*reduced, told]):
            communicated = now()
        # Not held back until all gradients are there: an update frees its gradient's memory.
        with tf.control_dependencies(_update(tf, parts, variables, reduced, lr)):
            updated = now()
        times = tf.stack([computed - started, communicated - computed, updated - communicated])
        return tf.concat([tf.cast(told, tf.float64), times], axis=0)

    compiled = parts.ranks.function(body)

    def step(images: Any, labels: Any, lr: float, stop: float, number: int) -> StepResult:
        begun = time.perf_counter()
        values = compiled(
            tf.nest.map_structure(tf.convert_to_tensor, images), tf.convert_to_tensor(labels),
            tf.constant(lr, tf.float32), tf.constant(stop, tf.float32),
            tf.constant(number, tf.int32),
        ).numpy()  # fmt: skip
        return StepResult(
            loss=float(values[0]),
            stop=float(values[1]) * parts.ranks.size,
            compute=max(0.0, values[2]) if parts.clocked else time.perf_counter() - begun,
            communication=max(0.0, float(values[3])),
            update=max(0.0, float(values[4])),
        )

    return step


def _average(tf: Any, parts: StepParts, gradients: list[Any], told: Any) -> list[Any]:
    """Averaged gradients and, last, the average of what the ranks tell each other."""
    if not parts.compress:
        return parts.ranks.average([*gradients, told])
    # The stop signal and the loss do not fit into fp16.
    return [*parts.ranks.average(gradients, compress=True), *parts.ranks.average([told])]


def _make_backward(tf: Any, parts: StepParts) -> Callable[[Any, Any], tuple[Any, list[Any]]]:
    """(mean loss, gradients in float32, still multiplied by the loss scale) of a batch."""
    half = {"fp16": tf.float16, "bf16": tf.bfloat16}.get(parts.precision, tf.float32)
    variables = parts.network.trainable

    def one(images: Any, labels: Any) -> tuple[Any, list[Any]]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            loss = parts.task.loss(parts.network.forward(tf.cast(images, half), True), labels)
            scaled = loss * parts.scale.state[0] if parts.scale else loss
        gradients = tape.gradient(scaled, variables)
        return loss, [tf.cast(gradient, tf.float32) for gradient in gradients]

    def several(images: Any, labels: Any) -> tuple[Any, list[Any]]:
        count = parts.accumulate
        loss, sums = 0.0, [0.0] * len(variables)
        for some, wanted in zip(tf.split(images, count), tf.split(labels, count), strict=True):
            # Each part waits for the one before: they must not share the memory at one time.
            with tf.control_dependencies([s for s in sums if not isinstance(s, float)]):
                part_loss, gradients = one(tf.identity(some), wanted)
            loss += part_loss / count
            sums = [total + g / count for total, g in zip(sums, gradients, strict=True)]
        return loss, sums

    chosen = several if parts.accumulate > 1 else one
    if not parts.xla:
        return chosen
    compiled: Callable[[Any, Any], tuple[Any, list[Any]]] = tf.function(
        chosen, autograph=False, jit_compile=True
    )
    return compiled


def _update(
    tf: Any, parts: StepParts, variables: tuple[Any, ...], gradients: list[Any], lr: Any
) -> list[Any]:
    """Update the variables; with a loss scale, only where all gradients are finite."""
    scale = parts.scale
    if scale is None:
        return parts.optimizer.apply(tf, variables, gradients, lr)
    finite = scale.finite(tf, gradients)

    def good() -> Any:
        divided = [gradient / scale.state[0] for gradient in gradients]
        with tf.control_dependencies(parts.optimizer.apply(tf, variables, divided, lr)):
            return tf.constant(True)

    done = tf.cond(finite, good, lambda: tf.constant(False))
    scale.renew(tf, finite)
    return [done]
