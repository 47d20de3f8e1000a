"""JAX: jax_networks trained on a mesh of all devices, one process per GPU or CPU.

    hpcdl job submit --gpus 4 --launcher jax -- python3 jax_training.py --model resnet50

One compiled step holds forward and backward pass, the mean of the gradients and the update. Two
parts are timed alone once all steps are done, local gradients and the update; what a whole step
takes longer is communication that nothing hides.
"""

import sys
import time
from collections.abc import Callable
from functools import partial

import harness
import numpy as np

try:
    import jax
    import jax_networks
    from jax import Array, lax
    from jax.experimental.multihost_utils import process_allgather
    from jax.sharding import NamedSharding, PartitionSpec
    from jax_networks import Weights
except ImportError as fault:
    sys.exit(f"error: JAX is not installed for {sys.executable}: {fault}")

State = tuple[list[Array], list[Array]]  # weights and their velocities


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
    return -jax.numpy.take_along_axis(chosen, labels[:, None], 1).mean()


def main() -> None:
    """Train, and let rank 0 write result.json."""
    asked = harness.options(__doc__)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize()
    rank, ranks = jax.process_index(), jax.process_count()
    batches, network = harness.Batches(asked, rank, ranks), getattr(jax_networks, asked.model)
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
