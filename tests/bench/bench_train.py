"""`hpcdl train` beside plain `fit`, ranks beside single runs, and the start-up.

Ratios are medians over turns inside one run, of CPU time.
"""

import statistics
import subprocess
from functools import partial

from tests.bench import children, report, timed
from tests.bench.training import ROOT, runs
from tests.integration.train_runs import environment

_TURNS = 7


def _spent(made, words):
    """CPU seconds of a program of the release's Python."""
    run = partial(
        subprocess.run,
        [made.python, *map(str, words)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        env=environment() | {"PYTHONPATH": str(ROOT)},
    )
    return timed(run, children)


def _fit(made):
    """A step of ours beside a step of `fit`: long runs less short ones, in turns."""
    for name, batch, steps, turns, grouped in (("mlp", 64, 6400, 7, 64), ("resnet50", 8, 6, 3, 1)):
        ours = (
            "-m",
            "hpcdl.train",
            f"--model={name}",
            f"--batch-per-rank={batch}",
            "--checkpoint-every=0",
            "--lr=0.0001",
            "--fresh",
            f"--job-dir={made.folder}/fit",
        )
        ratios = []
        for _ in range(turns):
            long, short = (_spent(made, [*ours, f"--steps={n}"]) for n in (steps, steps // 3))
            plain = ("-m", "tests.bench.train_fit", name, batch)
            theirs = [_spent(made, [*plain, n, grouped]) for n in (steps, steps // 3)]
            ratios.append((theirs[0] - theirs[1]) / max(1e-9, long - short))
        report(
            f"step: {name}, batch {batch}, beside model.fit",
            statistics.median(ratios),
            "x",
            least=0.95,
            yardstick=f"fit, steps_per_execution={grouped}",
            note="by CPU time, in turns, without XLA",
        )


def _rate(done):
    assert done.code == 0, done.err
    return float(done.result["summary"]["images_per_second"])


def _ranks(made):
    """Two ranks beside two runs of one rank each at the same time; each has a core of its own."""
    ratios, apart = [], 0.0
    for turn in range(2):
        alone = {f"alone-{turn}-{core}": ("taskset", "-c", str(core)) for core in range(2)}
        begun = {job: _pinned(made, job, launcher) for job, launcher in alone.items()}
        apart = sum(_rate(made.end(process, job, 900)) for job, process in begun.items())
        job = f"joined-{turn}"
        launcher = ("mpirun", "-np", "2", "--map-by", "core", "--bind-to", "core")
        process = _pinned(made, job, launcher)
        ratios.append(_rate(made.end(process, job, 900)) / apart)
    ratio = statistics.median(ratios)
    report(
        "2 ranks: share of two single runs",
        ratio,
        "x",
        least=0.95,
        yardstick=f"two runs of one rank at a time: {apart:.2f} images/s",
        note="resnet50, 224 px, batch 8, a core and a thread each; by the clock",
    )


def _pinned(made, job, launcher):
    """A run of ResNet-50 with one thread per process, started by `launcher`."""
    words = (
        "--model=resnet50",
        "--steps=10",
        "--warmup-steps=3",
        "--batch-per-rank=8",
        "--checkpoint-every=0",
        "--lr=0.0001",
    )
    command = [str(made.python), "-m", "hpcdl.train", "--job-dir", str(made.folder / job), *words]
    # What a run sets for itself is measured, not what the tests set for containers.
    env = {key: value for key, value in environment().items() if "OMPI_MCA" not in key}
    return subprocess.Popen(
        [*launcher, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=made.folder,
        env=env | {"SLURM_CPUS_PER_TASK": "1"},
        start_new_session=True,
    )


_PLAIN = """
import keras, numpy
layers = keras.layers
model = keras.Sequential([keras.Input((28, 28, 1)), layers.Flatten(), layers.Dense(128, "relu"),
                          layers.Dense(32, "relu"), layers.Dense(10)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, jit_compile=False)
images, labels = numpy.random.rand(64, 28, 28, 1), numpy.zeros(64, int)
model.fit(images, labels, batch_size=64, verbose=0)
"""


def _startup(made):
    """One step of a small network from nothing, the whole process, beside plain Keras."""
    ours = ["-m", "hpcdl.train", "--steps=1", "--fresh", "--job-dir", str(made.folder / "start")]
    spent = {"ours": [], "keras": []}
    for _ in range(_TURNS + 1):
        for name, words in (("ours", ours), ("keras", ["-c", _PLAIN])):
            run = partial(
                subprocess.run,
                [made.python, *words],
                check=True,
                capture_output=True,
                env=environment() | {"PYTHONPATH": str(ROOT)},
            )
            spent[name].append(timed(run, children))
    medians = {name: statistics.median(seconds[1:]) for name, seconds in spent.items()}
    ratio = medians["ours"] / medians["keras"]
    report(
        "start to the first step and end: mlp, beside plain Keras",
        ratio,
        "x",
        most=1,
        yardstick=f"plain Keras: {medians['keras']:.2f} CPU-s",
        note=f"ours: {medians['ours']:.2f} CPU-s, with its checkpoint and result",
    )


def main():
    with runs() as made:
        _startup(made)
        _fit(made)
        _ranks(made)
