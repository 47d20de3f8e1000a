"""Run by bench_train where TensorFlow is: a network in plain `fit`, on one random batch."""

import sys

from hpcdl.train.options import facts_of
from hpcdl.train.startup import import_tensorflow, this_place

NAME = sys.argv[1]
# With the settings of a run: without oneDNN, `fit` took half as long again.
tf = import_tensorflow(this_place(), onednn=facts_of(NAME).get("onednn", True))

from hpcdl.train.models import ModelRecipe, set_up_keras  # noqa: E402
from tests.bench.cpu_steps import CpuSteps  # noqa: E402


def main(name, batch, steps, grouped):
    set_up_keras(1)
    row = facts_of(name)
    text = name.endswith("gpt")
    spec = tf.TensorSpec((256,), tf.int64) if text else tf.TensorSpec(row["input"])
    classes = 256 if text else row["classes"]
    model = ModelRecipe(name, spec, classes).build()
    shape, draw = (batch, *spec.shape), tf.random.stateless_uniform
    images = draw(shape, (1, 0), maxval=classes if text else 1, dtype=spec.dtype)
    labels = draw(shape if text else (batch,), (1, 0), maxval=classes, dtype=tf.int64)
    model.compile(
        tf.keras.optimizers.SGD(0.0001, momentum=0.9),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,
        steps_per_execution=grouped or 1,
    )
    data = tf.data.Dataset.from_tensors((images, labels)).repeat(steps)
    callbacks = [CpuSteps()] if grouped == 0 else []
    model.fit(data, steps_per_epoch=steps, verbose=0, callbacks=callbacks)


main(NAME, *map(int, sys.argv[2:]))
