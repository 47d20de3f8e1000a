"""Training checks without ReFrame: which job, what it measures, what must hold. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdl.jobs.spec import JobSpec
from hpcdl.regress.result import Measured, losses_fall
from hpcdl.site import Partition, Site

IMAGES_PER_SECOND = "images_per_second"
BEST_IMAGES_PER_SECOND = "best_images_per_second"
MINUTES = 10
WINDOW_STEPS, WARMUP_STEPS = 20, 5


@dataclass(frozen=True)
class TrainingCase:
    """One training: a model, its data, and how it lies on nodes.

    `steps` of the whole run, `batch` images per rank and step, `ranks` per node. `data` is a
    folder below the site's data sets, or `synthetic`.
    """

    model: str
    nodes: int
    ranks: int
    steps: int
    batch: int
    data: str = "digits"
    precision: str = "fp32"

    def __str__(self) -> str:
        return f"{self.model}-{self.nodes}x{self.ranks}-{self.data}-{self.precision}"

    def request(self, site: Site, partition: Partition, name: str) -> JobSpec:
        """The job, as a user would ask for it."""
        per_node = (
            {"gpus_per_node": self.ranks} if partition.gpu else {"tasks_per_node": self.ranks}
        )
        return JobSpec(
            partition=partition.name,
            nodes=self.nodes,
            minutes=min(MINUTES, partition.max_minutes),
            name=f"{name}-{self}",
            program=("hpcdl", "train", *self._options(site)),
            **per_node,  # type: ignore[arg-type]
        )

    def _options(self, site: Site) -> tuple[str, ...]:
        synthetic = self.data == "synthetic"
        options = {
            "model": self.model,
            "data": "synthetic" if synthetic else str(site.paths.datasets / self.data),
            "steps": str(self.steps),
            "batch-per-rank": str(self.batch),
            "precision": self.precision,
            "checkpoint-every": "0",
        }
        return tuple(f"--{name}={value}" for name, value in options.items())


def images_per_second(measured: Measured) -> float | None:
    """The median over the steps after the warm-up, over all ranks."""
    return measured.number("summary", IMAGES_PER_SECOND)


def best_images_per_second(measured: Measured) -> float | None:
    """The rate over the best `WINDOW_STEPS` consecutive steps after the warm-up, over all ranks.

    What disturbs a machine only ever slows a step down, so the best window is what the software
    can do: it halves when every step takes twice as long, and stays when a neighbour is noisy.
    """
    samples = measured.values.get("samples")
    if not isinstance(samples, Mapping):
        return None
    seconds, images = samples.get("seconds"), samples.get("images")
    if not isinstance(seconds, list) or not isinstance(images, list):
        return None
    pairs = list(zip(images, seconds, strict=False))[WARMUP_STEPS:]
    windows = (pairs[i : i + WINDOW_STEPS] for i in range(len(pairs) - WINDOW_STEPS + 1))
    rates = [sum(n for n, _ in window) / sum(s for _, s in window) for window in windows]
    return max(rates, default=None)


def training_faults(
    measured: Measured, layout: Mapping[str, Any], release: str | None
) -> list[str]:
    """What is wrong with a training's result, in words."""
    if measured.faults:
        return list(measured.faults)
    ranks = int(layout["nodes"]) * int(layout["tasks_per_node"])
    found = [
        _wrong_world(measured, ranks),
        _wrong_release(measured, release),
        losses_fall(_losses(measured)),
        _too_short(measured),
        _unfinished(measured),
    ]
    return [fault for fault in found if fault]


def _wrong_world(measured: Measured, ranks: int) -> str | None:
    world = measured.number("layout", "ranks")
    if world == ranks:
        return None
    return f"the training ran on {world or 0:.0f} ranks, not on the {ranks} of its layout"


def _wrong_release(measured: Measured, release: str | None) -> str | None:
    ran = measured.text("release", "id") or measured.text("release")
    if release is None or ran == release:
        return None
    return f"the job used release '{ran or 'unknown'}', not the site's '{release}'"


def _losses(measured: Measured) -> Sequence[float]:
    samples = measured.values.get("samples")
    losses = samples.get("loss") if isinstance(samples, Mapping) else None
    if not isinstance(losses, list):
        return ()
    return [float("nan") if loss is None else float(loss) for loss in losses]


def _too_short(measured: Measured) -> str | None:
    steps = measured.number("summary", "steps_measured") or 0
    if steps >= WINDOW_STEPS:
        return None
    return f"insufficient data: {steps:.0f} steps were measured, at least {WINDOW_STEPS} count"


def _unfinished(measured: Measured) -> str | None:
    status = measured.text("outcome", "status") or measured.text("outcome")
    return None if status == "completed" else f"the training ended as '{status or 'unknown'}'"
