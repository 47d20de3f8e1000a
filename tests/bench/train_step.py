"""Run by bench_train where TensorFlow is: our step beside a bare one, in turn, one network."""

import json
import statistics
import sys
import time

from hpcdl.train import models, optimizers
from hpcdl.train.communicate import Alone
from hpcdl.train.ranks import this_place
from hpcdl.train.startup import import_tensorflow, prepare_environment
from hpcdl.train.step import StepParts, make_step
from hpcdl.train.tasks import make_task


def main(model: str, batch: int, steps: int) -> None:
    row = models.facts_of(model)
    place = this_place()
    prepare_environment(place, onednn=row.get("onednn", True))
    tf = import_tensorflow(place, keras=row["builder"] != "mlp")
    network = models.build(tf, model, tuple(row["input"]), row["classes"], 1)
    images = tf.random.uniform((batch, *row["input"]))
    labels = tf.random.uniform((batch,), maxval=row["classes"], dtype=tf.int64)
    optimizer = optimizers.make_optimizer(tf, network, "sgd", 0.9, 0.0)
    parts = StepParts(network, make_task(tf, "classes", 0.0), optimizer, Alone(tf), lambda x: x)
    ours = make_step(tf, parts)

    def body(images, labels):
        with tf.GradientTape() as tape:
            logits = tf.cast(network.forward(images, True), tf.float32)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, network.trainable)
        optimizer.apply(tf, network.trainable, gradients, tf.constant(1e-6))
        return loss

    bare = tf.function(body, autograph=False)
    times = {"ours": [], "bare": []}
    for step in range(steps + 2):
        for name in ("ours", "bare") if step % 2 else ("bare", "ours"):
            begun = time.perf_counter()
            if name == "ours":
                ours(images, labels, 1e-6, 0.0, step)
            else:
                float(bare(images, labels))
            if step >= 2:
                times[name].append(time.perf_counter() - begun)
    print(json.dumps({name: statistics.median(kept) for name, kept in times.items()}))


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
