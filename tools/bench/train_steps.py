"""Run by bench_train where TensorFlow is: CPU seconds of a step, in turn, of a network as it is in
Keras and as `hpcdl train` compiles it; and of a checkpoint. Prints JSON.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

from hpcdl.train.options import facts_of
from hpcdl.train.startup import import_tensorflow, this_place

NAME, BATCH, TURNS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ROW = facts_of(NAME)
tf = import_tensorflow(this_place(), onednn=ROW.get("onednn", True))

from hpcdl.train import checkpoint  # noqa: E402
from hpcdl.train.fitting import raw  # noqa: E402
from hpcdl.train.keras_parts import fuse  # noqa: E402
from hpcdl.train.models import ModelRecipe, set_up_keras  # noqa: E402
from hpcdl.train.ranks import Board, Ranks, distribute  # noqa: E402

TEXT = NAME.endswith("gpt")
SPEC = tf.TensorSpec((256,), tf.int64) if TEXT else tf.TensorSpec(ROW["input"])
CLASSES = 256 if TEXT else ROW["classes"]


def compiled(side):
    model = ModelRecipe(NAME, SPEC, CLASSES).build()
    optimizer = tf.keras.optimizers.SGD(0.0001, momentum=0.9)
    if side != "fit":
        fuse(model)
    if side == "ours":
        distribute(optimizer, Ranks(), Board(clocked=True), compress=False)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    return model


def spent(act):
    begun = time.process_time()
    act()
    return time.process_time() - begun


def saved(model):
    """CPU seconds to write a checkpoint of the model, on all threads."""
    variables = [raw(v) for v in (*model.weights, *model.optimizer.variables)]
    with tempfile.TemporaryDirectory() as folder:
        writer = checkpoint.Writer(Path(folder), keep=3)

        def write():
            writer.submit(checkpoint.Checkpoint(1, {}, tuple(v.numpy() for v in variables)))
            writer.wait()

        return [spent(write) for _ in range(TURNS)]


def main():
    set_up_keras(1)
    shape, draw = (BATCH, *SPEC.shape), tf.random.stateless_uniform
    inputs = draw(shape, (1, 0), maxval=CLASSES if TEXT else 1, dtype=SPEC.dtype)
    labels = draw(shape if TEXT else (BATCH,), (1, 0), maxval=CLASSES, dtype=tf.int64)
    models = {side: compiled(side) for side in ("fit", "fused", "ours")}
    seconds = {side: [] for side in models}
    for turn in range(TURNS + 2):  # the first two compile
        for side in sorted(models, reverse=bool(turn % 2)):
            step = spent(lambda side=side: models[side].train_on_batch(inputs, labels))
            seconds[side] += [step] if turn > 1 else []
    print(json.dumps({**seconds, "checkpoint": saved(models["ours"])}))


main()
