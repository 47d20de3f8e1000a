"""result.json and progress.json: what a run did, for people, checks and the model of scaling.

Samples are kept by column, one entry per step; `hpcdl.results` has the schemas.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcdl import __version__
from hpcdl.results.records import PROGRESS, RESULT
from hpcdl.system.errors import ExitCode
from hpcdl.system.files import explain_os_errors
from hpcdl.system.packages import nvidia_driver
from hpcdl.train.options import TrainOptions
from hpcdl.train.startup import RankPlace, StartupClock

COLUMNS = ("seconds", "input", "compute", "communication", "update", "checkpoint", "other")
EXITS = {
    "completed": ExitCode.OK,
    "missed-target": ExitCode.NO,
    "requeue": ExitCode.REQUEUE,
    "stopped": ExitCode.STOPPED,
}
"""The exit code of a run by how it ended."""
_POINTS = 1000


@dataclass
class Samples:
    """Per-step times in seconds, by column; `images` counts all ranks' images of the step."""

    first_step: int = 0
    images: list[int] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    columns: dict[str, list[float]] = field(default_factory=lambda: {c: [] for c in COLUMNS})

    def add(self, images: int, losses: Sequence[float], **seconds: Any) -> None:
        """Add steps with these losses; `seconds` are one number or an array of the steps.

        `other` is the rest of `seconds`.
        """
        import numpy as np

        parts = sum(value for name, value in seconds.items() if name != "seconds")
        seconds["other"] = np.maximum(0.0, seconds["seconds"] - parts)
        for column in COLUMNS:
            values = np.broadcast_to(seconds.get(column, 0.0), len(losses))
            self.columns[column] += np.round(values, 7).tolist()
        self.images += [images] * len(losses)
        self.loss += losses

    def __len__(self) -> int:
        return len(self.images)

    def take(self, kept: Mapping[str, Any] | None) -> None:
        """Take over what `as_json` gave, where something is kept."""
        if kept and kept.keys() >= {"first_step", "images", "loss", *COLUMNS}:
            self.first_step, self.images = kept["first_step"], kept["images"]
            self.loss = [math.nan if loss is None else loss for loss in kept["loss"]]
            self.columns = {name: kept[name] for name in COLUMNS}

    def as_json(self) -> dict[str, Any]:
        """The columns as result.json has them."""
        losses = [finite(loss) for loss in self.loss]
        rows = {"first_step": self.first_step, "images": self.images, "loss": losses}
        return {**rows, **self.columns}


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
    # The first and the last of these are the 5th and the 95th percentile; it takes no single one.
    bounds = statistics.quantiles(rates if rates[1:] else rates * 2, n=20, method="inclusive")
    return {
        "steps_measured": len(rates),
        "images_per_second": round(statistics.median(rates), 3),
        "images_per_second_p05": round(bounds[0], 3),
        "images_per_second_p95": round(bounds[-1], 3),
        "images_per_second_mean": round(sum(images) / total, 3),
        "phases": {
            column: round(sum(samples.columns[column][skip:]) / total, 5)
            for column in COLUMNS
            if column != "seconds"
        },
    }


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


def curve_of(losses: Sequence[float]) -> dict[str, list[Any]]:
    """The loss of the whole run, as means over equal parts, by the last step of each."""
    width = -(-len(losses) // _POINTS) or 1
    parts = [losses[at : at + width] for at in range(0, len(losses), width)]
    return {
        "step": [min(end, len(losses)) for end in range(width, len(losses) + width, width)],
        "loss": [finite(sum(part) / len(part)) for part in parts],
    }


# ---- the whole of result.json ----


def write_result(
    options: TrainOptions,
    place: RankPlace,
    clock: StartupClock,
    started: float,
    how: Mapping[str, Any],
    numbers: Mapping[str, Any],
    *,
    hosts: Sequence[str] = (),
    begun: bool = True,
) -> dict[str, Any]:
    """Write result.json of a training however it ended, on rank 0; returns its values.

    `how` is its outcome, `numbers` are what it measured; `hosts` has the node of each rank. One
    that a signal stopped before it had `begun` may have no TensorFlow.
    """
    hosts = list(hosts) or [place.host]
    nodes = list(dict.fromkeys(hosts))
    gpus, versions = _devices_and_versions() if begun else ([], {})
    result = {
        "outcome": how,
        "started": started,
        "ended": time.time(),
        "job": job_of(os.environ),
        "release": os.environ.get("HPCDL_RELEASE"),
        "model": options.model,
        "precision": options.precision,
        "data": options.dataset or options.data,
        "options": {k: v for k, v in vars(options).items() if v is not None},
        "startup": {name: round(value, 3) for name, value in clock.parts.items()},
        "layout": {
            "ranks": max(place.size, len(hosts)),
            "nodes": nodes,
            "ranks_per_node": [hosts.count(node) for node in nodes],
            "cpus_per_rank": place.cpus,
            "gpu_per_rank": len(gpus),
            "gpu": next(iter(gpus), None),
            "hosts": hosts,
        },
        "versions": versions,
        "strategy": "horovod" if place.size > 1 else "single",
        **numbers,
    }
    if place.rank == 0:
        with explain_os_errors(options.folder):
            options.folder.mkdir(parents=True, exist_ok=True)
        RESULT.write(options.folder / RESULT.name, result)
    return result


def _devices_and_versions() -> tuple[list[str | None], dict[str, str | None]]:
    """The names of the GPUs that this rank uses, and the software that took part."""
    import tensorflow as tf

    details = tf.config.experimental.get_device_details
    gpus = [details(gpu).get("device_name") for gpu in tf.config.get_visible_devices("GPU")]
    loaded = {name: sys.modules.get(name) for name in ("tensorflow", "horovod", "numpy")}
    return gpus, {
        "hpcdl": __version__,
        "python": platform.python_version(),
        "keras": getattr(tf.keras, "__version__", None),
        **{name: getattr(module, "__version__", None) for name, module in loaded.items()},
        "kernel": platform.release(),
        "driver": nvidia_driver(),
    }


def nothing_measured() -> dict[str, Any]:
    """Return the numbers of a run that never trained."""
    summary = {**summarize(Samples(), 0), "loss": None, "metrics": {}}
    return {"samples": Samples().as_json(), "summary": summary}


# ---- progress ----

LINE_SECONDS = 5.0
"""Between progress lines."""


class Reporter:
    """Shows progress, on rank 0: lines, and progress.json, renewed at most once a second."""

    def __init__(self, folder: Path, steps: int, *, silent: bool) -> None:
        self._path = folder / PROGRESS.name
        self._steps = steps
        self._silent = silent
        self._line_at = 0.0
        self._file_at = time.monotonic()
        self._images = 0  # since then
        self._rate = 0.0
        self._first: tuple[float, int] | None = None
        if not silent:
            with explain_os_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)

    def step(self, step: int, epoch: int, loss: float, images: int) -> None:
        """After every step; `images` are those of all ranks in it."""
        if self._silent:
            return
        now = time.monotonic()
        self._first = self._first or (now, step)
        self._images += images
        if now - self._file_at >= 1.0 or step == self._steps:
            self._rate = self._images / max(now - self._file_at, 1e-9)
            self._file_at, self._images = now, 0
            self._write(step, epoch, loss, "running")
        if now - self._line_at >= LINE_SECONDS:
            self._line_at = now
            self._show(step, epoch, loss)

    def end(self, step: int, epoch: int, loss: float, status: str, reason: str = "") -> None:
        """The last state, whatever the intervals."""
        if not self._silent:
            self._show(step, epoch, loss)
            self._write(step, epoch, loss, status, reason)

    def say(self, text: str) -> None:
        """A line of its own."""
        if not self._silent:
            print(text, flush=True)

    def _show(self, step: int, epoch: int, loss: float) -> None:
        pace = f"{self._rate:,.0f}" if self._rate >= 100 else f"{self._rate:.2f}"
        place = f"epoch {epoch + 1}  step {step}/{self._steps}  loss {loss:.4f}"
        self.say(f"{place}  {pace} images/s" if self._rate else place)

    def _write(self, step: int, epoch: int, loss: float, status: str, reason: str = "") -> None:
        now, left = time.monotonic(), None
        # By the pace since the first step, which is not counted because it compiles.
        if self._first and step > self._first[1]:
            pace = (now - self._first[0]) / (step - self._first[1])
            left = round(pace * (self._steps - step), 1)
        values = {
            "step": step,
            "steps": self._steps,
            "epoch": epoch,
            "loss": loss,
            "images_per_second": round(self._rate, 3),
            "seconds_left": left,
            "outcome": {"status": status, "reason": reason},
            "time": time.time(),
        }
        PROGRESS.write(self._path, values, sync=False)  # the next one comes soon
