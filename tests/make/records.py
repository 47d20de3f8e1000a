"""TFRecords of images of every kind, written, walked and damaged without TensorFlow."""

import io
import struct

import numpy as np
from PIL import Image


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


def walk(path):
    """(offset, length) of the records of a sound file."""
    offset, data = 0, path.read_bytes()
    while offset < len(data):
        (length,) = struct.unpack_from("<Q", data, offset)
        yield offset, length
        offset += 16 + length


def masked_crc32c(data):
    """The checksum as TFRecord stores it (tensorflow/core/lib/hash/crc32c.h)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


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
