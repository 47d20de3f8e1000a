"""TFRecords of your own images, whose classes stand in a table: file name, class.

    python -m hpcdl.examples.records_of_images DIR IMAGES TABLE.csv
    hpcdl data inspect --index DIR --classes 0-6

The second command, with the classes that the first one says, makes them a data set for `hpcdl train
--data DIR`. Several classes of an image are joined by `|`; ChestX-ray14's Data_Entry_2017.csv is
such a table, whose classes are `findings`. A tenth of the images is to test with.
"""

import csv
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from hpcdl.train.data.dataset import FINDINGS

SHARDS = 16


def rows_of(images: Path, table: Path) -> list[tuple[Path, set[str]]]:
    """Every image with its classes; names in the table are of files in `images`, nowhere else."""
    rows = []
    with table.open(newline="", encoding="utf-8-sig") as file:
        for number, (name, classes, *_) in enumerate(csv.reader(file), 1):
            path = images / Path(name).name
            if path.is_file():
                rows.append((path, set(classes.split("|")) - {"", "No Finding"}))
            elif number > 1:  # the first line may be a header
                raise SystemExit(f"error: {table}, line {number}: there is no image {path}")
    return rows


def example(path: Path, label: dict[str, list[int]]) -> bytes:
    """The record of an image, as JPEG: of these only the part that is needed is decoded."""
    data = path.read_bytes()
    if not data.startswith(b"\xff\xd8"):
        image = tf.io.decode_image(data, channels=3, expand_animations=False)
        data = tf.io.encode_jpeg(image, quality=95).numpy()
    features = {
        name: tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        for name, values in label.items()
    }
    features["image/encoded"] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[data]))
    whole = tf.train.Example(features=tf.train.Features(feature=features))
    return bytes(whole.SerializeToString())


def main(folder: Path, images: Path, table: Path, tested: float = 0.1) -> None:
    """Write the records, shuffled; say how to index them."""
    rows = rows_of(images, table)
    found = set().union(*(classes for _, classes in rows))
    several = any(len(classes) != 1 for _, classes in rows)
    names = FINDINGS if found <= set(FINDINGS) else sorted(found)
    order = np.random.default_rng(1).permutation(len(rows))
    test, train = np.split(order, [round(tested * len(rows))])
    folder.mkdir(parents=True)
    for split, chosen in (("train", train), ("test", test)):
        for number in range(count := min(SHARDS, len(chosen))):
            path = folder / f"{split}-{number:05d}-of-{count:05d}.tfrecord"
            with tf.io.TFRecordWriter(str(path)) as shard:
                for image, classes in (rows[row] for row in chosen[number::count]):
                    marks = [int(name in classes) for name in names]
                    label = {"labels": marks} if several else {"class/label": [marks.index(1)]}
                    shard.write(example(image, {f"image/{k}": v for k, v in label.items()}))
    classes = "findings" if several else f"0-{len(names) - 1}"
    print(", ".join(f"{number} {name}" for number, name in enumerate(names)))
    print(f"hpcdl data inspect --index {folder} --classes {classes}")


if __name__ == "__main__":
    to, where, rows = map(Path, sys.argv[1:4])
    main(to, where, rows, *map(float, sys.argv[4:]))
