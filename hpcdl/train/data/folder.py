"""Records from a directory of JPEG images and a CSV of labels, as medical data often come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hpcdl.system.errors import BadInput
from hpcdl.train.data.dataset import Dataset
from hpcdl.train.data.images import first_line
from hpcdl.train.data.making import example, make_dataset, share_out
from hpcdl.train.data.table import Row, are_several, names_of


def make_from_folder(
    folder: Path, rows: Sequence[Row], request: Mapping[str, Any], threads: int
) -> Dataset:
    """Write the data set of the images that `rows` name; `request` as of `table.request_of`.

    Takes up an interrupted one. Raises BadInput: an image cannot be read.
    """
    names, several, seed = names_of(rows), are_several(rows), request["seed"]
    order = [rows[i] for i in np.random.RandomState(seed % 2**32).permutation(len(rows))]
    tested = min(round(len(rows) * request["test"]), len(rows) - 1)
    record = partial(_record, names=names, several=several)
    shards = request["shards"]
    plans = share_out("train", order[tested:], shards, record)
    plans += share_out("test", order[:tested], round(shards * request["test"]), record)
    image = tf.io.decode_image(_as_jpeg(order[0]), channels=3, expand_animations=False)
    source = f"{Path(request['images']).name} with {Path(request['labels']).name}"
    dataset = Dataset(
        folder, "folder", "jpeg", (int(image.shape[0]), int(image.shape[1]), 3), len(names), 255.0,
        seed, source, {}, "findings" if several else "classes", 0,
    )  # fmt: skip
    return make_dataset(dataset, plans, request, threads)


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
