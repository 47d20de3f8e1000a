"""Run where TensorFlow is, on one rank or several: trains each row by `hpcdl train` and by `fit`.

A row is a model of this module (`package.module:function`), a data set of it, options of
`hpcdl train`, and what plain Keras compiles. Rows that are named are left out. Rank 0 writes what
both did, losses, weights and scores, into found-RANKS.json; of refused rows the error.
"""

import contextlib
import io
import json
import os
import sys
import traceback
from pathlib import Path

import numpy as np

from hpcdl.train.__main__ import main
from hpcdl.train.startup import import_tensorflow, this_place

PLACE = this_place()
tf = import_tensorflow(PLACE)
from tensorflow import keras  # noqa: E402

from hpcdl.train import checkpoint  # noqa: E402
from hpcdl.train.data.source import epoch_order  # noqa: E402
from hpcdl.train.fitting import raw  # noqa: E402

layers, losses, optimizers = keras.layers, keras.losses, keras.optimizers
KERAS_3 = getattr(keras, "__version__", "2").startswith("3")
BATCH = 12
DRAW = np.random.default_rng(3)
X = DRAW.normal(size=(60, 6)).astype("float32")
CLASSES = DRAW.integers(0, 3, 60)
TOKENS = DRAW.integers(0, 7, (60, 5))
CENTRE = np.eye(3, dtype="float32")[CLASSES]


def part(split, *values):
    """48 examples to train, 12 to test."""
    rows = slice(0, 48) if split == "train" else slice(48, 60)
    return tuple(
        {k: v[rows] for k, v in one.items()}
        if isinstance(one, dict)
        else tuple(v[rows] for v in one)
        if isinstance(one, tuple)
        else one[rows]
        for one in values
    )


# ---- data sets ----


def classes(split):
    return part(split, X, CLASSES)


def onehot(split):
    return part(split, X, CENTRE)


def soft(split):
    return part(split, X, CENTRE * 0.8 + 0.2 / 3)


def multilabel(split):
    return part(split, X, (X[:, :4] > 0.3).astype("int64"))


def yes_or_no(split):
    return part(split, X, (X[:, 0] > 0).astype("float32")[:, None])


def tenths(split):
    return part(split, X, CLASSES / 10.0)


def numbers(split):
    return part(split, X, X.sum(1, keepdims=True) * 0.3)


def weighted(split):
    return part(split, X, CLASSES, np.linspace(0.1, 2.0, 60).astype("float32"))


def two_outputs(split):
    return part(split, X, (CLASSES, X.sum(1, keepdims=True) * 0.3))


def two_inputs(split):
    return part(split, {"left": X, "right": X[:, :2]}, CLASSES)


def text(split):
    return part(split, TOKENS, np.roll(TOKENS, -1, 1))


def column(split):
    return part(split, X, (CLASSES > 0).astype("int64")[:, None])


def column_pipeline(split):
    return tf.data.Dataset.from_tensor_slices(part(split, X, CLASSES[:, None]))


def size_and_kind(split):
    return part(split, X, (X.sum(1, keepdims=True) * 0.3, CLASSES))


def pictures(split):
    return part(split, np.abs(X).reshape(60, 3, 2, 1), CLASSES)


def pipeline(split):
    return tf.data.Dataset.from_tensor_slices(classes(split))


def reshuffled(split):
    return pipeline(split).shuffle(60)


def shuffled_once(split):
    return pipeline(split).shuffle(60, seed=2, reshuffle_each_iteration=False)


def float_pipeline(split):
    return tf.data.Dataset.from_tensor_slices(tenths(split))


# ---- models ----


def dense(shape, count, *inner, last=None, width=None, **more):
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Dense(8, "tanh", **more),
            *inner,
            layers.Dense(width or count, last),
        ]
    )


def plain(shape, count):
    return dense(shape, count)


def one_number(shape):
    return dense(shape, 1)


def regularized(shape, count):
    return dense(shape, count, kernel_regularizer=keras.regularizers.L2(0.1))


def active(shape, count):
    return dense(shape, count, activity_regularizer=keras.regularizers.L1(0.01))


class Busy(layers.Layer):
    def call(self, x):
        self.add_loss(0.1 * tf.reduce_mean(tf.square(x)))
        return x


def adding(shape, count):
    return dense(shape, count, Busy())


def constrained(shape, count):
    return dense(shape, count, kernel_constraint=keras.constraints.MaxNorm(0.1))


def normalized(shape, count):
    return dense(shape, count, layers.BatchNormalization())


def normalized_twice(shape, count):
    entry, norm = keras.Input(shape), layers.BatchNormalization()
    left = norm(layers.Dense(5)(entry))
    right = norm(layers.Dense(5)(entry))
    return keras.Model(entry, layers.Dense(count)(layers.Add()([left, right])))


def synchronized(shape, count):
    kind = getattr(layers.experimental, "SyncBatchNormalization", None) if not KERAS_3 else None
    return dense(shape, count, kind() if kind else layers.BatchNormalization(synchronized=True))


def pooled(shape, count):
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Conv2D(4, 2),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(count),
        ]
    )


def pooled_twice(shape, count):
    entry, norm = keras.Input(shape), layers.BatchNormalization(momentum=0.5, scale=False)
    left = norm(layers.Conv2D(4, 1)(entry))
    right = norm(layers.Conv2D(4, 1, use_bias=False)(entry))
    joined_ = layers.Add()([left, right])
    return keras.Model(entry, layers.Dense(count)(layers.GlobalAveragePooling2D()(joined_)))


def one_pixel(shape, count):
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Conv2D(4, (3, 2)),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dense(count),
        ]
    )


def pooled_frozen(shape, count):
    model = pooled(shape, count)
    model.layers[1].trainable = False
    return model


def frozen(shape, count):
    model = dense(shape, count)
    model.layers[0].trainable = False
    return model


def dropped(shape, count):
    return dense(shape, count, layers.Dropout(0.5))


class Own(keras.Model):
    def __init__(self, count):
        super().__init__()
        self.first, self.last = layers.Dense(8, "tanh"), layers.Dense(count)

    def call(self, x, training=None):
        return self.last(self.first(x))


def subclassed(shape, count):
    return Own(count)


def without_input(shape, count):
    return keras.Sequential([layers.Dense(8, "tanh"), layers.Dense(count)])


def softmax(shape, count):
    return dense(shape, count, last="softmax")


def softmax_layer(shape, count):
    return dense(shape, count, layers.Dense(count), layers.Softmax(), last="softmax")


def sigmoid(shape, count):
    return dense(shape, count, last="sigmoid")


def four_sigmoids(shape):
    return dense(shape, 4, last="sigmoid")


def one_sigmoid(shape):
    return dense(shape, 1, last="sigmoid")


def relu_end(shape, count):
    return dense(shape, count, last="relu")


def scaled(shape, count):
    """Logits that lie between 0 and 1 at first: only the last layer says what they are."""
    model = dense(shape, count)
    model.layers[-1].set_weights([np.zeros((8, count)), np.full(count, 0.5)])
    return model


def compiled_two(shape):
    entry = keras.Input(shape)
    inner = layers.Dense(8, "tanh")(entry)
    model = keras.Model(
        entry, [layers.Dense(3, name="kind")(inner), layers.Dense(1, name="size")(inner)]
    )
    model.compile(
        optimizers.SGD(0.05),
        [losses.SparseCategoricalCrossentropy(from_logits=True), "mse"],
        loss_weights=[1.0, 0.3],
        metrics=[["accuracy"], ["mae"]],
    )
    return model


class Distance(losses.Loss):
    """A loss of one's own: Keras gives it labels as they are."""

    def call(self, y_true, y_pred):
        return tf.reduce_mean(tf.square(tf.cast(y_true, y_pred.dtype) - y_pred), -1)


def compiled_distance(shape):
    model = dense(shape, 1)
    model.compile(optimizers.SGD(0.05), Distance())
    return model


def compiled_by_name(shape):
    entry = keras.Input(shape)
    inner = layers.Dense(8, "tanh")(entry)
    model = keras.Model(
        entry, [layers.Dense(1, name="size")(inner), layers.Dense(3, name="kind")(inner)]
    )
    model.compile(
        optimizers.SGD(0.05),
        {"kind": losses.SparseCategoricalCrossentropy(from_logits=True), "size": "mse"},
    )
    return model


class TwoOptimizers(keras.Model):
    """As adversarial networks have them."""

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(data[0], training=True)))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.other.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"other_loss": loss}


def of_two_optimizers(shape):
    entry = keras.Input(shape)
    model = TwoOptimizers(entry, layers.Dense(1)(entry))
    model.compile(optimizers.SGD(0.05))
    model.other = optimizers.SGD(0.05)
    return model


class WithoutLoss(TwoOptimizers):
    @property
    def other(self):
        return self.optimizer


def without_loss(shape):
    entry = keras.Input(shape)
    model = WithoutLoss(entry, layers.Dense(1)(entry))
    model.compile(optimizers.SGD(0.05))
    return model


def named_two(shape):
    entry = keras.Input(shape)
    inner = layers.Dense(8, "tanh")(entry)
    return keras.Model(
        entry, [layers.Dense(3, name="kind")(inner), layers.Dense(1, name="size")(inner)]
    )


def compiled_adam(shape, count):
    model = dense(shape, count)
    model.compile(
        optimizers.Adam(optimizers.schedules.ExponentialDecay(0.01, 3, 0.5)),
        losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def joined(shape, count):
    entries = {name: keras.Input(one, name=name) for name, one in shape.items()}
    merged = layers.Concatenate()([layers.Dense(4)(entry) for entry in entries.values()])
    return keras.Model(entries, layers.Dense(count)(merged))


def language(shape, count):
    return keras.Sequential(
        [
            keras.Input(shape, dtype="int64"),
            layers.Embedding(7, 4),
            layers.Dense(8, "tanh"),
            layers.Dense(count),
        ]
    )


def focal(labels, outputs):
    chances = tf.nn.softmax(outputs)
    right = tf.gather(chances, tf.cast(labels, tf.int64), batch_dims=1)
    return -((1.0 - right) ** 2) * tf.math.log(right)


def own_metric(labels, outputs):
    return tf.reduce_max(outputs, axis=-1)


# ---- rows ----


def sgd(rate=0.05, **more):
    return lambda: optimizers.SGD(rate, momentum=0.9, **more)


def ce(**more):
    return losses.SparseCategoricalCrossentropy(**{"from_logits": True, **more})


def row(
    model="plain",
    data="classes",
    *options,
    optimizer=None,
    loss=None,
    metrics=("accuracy",),
    compiles=True,
    callbacks=None,
    epochs=2,
    precision="float32",
    weights=None,
    jit=False,
    batch=BATCH,
):
    return {
        "model": model,
        "data": data,
        "options": list(options),
        "optimizer": optimizer or sgd(),
        "loss": loss or ce,
        "metrics": list(metrics),
        "compiles": compiles,
        "callbacks": callbacks or list,
        "epochs": epochs,
        "precision": precision,
        "weights": weights,
        "jit": jit,
        "batch": batch,
    }


def kwargs(option, **given):
    return [f"--set={option}.{name}={json.dumps(value)}" for name, value in given.items()]


def simple(*options, **more):
    """A row of a small network and its classes."""
    return row("plain", "classes", *options, **more)


def on_pictures(*options, **more):
    """A row of a network that normalises images."""
    return row("pooled", "pictures", *options, **more)


ROWS = {
    "plain": row(),
    "regularizer": row("regularized"),
    "activity regularizer": row("active"),
    "add_loss": row("adding"),
    "constraint": row("constrained"),
    "batch normalisation": row("normalized"),
    "batch normalisation twice": row("normalized_twice"),
    "batch normalisation over all ranks": row("synchronized"),
    "batch normalisation of images": row("pooled", "pictures"),
    "batch normalisation of images twice": row("pooled_twice", "pictures"),
    "batch normalisation of single pixels": row("one_pixel", "pictures"),
    "batch normalisation of images, frozen": row("pooled_frozen", "pictures"),
    "batch normalisation of images by twos": on_pictures(batch=2, epochs=1),
    "batch normalisation of all images": on_pictures(batch=48),
    "batch normalisation of images, decayed": on_pictures(
        *kwargs("optimizer", weight_decay=0.1), optimizer=sgd(weight_decay=0.1)
    ),
    "batch normalisation of images in bf16": on_pictures(
        "--precision=bf16", precision="mixed_bfloat16"
    ),
    "frozen": row("frozen"),
    "dropout": row("dropped"),
    "subclassed": row("subclassed", "classes", "--set=loss.from_logits=true"),
    "sequential without Input": row("without_input"),
    "softmax": row("softmax", loss=lambda: ce(from_logits=False)),
    "softmax layer": row("softmax_layer", loss=lambda: ce(from_logits=False)),
    "logits like chances": row("scaled"),
    "one-hot": row(
        "plain",
        "onehot",
        "--loss=categoricalcrossentropy",
        loss=lambda: losses.CategoricalCrossentropy(from_logits=True),
    ),
    "soft labels": row(
        "softmax",
        "soft",
        "--loss=CategoricalCrossentropy",
        *kwargs("loss", label_smoothing=0.1),
        loss=lambda: losses.CategoricalCrossentropy(label_smoothing=0.1),
    ),
    "multi-label": row(
        "four_sigmoids",
        "multilabel",
        "--loss=binarycrossentropy",
        "--metrics=auc",
        metrics=("auc",),
        loss=losses.BinaryCrossentropy,
    ),
    "yes or no": row(
        "one_sigmoid",
        "yes_or_no",
        "--loss=binarycrossentropy",
        "--metrics=binary_accuracy",
        loss=losses.BinaryCrossentropy,
        metrics=("binary_accuracy",),
    ),
    "regression": row(
        "one_number",
        "numbers",
        "--loss=mse",
        "--metrics=mean_absolute_error",
        loss=losses.MeanSquaredError,
        metrics=("mean_absolute_error",),
    ),
    "sample weights": row("plain", "weighted"),
    "class weights": simple(
        '--set=fit.class_weight={"0": 0.2, "1": 2, "2": 1}', weights={0: 0.2, 1: 2.0, 2: 1.0}
    ),
    "several outputs, compiled": row("compiled_two", "two_outputs", compiles=False),
    "several outputs by name": row(
        "named_two",
        "two_outputs",
        "--loss=sparsecategoricalcrossentropy,mse",
        loss=lambda: [ce(), losses.MeanSquaredError()],
        metrics=(),
    ),
    "several outputs, losses by name": row("compiled_by_name", "size_and_kind", compiles=False),
    "a column of labels and a loss of one's own": row(
        "compiled_distance", "column", compiles=False
    ),
    "a column of labels, a pipeline": row("plain", "column_pipeline"),
    "compiled with a schedule": row("compiled_adam", compiles=False),
    "several inputs": row("joined", "two_inputs"),
    "language model": row("language", "text"),
    "own loss and metric": simple(
        "--loss=MODULE:focal",
        "--metrics=MODULE:own_metric",
        loss=lambda: focal,
        metrics=(own_metric,),
    ),
    "pipeline": row("plain", "pipeline"),
    "pipeline shuffled once": row("plain", "shuffled_once"),
    "adamw": simple(
        "--optimizer=adamw",
        *kwargs("optimizer", weight_decay=0.1),
        optimizer=lambda: optimizers.AdamW(0.05, weight_decay=0.1),
    ),
    "clipping": simple(
        *kwargs("optimizer", global_clipnorm=0.1), optimizer=sgd(global_clipnorm=0.1)
    ),
    "moving averages": simple(
        *kwargs("optimizer", use_ema=True, ema_momentum=0.5),
        optimizer=sgd(use_ema=True, ema_momentum=0.5),
    ),
    "moving averages put in place": simple(
        *kwargs("optimizer", use_ema=True, ema_overwrite_frequency=3),
        optimizer=sgd(use_ema=True, ema_overwrite_frequency=3),
    ),
    "cosine": simple(
        "--lr-schedule=cosine",
        optimizer=lambda: optimizers.SGD(optimizers.schedules.CosineDecay(0.05, 8), momentum=0.9),
    ),
    "linear": simple(
        "--lr-schedule=linear",
        optimizer=lambda: optimizers.SGD(
            optimizers.schedules.PolynomialDecay(0.05, 8, 0.0), momentum=0.9
        ),
    ),
    "schedule of keras": simple(
        "--lr-schedule=exponentialdecay",
        *kwargs("schedule", decay_steps=2, decay_rate=0.5),
        optimizer=lambda: optimizers.SGD(
            optimizers.schedules.ExponentialDecay(0.05, 2, 0.5), momentum=0.9
        ),
    ),
    "accumulation": row(
        "regularized",
        "classes",
        *kwargs("optimizer", gradient_accumulation_steps=3),
        optimizer=sgd(gradient_accumulation_steps=3) if KERAS_3 else None,
    ),
    "fp16": simple(
        "--precision=fp16",
        precision="mixed_float16",
        optimizer=lambda: keras.mixed_precision.LossScaleOptimizer(sgd()()),
    ),
    "bf16": simple("--precision=bf16", precision="mixed_bfloat16"),
    "xla": row("regularized", "classes", "--xla", jit=True),
    "earlystopping on val_loss": simple(
        "--callback=earlystopping",
        *kwargs("callback", monitor="val_loss", min_delta=10.0),
        epochs=4,
        callbacks=lambda: [keras.callbacks.EarlyStopping("val_loss", min_delta=10.0)],
    ),
    "best weights": simple(
        "--callback=earlystopping",
        *kwargs("callback", patience=3, restore_best_weights=True),
        epochs=4,
        callbacks=lambda: [keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True)],
    ),
    "reducelronplateau": simple(
        "--callback=reducelronplateau",
        *kwargs("callback", patience=1, min_delta=10.0),
        epochs=4,
        callbacks=lambda: [keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=10.0)],
    ),
    "csvlogger": simple(
        "--callback=csvlogger",
        *kwargs("callback", filename="ours.csv"),
        callbacks=lambda: [keras.callbacks.CSVLogger("theirs.csv")],
    ),
    "modelcheckpoint": simple(
        "--callback=modelcheckpoint",
        *kwargs("callback", filepath="ours.keras", save_best_only=True),
        callbacks=lambda: [keras.callbacks.ModelCheckpoint("theirs.keras", save_best_only=True)],
    ),
    # Refused before training.
    "labels that are fractions": row("plain", "tenths"),
    "labels of a pipeline that are fractions": row("plain", "float_pipeline"),
    "fractions and a loss of classes": row(
        "plain", "tenths", "--loss=sparsecategoricalcrossentropy"
    ),
    "reshuffled pipeline": row("plain", "reshuffled"),
    "one-hot and a loss of numbers": row("plain", "onehot"),
    "sigmoid and a loss of classes": row("sigmoid"),
    "relu at the end": row("relu_end"),
    "a model that says nothing": row("subclassed"),
    "numbers and a loss of shares": simple("--loss=categoricalcrossentropy"),
    "several outputs and one loss": row("named_two", "two_outputs", "--loss=mse"),
    "an optimizer of its own": row("of_two_optimizers", compiles=False),
    "a step without a loss": row("without_loss", compiles=False),
    "setting that nobody uses": simple("--set=schedule.decay_steps=3"),
}


def ours(name, given, folder):
    module = Path(__file__).stem
    words = [
        f"--model={module}:{given['model']}",
        f"--dataset={module}:{given['data']}",
        f"--global-batch={given['batch']}",
        f"--epochs={given['epochs']}",
        "--lr=0.05",
        f"--job-dir={folder}",
        *(o.replace("MODULE", module) for o in given["options"]),
    ]
    if not given["compiles"]:
        words.remove("--lr=0.05")
    with (
        contextlib.redirect_stderr(io.StringIO()) as err,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        try:
            code = main(words)
        except Exception as fault:  # a traceback is a failure, and the row says which
            code, err = -1, io.StringIO("".join(traceback.format_exception(fault))[-3000:])
    if code or PLACE.rank:
        return {"code": code, "error": err.getvalue()}
    result = json.loads((folder / "result.json").read_text())
    saved = checkpoint.newest(folder / "checkpoints")
    arrays = saved.arrays[: saved.meta["weights"]]
    metrics = {k: v for k, v in result["summary"]["metrics"].items() if k != "test_images"}
    return {
        "code": 0,
        "losses": result["samples"]["loss"],
        "metrics": metrics,
        "weights": [np.asarray(a, np.float64).ravel().tolist() for a in arrays],
    }


def theirs(given):
    keras.utils.set_random_seed(1)
    data = {split: globals()[given["data"]](split) for split in ("train", "test")}
    if isinstance(data["train"], tf.data.Dataset):
        data = {
            split: tuple(np.stack(v) for v in zip(*d.as_numpy_iterator(), strict=True))
            for split, d in data.items()
        }
    keras.mixed_precision.set_global_policy(given["precision"])
    shape = tf.nest.map_structure(lambda a: a.shape[1:], data["train"][0])
    function = globals()[given["model"]]
    classes = 7 if given["data"] == "text" else 3
    model = function(*(shape, classes)[: function.__code__.co_argcount])
    model(tf.nest.map_structure(lambda a: a[:1], data["train"][0]))
    if given["compiles"]:
        model.compile(
            given["optimizer"](),
            given["loss"](),
            metrics=[keras.metrics.AUC(name=m) if m == "auc" else m for m in given["metrics"]],
            jit_compile=given["jit"],
        )
    steps = 48 // given["batch"]
    rows = [epoch_order(1, epoch, 48).reshape(steps, -1) for epoch in range(given["epochs"])]
    take = lambda r: tf.nest.map_structure(lambda a: tf.gather(a, r), data["train"])  # noqa: E731
    order = np.concatenate(rows)
    if given["data"] in {"pipeline", "shuffled_once", "column_pipeline"}:
        order = np.concatenate([piped(data["train"], epoch) for epoch in range(given["epochs"])])
    batches = tf.data.Dataset.from_tensor_slices(order).map(take)
    noted = Noted()
    model.fit(
        batches,
        epochs=given["epochs"],
        steps_per_epoch=steps,
        verbose=0,
        class_weight=given["weights"],
        callbacks=[noted, *given["callbacks"]()],
        validation_data=tf.data.Dataset.from_tensor_slices(data["test"]).batch(12),
    )
    scores = model.evaluate(
        tf.data.Dataset.from_tensor_slices(data["test"]).batch(12), verbose=0, return_dict=True
    )
    keras.mixed_precision.set_global_policy("float32")
    metrics = {"test_loss" if k == "loss" else k: float(v) for k, v in scores.items()}
    return {
        "losses": noted.losses,
        "metrics": metrics,
        "weights": [
            np.asarray(raw(w).numpy(), np.float64).ravel().tolist()
            for w in noted.weights or model.weights
        ],
    }


def piped(data, epoch):
    """The rows of a pipeline's batches, by its own buffer."""
    numbers = tf.data.Dataset.range(len(data[1]))
    mixed = numbers.shuffle(8192, seed=(1_000_003 + epoch) % 2**31, reshuffle_each_iteration=False)
    return np.array(list(mixed.batch(BATCH, drop_remainder=True).as_numpy_iterator()))


class Noted(keras.callbacks.Callback):
    """The loss of each batch, not the mean; what the last checkpoint of ours would hold."""

    def __init__(self):
        super().__init__()
        self.losses, self.weights, self.sum, self.batch = [], None, 0.0, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.sum, self.batch = 0.0, 0

    def on_train_batch_end(self, batch, logs=None):
        self.batch += 1
        total = float(logs["loss"]) * self.batch
        self.losses.append(total - self.sum)
        self.sum = total


def run(names, ranks):
    here, found = Path.cwd(), {}
    sys.path.insert(0, str(Path(__file__).parent))
    for name in names:
        given = ROWS[name]
        folder = here / f"{ranks}-{name.replace(' ', '-')}"
        tf.config.optimizer.set_jit(False)
        found[name] = {"ours": ours(name, given, folder)}
        if PLACE.rank == 0 and not found[name]["ours"]["code"]:
            found[name]["theirs"] = theirs(given)
        keras.backend.clear_session()
    if PLACE.rank == 0:
        Path(f"found-{ranks}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    if PLACE.size > 1:
        import horovod.tensorflow as hvd

        hvd.shutdown = lambda: None  # MPI starts once in a process, and each row is a run
        os._exit = lambda code: None  # a refused row ends the row, not this process
    run([name for name in ROWS if name not in sys.argv[1:]], PLACE.size)
