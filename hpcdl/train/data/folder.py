"""Records from a directory of JPEG images and a CSV of labels, as medical data often come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hpcdl.system.errors import BadInput
from hpcdl.train.data.dataset import Dataset, write_dataset
from hpcdl.train.data.images import first_line
from hpcdl.train.data.making import ShardPlan, example, make_shards
from hpcdl.train.data.requests import finish
from hpcdl.train.data.table import Row, are_several, names_of, request_of


def make_from_folder(
    folder: Path, images: Path, table: Path, rows: Sequence[Row], *, shards: int,
    test: float, seed: int, threads: int,
) -> Dataset:  # fmt: skip
    """Write the data set; takes up an interrupted one.

    `rows` is what the CSV `table` says (`read_table`); `test` is the share of the images kept for
    testing, 0 to 1; `seed` is of split and order; `threads` shards are written at the same time.

    Raises:
        BadInput: an image cannot be read.
    """
    names, several = names_of(rows), are_several(rows)
    order = [rows[i] for i in np.random.RandomState(seed % 2**32).permutation(len(rows))]
    tested = min(round(len(rows) * test), len(rows) - 1)
    plans = [
        *_plans("train", order[tested:], names, shards, several),
        *_plans("test", order[:tested], names, max(1, round(shards * test)), several),
    ]
    request = request_of(images, table, rows, shards=shards, test=test, seed=seed)
    splits = make_shards(folder, plans, request, threads)
    height, width = _size(order[0])
    dataset = Dataset(
        folder, "folder", "jpeg", (height, width, 3), len(names), 255.0, seed,
        f"{images.name} with {table.name}", splits, "findings" if several else "classes", 0,
    )  # fmt: skip
    write_dataset(dataset)
    finish(folder)
    return dataset


def _plans(
    split: str, rows: Sequence[Row], names: tuple[str, ...], shards: int, several: bool
) -> Iterator[ShardPlan]:
    of = min(shards, len(rows))
    for number in range(of):
        mine = rows[number::of]
        record = partial(_record, names=names, several=several)
        yield ShardPlan(split, number, of, len(mine), partial(map, record, mine))


def _record(row: Row, names: tuple[str, ...], several: bool) -> bytes:
    data = _as_jpeg(row)
    label: dict[str, Any] = (
        {"image__labels": [int(name in row.labels) for name in names]}
        if several
        else {"image__class__label": names.index(row.labels[0])}
    )
    return example(
        image__encoded=data, image__format="JPEG", image__filename=row.path.name, **label
    )


def _as_jpeg(row: Row) -> bytes:
    """The file where it is a JPEG, else its pixels as one."""
    try:
        data = row.path.read_bytes()
        image = tf.io.decode_image(data, channels=3, expand_animations=False)
        if data.startswith(b"\xff\xd8"):
            return data
        return bytes(tf.io.encode_jpeg(image, quality=95).numpy())
    except (OSError, tf.errors.InvalidArgumentError) as fault:
        raise BadInput(
            f"the image {row.path} cannot be read: {first_line(fault)}",
            hint=f"repair it, or take line {row.line} out of the CSV; complete shards stay for the "
            "next try",
        ) from fault


def _size(row: Row) -> tuple[int, int]:
    image = tf.io.decode_image(_as_jpeg(row), channels=3, expand_animations=False)
    return int(image.shape[0]), int(image.shape[1])
