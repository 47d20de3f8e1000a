"""Encoded images to pixels: the window that is wanted, at the size that is wanted.

JPEGs are cut by jpeg.c where it can be had, else by TensorFlow's fused operation; both decode
only the window, at the smallest scale that still has the wanted pixels. The few images that are
something else (PNG, GIF, BMP, inks instead of colours) are decoded whole. Windows are drawn by
TensorFlow from a seed, so that they do not depend on who cuts.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcdl.train.data.jpeg import Cropper

_NODES = re.compile(r"\{\{[^}]*\}\}|\[Op:\w+\]|\bname: *$")
_AREA = (0.08, 1.0)
_ASPECT = (3 / 4, 4 / 3)
_ALIGNED = 64
"""Bytes; TensorFlow takes over arrays that begin at multiples of it, and copies others."""


class Images:
    """Cuts images.

    Args:
        tf: TensorFlow.
        size: (height, width) of what is given out.
        cutter: the compiled library, or None for TensorFlow alone.
    """

    def __init__(self, tf: Any, size: tuple[int, int], cutter: Cropper | None) -> None:
        self._tf = tf
        self._size = size
        self._cutter = cutter

    @property
    def decoder(self) -> str:
        """Who decodes."""
        return "libjpeg-turbo" if self._cutter else "TensorFlow"

    @property
    def in_batches(self) -> bool:
        """Whether `cut_all` is the way, or `cut`."""
        return self._cutter is not None

    def shape(self, encoded: Any) -> Any:
        """(height, width, channels) of an image, from its header where it is a JPEG."""
        tf = self._tf
        return tf.cond(
            tf.io.is_jpeg(encoded),
            lambda: tf.image.extract_jpeg_shape(encoded),
            lambda: tf.shape(self._whole(encoded)),
        )

    def random_window(self, shape: Any, seed: Any) -> Any:
        """(top, left, height, width): a random part of random shape (arXiv 1409.4842)."""
        tf = self._tf
        start, size, _ = tf.raw_ops.StatelessSampleDistortedBoundingBox(
            image_size=shape, bounding_boxes=[[[0.0, 0.0, 1.0, 1.0]]], min_object_covered=0.0,
            seed=seed, aspect_ratio_range=_ASPECT, area_range=_AREA, max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )  # fmt: skip
        return tf.concat([start[:2], size[:2]], axis=0)

    def middle_window(self, shape: Any) -> Any:
        """The middle: seven eighths of the shorter side, a pixel at least."""
        tf = self._tf
        side = tf.maximum(1, tf.minimum(shape[0], shape[1]) * 7 // 8)
        return tf.stack([(shape[0] - side) // 2, (shape[1] - side) // 2, side, side])

    def cut(self, encoded: Any, window: Any) -> Any:
        """One image by TensorFlow, in a graph: bytes of shape (height, width, 3)."""
        tf = self._tf
        part = tf.cond(
            tf.io.is_jpeg(encoded),
            lambda: self._cut_jpeg(encoded, window),
            lambda: self._slice(self._whole(encoded), window),
        )
        return self._resized(part)

    def cut_all(self, encoded: Any, windows: Any) -> Any:
        """A batch of images by the library, in a graph: bytes of shape (n, height, width, 3)."""
        tf = self._tf
        pixels = tf.numpy_function(self._cut_each, [encoded, windows], tf.uint8, stateful=False)
        pixels.set_shape((*encoded.shape, *self._size, 3))
        return pixels

    def fault_of(self, encoded: Any) -> str:
        """What is wrong with an image; empty where it can be cut."""
        tf = self._tf
        try:
            height, width, _ = self.shape(encoded).numpy()
            window = np.array([0, 0, height, width], np.int32)
            if self._cutter:
                self._cut_each([encoded.numpy()], window[None])
            else:
                self.cut(encoded, tf.constant(window))
        except (ValueError, tf.errors.InvalidArgumentError) as fault:
            return first_line(fault)
        return ""

    def _cut_each(self, encoded: Any, windows: NDArray[np.int32]) -> NDArray[np.uint8]:
        assert self._cutter
        out = _aligned((len(windows), *self._size, 3))
        for data, window, place in zip(encoded, windows, out, strict=True):
            if not self._cutter.cut(data, window, place):
                place[:] = self._cut_foreign(data, window)
        return out

    def _cut_foreign(self, data: bytes, window: NDArray[np.int32]) -> NDArray[np.uint8]:
        tf = self._tf
        try:
            with tf.device("/CPU:0"):
                part = self._slice(self._whole(data), window)
                return np.asarray(self._resized(part))
        except tf.errors.InvalidArgumentError as fault:
            raise ValueError(first_line(fault)) from fault

    def _cut_jpeg(self, encoded: Any, window: Any) -> Any:
        tf = self._tf
        height, width = self._size

        def at(ratio: int) -> Any:
            return lambda: tf.image.decode_and_crop_jpeg(
                encoded, window // ratio, channels=3, ratio=ratio, dct_method="INTEGER_FAST"
            )

        spare = tf.minimum(window[2] // height, window[3] // width)
        scale = tf.reduce_sum(tf.cast(spare >= [2, 4, 8], tf.int32))
        return tf.switch_case(scale, [at(1), at(2), at(4), at(8)])

    def _whole(self, encoded: Any) -> Any:
        return self._tf.io.decode_image(encoded, channels=3, expand_animations=False)

    def _slice(self, image: Any, window: Any) -> Any:
        tf = self._tf
        begin, size = tf.concat([window[:2], [0]], 0), tf.concat([window[2:], [3]], 0)
        return tf.slice(image, begin, size)

    def _resized(self, part: Any) -> Any:
        tf = self._tf
        resized = tf.raw_ops.ResizeBilinear(
            images=tf.expand_dims(part, 0), size=self._size, half_pixel_centers=True
        )
        return tf.cast(resized[0], tf.uint8)


def first_line(fault: Any) -> str:
    """What an error of TensorFlow says, in one line, without the names of its nodes."""
    line = (str(getattr(fault, "message", fault)).splitlines() or [""])[0]
    return _NODES.sub("", line).strip()[:300]


def _aligned(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    size = int(np.prod(shape))
    memory = np.empty(size + _ALIGNED, np.uint8)
    begin = -memory.ctypes.data % _ALIGNED
    return memory[begin : begin + size].reshape(shape)
