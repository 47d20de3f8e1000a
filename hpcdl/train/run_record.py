"""What result.json says of a training: where it ran, with what, and what it measured.

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
from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.packages import nvidia_driver
from hpcdl.train.loop import Training
from hpcdl.train.options import TrainOptions
from hpcdl.train.result import Samples, finite, summarize
from hpcdl.train.startup import RankPlace


def measured(
    training: Training | None, options: TrainOptions, metrics: dict[str, float], damaged: int
) -> dict[str, Any]:
    """The numbers, as far as a training came; None where it never began."""
    if training is None:
        summary = {**summarize(Samples(), 0), "loss": None, "metrics": {}}
        return {"samples": Samples().as_json(), "summary": summary}
    samples, history = training.samples, training.history
    if not len(samples) and history:
        samples = history.latest()
    summary = summarize(samples, options.warmup_steps)
    if training.ranks.name == "parameter-server":  # a step is handed out at once, done later
        summary["images_per_second"] = summary.get("images_per_second_mean", 0.0)
    if options.deterministic and "phases" in summary:
        del summary["phases"]["communication"], summary["phases"]["update"]  # no clocks
    shape = training.source.shape
    if len(shape) == 1:  # an example is a sequence
        summary["tokens_per_second"] = round(summary["images_per_second"] * shape[0], 1)
    batch = training.plan.global_batch
    numbers = {
        "samples": samples.as_json(),
        "summary": {**summary, "loss": finite(training.loss), "metrics": metrics},
        "parameters": training.parts.network.parameters,
        "parameters_by_device": training.parts.network.by_device,
        "batch_per_rank": batch // training.ranks.size,
        "global_batch": batch,
        "damaged_records": damaged,
        "steps": {"done": training.step_number, "planned": training.plan.steps},
    }
    if training.validation:
        numbers["validations"] = training.validation.found
    if history:
        segments = history.segments(options.warmup_steps)
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


def require_one_decoder(decoders: Sequence[str], hosts: Sequence[str]) -> None:
    """Refuse ranks that decode images differently: pixels and speed would differ, too."""
    if len(set(decoders)) > 1:
        raise MissingPrerequisite(
            "ranks decode images with different libraries",
            details=sorted({f"{h}: {name}" for h, name in zip(hosts, decoders, strict=True)}),
            hint="install a C compiler and libjpeg-turbo's headers on all nodes, or set "
            "HPCDL_JPEG=tensorflow for all",
        )


def versions_of() -> dict[str, str | None]:
    """The software that took part."""
    horovod = sys.modules.get("horovod")
    return {
        "hpcdl": __version__,
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "horovod": getattr(horovod, "__version__", None),
        "numpy": np.__version__,
        "kernel": platform.release(),
        "driver": nvidia_driver(),
    }
