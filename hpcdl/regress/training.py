"""What checks of training have in common: the job, its rates, and what must hold. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean as mean

from hpcdl.jobs.spec import JobSpec
from hpcdl.regress.result import Measured, reads
from hpcdl.results.faults import FaultKind, JobFault
from hpcdl.results.records import at
from hpcdl.site import Partition, Site
from hpcdl.system.errors import BadInput

IMAGES_PER_SECOND = "images_per_second"
BEST_IMAGES_PER_SECOND = "best_images_per_second"
MINUTES = 10
WINDOW_STEPS, WARMUP_STEPS = 20, 5
_HALF_SINCE = 6.0  # compute capability from which half precision is computed as such
SIZES = (1 << 16, 1 << 20, 1 << 24, 1 << 26)
"""Bytes of the all-reduce: a small layer's gradient, Horovod's fusion at work, what large models
send. Their references say what a job's gradients meet, and its expectation starts from them."""
SMALL_SIZES = (1 << 16, 1 << 20, 1 << 22)
"""On a single node: its memory carries everything several times."""
_BINARY = ((1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
ALL = 0
"""Instead of a number of ranks: one per GPU of the node, or per socket without GPUs."""


def ranks_on(partition: Partition, ranks: int) -> int:
    """Ranks per node, where `ranks` may be ALL."""
    return ranks or partition.gpus_per_node or partition.sockets


def shape_name(nodes: int, ranks: int) -> str:
    """`2x4`, or `2xall`."""
    return f"{nodes}x{ranks or 'all'}"


def metric_name(size: int) -> str:
    """The metric of messages of a size: `bus_gbs_4MiB`."""
    unit, name = next(one for one in _BINARY if size >= one[0])
    return f"bus_gbs_{size // unit}{name}"


def job_on(
    partition: Partition,
    name: str,
    program: tuple[str, ...],
    *,
    nodes: int = 1,
    ranks: int = 1,
    minutes: int = MINUTES,
) -> JobSpec:
    """A job of `ranks` per node, as a user would ask for it on this partition."""
    count = ranks_on(partition, ranks)
    per_node = {"gpus_per_node": count} if partition.gpu else {"tasks_per_node": count}
    return JobSpec(
        partition=partition.name,
        nodes=nodes,
        minutes=min(minutes, partition.max_minutes),
        name=name,
        program=program,
        gpu_model=partition.gpu_asked_for,
        **per_node,  # type: ignore[arg-type]
    )


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

    def __str__(self) -> str:
        return f"{self.model}-{shape_name(self.nodes, self.ranks)}-{self.data}-{self.precision}"

    def on(self, partition: Partition) -> TrainingCase:
        """The case with its number of ranks on a partition."""
        return replace(self, ranks=ranks_on(partition, self.ranks))

    def request(self, site: Site, partition: Partition, name: str) -> JobSpec:
        """The job, as a user would ask for it.

        Raises BadInput: the partition cannot run it, or the data set is not there.
        """
        gpu = partition.gpu
        half = gpu is not None and float(gpu.compute) >= _HALF_SINCE
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

    def _options(self, site: Site) -> tuple[str, ...]:
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


def best_images_per_second(measured: Measured) -> float | None:
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


def training_faults(measured: Measured) -> list[JobFault]:
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


def losses_fall(curve: Sequence[float]) -> JobFault | None:
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


def losses(measured: Measured) -> Sequence[float]:
    """The loss of every step; not a number where there was none."""
    found = at(measured.values, "samples", "loss")
    if not isinstance(found, list):
        return ()
    return [float("nan") if loss is None else float(loss) for loss in found]
