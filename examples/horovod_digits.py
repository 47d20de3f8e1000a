"""Train on many processes with Horovod: `mpirun -np 4 python horovod_digits.py`, or srun.

A loop of one's own around a Keras model: gradients are averaged over the ranks, rank 0 writes
checkpoints, and every rank takes its part of each batch. Started again, it resumes.
"""

import sys
from pathlib import Path

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
from sklearn.datasets import load_digits

BATCH, EPOCHS = 64, 20


def batches(epoch: int) -> tf.data.Dataset:
    """This rank's part of an epoch's batches: another order in each epoch, the same for all."""
    images, labels = load_digits(return_X_y=True)
    data = tf.data.Dataset.from_tensor_slices(((images / 16.0).astype("float32"), labels))
    data = data.take(1500).shuffle(1500, seed=epoch, reshuffle_each_iteration=False)
    mine = data.shard(hvd.size(), hvd.rank())
    return mine.batch(BATCH // hvd.size(), drop_remainder=True).prefetch(2)


def main(folder: str = ".") -> None:
    """Train the digits on all ranks; rank 0 writes checkpoints and prints the accuracy."""
    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:  # one for each rank of the node
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    keras.utils.set_random_seed(1)
    layers = [keras.Input((64,)), keras.layers.Dense(128, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)
    cost = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            # What layers add to the loss (regularizers) counts as well.
            loss = cost(labels, model(images, training=True)) + sum(model.losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients = hvd.grouped_allreduce(gradients, op=hvd.Average)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    epoch = tf.Variable(0)
    state = tf.train.Checkpoint(epoch=epoch, model=model, optimizer=optimizer)
    manager = tf.train.CheckpointManager(state, Path(folder) / "checkpoints", max_to_keep=2)
    if hvd.rank() == 0:
        manager.restore_or_initialize()
    values = [v.value for v in (*model.variables, *optimizer.variables)]
    hvd.broadcast_variables([epoch, *values], root_rank=0)
    while epoch < EPOCHS:
        for images, labels in batches(int(epoch)):
            loss = step(images, labels)
        epoch.assign_add(1)
        if hvd.rank() == 0:
            manager.save()
            print(f"epoch {int(epoch)} loss {float(loss):.4f}", flush=True)
    images, labels = load_digits(return_X_y=True)
    logits = model((images[1500:] / 16.0).astype("float32"))
    accuracy = tf.reduce_mean(tf.cast(tf.argmax(logits, axis=1) == labels[1500:], tf.float32))
    if hvd.rank() == 0:
        model.save(Path(folder) / "digits.keras")
        print(f"accuracy {float(accuracy):.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
