"""A model's layers on two devices of a node, in two stages.

    hpcdl job submit --launcher single --gpus 2 -- python model_parallel.py --model resnet50

Each stage is built where it computes, so neither device holds the whole model. On a machine without
GPUs the CPU is divided into two devices.
"""

import time

import tensorflow as tf
from common import Job, sgd

from hpcdl.train.models import parameters_of

STAGES = 2


def devices() -> list[str]:
    """Return the names of the devices, one per stage."""
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) >= STAGES:
        return [f"GPU:{number}" for number in range(STAGES)]
    (cpu,) = tf.config.list_physical_devices("CPU")
    parts = [tf.config.LogicalDeviceConfiguration()] * STAGES
    tf.config.set_logical_device_configuration(cpu, parts)
    return [f"CPU:{number}" for number in range(STAGES)]


def halves(model: tf.keras.Model) -> list[tf.keras.Model]:
    """Return the model cut where about half of its parameters are done and one tensor passes."""
    passed, half = 0, model.count_params() / STAGES
    names = {id(layer): place for place, layer in enumerate(model.layers)}
    for place, layer in enumerate(model.layers[:-1]):
        passed += layer.count_params()
        # A cut is clean where no later layer takes what an earlier one gives.
        crossing = {
            id(node.operation)
            for later in model.layers[place + 1 :]
            for node in later._inbound_nodes[-1].parent_nodes
            if names.get(id(node.operation), 0) <= place
        }
        if passed >= half and crossing == {id(layer)}:
            return [
                tf.keras.Model(model.inputs[0], layer.output),
                tf.keras.Model(layer.output, model.outputs[0]),
            ]
    raise SystemExit(f"error: {model.name} cannot be cut into {STAGES} stages")


class Staged(tf.keras.Model):
    """The stages one after the other, each on its device."""

    def __init__(self, stages: list[tf.keras.Model], places: list[str]) -> None:
        super().__init__()
        self.places, self.stages = places, []
        for stage, place in zip(stages, places, strict=True):
            with tf.device(place):
                self.stages.append(tf.keras.models.clone_model(stage))

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Pass a batch through all stages."""
        for stage, place in zip(self.stages, self.places, strict=True):
            with tf.device(place):
                inputs = stage(inputs, training=training)
        return inputs


def main() -> None:
    """Train the model in stages, and write result.json."""
    places = devices()
    job = Job()
    whole = job.recipe.build()
    loss_of, optimizer = job.loss_of(whole), sgd(job)
    model = Staged(halves(whole), places)
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        loss = loss_of(labels, model(images, training=True)) + sum(model.losses)
        # Not a tape's, whose operations need not be where the forward ones are.
        gradients = tf.gradients(loss, [v.value for v in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    begun = time.perf_counter()
    for images, labels in job.batches():
        asked = time.perf_counter()
        loss = float(step(images, labels))
        now = time.perf_counter()
        job.add(loss, now - begun, input=asked - begun)
        begun = now
    stages = dict(zip(places, map(parameters_of, model.stages), strict=True))
    job.write(
        "model-parallel", parameters_of(model), job.scores(model), parameters_by_device=stages
    )


if __name__ == "__main__":
    main()
