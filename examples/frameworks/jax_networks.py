"""JAX: four networks trained on a mesh of all devices, one process per GPU or CPU.

    hpcdl job submit --gpus 4 --launcher jax -- python3 jax_networks.py --model resnet50

One compiled step holds forward and backward pass, the mean of the gradients and the update. Two
parts are timed alone once all steps are done, local gradients and the update; what a whole step
takes longer is communication that nothing hides. No moving averages: nothing is evaluated.
"""

import sys
import time
from collections.abc import Callable
from functools import partial

import harness
import numpy as np

try:
    import jax
    import jax.numpy as jnp
    from jax import Array, lax
    from jax.experimental.multihost_utils import process_allgather
    from jax.sharding import NamedSharding, PartitionSpec
except ImportError as fault:
    sys.exit(f"error: JAX is not installed for {sys.executable}: {fault}")

State = tuple[list[Array], list[Array]]  # weights and their velocities


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

    def draw(self) -> Array:
        """A new key."""
        self.key, found = jax.random.split(self.key)
        return found


def conv(
    w: Weights,
    x: Array,
    width: int,
    size: int,
    stride: int = 1,
    pad: int | None = None,
    *,
    bias: bool = True,
) -> Array:
    """A convolution; `pad` pixels on each side, by default so many that it keeps the size."""
    edge = (size // 2 if pad is None else pad,) * 2
    y = lax.conv_general_dilated(
        x,
        w(size, size, x.shape[-1], width),
        (stride, stride),
        [edge] * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return y + w(width, fill=0.0) if bias else y


def dense(w: Weights, x: Array, width: int) -> Array:
    """A linear layer."""
    return x @ w(x.shape[-1], width) + w(width, fill=0.0)


def normal(w: Weights, x: Array, axes: tuple[int, ...] = (0, 1, 2), epsilon: float = 1e-3) -> Array:
    """Batch normalisation by the rank's own batch; over the last axis, layer normalisation."""
    mean, spread = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    ready = (x - mean) * lax.rsqrt(spread + epsilon)
    return ready * w(x.shape[-1], fill=1.0) + w(x.shape[-1], fill=0.0)


def pool(x: Array, stride: int = 2, pad: str = "VALID") -> Array:
    """The largest of 3 x 3."""
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, stride, stride, 1), pad)


def dropout(w: Weights, x: Array, rate: float) -> Array:
    """Some values become 0, the others larger for it."""
    return jnp.where(jax.random.bernoulli(w.draw(), 1 - rate, x.shape), x / (1 - rate), 0.0)


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
        return jax.nn.relu(normal(w, conv(w, x, width, size, stride, bias=False)))

    x = pool(unit(x, 64, 7, 2), 2, "SAME")
    x = unit(unit(x, 64, 1), 192, 3)
    for blocks in harness.INCEPTIONS:
        x = pool(x, 2, "SAME")
        for one, reduce_a, three_a, reduce_b, three_b, project in blocks:
            branches = (
                unit(x, one, 1),
                unit(unit(x, reduce_a, 1), three_a, 3),
                unit(unit(x, reduce_b, 1), three_b, 3),
                unit(pool(x, 1, "SAME"), project, 1),
            )
            x = jnp.concatenate(branches, -1)
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
    x = conv(w, x, 384, 16, 16, 0).reshape(len(x), -1, 384)
    x = x + w(x.shape[1], 384)
    for _ in range(12):
        y = unit(x)
        query, key, value = (dense(w, y, 384).reshape(*y.shape[:2], 6, 64) for _ in range(3))
        y = jax.nn.dot_product_attention(query, key, value).reshape(y.shape)
        x = x + dense(w, y, 384)
        x = x + dense(w, jax.nn.gelu(dense(w, unit(x), 1536), approximate=False), 384)
    return dense(w, unit(x).mean(1), classes)


def cross_entropy(
    network: Callable[..., Array],
    key: Array,
    weights: list[Array],
    images: Array,
    labels: Array,
    step: Array,
) -> Array:
    """The mean loss of a rank's own batch."""
    own = jax.random.fold_in(jax.random.fold_in(key, step), lax.axis_index("ranks"))
    chosen = jax.nn.log_softmax(network(Weights(own, weights), images, 1000))
    return -jnp.take_along_axis(chosen, labels[:, None], 1).mean()


def main() -> None:
    """Train, and let rank 0 write result.json."""
    asked = harness.options(__doc__)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize()
    rank, ranks = jax.process_index(), jax.process_count()
    batches, network = harness.Batches(asked, rank, ranks), globals()[asked.model]
    mesh = jax.make_mesh((ranks,), ("ranks",))
    split, whole = PartitionSpec("ranks"), PartitionSpec()
    place = partial(jax.make_array_from_process_local_data, NamedSharding(mesh, split))
    loss_of = partial(cross_entropy, network, jax.random.key(asked.seed))

    def local(weights: list[Array], *batch: Array) -> list[Array]:
        mine = jax.lax.pcast(weights, "ranks", to="varying")
        return jax.tree.map(lambda one: one[None], jax.value_and_grad(loss_of)(mine, *batch))

    def average(found: list[Array]) -> list[Array]:
        return jax.tree.map(lambda one: lax.pmean(one[0], "ranks"), found)

    def update(state: State, found: list[Array]) -> State:
        moved = [0.9 * v + g for v, g in zip(state[1], found, strict=True)]
        return [w - asked.lr * v for w, v in zip(state[0], moved, strict=True)], moved

    def step_of(state: State, *batch: Array) -> tuple[Array, State]:
        found = average(local(state[0], *batch))
        return found[0], update(state, found[1])

    share = partial(jax.shard_map, mesh=mesh, in_specs=(whole, split, split, whole))
    train = jax.jit(share(step_of, out_specs=whole))
    gradients = jax.jit(share(local, out_specs=split))
    drawn = Weights(jax.random.key(asked.seed), seed=asked.seed)
    jax.eval_shape(lambda: network(drawn, batches.images[:2], 1000))
    state = drawn.made, [np.zeros_like(weight) for weight in drawn.made]
    state = jax.device_put(state, NamedSharding(mesh, whole))
    record, rows = harness.Record(asked, ranks), []
    for step in range(asked.steps):
        begun = time.perf_counter()
        batch = [*map(place, batches(step)), np.int32(step)]
        fed = time.perf_counter()
        loss, state = jax.block_until_ready(train(state, *batch))
        rows.append((time.perf_counter() - begun, float(loss), fed - begun))
    wait, moved = jax.block_until_ready, jax.jit(update)
    updating = harness.seconds_of(lambda: wait(moved(state, state[1])))
    alone = harness.seconds_of(lambda: wait(gradients(state[0], *batch))) if ranks > 1 else 1e9
    record.add_all(rows, updating, alone)
    if ranks > 1:
        averages = jax.jit(jax.shard_map(average, mesh=mesh, in_specs=(split,), out_specs=whole))
        own = wait(gradients(state[0], *batch))
        record.exchange = harness.seconds_of(lambda: wait(averages(own)))
    names = process_allgather(np.frombuffer(harness.host().encode().ljust(64), np.uint8))
    if rank == 0:
        hosts = [bytes(name).decode().strip() for name in np.reshape(names, (ranks, 64))]
        gpu = jax.devices()[0].device_kind if jax.default_backend() == "gpu" else None
        record.write("jax", {"jax": jax.__version__}, hosts, sum(w.size for w in state[0]), gpu)


if __name__ == "__main__":
    main()
