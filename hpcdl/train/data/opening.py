"""Opens what `--data` names, as the source of batches that fits it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcdl.system.errors import BadInput
from hpcdl.train.data.dataset import read_dataset
from hpcdl.train.data.pipeline import Records
from hpcdl.train.data.repair import Repairs
from hpcdl.train.data.source import InMemory, Share, Source, Synthetic, read_raw
from hpcdl.train.data.users import open_users
from hpcdl.train.options import SYNTHETIC, TrainOptions


def open_source(
    options: TrainOptions, model: dict[str, Any], share: Share, cpus: int,
    repairs: Repairs,
) -> Source:  # fmt: skip
    """The source of a run's batches, read and decoded by `cpus` threads.

    `model` is its row of facts/models.yaml. Raises BadInput: no such data, or it does not fit.
    """
    task = str(options.task or model["task"])
    shape = tuple(model["input"])
    if options.image_size and len(shape) == 3:
        shape = (options.image_size, options.image_size, shape[2])
    if options.dataset:
        return open_users(options.dataset, share, task)
    if options.data == SYNTHETIC:
        return Synthetic(shape, model["classes"], share, task)
    dataset = read_dataset(Path(options.data))
    if dataset.task != task:
        raise BadInput(
            f"the model {options.model} is for {task}, the data set's labels are {dataset.task}",
            hint="`hpcdl data make photos --task` makes either",
        )
    if dataset.encoding == "raw":
        if options.image_size and dataset.shape[:2] != shape[:2]:
            raise BadInput(
                f"the data set's images are {dataset.shape[0]} x {dataset.shape[1]}, and raw",
                hint="leave out --image-size: only JPEGs are cropped to a size",
            )
        arrays = {split: read_raw(dataset, split, repairs) for split in dataset.splits}
        return InMemory(arrays, share, dataset.classes, dataset.digest)
    return Records(dataset, share, shape[:2], cpus, repairs, options.pipeline)
