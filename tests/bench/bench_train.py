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
_VIT, _GPT = "examples.transformers:vit_s16", "examples.transformers:gpt"
_STEPS = (
    # network, batch, steps of the long and of the short run, turns, steps per call of fit, goal
    ("resnet50", 8, 5, 2, 3, 1, 1.0),
    ("resnet50 --set=fit.fused=false", 8, 5, 2, 3, 1, None),
    (_VIT, 8, 4, 2, 3, 1, 1.0),
    (_GPT, 4, 4, 2, 3, 1, 1.0),
    ("mlp", 64, 6400, 2000, 5, 1, 1.2),
    ("mlp", 64, 6400, 2000, 5, 64, 1.0),
)


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
    for name, batch, long, short, turns, grouped, least in _STEPS:
        model, *more = name.split()
        ours = ["-m", "hpcdl.train", f"--model={model}", f"--batch-per-rank={batch}", *more]
        ours += ["--checkpoint-every=0", "--lr=0.0001", "--fresh", f"--job-dir={made.folder}/fit"]
        ours += ["--dataset=examples.transformers:corpus"] if model == _GPT else []
        plain = ("-m", "tests.bench.train_fit", model, batch)
        ratios = []
        for _ in range(turns):
            mine = [_spent(made, [*ours, f"--steps={n}"]) for n in (long, short)]
            theirs = [_spent(made, [*plain, n, grouped]) for n in (long, short)]
            ratios.append((theirs[0] - theirs[1]) / max(1e-9, mine[0] - mine[1]))
        report(
            f"step: {name}, batch {batch}, beside model.fit",
            statistics.median(ratios),
            "x",
            least=least,
            yardstick=f"fit, steps_per_execution={grouped}",
            note=f"by CPU time, in turns: {', '.join(f'{ratio:.3f}' for ratio in ratios)}",
        )


def _checkpoint(made):
    """What a checkpoint of ResNet-50 delays, as a part of an epoch of 100 steps."""
    words = ("--model=resnet50", "--batch-per-rank=8", "--steps=8", "--checkpoint-every=4")
    samples = made.train(*words, "--lr=0.0001", job="saved", timeout=900).result["samples"]
    share = samples["checkpoint"][3] / (100 * statistics.median(samples["seconds"][4:7]))
    note = "the first of two; its file is written while training goes on"
    report("checkpoint: part of 100 steps", share, "", most=0.005, note=note)


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
        most=1.05,
        yardstick=f"plain Keras: {medians['keras']:.2f} CPU-s",
        note=f"ours: {medians['ours']:.2f} CPU-s, with its checkpoint and result",
    )


def main():
    with runs() as made:
        _startup(made)
        _fit(made)
        _checkpoint(made)
        _ranks(made)
