"""A training's result.json: where it ran, with what, and what it measured.

Pure data from what a run holds; run.py writes it, however the run ends.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hpcdl import __version__
from hpcdl.system.packages import nvidia_driver
from hpcdl.train.models import parameters_of
from hpcdl.train.options import TrainOptions
from hpcdl.train.result import Samples, finite, summarize
from hpcdl.train.startup import RankPlace
from hpcdl.train.training import TrainingProgress


def measured(
    training: TrainingProgress | None,
    options: TrainOptions,
    metrics: dict[str, float],
    damaged: int,
) -> dict[str, Any]:
    """Return the numbers, as far as a training came; None where it never began."""
    if training is None:
        summary = {**summarize(Samples(), 0), "loss": None, "metrics": {}}
        return {"samples": Samples().as_json(), "summary": summary}
    samples, history, fitting = training.samples, training.history, training.fitting
    if not len(samples) and history:
        samples = history.latest()
    warmup = max(options.warmup_steps, fitting.group)  # the first call compiles
    summary = summarize(samples, warmup)
    if not fitting.board.clocked and "phases" in summary:
        del summary["phases"]["communication"], summary["phases"]["update"]  # no clocks
    spec = tf.nest.flatten(fitting.source.spec)[0]
    if spec.shape.rank == 1 and spec.dtype.is_integer:  # an example is a sequence of tokens
        tokens = summary["images_per_second"] * int(spec.shape[0])
        summary["tokens_per_second"] = round(tokens, 1)
    batch = fitting.numbers.global_batch
    numbers = {
        "samples": samples.as_json(),
        "summary": {**summary, "loss": finite(training.loss), "metrics": metrics},
        "parameters": parameters_of(fitting.model),
        "fused_layers": fitting.fused,
        "batch_per_rank": batch // fitting.ranks.size,
        "global_batch": batch,
        "damaged_records": damaged,
        "steps": {"done": training.step_number, "planned": fitting.numbers.steps},
        "validations": training.validations,
    }
    if history:
        segments = history.segments(warmup)
        numbers |= {"segments": segments, "curve": history.curve()}
    return numbers


def layout_of(place: RankPlace, hosts: Sequence[str], ranks: int) -> dict[str, Any]:
    """Where the ranks are; `hosts` has the node of each."""
    gpus = tf.config.get_visible_devices("GPU")
    names = [tf.config.experimental.get_device_details(g).get("device_name") for g in gpus]
    nodes = list(dict.fromkeys(hosts))
    return {
        "ranks": ranks,
        "nodes": nodes,
        "ranks_per_node": [list(hosts).count(node) for node in nodes],
        "cpus_per_rank": place.cpus,
        "gpu_per_rank": len(gpus),
        "gpu": names[0] if names else None,
        "hosts": list(hosts),
    }


def versions_of() -> dict[str, str | None]:
    """The software that took part."""
    horovod = sys.modules.get("horovod")
    return {
        "hpcdl": __version__,
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": getattr(tf.keras, "__version__", None),
        "horovod": getattr(horovod, "__version__", None),
        "numpy": np.__version__,
        "kernel": platform.release(),
        "driver": nvidia_driver(),
    }
