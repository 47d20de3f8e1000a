"""Encoded images to pixels: the crop that is wanted, at the size that is wanted.

JPEGs are cropped by TensorFlow's fused operation, which decodes only the crop, at the smallest
scale that still has the wanted pixels. The few images that are something else (PNG, GIF, BMP, inks
instead of colours) are decoded whole. Crops are drawn from a seed.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import tensorflow as tf

_NODES = re.compile(r"\{\{[^}]*\}\}|\[Op:\w+\]|\bname: *$")
_AREA = (0.08, 1.0)
_ASPECT = (3 / 4, 4 / 3)


class Images:
    """Crops images to `size` (height, width)."""

    def __init__(self, size: tuple[int, int]) -> None:
        self._size = size

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
        """Return one image, in a graph: bytes of shape (height, width, 3)."""
        part = tf.cond(
            tf.io.is_jpeg(encoded),
            lambda: self._crop_jpeg(encoded, area),
            lambda: self._slice(self._whole(encoded), area),
        )
        return self._resized(part)

    def fault_of(self, encoded: Any) -> str:
        """Return the fault of an image; empty if it can be decoded."""
        try:
            height, width, _ = self.shape(encoded).numpy()
            area = np.array([0, 0, height, width], np.int32)
            self.crop(encoded, tf.constant(area))
        except tf.errors.InvalidArgumentError as fault:
            return first_line(fault)
        return ""

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
    """Return a TensorFlow error in one line, without the names of its nodes."""
    line = (str(getattr(fault, "message", fault)).splitlines() or [""])[0]
    return _NODES.sub("", line).strip()[:300]
