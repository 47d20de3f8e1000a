"""Train on many processes with tf.distribute alone: `srun python distribute_digits.py`.

Every process is a worker of MultiWorkerMirroredStrategy, which TF_CONFIG describes; without it,
this is one worker. TensorFlow's server asks nobody for a password: trusted networks only.
"""

import os
import sys
from pathlib import Path

import tensorflow as tf
from sklearn.datasets import load_digits

BATCH, EPOCHS = 64, 20


def batches(worker: int, workers: int, epoch: int) -> tf.data.Dataset:
    """This worker's part of an epoch's batches: another order in each epoch, the same for all."""
    images, labels = load_digits(return_X_y=True)
    data = tf.data.Dataset.from_tensor_slices(((images / 16.0).astype("float32"), labels))
    data = data.take(1500).shuffle(1500, seed=epoch, reshuffle_each_iteration=False)
    return data.shard(workers, worker).batch(BATCH // workers, drop_remainder=True)


def main(folder: str = ".") -> None:
    """Train the digits on all workers; the chief writes checkpoints and prints the accuracy."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:  # a rank has one, as a replica has its part of the data
        own = int(os.environ.get("SLURM_LOCALID", "0")) % len(gpus)
        tf.config.set_visible_devices(gpus[own], "GPU")
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    resolver = strategy.cluster_resolver
    workers = strategy.num_replicas_in_sync
    worker = resolver.task_id if "TF_CONFIG" in os.environ else 0
    tf.random.set_seed(1)  # the same first weights on every worker
    draw = tf.random.Generator.from_seed(1)
    sizes = [(64, 128), (128, 10)]
    weights = [tf.Variable(draw.normal(size) * (2.0 / size[0]) ** 0.5) for size in sizes]
    biases = [tf.Variable(tf.zeros(size[1])) for size in sizes]
    variables = [*weights, *biases]
    velocities = [tf.Variable(tf.zeros_like(variable)) for variable in variables]

    def forward(images: tf.Tensor) -> tf.Tensor:
        hidden = tf.nn.relu(images @ weights[0] + biases[0])
        return hidden @ weights[1] + biases[1]

    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels, forward(images))
            )
        gradients = tape.gradient(loss, variables)
        replica = tf.distribute.get_replica_context()
        gradients = replica.all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
        for variable, velocity, gradient in zip(variables, velocities, gradients, strict=True):
            velocity.assign(0.9 * velocity + gradient)
            variable.assign_sub(0.1 * velocity)
        return loss

    train = tf.function(lambda *batch: strategy.run(step, args=batch))
    state = tf.train.Checkpoint(epoch=tf.Variable(0), values=variables, velocities=velocities)
    manager = tf.train.CheckpointManager(state, Path(folder) / "checkpoints", max_to_keep=2)
    manager.restore_or_initialize()  # all workers read what the chief has written
    while state.epoch < EPOCHS:
        for images, labels in batches(worker, workers, int(state.epoch)):
            loss = train(images, labels)
        state.epoch.assign_add(1)
        if worker == 0:
            manager.save()
            print(f"epoch {int(state.epoch)} loss {float(loss):.4f}", flush=True)
    images, labels = load_digits(return_X_y=True)
    found = tf.argmax(forward((images[1500:] / 16.0).astype("float32")), axis=1)
    if worker == 0:
        print(f"accuracy {float(tf.reduce_mean(tf.cast(found == labels[1500:], tf.float32))):.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
