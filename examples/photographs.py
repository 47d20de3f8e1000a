"""A data set of JPEGs like photographs, of a wanted size and mean bytes, to study their reading.

    python -m hpcdl.examples.photographs DIR --count 1280 --size 500x375 --bytes 77000

Photographs have power that falls with frequency as 1/f (Field 1987): JPEG's blocks, its Huffman
codes and a decoder's work follow from that. Every image is a crop of a large texture of that kind,
mirrored or not, with fine noise whose strength is chosen on samples so that the mean file has the
wanted bytes. A finding is visible: stripes of a colour and width of its own. The same command
again keeps what is there.
"""

import argparse
import os
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hpcdl.system.errors import BadInput, HpcdlError
from hpcdl.train.data.dataset import FINDINGS, Dataset, made_before, require_room
from hpcdl.train.data.shards import example, make_dataset

FIRST_TEST = 1 << 31
"""The number of the first test image: far from all numbers that are trained on."""
TEXTURES, QUALITY = 6, 88
SHARE, STRENGTH = 0.2, 72.0  # of findings; of 255, the textures' own spread is 48


def options(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line; `size` as (width, height)."""
    parser = argparse.ArgumentParser(prog="photographs", allow_abbrev=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=1280, help="training images")
    parser.add_argument("--test", type=int, default=0, help="test images")
    parser.add_argument("--size", default="500x375", help="pixels; ImageNet's most common")
    parser.add_argument("--bytes", type=int, default=77_000, help="mean bytes of an image")
    parser.add_argument("--classes", default="1000", help="their number, or 'findings'")
    parser.add_argument("--shards", type=int, default=16, help="training files")
    asked = parser.parse_args(argv)
    width, _, height = asked.size.partition("x")
    numbers = (asked.count, asked.shards, asked.test + 1, asked.bytes)
    sides = width.isdecimal() and height.isdecimal()
    if not sides or min(int(width), int(height)) < 8:
        parser.error(f"--size must be like 500x375, not {asked.size}")
    if max(int(width), int(height)) > 8000 or min(numbers) < 1:
        parser.error("images have at most 8000 pixels a side; numbers are at least 1")
    if asked.classes != "findings" and not (asked.classes.isdigit() and int(asked.classes)):
        parser.error(f"--classes must be a number or findings, not {asked.classes}")
    asked.size = (int(width), int(height))
    return asked


def request_of(asked: argparse.Namespace) -> dict[str, object]:
    """What the records are made of, as JSON values: equal ones need no new records."""
    return {**vars(asked), "folder": "", "size": list(asked.size)}


def parts_of(asked: argparse.Namespace) -> dict[str, tuple[range, int]]:
    """The numbers of the images of each split, and its shards."""
    tested = range(FIRST_TEST, FIRST_TEST + asked.test)
    shards = round(asked.shards * asked.test / max(asked.count, asked.test))
    return {"train": (range(asked.count), asked.shards), "test": (tested, shards)}


def stream(number: int) -> np.random.RandomState:
    """The random generator of image `number`."""
    return np.random.RandomState((7_368_787 + number) % 2**32)


class Painter:
    """Draws image number i, and its label; safe to use from several threads."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.width, self.height = asked.size
        side = 2 * max(asked.size)
        self.textures = [texture(side, 1009 + number) for number in range(TEXTURES)]
        self.noise = np.random.RandomState(1).standard_normal((side, side, 1)).astype(np.float32)
        self.classes = asked.classes
        self.stripes = stripes(self.height, self.width) if asked.classes == "findings" else None
        self.strength = self.fit(asked.bytes)

    def record(self, number: int) -> bytes:
        """The serialized example of the image `number`."""
        random = stream(number)
        jpeg, findings = self.paint(random, self.strength)
        if findings is None:
            return example(
                image__encoded=jpeg, image__class__label=1 + int(random.randint(int(self.classes)))
            )
        return example(image__encoded=jpeg, image__labels=[int(found) for found in findings])

    def paint(
        self, random: np.random.RandomState, strength: float
    ) -> tuple[bytes, NDArray[np.bool_] | None]:
        """A JPEG, and which findings it shows; None where it has none by its task."""
        whole = self.textures[random.randint(TEXTURES)]
        top, left, up, aside = random.randint(0, len(whole) - max(self.height, self.width), size=4)
        noise = self.noise[up : up + self.height, aside : aside + self.width]
        image = whole[top : top + self.height, left : left + self.width]
        image = image[:, :: -1 if random.randint(2) else 1] + noise * strength
        findings = None
        if self.stripes is not None:
            findings = random.random_sample(len(FINDINGS)) < SHARE
            image = image + self.stripes[findings].sum(axis=0)
        pixels = np.clip(image, 0, 255).astype(np.uint8)
        encoded = tf.io.encode_jpeg(pixels, quality=QUALITY, chroma_downsampling=True)
        return bytes(encoded.numpy()), findings

    def fit(self, wanted: int) -> float:
        """The strength of the noise that gives the wanted bytes."""
        strengths, sizes = np.linspace(0.0, 80.0, 17), []
        for strength in strengths:
            random = np.random.RandomState(1)
            sizes.append(np.mean([len(self.paint(random, strength)[0]) for _ in range(12)]))
        if not sizes[0] <= wanted <= sizes[-1]:
            raise BadInput(
                f"images of {self.width} x {self.height} cannot have {wanted:,} bytes",
                hint=f"--bytes from {int(sizes[0]):,} to {int(sizes[-1]):,} can be met",
            )
        return float(np.interp(wanted, sizes, strengths))


def stripes(height: int, width: int) -> NDArray[np.float32]:
    """A picture of stripes per finding, which crops and mirrors leave alike.

    Their colours point to the faces and corners of the cube of colours; they lie or stand, 4, 8
    or 12 across the image.
    """
    corners = np.array(list(np.ndindex(3, 3, 3)), np.float32) - 1
    colours = corners[np.isin(np.abs(corners).sum(axis=1), (1, 3))]
    y, x = np.mgrid[:height, :width].astype(np.float32) / min(height, width)
    found = []
    for number, colour in enumerate(colours[: len(FINDINGS)]):
        along = (x, y)[number % 2]
        lines = 0.5 + 0.5 * np.cos(2 * np.pi * (4 + 4 * (number % 3)) * along)
        found.append(lines[..., None] * colour / np.linalg.norm(colour))
    return np.asarray(STRENGTH * np.stack(found), np.float32)


def texture(side: int, seed: int) -> NDArray[np.float32]:
    """A colour texture of side x side whose amplitude falls as 1/f, 0 to 255."""
    random = np.random.RandomState(seed)
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None, :])
    frequency[0, 0] = np.inf
    layers = []
    for _ in range(3):
        phase = random.random_sample(frequency.shape) * 2j * np.pi
        layer = np.fft.irfft2(np.exp(phase) / frequency**1.2, (side, side))
        layers.append(layer / layer.std())
    light, blue, red = layers
    colours = np.stack([light + 0.4 * red, light, light + 0.4 * blue], axis=-1)
    return np.asarray(128 + 48 * colours, np.float32)


def main(argv: list[str] | None = None) -> None:
    """Make the data set, unless it is there."""
    asked = options(argv)
    several = asked.classes == "findings"
    folder, classes = asked.folder.absolute(), len(FINDINGS) if several else int(asked.classes)
    request = request_of(asked)
    dataset = made_before(folder, request)
    if dataset is None:
        require_room(folder)
        kind = ("findings", 0) if several else ("classes", 1)
        shape = (*reversed(asked.size), 3)
        dataset = Dataset(folder, "photos", "jpeg", shape, classes, 255.0, {}, *kind, request)
        threads = len(os.sched_getaffinity(0))
        dataset = make_dataset(dataset, parts_of(asked), Painter(asked).record, threads)
    print(f"{dataset.examples('train')} to train, {dataset.examples('test')} to test in {folder}")


if __name__ == "__main__":
    try:
        main()
    except HpcdlError as error:
        print(error.render(), file=sys.stderr)
        sys.exit(int(error.exit_code))
