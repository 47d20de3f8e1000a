"""Asynchronous SGD with parameter servers: one process per task of TF_CONFIG, tasks of three kinds.

`ps` hold the weights, `worker` compute gradients of weights that others may change meanwhile, and
`chief` hands out the steps. A worker that is killed may come back; its steps are done by others.
When a server is lost, so are its weights: the chief waits until all tasks are there, and starts
again from its last checkpoint. TensorFlow's servers ask for no password: trusted networks only.
"""

import json
import os
import sys
from pathlib import Path

import tensorflow as tf
from sklearn.datasets import load_digits

BATCH, EVERY = 64, 50


def batches() -> tf.data.Dataset:
    """A worker's own endless order of the digits."""
    images, labels = load_digits(return_X_y=True)
    data = tf.data.Dataset.from_tensor_slices(((images / 16.0).astype("float32"), labels))
    return data.take(1500).shuffle(1500).repeat().batch(BATCH)


def train(cluster: tf.train.ClusterSpec, folder: str, steps: int) -> None:
    """Hand out all steps; write checkpoints; print accuracy and staleness."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        draw = tf.random.Generator.from_seed(1)
        sizes = [(64, 128), (128, 10)]
        weights = [tf.Variable(draw.normal(size) * (2.0 / size[0]) ** 0.5) for size in sizes]
        biases = [tf.Variable(tf.zeros(size[1])) for size in sizes]
        done = tf.Variable(0, dtype=tf.int64)

    def forward(images: tf.Tensor) -> tf.Tensor:
        hidden = tf.nn.relu(images @ weights[0] + biases[0])
        return hidden @ weights[1] + biases[1]

    @tf.function
    def step(data: tf.data.Iterator) -> tf.Tensor:
        images, labels = next(data)
        began = done.read_value()
        with tf.control_dependencies([began]), tf.GradientTape() as tape:
            logits = forward(tf.identity(images))
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        variables = [*weights, *biases]
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.2 * gradient)
        return tf.stack([loss, tf.cast(done.assign_add(1) - 1 - began, tf.float32)])

    state = tf.train.Checkpoint(done=done, values=[*weights, *biases])
    manager = tf.train.CheckpointManager(state, Path(folder) / "checkpoints", max_to_keep=2)
    manager.restore_or_initialize()
    print(f"begins after step {int(done)}", flush=True)
    data = iter(coordinator.create_per_worker_dataset(batches))
    stale: list[float] = []
    while done < steps:
        results = [coordinator.schedule(step, args=(data,)) for _ in range(EVERY)]
        coordinator.join()  # steps of lost workers are done by others meanwhile
        found = [result.fetch() for result in results]
        stale += [float(late) for _, late in found]
        manager.save()
        print(f"step {int(done)} loss {float(found[-1][0]):.4f}", flush=True)
    images, labels = load_digits(return_X_y=True)
    chosen = tf.argmax(forward((images[1500:] / 16.0).astype("float32")), axis=1)
    accuracy = float(tf.reduce_mean(tf.cast(chosen == labels[1500:], tf.float32)))
    behind = sum(stale) / max(1, len(stale))
    print(f"accuracy {accuracy:.4f} staleness {behind:.2f} steps, at most {max(stale, default=0)}")


def main(folder: str = ".", steps: str = "600") -> None:
    """Be what TF_CONFIG says; whoever started servers and workers ends them."""
    config = json.loads(os.environ["TF_CONFIG"])
    cluster, task = tf.train.ClusterSpec(config["cluster"]), config["task"]
    if task["type"] != "chief":
        tf.distribute.Server(cluster, task["type"], task["index"], protocol="grpc").join()
    try:
        train(cluster, folder, int(steps))
    except (tf.errors.UnavailableError, tf.errors.AbortedError) as fault:
        print(f"a server is lost: {str(fault).splitlines()[0]}", flush=True)
        os.execv(sys.executable, [sys.executable, *sys.argv])  # noqa: S606 - itself, afresh


if __name__ == "__main__":
    main(*sys.argv[1:])
