"""`hpcdl train` beside plain `fit`, ranks beside single runs, and the start-up.

Ratios are medians over turns inside one run, of CPU time.
"""

import re
import statistics
import subprocess
from functools import partial

from tests.bench import children, report, timed
from tests.bench.training import ROOT, runs
from tests.integration.train_runs import environment

_TURNS = 7
_VIT, _GPT = "examples.transformers:vit_s16", "examples.transformers:gpt"
_LARGE = (
    # network, options of ours, batch, goal
    ("resnet50", (), 8, 1.0),
    ("resnet50", ("--set=fit.fused=false",), 8, None),
    (_VIT, (), 8, 1.0),
    (_GPT, ("--dataset=tests.bench.cpu_steps:text",), 4, 1.0),
)


def _run(made, words):
    return subprocess.run(
        [made.python, *map(str, words)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        env=environment() | {"PYTHONPATH": str(ROOT)},
    ).stdout


def _ours(made, model, batch, *more):
    words = ("-m", "hpcdl.train", f"--model={model}", f"--batch-per-rank={batch}", *more)
    return (
        *words,
        "--checkpoint-every=0",
        "--lr=0.0001",
        "--fresh",
        f"--job-dir={made.folder}/fit",
    )


def _large(made):
    """A step of large networks beside a step of `fit`: CPU time inside the process, in turns."""
    cpu = "--callback=tests.bench.cpu_steps:CpuSteps"
    for model, more, batch, least in _LARGE:
        sides = {
            "ours": _ours(made, model, batch, "--steps=8", cpu, *more),
            "fit": ("-m", "tests.bench.train_fit", model, batch, 8, 0),
        }
        seconds = {side: [] for side in sides}
        for _ in range(_TURNS):
            for side, words in sides.items():
                (line,) = re.findall("^CPU (.*)", _run(made, words), re.M)
                seconds[side].append(float(line))
        ours, fit = (statistics.median(seconds[side]) for side in sides)
        report(
            " ".join(["step:", model, *more[:1], f"batch {batch}, beside model.fit"]),
            fit / ours,
            "x",
            least=least,
            yardstick=f"fit: {fit:.2f} CPU-s a step",
            note=f"ours: {ours:.2f}; {seconds}",
        )


def _small(made):
    """A step of the MLP beside `fit`: long runs less short ones, in turns."""
    for grouped, least in ((1, 1.2), (64, 1.0)):
        ratios = []
        for _ in range(_TURNS):
            spent = {}
            for steps in (6400, 2000):
                ours = _ours(made, "mlp", 64, f"--steps={steps}")
                plain = ("-m", "tests.bench.train_fit", "mlp", 64, steps, grouped)
                for side, words in (("ours", ours), ("fit", plain)):
                    spent[side, steps] = timed(partial(_run, made, words), children)
            ours, fit = (spent[side, 6400] - spent[side, 2000] for side in ("ours", "fit"))
            ratios.append(fit / max(1e-9, ours))
        report(
            f"step: mlp, batch 64, beside model.fit with steps_per_execution={grouped}",
            statistics.median(ratios),
            "x",
            least=least,
            yardstick="fit",
            note=f"by CPU time: {', '.join(f'{ratio:.2f}' for ratio in ratios)}",
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
            spent[name].append(timed(partial(_run, made, words), children))
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
        _large(made)
        _small(made)
        _checkpoint(made)
        _ranks(made)
