"""What the programs beside this share, so that they differ in the framework alone.

Options as of `hpcdl train`; the data set and its order, which is that of `hpcdl train`, too; and
result.json (docs/results.md) with the parts of every step, and with `exchange`: seconds of an
exchange of all gradients while nothing computes. NumPy only.
"""

import argparse
import importlib
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

PARTS = ("input", "compute", "communication", "update")
NETWORKS = ("alexnet", "googlenet", "resnet50", "vit_s16")
# GoogLeNet's blocks: filters of 1x1; 3x3 (reduce, out); second 3x3 (reduce, out); behind the pool.
INCEPTIONS = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)


def options(description: str) -> argparse.Namespace:
    """The command line; `model` without the module that `hpcdl train` may name before it."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", default="alexnet", help=", ".join(NETWORKS))
    parser.add_argument("--dataset", default="pictures:small", help="MODULE:FUNCTION beside this")
    parser.add_argument("--batch-per-rank", type=int, default=8, metavar="N")
    parser.add_argument("--steps", type=int, default=20, metavar="N")
    parser.add_argument("--warmup-steps", type=int, default=5, metavar="N")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layout", choices=("auto", "nhwc", "nchw"), default="auto")
    parser.add_argument("--checkpoint-every", choices=("0",), default="0", help="none is written")
    found = parser.parse_args()
    found.model = found.model.rpartition(":")[2]
    if found.model not in NETWORKS:
        parser.error(f"unknown model '{found.model}': give one of {', '.join(NETWORKS)}")
    if min(found.batch_per_rank, found.steps) < 1:
        parser.error("--batch-per-rank and --steps are at least 1")
    return found


class Batches:
    """This rank's part of every global batch: batch k of an epoch is the same for any ranks."""

    def __init__(self, asked: argparse.Namespace, rank: int, ranks: int) -> None:
        module, _, name = asked.dataset.rpartition(".")[2].partition(":")
        self.images, self.labels = getattr(importlib.import_module(module), name)("train")
        self.rank, self.ranks, self.seed, self.batch = rank, ranks, asked.seed, asked.batch_per_rank
        self.per_epoch = len(self.labels) // (self.batch * ranks)
        if not self.per_epoch:
            raise SystemExit(f"error: {asked.dataset} has fewer images than a global batch")

    def __call__(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Images (batch, height, width, 3) and classes (batch) of a step."""
        epoch, number = divmod(step, self.per_epoch)
        draw = np.random.RandomState((self.seed * 1_000_003 + epoch) % 2**32)
        start = (number * self.ranks + self.rank) * self.batch
        rows = draw.permutation(len(self.labels))[start : start + self.batch]
        return self.images[rows], self.labels[rows]


class Record:
    """The parts of every step, and result.json once all are done; rank 0's is the one kept."""

    def __init__(self, asked: argparse.Namespace, ranks: int) -> None:
        self.asked, self.ranks, self.started = asked, ranks, time.time()
        self.exchange: float | None = None
        names = ("seconds", *PARTS, "checkpoint", "other", "images", "loss")
        self.samples: dict[str, list[float]] = {name: [] for name in names}

    def add(self, seconds: float, loss: float, **parts: float) -> None:
        """Add a step: its seconds, those of its parts, and the loss."""
        row = {name: max(0.0, parts.get(name, 0.0)) for name in PARTS}
        row |= {
            "seconds": seconds,
            "checkpoint": 0.0,
            "other": max(0.0, seconds - sum(row.values())),
        }
        row |= {"images": self.ranks * self.asked.batch_per_rank, "loss": loss}
        for name, value in row.items():
            self.samples[name].append(round(value, 7))

    def add_all(
        self, rows: list[tuple[float, float, float]], updating: float, alone: float
    ) -> None:
        """Add steps of (seconds, loss, seconds of input).

        `updating` is seconds of an update alone, `alone` of local gradients alone; what a step
        takes longer is communication.
        """
        for took, loss, feeding in rows:
            computing = min(alone, took - feeding - updating)
            self.add(
                took,
                loss,
                input=feeding,
                compute=computing,
                update=updating,
                communication=took - feeding - updating - computing,
            )

    def write(
        self,
        strategy: str,
        versions: dict[str, str],
        hosts: list[str],
        parameters: int,
        gpu: str | None = None,
    ) -> None:
        """Write result.json where the job wants it, and say the rate."""
        nodes = list(dict.fromkeys(hosts))
        skip = self.asked.warmup_steps if self.asked.steps > self.asked.warmup_steps else 0
        kept = {name: values[skip:] for name, values in self.samples.items()}
        rates = [count / took for count, took in zip(kept["images"], kept["seconds"], strict=True)]
        rate = statistics.median(rates)
        low, *_, high = statistics.quantiles(
            rates if rates[1:] else rates * 2, n=20, method="inclusive"
        )
        place, batch = os.environ.get, self.asked.batch_per_rank
        total = sum(kept["seconds"])
        result = {
            "schema": 2,
            "outcome": {"status": "completed", "reason": "", "exit_code": 0},
            "started": self.started,
            "ended": time.time(),
            "startup": {},
            "job": {
                "id": place("SLURM_JOB_ID"),
                "name": place("SLURM_JOB_NAME"),
                "partition": place("SLURM_JOB_PARTITION"),
                "nodes": place("SLURM_JOB_NODELIST"),
                "restarts": int(place("SLURM_RESTART_COUNT", "0")),
                "queue_wait_seconds": None,
            },
            "layout": {
                "ranks": self.ranks,
                "nodes": nodes,
                "hosts": hosts,
                "gpu": gpu,
                "ranks_per_node": [hosts.count(node) for node in nodes],
                "cpus_per_rank": len(os.sched_getaffinity(0)),
                "gpu_per_rank": int(bool(gpu)),
            },
            "release": place("HPCDL_RELEASE"),
            "versions": {"python": platform.python_version(), "numpy": np.__version__, **versions},
            "model": self.asked.model,
            "parameters": parameters,
            "precision": "fp32",
            "batch_per_rank": batch,
            "global_batch": batch * self.ranks,
            "data": self.asked.dataset,
            "strategy": strategy,
            "exchange": self.exchange,
            "options": {"warmup_steps": self.asked.warmup_steps},
            "samples": {"first_step": 0, **self.samples},
            "summary": {
                "steps_measured": len(kept["seconds"]),
                "metrics": {},
                "images_per_second": round(rate, 3),
                "images_per_second_p05": round(low, 3),
                "images_per_second_p95": round(high, 3),
                "images_per_second_mean": round(sum(kept["images"]) / total, 3),
                "loss": self.samples["loss"][-1],
                "phases": {name: sum(kept[name]) / total for name in (*PARTS, "other")},
            },
        }
        path = Path(place("HPCDL_JOB_DIR", ".")) / "result.json"
        path.with_suffix(".new").write_text(json.dumps(result, indent=1))
        path.with_suffix(".new").replace(path)
        loss = result["summary"]["loss"]
        print(
            f"{strategy} {self.asked.model} on {self.ranks}: {rate:.2f} images/s, "
            f"{parameters:,} weights, loss {loss:.4f}",
            flush=True,
        )


def seconds_of(act: Callable[[], object], before: Callable[[], object] = tuple) -> float:
    """The median of five runs, after one that compiles; each after another act, not timed."""
    found = []
    for _ in range(6):
        before()
        begun = time.perf_counter()
        act()
        found.append(time.perf_counter() - begun)
    return statistics.median(found[1:])


def host() -> str:
    """The node of this rank, as Slurm names it."""
    return os.environ.get("SLURMD_NODENAME") or platform.node()


def autotune(backends: object) -> None:
    """PyTorch's switches of cuDNN and oneDNN, which have no variables: off by HPCDL_AUTOTUNE=0."""
    tuned = os.environ.get("HPCDL_AUTOTUNE") != "0"
    backends.cudnn.benchmark = tuned
    backends.mkldnn.set_flags(tuned)
