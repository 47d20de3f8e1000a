"""AlexNet, GoogLeNet, ResNet-50 and ViT-S/16 in JAX, with as many weights as `hpcdl train`."""

from functools import partial

import harness
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax


class Weights:
    """A network's weights in the order of its layers: drawn by NumPy at first, then given."""

    def __init__(self, key: Array, values: list[Array] | None = None, seed: int = 0) -> None:
        self.key, self.made, self.first = key, [], values is None
        self.given, self.random = iter(values or ()), np.random.default_rng(seed)

    def __call__(self, *shape: int, fill: float | None = None) -> Array:
        """The next weight; drawn from a normal distribution by its inputs where not filled."""
        if not self.first:
            return next(self.given)
        scale = np.float32((2 / np.prod(shape[:-1])) ** 0.5)
        drawn = scale * self.random.standard_normal(shape, np.float32)
        self.made.append(drawn if fill is None else np.full(shape, fill, np.float32))
        return jnp.zeros(shape)


def plain(w: Weights, x: Array, width: int, size: int, stride: int, pad: int) -> Array:
    """A convolution without a bias; `pad` pixels on each side."""
    kernel, names = w(size, size, x.shape[-1], width), ("NHWC", "HWIO", "NHWC")
    steps, edges = (stride, stride), [(pad, pad)] * 2
    return lax.conv_general_dilated(x, kernel, steps, edges, dimension_numbers=names)


def conv(w: Weights, x: Array, width: int, size: int, stride: int = 1, pad: int = -1) -> Array:
    """A convolution with a bias, by default with so many pixels around that it keeps the size."""
    return plain(w, x, width, size, stride, size // 2 if pad < 0 else pad) + w(width, fill=0.0)


def dense(w: Weights, x: Array, width: int) -> Array:
    """A linear layer."""
    return x @ w(x.shape[-1], width) + w(width, fill=0.0)


def normal(w: Weights, x: Array, axes: tuple[int, ...] = (0, 1, 2), epsilon: float = 1e-3) -> Array:
    """Batch normalisation by the rank's own batch; over the last axis, layer normalisation."""
    ready = (x - x.mean(axes, keepdims=True)) / jnp.sqrt(x.var(axes, keepdims=True) + epsilon)
    return ready * w(x.shape[-1], fill=1.0) + w(x.shape[-1], fill=0.0)


def pool(x: Array, stride: int = 2, pad: str = "VALID") -> Array:
    """The largest of 3 x 3."""
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, stride, stride, 1), pad)


def dropout(w: Weights, x: Array, rate: float) -> Array:
    """Some values become 0, the others larger for it."""
    w.key, own = jax.random.split(w.key)
    return jnp.where(jax.random.bernoulli(own, 1 - rate, x.shape), x / (1 - rate), 0.0)


def alexnet(w: Weights, x: Array, classes: int) -> Array:
    """AlexNet in one tower (arXiv 1404.5997)."""
    x = pool(jax.nn.relu(conv(w, x, 64, 11, 4, 2)))
    x = pool(jax.nn.relu(conv(w, x, 192, 5)))
    for width in (384, 256, 256):
        x = jax.nn.relu(conv(w, x, width, 3))
    x = pool(x).reshape(len(x), -1)
    for _ in range(2):
        x = jax.nn.relu(dense(w, dropout(w, x, 0.5), 4096))
    return dense(w, x, classes)


def googlenet(w: Weights, x: Array, classes: int) -> Array:
    """GoogLeNet (arXiv 1409.4842) with batch normalisation, without auxiliary heads."""

    def unit(x: Array, width: int, size: int, stride: int = 1) -> Array:
        return jax.nn.relu(normal(w, plain(w, x, width, size, stride, size // 2)))

    x = pool(unit(x, 64, 7, 2), 2, "SAME")
    x = unit(unit(x, 64, 1), 192, 3)
    for blocks in harness.INCEPTIONS:
        x = pool(x, 2, "SAME")
        for one, reduce_a, three_a, reduce_b, three_b, project in blocks:
            first = unit(x, one, 1)
            threes = [(reduce_a, three_a), (reduce_b, three_b)]
            branches = [unit(unit(x, less, 1), width, 3) for less, width in threes]
            pooled = unit(pool(x, 1, "SAME"), project, 1)
            x = jnp.concatenate([first, *branches, pooled], -1)
    return dense(w, dropout(w, x.mean((1, 2)), 0.2), classes)


def resnet50(w: Weights, x: Array, classes: int) -> Array:
    """ResNet-50 (arXiv 1512.03385); biases and the place of the stride as in Keras."""
    unit = partial(normal, w, epsilon=1.001e-5)
    x = pool(jax.nn.relu(unit(conv(w, x, 64, 7, 2))), 2, "SAME")
    for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for number in range(count):
            stride = 2 if width > 64 and number == 0 else 1
            y = jax.nn.relu(unit(conv(w, x, width, 1, stride)))
            y = jax.nn.relu(unit(conv(w, y, width, 3)))
            y = unit(conv(w, y, 4 * width, 1))
            short = unit(conv(w, x, 4 * width, 1, stride)) if number == 0 else x
            x = jax.nn.relu(y + short)
    return dense(w, x.mean((1, 2)), classes)


def vit_s16(w: Weights, x: Array, classes: int) -> Array:
    """ViT-S/16 (arXiv 2010.11929); the mean of the patches is classified (arXiv 2205.01580)."""
    unit = partial(normal, w, axes=(-1,), epsilon=1e-6)
    patches = conv(w, x, 384, 16, 16, 0).reshape(len(x), -1, 384)
    x = patches + w(patches.shape[1], 384)
    for _ in range(12):
        y = unit(x)
        query, key, value = (dense(w, y, 384).reshape(*y.shape[:2], 6, 64) for _ in range(3))
        y = jax.nn.dot_product_attention(query, key, value).reshape(y.shape)
        x = x + dense(w, y, 384)
        x = x + dense(w, jax.nn.gelu(dense(w, unit(x), 1536), approximate=False), 384)
    return dense(w, unit(x).mean(1), classes)
