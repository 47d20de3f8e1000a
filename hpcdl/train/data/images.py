"""Encoded images to pixels: the crop that is wanted, at the size that is wanted.

JPEGs are cropped by jpeg.c where available, else by TensorFlow's fused operation; both decode
only the crop, at the smallest scale that still has the wanted pixels. Resizing what TensorFlow
decoded costs half of that again; jpeg.c resizes rows while libjpeg-turbo gives them. The few images
that are something else (PNG, GIF, BMP, inks instead of colours) are decoded whole. Crops are drawn
by TensorFlow from a seed, so that they do not depend on the decoder.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hpcdl.system.errors import HpcdlError, MissingPrerequisite
from hpcdl.system.files import explain_os_errors
from hpcdl.system.resources import cache
from hpcdl.system.run import run
from hpcdl.system.trust import make_private, require_private

SWITCH = "HPCDL_JPEG"
"""Set to `tensorflow`, jpeg.c is not used."""
_SOURCE = Path(__file__).with_name("jpeg.c")
_FOREIGN = 2
_MESSAGE_BYTES = 256
_START = b"\xff\xd8\xff"
_NODES = re.compile(r"\{\{[^}]*\}\}|\[Op:\w+\]|\bname: *$")
_AREA = (0.08, 1.0)
_ASPECT = (3 / 4, 4 / 3)
_ALIGNED = 64
"""Bytes; TensorFlow takes over arrays that begin at multiples of it, and copies others."""


class Cropper:
    """jpeg.c, compiled."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        numbers, place = ctypes.c_int, ctypes.c_void_p
        self._library.hpcdl_crop.argtypes = (
            ctypes.c_char_p,
            ctypes.c_ulong,
            place,
            numbers,
            numbers,
            place,
            ctypes.c_char_p,
        )

    def crop(self, data: bytes, area: NDArray[np.int32], out: NDArray[np.uint8]) -> bool:
        """Decode the crop to `out` (height, width, 3), resized; other threads run meanwhile.

        `area` is top, left, height and width in pixels; `data` is the file, of which nothing below
        the crop is read; arrays are contiguous. False where it is no JPEG with red, green and blue.
        Raises ValueError: the image is damaged.
        """
        if not data.startswith(_START):
            return False
        why = ctypes.create_string_buffer(_MESSAGE_BYTES)
        height, width, _ = out.shape
        found = self._library.hpcdl_crop(
            data, len(data), area.ctypes.data, height, width, out.ctypes.data, why
        )
        if found not in (0, _FOREIGN):
            raise ValueError(why.value.decode(errors="replace"))
        return bool(found == 0)


def load_cropper() -> Cropper | None:
    """The library, compiled into the cache once per type of machine; None where that cannot be."""
    if os.environ.get(SWITCH) == "tensorflow":
        return None
    kind = " ".join((platform.machine(), *platform.libc_ver()))
    digest = hashlib.sha256(_SOURCE.read_bytes() + kind.encode()).hexdigest()[:12]
    library = cache("jpeg") / f"crop-{digest}.so"
    try:
        if not library.exists():
            _compile(library)
        require_private(library)
        return Cropper(library)
    except (HpcdlError, OSError):
        return None


def _compile(library: Path) -> None:
    """Compile aside and rename: ranks may do so at the same time."""
    aside = library.with_suffix(f".{platform.node()}.{os.getpid()}")
    with explain_os_errors(library):
        make_private(library.parent)
        try:
            compiler = [*shlex.split(os.environ.get("CC", "cc")), "-O3", "-shared", "-fPIC"]
            done = run([*compiler, "-o", aside, _SOURCE, "-ljpeg"], timeout=60, check=False)
            if not done.ok:
                raise MissingPrerequisite("jpeg.c cannot be compiled", details=done.last_lines())
            aside.replace(library)
        finally:
            aside.unlink(missing_ok=True)


class Images:
    """Crops images to `size` (height, width) by the compiled library, or by TensorFlow alone."""

    def __init__(self, size: tuple[int, int], cropper: Cropper | None) -> None:
        self._size = size
        self._cropper = cropper

    @property
    def decoder(self) -> str:
        """The library that decodes."""
        return "libjpeg-turbo" if self._cropper else "TensorFlow"

    @property
    def in_batches(self) -> bool:
        """Whether `crop_batch` is the way, or `crop`."""
        return self._cropper is not None

    def shape(self, encoded: Any) -> Any:
        """(height, width, channels) of an image, from its header where it is a JPEG."""
        return tf.cond(
            tf.io.is_jpeg(encoded),
            lambda: tf.image.extract_jpeg_shape(encoded),
            lambda: tf.shape(self._whole(encoded)),
        )

    def random_crop(self, shape: Any, seed: Any) -> Any:
        """(top, left, height, width): a random part of random shape (arXiv 1409.4842)."""
        start, size, _ = tf.raw_ops.StatelessSampleDistortedBoundingBox(
            image_size=shape,
            bounding_boxes=[[[0.0, 0.0, 1.0, 1.0]]],
            min_object_covered=0.0,
            seed=seed,
            aspect_ratio_range=_ASPECT,
            area_range=_AREA,
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        return tf.concat([start[:2], size[:2]], axis=0)

    def central_crop(self, shape: Any) -> Any:
        """The middle: seven eighths of the shorter side, a pixel at least."""
        side = tf.maximum(1, tf.minimum(shape[0], shape[1]) * 7 // 8)
        return tf.stack([(shape[0] - side) // 2, (shape[1] - side) // 2, side, side])

    def crop(self, encoded: Any, area: Any) -> Any:
        """One image by TensorFlow, in a graph: bytes of shape (height, width, 3)."""
        part = tf.cond(
            tf.io.is_jpeg(encoded),
            lambda: self._crop_jpeg(encoded, area),
            lambda: self._slice(self._whole(encoded), area),
        )
        return self._resized(part)

    def crop_batch(self, encoded: Any, areas: Any) -> Any:
        """A batch of images by the library, in a graph: bytes of shape (n, height, width, 3)."""
        pixels = tf.numpy_function(self._crop_each, [encoded, areas], tf.uint8, stateful=False)
        pixels.set_shape((*encoded.shape, *self._size, 3))
        return pixels

    def fault_of(self, encoded: Any) -> str:
        """What is wrong with an image; empty where it can be decoded."""
        try:
            height, width, _ = self.shape(encoded).numpy()
            area = np.array([0, 0, height, width], np.int32)
            if self._cropper:
                self._crop_each([encoded.numpy()], area[None])
            else:
                self.crop(encoded, tf.constant(area))
        except (ValueError, tf.errors.InvalidArgumentError) as fault:
            return first_line(fault)
        return ""

    def _crop_each(self, encoded: Any, areas: NDArray[np.int32]) -> NDArray[np.uint8]:
        assert self._cropper
        shape = (len(areas), *self._size, 3)
        memory = np.empty(int(np.prod(shape)) + _ALIGNED, np.uint8)
        begin = -memory.ctypes.data % _ALIGNED
        out = memory[begin : begin + int(np.prod(shape))].reshape(shape)
        for data, area, place in zip(encoded, areas, out, strict=True):
            if not self._cropper.crop(data, area, place):
                place[:] = self._crop_foreign(data, area)
        return out

    def _crop_foreign(self, data: bytes, area: NDArray[np.int32]) -> NDArray[np.uint8]:
        try:
            with tf.device("/CPU:0"):
                part = self._slice(self._whole(data), area)
                return np.asarray(self._resized(part))
        except tf.errors.InvalidArgumentError as fault:
            raise ValueError(first_line(fault)) from fault

    def _crop_jpeg(self, encoded: Any, area: Any) -> Any:
        height, width = self._size

        def at(ratio: int) -> Any:
            return lambda: tf.image.decode_and_crop_jpeg(
                encoded, area // ratio, channels=3, ratio=ratio, dct_method="INTEGER_FAST"
            )

        spare = tf.minimum(area[2] // height, area[3] // width)
        scale = tf.reduce_sum(tf.cast(spare >= [2, 4, 8], tf.int32))
        return tf.switch_case(scale, [at(1), at(2), at(4), at(8)])

    def _whole(self, encoded: Any) -> Any:
        return tf.io.decode_image(encoded, channels=3, expand_animations=False)

    def _slice(self, image: Any, area: Any) -> Any:
        begin, size = tf.concat([area[:2], [0]], 0), tf.concat([area[2:], [3]], 0)
        return tf.slice(image, begin, size)

    def _resized(self, part: Any) -> Any:
        resized = tf.raw_ops.ResizeBilinear(
            images=tf.expand_dims(part, 0), size=self._size, half_pixel_centers=True
        )
        return tf.cast(resized[0], tf.uint8)


def first_line(fault: Any) -> str:
    """What an error of TensorFlow says, in one line, without the names of its nodes."""
    line = (str(getattr(fault, "message", fault)).splitlines() or [""])[0]
    return _NODES.sub("", line).strip()[:300]
