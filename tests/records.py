"""TFRecords of images of every kind, written without TensorFlow."""

import io
import struct

import numpy as np
from PIL import Image

from hpcdl.train.data.tfrecord import masked_crc32c


def picture(height, width, kind="JPEG", mode="RGB"):
    """A file of a random picture in large squares."""
    random = np.random.RandomState(height * 1000 + width)
    small = Image.fromarray(random.randint(0, 256, (4, 4, 3)).astype(np.uint8))
    file = io.BytesIO()
    small.resize((width, height), Image.Resampling.NEAREST).convert(mode).save(file, kind)
    return file.getvalue()


def example(image, label=1):
    """A serialized tf.train.Example in ImageNet's layout."""
    features = _entry(b"image/encoded", _field(1, _field(1, image)))
    if label is not None:
        features += _entry(b"image/class/label", _field(3, _field(1, _varint(label))))
    return _field(1, features)


def write(path, records):
    with path.open("wb") as file:
        for record in records:
            head = struct.pack("<Q", len(record))
            file.write(head + struct.pack("<I", masked_crc32c(head)))
            file.write(record + struct.pack("<I", masked_crc32c(record)))


def _entry(name, feature):
    return _field(1, _field(1, name) + _field(2, feature))


def _field(number, content):
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value):
    low = []
    while value > 127:
        low.append(value & 127 | 128)
        value >>= 7
    return bytes([*low, value])
