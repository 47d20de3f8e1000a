"""Photograph-like JPEGs of a wanted size and number of bytes, for studies of storage and input.

Photographs have power that falls with frequency as 1/f (Field 1987): JPEG's blocks, its Huffman
codes and a decoder's work follow from that. Every image is a crop of a large texture of that kind,
mirrored or not, with fine noise whose strength is chosen on samples so that the mean file has the
wanted bytes. A finding is visible: stripes of a colour and width of its own. Everything follows
from the seed and the image's number, so an interrupted run continues with the same images.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hpcdl.system.errors import BadInput
from hpcdl.train.data.dataset import FINDINGS, Dataset
from hpcdl.train.data.making import Parts, example, make_dataset

Image = NDArray[np.uint8]
_TEXTURES = 6
_QUALITY = 88
_FIRST_TEST = 1 << 31
"""The number of the first test image: far from all numbers that are trained on."""
_FINDING_SHARE = 0.2
_FINDING_STRENGTH = 72.0  # of 255; the textures' own spread is 48


@dataclass(frozen=True)
class PhotoRequest:
    """A request: `count` images to train and `test` ones, `bytes` each on average."""

    count: int
    test: int
    width: int
    height: int
    bytes: int
    classes: int
    shards: int
    seed: int
    task: str = "classes"


def make_photos(folder: Path, request: PhotoRequest, threads: int) -> Dataset:
    """Write the data set; resumes. Raises BadInput: the bytes cannot be met at that size."""
    with_findings = request.task == "findings"
    dataset = Dataset(
        folder,
        "photos",
        "jpeg",
        (request.height, request.width, 3),
        len(FINDINGS) if with_findings else request.classes,
        255.0,
        {},
        request.task,
        0 if with_findings else 1,
        asdict(request),
    )
    return make_dataset(dataset, parts_of(request), _Painter(request).record, threads)


def parts_of(request: PhotoRequest) -> Parts:
    """The numbers of a request's images."""
    tested = range(_FIRST_TEST, _FIRST_TEST + request.test)
    shards = round(request.shards * request.test / max(request.count, request.test, 1))
    return {"train": (range(request.count), request.shards), "test": (tested, shards)}


def stream(seed: int, number: int) -> np.random.RandomState:
    """Return the random generator of image `number`; numbers count modulo 2**32."""
    return np.random.RandomState((seed * 7_368_787 + number) % 2**32)


class _Painter:
    """Draws image number i of a request, and its label; safe to use from several threads."""

    def __init__(self, request: PhotoRequest) -> None:
        self._request = request
        side = 2 * max(request.width, request.height)
        self._textures = [_texture(side, request.seed * 1009 + n) for n in range(_TEXTURES)]
        random = np.random.RandomState(request.seed % 2**32)
        self._noise = random.standard_normal((side, side, 1)).astype(np.float32)
        found = request.task == "findings"
        self._stripes = stripes(request.height, request.width) if found else None
        self._strength = self._fit()

    def record(self, number: int) -> bytes:
        """The serialized example of the image `number`."""
        request = self._request
        random = stream(request.seed, number)
        image, findings = self._paint(random, self._strength)
        data = self._encode(image)
        if findings is not None:
            label: dict[str, Any] = {"image__labels": [int(found) for found in findings]}
        else:
            label = {"image__class__label": 1 + int(random.randint(request.classes))}
        return example(
            image__encoded=data,
            image__format="JPEG",
            image__height=request.height,
            image__width=request.width,
            image__filename=f"{number}.jpg",
            **label,
        )

    def _paint(
        self, random: np.random.RandomState, strength: float
    ) -> tuple[Image, NDArray[np.bool_] | None]:
        """An image, and which findings it shows; None where it has none by its task."""
        height, width = self._request.height, self._request.width
        texture = self._textures[random.randint(_TEXTURES)]
        top, left, up, aside = random.randint(0, len(texture) - max(height, width), size=4)
        image = texture[top : top + height, left : left + width]
        noise = self._noise[up : up + height, aside : aside + width]
        step = -1 if random.randint(2) else 1
        image = image[:, ::step] + noise * strength
        findings = None
        if self._stripes is not None:
            findings = random.random_sample(len(FINDINGS)) < _FINDING_SHARE
            image = image + self._stripes[findings].sum(axis=0)
        return np.clip(image, 0, 255).astype(np.uint8), findings

    def _encode(self, image: Image) -> bytes:
        encoded = tf.io.encode_jpeg(image, quality=_QUALITY, chroma_downsampling=True)
        return bytes(encoded.numpy())

    def _mean_bytes(self, strength: float) -> float:
        random = np.random.RandomState(self._request.seed % 2**32)
        sizes = [len(self._encode(self._paint(random, strength)[0])) for _ in range(12)]
        return float(np.mean(sizes))

    def _fit(self) -> float:
        """The strength of the noise that gives the wanted bytes."""
        strengths = np.linspace(0.0, 80.0, 17)
        sizes = [self._mean_bytes(strength) for strength in strengths]
        if not sizes[0] <= self._request.bytes <= sizes[-1]:
            raise BadInput(
                f"images of {self._request.width} x {self._request.height} cannot have "
                f"{self._request.bytes:,} bytes",
                hint=f"--bytes from {int(sizes[0]):,} to {int(sizes[-1]):,} can be met",
            )
        return float(np.interp(self._request.bytes, sizes, strengths))


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
    return np.asarray(_FINDING_STRENGTH * np.stack(found), np.float32)


def _texture(side: int, seed: int) -> NDArray[np.float32]:
    """A colour texture of side x side whose amplitude falls as 1/f, 0 to 255."""
    random = np.random.RandomState(seed % 2**32)
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
