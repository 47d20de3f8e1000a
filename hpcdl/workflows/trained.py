"""What a job trains, read from the arguments of its program: network, batch, data, length.

Only what matters for speed. They are those of `hpcdl train`; another program, or a network
that facts/models.yaml does not have, gives None.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcdl import facts
from hpcdl.jobs.spec import is_train
from hpcdl.system.safe_read import read_regular

SYNTHETIC = "synthetic"
# Defaults of `hpcdl train`.
DEFAULT_MODEL, DEFAULT_STEPS = "mlp", 100
_LARGEST_DESCRIPTION = 20_000_000


class Training(NamedTuple):
    """A run of `hpcdl train`. `batch` is images per rank and step; `data` a directory or SYNTHETIC.

    `slowed` is whether the run is slowed down on purpose; `strategy` how several ranks work
    together; `pipeline` makes images ahead, or not (`old`); `size` is the edge of its images, the
    network's own if None.
    """

    model: str
    batch: int
    precision: str
    data: str
    epochs: int
    steps: int | None
    compress: bool
    xla: bool
    slowed: bool
    strategy: str
    pipeline: str
    size: int | None = None

    def like(self, other: Training) -> bool:
        """Whether a step of the other one says how long a step of this one takes."""
        keys = ("model", "precision", "xla", "size")
        same = all(getattr(self, key) == getattr(other, key) for key in keys)
        return same and not other.slowed and other.batch <= 2 * self.batch <= 4 * other.batch


class Data(NamedTuple):
    """The data of a run: images of an epoch, None without end, and whether they are JPEG."""

    images: int | None
    jpeg: bool


def training_of(program: Sequence[str], ranks: int, data: str | None = None) -> Training | None:
    """What a job's program trains on so many ranks; `data` is the job's own data set.

    Raises:
        ValueError: a number of the options is none.
    """
    if program and not is_train(program):
        return None
    options = _options(program[2:])
    model = options.get("model", DEFAULT_MODEL)
    row = facts.load("models")["models"].get(model)
    if row is None:
        return None
    whole = int(options.get("global_batch") or row["global_batch"])
    return Training(
        model=model,
        batch=int(options.get("batch_per_rank") or -(-whole // ranks)),
        precision=options.get("precision", "fp32"),
        data=options.get("data") or data or SYNTHETIC,
        epochs=int(options.get("epochs") or row["epochs"]),
        steps=int(options["steps"]) if "steps" in options else None,
        compress="compress" in options,
        xla="xla" in options,
        slowed=float(options.get("delay_ms", 0)) > 0,
        pipeline=options.get("pipeline", "new"),
        strategy=options.get("strategy", "auto").replace("auto", "horovod"),
        size=int(options["image_size"]) if "image_size" in options else None,
    )


def data_of(training: Training) -> Data:
    """What the run reads: by its dataset.json; unknown sizes count as without end."""
    path = Path(training.data, "dataset.json")
    if training.data == SYNTHETIC or path.stat().st_size > _LARGEST_DESCRIPTION:
        return Data(None, jpeg=False)
    described: dict[str, Any] = json.loads(read_regular(path, _LARGEST_DESCRIPTION))
    return Data(int(described["splits"]["train"]["examples"]), described["encoding"] == "jpeg")


def steps_of(training: Training, ranks: int, images: int | None) -> int:
    """Steps of the whole run."""
    if training.steps is not None:
        return training.steps
    per_epoch = images // (training.batch * ranks) if images else 0
    return per_epoch * training.epochs or DEFAULT_STEPS


def _options(argv: Sequence[str]) -> dict[str, str]:
    """Options as `--name value`, `--name=value` or `--name`; the last of a kind counts."""
    found = {}
    for index, argument in enumerate(argv):
        name, sign, value = argument.removeprefix("--").partition("=")
        if argument.startswith("--"):
            following = "".join(argv[index + 1 : index + 2])
            found[name.replace("-", "_")] = value if sign else following
    return found
