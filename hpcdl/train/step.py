"""The compiled step: forward, backward, all-reduce, update, and the time each of them took.

One tf.function holds all of it, as a bare loop would. Four clock readings sit in the graph,
tied by control dependencies: start; all local gradients ready; all averaged gradients ready;
all variables updated. So "communication" is what back-propagation did not hide. The ranks also
agree in the all-reduce on the stop signal: the sum of what each was told.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdl.train.communicate import Communicator
from hpcdl.train.models import Network


@dataclass(frozen=True)
class StepResult:
    """Mean loss over all ranks, the stop value they agreed on, and the phases in seconds."""

    loss: float
    stop: float
    compute: float
    communication: float
    update: float


@dataclass(frozen=True)
class Optimizer:
    """SGD with momentum: v = momentum v + g; w = w - lr v. One velocity per trainable variable."""

    momentum: float
    velocities: tuple[Any, ...]

    def apply(self, tf: Any, variables: tuple[Any, ...], gradients: list[Any], lr: Any) -> None:
        """Update every variable by TensorFlow's fused kernel."""
        for variable, velocity, gradient in zip(variables, self.velocities, gradients, strict=True):
            tf.raw_ops.ResourceApplyMomentum(
                var=variable.handle, accum=velocity.handle, lr=lr, grad=gradient,
                momentum=self.momentum, use_locking=False, use_nesterov=False,
            )  # fmt: skip


def make_optimizer(tf: Any, network: Network, momentum: float) -> Optimizer:
    """The optimizer with its velocities at zero."""
    velocities = tuple(
        tf.Variable(tf.zeros_like(v), trainable=False, name="velocity") for v in network.trainable
    )
    return Optimizer(momentum, velocities)


Step = Callable[[Any, Any, float, float], StepResult]


def make_step(
    tf: Any, network: Network, optimizer: Optimizer, ranks: Communicator, *, clocked: bool
) -> Step:
    """The training step `step(images, labels, lr, stop)`.

    XLA is kept off (`jit_compile=False`): Horovod's operation cannot be compiled by it. Without
    `clocked` (TensorFlow refuses to read clocks when it must be deterministic) the whole step
    counts as compute.
    """
    now = tf.timestamp if clocked else lambda: tf.constant(0.0, tf.float64)

    def body(images: Any, labels: Any, lr: Any, stop: Any) -> Any:
        started = now()
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(network.trainable)
            logits = network.forward(images, True)
            loss = cross_entropy(tf, logits, labels)
        gradients = tape.gradient(loss, network.trainable)
        with tf.control_dependencies(gradients):
            computed = now()
        *reduced, told = ranks.average([*gradients, tf.stack([loss, stop])])
        with tf.control_dependencies([*reduced, told]):
            communicated = now()
            optimizer.apply(tf, network.trainable, reduced, lr)
        updated = now()
        times = tf.stack([computed - started, communicated - computed, updated - communicated])
        return tf.concat([tf.cast(told, tf.float64), times], axis=0)

    compiled = tf.function(body, autograph=False, jit_compile=False, reduce_retracing=True)

    def step(images: Any, labels: Any, lr: float, stop: float) -> StepResult:
        begun = time.perf_counter()
        values = compiled(
            tf.convert_to_tensor(images), tf.convert_to_tensor(labels),
            tf.constant(lr, tf.float32), tf.constant(stop, tf.float32),
        ).numpy()  # fmt: skip
        return StepResult(
            loss=float(values[0]),
            stop=float(values[1]) * ranks.size,
            compute=max(0.0, float(values[2])) if clocked else time.perf_counter() - begun,
            communication=max(0.0, float(values[3])),
            update=max(0.0, float(values[4])),
        )

    return step


def cross_entropy(tf: Any, logits: Any, labels: Any) -> Any:
    """Mean softmax cross-entropy over this rank's images, in float32."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.cast(logits, tf.float32))
    return tf.reduce_mean(losses)


def make_score(tf: Any, network: Network) -> Callable[[Any, Any], np.ndarray]:
    """`score(images, labels)`: (right answers, summed loss, images) of one batch."""

    def body(images: Any, labels: Any) -> Any:
        logits = tf.cast(network.forward(images, False), tf.float32)
        right = tf.equal(tf.argmax(logits, axis=1), labels)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        sums = [tf.reduce_sum(tf.cast(right, tf.float64)),
                tf.reduce_sum(tf.cast(losses, tf.float64)),
                tf.cast(tf.size(labels), tf.float64)]  # fmt: skip
        return tf.stack(sums)

    compiled = tf.function(body, autograph=False, jit_compile=False, reduce_retracing=True)

    def score(images: Any, labels: Any) -> np.ndarray:
        return np.asarray(compiled(tf.convert_to_tensor(images), tf.convert_to_tensor(labels)))

    return score
