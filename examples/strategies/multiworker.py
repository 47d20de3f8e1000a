"""Synchronous training by tf.distribute, each process a worker of one GPU.

    hpcdl job submit --launcher multiworker -- python multiworker.py --model resnet50 --steps 100

Every process is a worker of MultiWorkerMirroredStrategy, which TF_CONFIG describes; without it,
this is one worker. TensorFlow's server asks nobody for a password: trusted networks only.
"""

import json
import os
import time

import tensorflow as tf
from common import Job, host_of

from hpcdl.train.models import parameters_of


def main() -> None:
    """Train on all workers; the chief writes result.json."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:  # a worker has one
        tf.config.set_visible_devices(gpus[int(os.environ.get("SLURM_LOCALID", "0"))], "GPU")
    config = json.loads(os.environ.get("TF_CONFIG") or '{"cluster": {"worker": ["localhost:0"]}}')
    addresses = config["cluster"]["worker"]
    worker = config.get("task", {}).get("index", 0)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else of TensorFlow
    job = Job(len(addresses), worker)
    # Each worker keeps the whole model; equal seeds make the first weights equal.
    model = job.recipe.build()
    loss_of = job.loss_of(model)
    variables = [variable.value for variable in model.trainable_variables]
    velocities = [tf.Variable(tf.zeros_like(variable)) for variable in variables]

    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True)) + sum(model.losses)
        gradients = tape.gradient(loss, variables)
        replica = tf.distribute.get_replica_context()
        *gradients, loss = replica.all_reduce(tf.distribute.ReduceOp.MEAN, [*gradients, loss])
        for variable, velocity, gradient in zip(variables, velocities, gradients, strict=True):
            velocity.assign(0.9 * velocity + gradient)
            variable.assign_sub(job.numbers.lr * velocity)
        return loss

    train = tf.function(lambda *batch: strategy.run(step, args=batch))
    begun = time.perf_counter()
    for images, labels in job.batches():
        asked = time.perf_counter()
        loss = float(train(images, labels))
        now = time.perf_counter()
        job.add(loss, now - begun, input=asked - begun)
        begun = now
    if worker == 0:
        hosts = [host_of(address) for address in addresses]
        job.write("multiworker", parameters_of(model), job.scores(model), hosts=hosts)


if __name__ == "__main__":
    main()
