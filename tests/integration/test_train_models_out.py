"""Models in and out: exported, loaded by plain Keras, tuned, scored."""

import itertools
import json

import pytest

pytestmark = pytest.mark.stack
# Where `import hpcdl` fails: what is exported needs nothing of it.
PLAIN = """
import json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
sys.modules["hpcdl"] = None
import numpy as np, tensorflow as tf
folder, images = sys.argv[1], np.load(sys.argv[2])
model = tf.keras.models.load_model(f"{folder}/model.keras")
found = {"keras": model(images).numpy().tolist()}
found["digests"] = {w.path: hash(w.numpy().tobytes()) for w in model.weights}
for weight in model.weights:
    weight.assign(tf.zeros_like(weight))
model.load_weights(f"{folder}/model.weights.h5")
found["weights"] = model(images).numpy().tolist()
loaded = tf.saved_model.load(f"{folder}/saved_model")
found["saved_model"] = loaded.serve(tf.constant(images)).numpy().tolist()
print(json.dumps(found))
"""
NORMALIZED = """
import tensorflow as tf
def network(shape, classes):
    layers = tf.keras.layers
    return tf.keras.Sequential([tf.keras.Input(shape), layers.Conv2D(8, 3, name="first"),
        layers.BatchNormalization(), layers.ReLU(), layers.Dropout(0.1), layers.Flatten(),
        layers.Dense(classes, name="last")])
"""
UNTESTED = """
def untested(split):
    import numpy as np
    return (np.zeros((64, 8, 8, 1)), np.zeros(64, int)) if split == "train" else None
"""


@pytest.fixture
def runs(runs):
    runs.write("mine.py", NORMALIZED + UNTESTED)
    return runs


def test_a_model_is_exported_loaded_by_keras_alone_and_tuned_on(runs):
    np = pytest.importorskip("numpy", reason="numpy comes with the stack")
    words = ("--model=mine:network", "--lr=0.05")
    done = runs.learn(*words, "--epochs=3", "--export=out")
    again = runs.learn(*words, "--epochs=0", "--weights=out", ranks=2, job="scored")
    assert done.metrics["test_images"] % 2 == 1, "shards of uneven size"
    assert again.metrics == pytest.approx(done.metrics)
    np.save(runs.folder / "images.npy", np.random.default_rng(1).random((3, 8, 8, 1), np.float32))
    exported = runs.script("-c", PLAIN, "out", "images.npy", PYTHONHASHSEED="1")
    for form in ("weights", "saved_model"):
        for row, wanted in zip(exported[form], exported["keras"], strict=True):
            assert row == pytest.approx(wanted, rel=1e-4, abs=1e-5)
    assert json.loads((runs.folder / "out/model.json").read_text())["classes"] == 10
    said = "the directory of --export exists"
    runs.learn(*words, "--steps=1", "--export=out", job="refused", code=2, says=said)
    tuned = runs.learn(*words, "--steps=5", "--weights=out", "--export=tuned-out", job="tuned")
    assert tuned.losses[0] < 0.5, "it begins with what was learnt"


WITHOUT = """
import tensorflow as tf
layers = tf.keras.layers

def sequential(shape, classes):
    return tf.keras.Sequential([layers.Flatten(), layers.Dense(classes)])

class Secret(layers.Layer):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
    def call(self, x):
        return self.inner(x)
    def get_config(self):
        raise NotImplementedError("it has no config")

def secret(shape, classes):
    return tf.keras.Sequential([tf.keras.Input(shape), layers.Flatten(),
                                Secret(layers.Dense(8)), layers.Dense(classes)])
"""


def test_whether_a_model_can_be_exported_is_known_before_training(runs):
    runs.write("without.py", WITHOUT)
    words = ("--steps=3", "--export=out")
    runs.learn(*words, "--model=without:sequential", says="model exported")
    done = runs.learn(
        "--steps=3",
        "--export=secret-out",
        "--model=without:secret",
        job="no",
        code=2,
        says="Keras cannot write the model",
    )
    assert done.result["steps"]["done"] == 0


def test_what_cannot_be_loaded_or_chosen_is_refused_before_a_step(runs):
    runs.refused(
        (("--weights=none",), "there are no weights at none"),
        (("--weights=mine.py",), "the weights in mine.py cannot be read"),
        (("--epochs=0",), "there is no checkpoint to evaluate"),
        (("--dataset=mine:untested", "--target-accuracy=0.5"), "cannot be evaluated"),
    )
    for path in runs.folder.glob("refused-*/result.json"):
        assert not json.loads(path.read_text()).get("steps", {}).get("done"), path


def test_weights_of_another_network_are_refused_by_layer(runs):
    for name, width in (("a", 8), ("b", 9)):
        runs.write(f"{name}.py", NORMALIZED.replace("Conv2D(8", f"Conv2D({width}"))
    runs.learn("--steps=1", "--model=a:network", "--export=out")
    said = "first/kernel: (3, 3, 1, 8) there, (3, 3, 1, 9) here"
    runs.learn("--steps=1", "--model=b:network", "--weights=out", job="b", code=2, says=said)


def test_a_run_that_is_refused_leaves_the_result_of_the_one_before(runs):
    words = ("--steps=4", "--export=out")
    whole = runs.learn(*words)
    runs.learn(*words, says="this run has ended")
    runs.learn("--steps=8", "--lr=0.9", code=2)
    runs.learn("--steps=8", "--callback=none", code=2)
    assert whole.result["outcome"]["status"] == "completed"
    assert len(whole.result["samples"]["seconds"]) == 4


def test_weights_are_scored_beside_a_checkpoint_and_loaded_by_name(runs):
    first = runs.learn("--checkpoint-every=2", "--steps=2")
    runs.learn("--checkpoint-every=2", "--steps=20", job="more")
    given = f"--weights={first.folder}/checkpoints/step-000000002.ckpt"
    scored = runs.learn("--checkpoint-every=2", "--epochs=0", given, job="more")
    assert scored.metrics == first.metrics
    runs.learn("--steps=2", given, job="tuned", says="weights of")


def test_a_network_with_bfloat16_variables_is_resumed(runs):
    more = "layers.Dense(16, dtype='bfloat16'), layers.Dense("
    runs.write("half.py", NORMALIZED.replace("layers.Dense(", more))
    words = ("--model=half:network", "--checkpoint-every=2", "--optimizer=adam")
    runs.learn(*words, "--steps=2")
    runs.learn(*words, "--steps=4", says="resumed after step 2")


ELSEWHERE = """
import json, sys
from pathlib import Path
import h5py
from hpcdl.system.errors import BadInput
from hpcdl.train.models import _require_own_arrays
secret, found = sys.argv[1], {}
virtual = h5py.VirtualLayout((4,), "f4")
virtual[:] = h5py.VirtualSource(secret, "x", (4,))
for name, make in {
    "own": lambda file: file.create_dataset("a/x", (4,), "f4"),
    "storage": lambda file: file.create_dataset("a/x", (4,), "f4", external=[(secret, 0, 16)]),
    "link": lambda file: file.__setitem__("a/x", h5py.ExternalLink(secret, "x")),
    "virtual": lambda file: file.create_virtual_dataset("a/x", virtual),
}.items():
    with h5py.File(f"{name}.weights.h5", "w") as file:
        file.create_group("a")
        make(file)
        file["a/again"] = h5py.SoftLink("/a")
    try:
        _require_own_arrays(Path(f"{name}.weights.h5"))
        found[name] = ""
    except BadInput as fault:
        found[name] = fault.message
print(json.dumps(found))
"""


def test_weights_that_lie_in_another_file_are_refused(runs):
    """Keras before 3.13 reads them: a secret of whoever trains would be in what is exported."""
    runs.write("secret", "x" * 16)
    found = runs.script("-c", ELSEWHERE, runs.folder / "secret")
    assert found.pop("own") == ""
    for name, said in found.items():
        assert said == f"{name}.weights.h5 keeps 'a/x' in another file, which is not read"


HALVES = """
import tensorflow as tf
def net(shape, classes):
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    layers = tf.keras.layers
    return tf.keras.Sequential([tf.keras.Input(shape), layers.Flatten(),
                                layers.Dense(16), layers.Dense(classes, dtype="float32")])
"""


def test_a_model_of_halves_shows_the_loss_of_each_step(runs):
    """Found by trying: Keras puts another optimizer around the averaging one at compile."""
    runs.write("halves.py", HALVES)
    losses = runs.learn("--model=halves:net", "--steps=12", "--lr=0.05").losses
    changes = [later - one for one, later in itertools.pairwise(losses)]
    assert max(changes) > 0.01, "a running mean of the epoch falls smoothly"
