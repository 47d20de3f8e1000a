"""Encoded images to pixels: the crop that is wanted, at the size that is wanted.

JPEGs are cropped by TensorFlow's fused operation, which decodes only the crop, at the smallest
scale that still has the wanted pixels. The few images that are something else (PNG, GIF, BMP) are
decoded whole. Crops are drawn from a seed.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_AREA = (0.08, 1.0)
_ASPECT = (3 / 4, 4 / 3)


def shape_of(encoded: Any) -> Any:
    """(height, width, channels) of an image, from its header where it is a JPEG."""
    return tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: tf.image.extract_jpeg_shape(encoded),
        lambda: tf.shape(_whole(encoded)),
    )


def random_crop(shape: Any, seed: Any) -> Any:
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


def central_crop(shape: Any) -> Any:
    """The middle: seven eighths of the shorter side, a pixel at least."""
    side = tf.maximum(1, tf.minimum(shape[0], shape[1]) * 7 // 8)
    return tf.stack([(shape[0] - side) // 2, (shape[1] - side) // 2, side, side])


def cropped(encoded: Any, area: Any, size: tuple[int, int]) -> Any:
    """Return an area of an image as bytes of shape (height, width, 3) of `size`, in a graph."""
    part = tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: _crop_jpeg(encoded, area, size),
        lambda: _slice(_whole(encoded), area),
    )
    resized = tf.raw_ops.ResizeBilinear(
        images=tf.expand_dims(part, 0), size=size, half_pixel_centers=True
    )
    return tf.cast(resized[0], tf.uint8)


def _crop_jpeg(encoded: Any, area: Any, size: tuple[int, int]) -> Any:
    def at(ratio: int) -> Any:
        return lambda: tf.image.decode_and_crop_jpeg(
            encoded, area // ratio, channels=3, ratio=ratio, dct_method="INTEGER_FAST"
        )

    spare = tf.minimum(area[2] // size[0], area[3] // size[1])
    scale = tf.reduce_sum(tf.cast(spare >= [2, 4, 8], tf.int32))
    return tf.switch_case(scale, [at(1), at(2), at(4), at(8)])


def _slice(image: Any, area: Any) -> Any:
    begin, size = tf.concat([area[:2], [0]], 0), tf.concat([area[2:], [3]], 0)
    return tf.slice(image, begin, size)


def _whole(encoded: Any) -> Any:
    return tf.io.decode_image(encoded, channels=3, expand_animations=False)
