"""What the checks of training have in common: their jobs, their rates, and what must hold."""

import math
from dataclasses import dataclass, replace
from statistics import fmean as mean

from hpcdl.regress.result import reads
from hpcdl.regress.training import MINUTES, job_on, ranks_on, shape_name
from hpcdl.results.faults import FaultKind, JobFault
from hpcdl.results.records import at
from hpcdl.system.errors import BadInput

IMAGES_PER_SECOND = "images_per_second"
BEST_IMAGES_PER_SECOND = "best_images_per_second"
WINDOW_STEPS, WARMUP_STEPS = 20, 5
HALF_SINCE = 6.0  # compute capability from which half precision is computed as such


@dataclass(frozen=True)
class TrainingCase:
    """One training: a model, its data, and its layout on nodes.

    `steps` of the whole run, `batch` images per rank and step, `ranks` per node (or ALL).
    `data` is a directory below the site's data sets, or `synthetic`. `real` ones need real GPUs.
    """

    model: str
    nodes: int
    ranks: int
    steps: int
    batch: int
    data: str = "digits"
    precision: str = "fp32"
    real: bool = False
    tags: tuple[str, ...] = ("nightly",)
    minutes: int = MINUTES

    def __str__(self):
        return f"{self.model}-{shape_name(self.nodes, self.ranks)}-{self.data}-{self.precision}"

    def on(self, partition):
        """The case with its number of ranks on a partition."""
        return replace(self, ranks=ranks_on(partition, self.ranks))

    def request(self, site, partition, name):
        """The job, as a user would ask for it.

        Raises BadInput: the partition cannot run it, or the data set is not there.
        """
        gpu = partition.gpu
        half = gpu is not None and float(gpu.compute) >= HALF_SINCE
        if self.real and (gpu is None or (self.precision == "fp16" and not half)):
            raise BadInput(f"'{partition.name}' is not for {self}")
        named_set = self.data not in {"synthetic", "digits"}
        if named_set and not (site.paths.datasets / self.data / "dataset.json").exists():
            raise BadInput(f"there is no data set {self.data} in {site.paths.datasets}")
        return job_on(
            partition,
            f"{name}-{self.on(partition)}",
            ("hpcdl", "train", *self._options(site)),
            nodes=self.nodes,
            ranks=self.ranks,
            minutes=self.minutes,
        )

    def _options(self, site):
        data = self.data if self.data == "synthetic" else site.paths.datasets / self.data
        return (
            f"--model={self.model}",
            f"--data={data}",
            f"--steps={self.steps}",
            f"--batch-per-rank={self.batch}",
            f"--precision={self.precision}",
            "--checkpoint-every=0",
        )


images_per_second = reads("summary", IMAGES_PER_SECOND)
"""The median over the steps after the warm-up, over all ranks."""


def best_images_per_second(measured):
    """The rate over the best `WINDOW_STEPS` consecutive steps after the warm-up, over all ranks.

    What disturbs a machine only ever slows a step down, so the best window is what the software
    can do: it halves when every step takes twice as long, and stays when a neighbour is noisy.
    """
    seconds, images = (at(measured.values, "samples", name) for name in ("seconds", "images"))
    if not seconds or not images or None in (*seconds, *images):
        return None
    pairs = list(zip(images, seconds, strict=False))[WARMUP_STEPS:]
    windows = (pairs[i : i + WINDOW_STEPS] for i in range(len(pairs) - WINDOW_STEPS + 1))
    rates = [sum(n for n, _ in window) / sum(s for _, s in window) for window in windows]
    return max(rates, default=None)


def training_faults(measured):
    """Return the faults of a training's result, beside those of any job's."""
    if measured.faults:
        return []
    fault = losses_fall(losses(measured))
    found = [fault] if fault else []
    steps = measured.number("summary", "steps_measured") or 0
    if steps < WINDOW_STEPS:
        text = f"insufficient data: {steps:.0f} steps were measured, at least {WINDOW_STEPS} count"
        found.append(JobFault(FaultKind.FEW_STEPS, text, wanted=WINDOW_STEPS, got=steps))
    return found


def losses_fall(curve):
    """Why a series of losses is not that of a training that works, or None.

    The mean of the last quarter must lie below that of the first; every loss must be finite.
    """
    if len(curve) < 2:
        text = "missing metric: fewer than two losses were recorded"
        return JobFault(FaultKind.NO_METRIC, text, "loss", wanted=2, got=len(curve))
    if not all(map(math.isfinite, curve)):
        return JobFault(FaultKind.LOSS, "the loss is not finite", "loss")
    quarter = max(1, len(curve) // 4)
    first, last = mean(curve[:quarter]), mean(curve[-quarter:])
    if last < first:
        return None
    text = f"the loss does not fall: {first:.4g} at first, {last:.4g}"
    return JobFault(FaultKind.LOSS, text, "loss", wanted=first, got=last)


def losses(measured):
    """The loss of every step; not a number where there was none."""
    found = at(measured.values, "samples", "loss")
    if not isinstance(found, list):
        return ()
    return [float("nan") if loss is None else float(loss) for loss in found]
