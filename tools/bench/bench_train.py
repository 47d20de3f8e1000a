"""`hpcdl train` beside plain Keras and tf.data, ranks beside single runs, checkpoints, start-up.

Ratios are medians over turns inside one run, of CPU time.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from tests.integration.train_runs import ROOT, Runs, environment
from tools.bench import children, report, timed

_TURNS = 7
_NETWORKS = (
    ("resnet50", 8),
    ("examples.transformers:vit_s16", 8),
    ("examples.transformers:gpt", 4),
)
# The mlp without what hpcdl adds: steps, and how many a call runs.
_PLAIN = """
import keras, sys, tensorflow as tf
steps, grouped = map(int, sys.argv[1:])
layers = keras.layers
model = keras.Sequential([keras.Input((28, 28, 1)), layers.Flatten(), layers.Dense(128, "relu"),
                          layers.Dense(32, "relu"), layers.Dense(10)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.0001, momentum=0.9), loss, metrics=["accuracy"],
              jit_compile=False, steps_per_execution=grouped)
batch = tf.random.uniform((64, 28, 28, 1)), tf.zeros(64, tf.int64)
data = tf.data.Dataset.from_tensors(batch).repeat(steps)
model.fit(data, steps_per_epoch=steps, verbose=0)
"""


def _python():
    """HPCDL_TEST_PYTHON, else the Python of the release that the tests share."""
    if named := os.environ.get("HPCDL_TEST_PYTHON"):
        return Path(named)
    from hpcdl.stack.build import build
    from hpcdl.system.resources import cache
    from tests.make.releases import plan_build
    from tests.make.sites import small_site

    site = small_site(cache() / "tests" / "prefix")
    return build(plan_build(site), lambda what: print(what, file=sys.stderr)).python


def _run(made, words):
    # As hpcdl train runs the mlp.
    env = environment() | {"PYTHONPATH": str(ROOT), "TF_ENABLE_ONEDNN_OPTS": "0"}
    subprocess.run(
        [made.python, *map(str, words)], cwd=ROOT, check=True, capture_output=True, env=env
    )


def _mlp(made, steps):
    words = ("-m", "hpcdl.train", "--model=mlp", "--batch-per-rank=64", f"--steps={steps}")
    return (
        *words,
        "--checkpoint-every=0",
        "--lr=0.0001",
        "--fresh",
        f"--job-dir={made.folder}/mlp",
    )


def _startup(made):
    """One step of a small network from nothing, the whole process, beside plain Keras."""
    sides = {"ours": _mlp(made, 1), "keras": ("-c", _PLAIN, 1, 1)}
    spent = {side: [] for side in sides}
    for _ in range(_TURNS + 1):
        for side, words in sides.items():
            spent[side].append(timed(partial(_run, made, words), children))
    ours, keras = (statistics.median(spent[side][1:]) for side in sides)
    report(
        "start to the first step and end: mlp, beside plain Keras",
        ours / keras,
        "x",
        most=1.05,
        yardstick=f"plain Keras: {keras:.2f} CPU-s",
        note=f"ours: {ours:.2f} CPU-s, with its checkpoint and result",
    )


def _small(made):
    """A step of the mlp beside `fit`, as it is and with steps_per_execution.

    Of long runs less short ones, in turns: so starts do not count.
    """
    sides = {
        "ours": lambda steps: _mlp(made, steps),
        "fit": lambda steps: ("-c", _PLAIN, steps, 1),
        "fit with steps_per_execution=64": lambda steps: ("-c", _PLAIN, steps, 64),
    }
    steps = {side: [] for side in sides}
    for _ in range(_TURNS):
        for side, words in sides.items():
            long, short = (timed(partial(_run, made, words(n)), children) for n in (6400, 640))
            steps[side].append((long - short) / 5760 * 1e6)
    ours = steps.pop("ours")
    for (side, spent), least in zip(steps.items(), (1.2, 1.0), strict=True):
        ratios = [fit / own for fit, own in zip(spent, ours, strict=True)]
        report(
            f"step: mlp, batch 64, beside {side}",
            statistics.median(ratios),
            "x",
            least=least,
            yardstick=f"fit: {statistics.median(spent):.0f} us",
            note=f"ours: {statistics.median(ours):.0f} us; "
            f"by CPU time: {', '.join(f'{ratio:.2f}' for ratio in ratios)}",
        )


def _large(made, network, batch):
    """A step of a large network beside Keras' own, and a checkpoint, in turns in one process."""
    words = ("-m", "tools.bench.train_steps", network, str(batch), str(_TURNS))
    found = made.script(*words, timeout=3600)
    medians = {side: statistics.median(seconds) for side, seconds in found.items()}
    for side in ("fused", "ours"):
        ratios = [fit / own for fit, own in zip(found["fit"], found[side], strict=True)]
        report(
            f"step: {network}, batch {batch}, {side}, beside Keras' own",
            statistics.median(ratios),
            "x",
            least=1.0 if side == "ours" else None,
            yardstick=f"Keras: {medians['fit']:.2f} CPU-s",
            note=f"by turn: {', '.join(f'{ratio:.2f}' for ratio in ratios)}",
        )
    share = medians["checkpoint"] / (100 * medians["ours"])
    report(f"checkpoint of {network}: part of 100 steps", share, "", most=0.005)


def _input(made):
    """Images read, decoded and augmented, beside a tuned tf.data pipeline, in turns."""
    made.photos("photos", "--count=640", "--shards=8")
    found = made.script("-m", "tools.bench.input_images", "photos", str(_TURNS), timeout=1200)
    ratios = [tuned / own for tuned, own in zip(found["tuned"], found["ours"], strict=True)]
    ours, tuned = (1e3 * statistics.median(found[side]) for side in ("ours", "tuned"))
    report(
        "input: JPEGs of 500 x 375 to 224 x 224, beside a tuned tf.data pipeline",
        statistics.median(ratios),
        "x",
        least=1.0,
        yardstick=f"tf.data: {tuned:.2f} CPU-ms an image",
        note=f"ours: {ours:.2f}; by turn: {', '.join(f'{ratio:.2f}' for ratio in ratios)}",
    )


def _rate(done):
    assert done.code == 0, done.err
    return float(done.result["summary"]["images_per_second"])


def _ranks(made):
    """Two ranks beside two runs of one rank each at the same time; each has a core of its own."""
    ratios, apart = [], 0.0
    for turn in range(_TURNS):
        alone = {f"alone-{turn}-{core}": ("taskset", "-c", str(core)) for core in range(2)}
        begun = {job: _pinned(made, job, launcher) for job, launcher in alone.items()}
        apart = sum(_rate(made.end(process, job, 900)) for job, process in begun.items())
        job = f"joined-{turn}"
        launcher = ("mpirun", "-np", "2", "--map-by", "core", "--bind-to", "core")
        process = _pinned(made, job, launcher)
        ratios.append(_rate(made.end(process, job, 900)) / apart)
    report(
        "2 ranks: share of two single runs",
        statistics.median(ratios),
        "x",
        least=0.95,
        yardstick=f"two runs of one rank at a time: {apart:.2f} images/s",
        note="resnet50, 224 px, batch 8, a core and a thread each; by the clock, by turn: "
        + ", ".join(f"{ratio:.2f}" for ratio in ratios),
    )


def _pinned(made, job, launcher):
    """A run of ResNet-50 with one thread per process, started by `launcher`."""
    words = "--model=resnet50 --steps=10 --warmup-steps=3 --batch-per-rank=8 --checkpoint-every=0"
    command = [str(made.python), "-m", "hpcdl.train", "--job-dir", str(made.folder / job)]
    # What a run sets for itself is measured, not what the tests set for containers.
    env = {key: value for key, value in environment().items() if "OMPI_MCA" not in key}
    return subprocess.Popen(
        [*launcher, *command, *words.split(), "--lr=0.0001"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=made.folder,
        env=env | {"SLURM_CPUS_PER_TASK": "1"},
        start_new_session=True,
    )


def main():
    with tempfile.TemporaryDirectory(prefix="hpcdl-bench-") as folder:
        made = Runs(_python(), Path(folder))
        _startup(made)
        _small(made)
        for network, batch in _NETWORKS:
            _large(made, network, batch)
        _input(made)
        _ranks(made)
