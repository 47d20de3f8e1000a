"""Run by bench_train where TensorFlow is: a network of ours in plain `fit`, on one random batch."""

import sys

from tests.started import tensorflow

tf = tensorflow()

from hpcdl import facts  # noqa: E402
from hpcdl.train.models import ModelRecipe, set_up_keras  # noqa: E402


def main(name, batch, steps, grouped):
    set_up_keras(1)
    row = facts.load("models")["models"][name]
    model = ModelRecipe(name, tf.TensorSpec(row["input"]), row["classes"]).build()
    images = tf.random.stateless_uniform((batch, *row["input"]), (1, 0))
    labels = tf.random.stateless_uniform((batch,), (1, 0), maxval=row["classes"], dtype=tf.int64)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        tf.keras.optimizers.SGD(row["lr"], momentum=0.9),
        loss,
        metrics=["accuracy"],
        jit_compile=False,
        steps_per_execution=grouped,
    )
    data = tf.data.Dataset.from_tensors((images, labels)).repeat(steps)
    model.fit(data, steps_per_epoch=steps, verbose=0)


main(sys.argv[1], *map(int, sys.argv[2:]))
