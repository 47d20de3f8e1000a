"""result.json and progress.json: what a run did, for people, checks and the model of scaling.

Pure functions over plain values: samples are kept by column, one entry per step. `hpcdl.results`
has the schemas.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

COLUMNS = ("seconds", "input", "compute", "communication", "update", "checkpoint", "other")


@dataclass
class Samples:
    """Per-step times in seconds, by column; `images` counts all ranks' images of the step."""

    first_step: int = 0
    images: list[int] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    columns: dict[str, list[float]] = field(default_factory=lambda: {c: [] for c in COLUMNS})

    def add(self, images: int, loss: float, **seconds: float) -> None:
        """Add one step; `other` is the rest of `seconds`."""
        named = sum(value for key, value in seconds.items() if key != "seconds")
        seconds["other"] = max(0.0, seconds["seconds"] - named)
        for column in COLUMNS:
            self.columns[column].append(round(seconds.get(column, 0.0), 7))
        self.images.append(images)
        self.loss.append(loss)

    def __len__(self) -> int:
        return len(self.images)

    def since(self, done: int) -> Samples:
        """The steps after the first `done`."""
        columns = {name: values[done:] for name, values in self.columns.items()}
        return Samples(self.first_step + done, self.images[done:], self.loss[done:], columns)

    def take(self, piece: Mapping[str, Any]) -> None:
        """Add the steps of what `as_json` gave."""
        self.images += piece["images"]
        self.loss += [math.nan if loss is None else loss for loss in piece["loss"]]
        for name, values in self.columns.items():
            values += piece[name]

    def as_json(self) -> dict[str, Any]:
        """The columns as result.json has them."""
        losses = [finite(loss) for loss in self.loss]
        return {"first_step": self.first_step, "images": self.images, "loss": losses,
                **self.columns}  # fmt: skip


def summarize(samples: Samples, warmup: int) -> dict[str, Any]:
    """Throughput and phases after the first `warmup` steps (all, where there are no more).

    `images_per_second` is the median over the steps of images / seconds.
    """
    skip = warmup if len(samples) > warmup else 0
    seconds = samples.columns["seconds"][skip:]
    images = samples.images[skip:]
    if not seconds or sum(seconds) <= 0:
        return {"steps_measured": 0, "images_per_second": 0.0}
    rates = sorted(count / max(time, 1e-9) for count, time in zip(images, seconds, strict=True))
    total = sum(seconds)
    return {
        "steps_measured": len(rates),
        "images_per_second": round(statistics.median(rates), 3),
        "images_per_second_p05": round(quantile(rates, 0.05), 3),
        "images_per_second_p95": round(quantile(rates, 0.95), 3),
        "images_per_second_mean": round(sum(images) / total, 3),
        "phases": {
            column: round(sum(samples.columns[column][skip:]) / total, 5)
            for column in COLUMNS
            if column != "seconds"
        },
    }


def quantile(ordered: Sequence[float], fraction: float) -> float:
    """The value at a fraction of an ordered sequence, interpolated."""
    place = fraction * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def job_of(environ: Mapping[str, str]) -> dict[str, Any]:
    """The Slurm job this runs in; empty values outside of one."""
    restarts = environ.get("SLURM_RESTART_COUNT", "0")
    waited = environ.get("HPCDL_QUEUE_WAIT", "")
    return {
        "id": environ.get("SLURM_JOB_ID"),
        "token": _token(environ),
        "name": environ.get("SLURM_JOB_NAME"),
        "partition": environ.get("SLURM_JOB_PARTITION"),
        "nodes": environ.get("SLURM_JOB_NODELIST"),
        "restarts": int(restarts) if restarts.isdigit() else 0,
        "queue_wait_seconds": float(waited) if waited.replace(".", "", 1).isdigit() else None,
    }


def _token(environ: Mapping[str, str]) -> str | None:
    """The token of this job's submission: the job's script made a link of that name to its id."""
    own = {environ.get("SLURM_JOB_ID"), environ.get("SLURM_ARRAY_JOB_ID")}
    with suppress(OSError, KeyError):
        for entry in os.scandir(environ["HPCDL_JOB_DIR"]):
            if entry.name.startswith(".job-hpcdl-") and os.readlink(entry) in own:  # noqa: PTH115 - no path
                return entry.name.removeprefix(".job-")
    return None


def summary_line(result: Mapping[str, Any], path: str) -> str:
    """The last line of rank 0, stable for programs that search for it."""
    summary, metrics = result["summary"], result["summary"].get("metrics", {})
    loss, accuracy = summary.get("loss"), metrics.get("accuracy")
    return (
        f"hpcdl-train: images_per_second={summary.get('images_per_second', 0.0):.2f}"
        f" loss={'nan' if loss is None else format(loss, '.5f')}"
        f" accuracy={'none' if accuracy is None else format(accuracy, '.4f')}"
        f" world_size={result['layout']['ranks']} result={path}"
    )


def finite(value: float) -> float | None:
    """The value rounded for JSON, None where it is no finite number."""
    return round(value, 6) if math.isfinite(value) else None
