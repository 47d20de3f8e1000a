"""Models in and out: exported, loaded by plain Keras, tuned, scored, predicted, validated."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.train_runs import Runs, environment

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


def loaded_by_keras(runs: Runs, folder: Path, images: Any) -> dict[str, Any]:
    np = pytest.importorskip("numpy", reason="numpy comes with the stack")
    np.save(runs.folder / "images.npy", images)
    done = subprocess.run([str(runs.python), "-c", PLAIN, str(folder), "images.npy"], text=True,
                          cwd=runs.folder, env=environment() | {"PYTHONHASHSEED": "1"},
                          capture_output=True, timeout=300, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_model_is_exported_loaded_by_keras_alone_and_tuned_on(runs, digits):
    (runs.folder / "mine.py").write_text(NORMALIZED)
    words = ("--data", str(digits), "--model=mine:network", "--lr=0.05")
    done = runs.train(*words, "--epochs=3", "--export=out", "--predict=table.csv")
    assert done.code == 0, done.err
    table = [line.split(",") for line in (runs.folder / "table.csv").read_text().splitlines()]
    assert table[0] == ["index", "label", *(f"p_{k}" for k in range(10))]
    rows = [[float(value) for value in row] for row in table[1:]]
    right = sum(row[1] == row[2:].index(max(row[2:])) for row in rows) / len(rows)
    assert right == pytest.approx(done.result["summary"]["metrics"]["accuracy"])
    again = runs.train(*words, "--evaluate", "--weights=out", "--predict=again.csv", ranks=2,
                       job="scored")  # fmt: skip
    assert again.code == 0, again.err
    assert again.result["summary"]["metrics"] == pytest.approx(done.result["summary"]["metrics"])
    two = [line.split(",") for line in (runs.folder / "again.csv").read_text().splitlines()[1:]]
    assert [row[:2] for row in two] == [row[:2] for row in table[1:]], "in the test set's order"
    for one, other in zip(two, table[1:], strict=True):
        assert [float(x) for x in one] == pytest.approx([float(x) for x in other], abs=1e-4)
    np = pytest.importorskip("numpy", reason="numpy comes with the stack")
    images = np.random.default_rng(1).random((3, 8, 8, 1), np.float32)
    by_form = loaded_by_keras(runs, Path("out"), images)
    for form in ("weights", "saved_model"):
        for row, wanted in zip(by_form[form], by_form["keras"], strict=True):
            assert row == pytest.approx(wanted, rel=1e-4, abs=1e-5)
    assert json.loads((runs.folder / "out/model.json").read_text())["classes"] == 10
    refused = runs.train(*words, "--steps=1", "--export=out", job="refused")
    assert (refused.code, "the directory of --export exists" in refused.err) == (2, True)
    tuned = runs.train(*words, "--steps=5", "--weights=out", "--freeze=first,batch*",
                       "--export=tuned-out", job="tuned")  # fmt: skip
    assert tuned.code == 0, tuned.err
    assert tuned.result["samples"]["loss"][0] < 0.5, "it begins with what was learnt"
    kept, moved = (
        loaded_by_keras(runs, Path(name), images)["digests"] for name in ("out", "tuned-out")
    )
    same = {name for name, data in kept.items() if moved[name] == data}
    assert len(same) == len(kept) - 2, "all but the kernel and the bias of the last layer"


def test_the_mlp_is_exported_like_any_other(runs, digits):
    done = runs.train("--data", str(digits), "--epochs=2", "--export=out")
    assert done.code == 0, done.err
    again = runs.train("--data", str(digits), "--evaluate", "--weights=out", job="again")
    ours, theirs = (one.result["summary"]["metrics"] for one in (done, again))
    assert ours == pytest.approx(theirs)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--weights=none",), "there are no weights at none"),
        (("--weights=mine.py",), "the weights in mine.py cannot be read"),
        (("--evaluate",), "there is no checkpoint to evaluate"),
        (("--freeze=hiden0",), "no layer is named 'hiden0'"),
        (("--freeze=*",), "leaves nothing to train"),
        (("--best=accuracy",), "need validations"),
        (("--best=acuracy", "--validate-steps=2"), "there is no metric 'acuracy'"),
        (("--data=synthetic", "--predict=a.csv"), "--predict needs a test set"),
        (("--data=synthetic", "--best=accuracy", "--validate-steps=2"), "--best needs a test set"),
        (("--dataset=mine:untested", "--target-accuracy=0.5"), "cannot be evaluated"),
    ],
    ids=lambda words: words[0] if isinstance(words, tuple) else "",
)
def test_what_cannot_be_loaded_or_chosen_is_refused(runs, digits, words, said):
    (runs.folder / "mine.py").write_text(NORMALIZED + UNTESTED)
    done = runs.train("--data", str(digits), "--steps=2", *words)
    assert (done.code, said in done.err) == (2, True), done.err
    assert "Traceback" not in done.err
    assert not done.result.get("steps", {}).get("done"), "before a step is done"


def test_weights_of_another_network_are_refused_by_layer(runs, digits):
    (runs.folder / "mine.py").write_text(NORMALIZED.replace("Conv2D(8", "Conv2D(WIDTH"))
    (runs.folder / "a.py").write_text("WIDTH = 8\n" + (runs.folder / "mine.py").read_text())
    (runs.folder / "b.py").write_text("WIDTH = 9\n" + (runs.folder / "mine.py").read_text())
    words = ("--data", str(digits), "--steps=1")
    assert runs.train(*words, "--model=a:network", "--export=out").code == 0
    done = runs.train(*words, "--model=b:network", "--weights=out", job="b")
    assert done.code == 2
    assert "first/kernel: (3, 3, 1, 8) there, (3, 3, 1, 9) here" in done.err


def test_validation_keeps_the_best_weights_and_ends_early(runs, digits):
    words = ("--data", str(digits), "--validate-steps=15", "--best=test_loss", "--patience=2",
             "--global-batch=64", "--lr=0.4")  # fmt: skip
    whole = runs.train(*words, "--steps=2000")
    assert whole.code == 0, whole.err
    found = whole.result["validations"]
    steps, losses = [one["step"] for one in found], [one["test_loss"] for one in found]
    assert steps == list(range(15, 15 * len(steps) + 1, 15))
    assert losses.index(min(losses)) == len(losses) - 3, "two in vain end it"
    assert whole.result["steps"]["done"] == steps[-1] < 2000
    assert whole.result["summary"]["metrics"]["test_loss"] == pytest.approx(min(losses), rel=1e-5)
    assert all(one["test_images"] == found[0]["test_images"] for one in found)
    parts = ("--steps=40", "--checkpoint-every=7", "--deterministic")
    runs.train(*words[:3], *words[5:], "--steps=30", *parts[1:], job="parts", ranks=2)
    rest = runs.train(*words[:3], *words[5:], *parts, job="parts", ranks=2)
    assert [one["step"] for one in rest.result["validations"]] == [15, 30], "kept over a resume"


@pytest.mark.parametrize(
    ("option", "package", "begins"),
    [("--export=model.onnx", "tf2onnx", b"\x08"), ("--predict=table.parquet", "pyarrow", b"PAR1")],
    ids=["onnx", "parquet"],
)
def test_other_forms_are_written_by_packages_that_a_release_has_not(
    runs, digits, option, package, begins
):
    """Refused before a step is done where the package is missing; else the file is of its form."""
    (runs.folder / "mine.py").write_text(NORMALIZED)
    done = runs.train("--data", str(digits), "--model=mine:network", "--steps=2", option)
    there = subprocess.run([runs.python, "-c", f"import {package}"], capture_output=True,
                           env=environment(), check=False)  # fmt: skip
    if there.returncode:
        said = f"{option.replace('=', ' ')} needs {package}, which is not installed"
        begun = done.result["steps"]["done"]
        assert (done.code, said in done.err, begun) == (3, True, 0), done.err
    else:
        written = runs.folder / option.partition("=")[2]
        assert (done.code, written.read_bytes()[: len(begins)]) == (0, begins), done.err


def test_a_run_that_is_refused_leaves_the_result_of_the_one_before(runs, digits):
    words = ("--data", str(digits), "--steps=4", "--export=out")
    whole = runs.train(*words)
    again = runs.train(*words)
    assert (again.code, "this run has ended" in again.out + again.err) == (0, True), again.err
    assert runs.train("--data", str(digits), "--steps=8", "--lr=0.9").code == 2
    assert runs.train("--data", str(digits), "--steps=8", "--best=none").code == 2
    assert whole.result["outcome"]["status"] == "completed"
    assert len(whole.result["samples"]["seconds"]) == 4


def test_weights_are_scored_beside_a_checkpoint_and_loaded_by_name(runs, digits):
    words = ("--data", str(digits), "--checkpoint-every=2")
    first = runs.train(*words, "--steps=2")
    runs.train(*words, "--steps=20", job="more")
    given = f"--weights={first.folder}/checkpoints/step-000000002.ckpt"
    scored = runs.train(*words, "--evaluate", given, job="more")
    assert scored.result["summary"]["metrics"] == first.result["summary"]["metrics"]
    tuned = runs.train(*words, "--steps=2", "--freeze=hidden0", given, job="tuned")
    assert (tuned.code, "weights of" in tuned.out + tuned.err) == (0, True), tuned.err


def test_a_run_that_is_resumed_before_its_best_step_finds_the_new_best(runs, digits):
    words = ("--data", str(digits), "--validate-steps=2", "--checkpoint-every=4",
             "--best=test_loss", "--keep-checkpoints=3")  # fmt: skip
    runs.train(*words, "--steps=8")
    for path in (runs.folder / "job/checkpoints").glob("step-*8.ckpt"):
        path.write_bytes(b"")
    done = runs.train(*words, "--steps=6")
    found = min(done.result["validations"], key=lambda one: one["test_loss"])
    assert [one["step"] for one in done.result["validations"]] == [2, 4, 6]
    assert done.result["summary"]["metrics"]["test_loss"] == pytest.approx(found["test_loss"])


def test_a_network_with_bfloat16_variables_is_resumed(runs, digits):
    (runs.folder / "mine.py").write_text(NORMALIZED.replace(
        "layers.Dense(", "layers.Dense(16, dtype='bfloat16'), layers.Dense("))  # fmt: skip
    words = ("--data", str(digits), "--model=mine:network", "--checkpoint-every=2",
             "--optimizer=adam")  # fmt: skip
    assert runs.train(*words, "--steps=2").code == 0
    rest = runs.train(*words, "--steps=4")
    assert (rest.code, "resumed after step 2" in rest.out + rest.err) == (0, True), rest.err
