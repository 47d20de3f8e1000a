"""Asynchronous SGD by parameter servers.

    hpcdl job submit --launcher multiworker -- python parameter_server.py --model mlp --data DIR

TF_CONFIG describes the workers. Rank 0 starts the server (`ps`) and the chief as well, on ports
beside its own. A process that is killed is started again; with the server the weights are lost,
and the chief begins anew at its last checkpoint. Trusted networks only.
"""

import json
import math
import os
import sys
import time
from collections import deque

import tensorflow as tf
from common import Job, host_of
from members import Cluster, alone, lead, serve

from hpcdl.train.models import parameters_of

AT_ONCE = 8  # steps on their way per worker


def chief(cluster: Cluster) -> None:
    """Hand out the steps to the workers, keep checkpoints, and write result.json."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), rpc_layer="grpc", task_type="chief", task_id=0
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    job = Job(len(cluster["worker"]))
    with strategy.scope():
        model = job.recipe.build()
        loss_of = job.loss_of(model)
        variables = [variable.value for variable in model.trainable_variables]
        velocities = [tf.Variable(tf.zeros(v.shape)) for v in variables]
        done = tf.Variable(0, dtype=tf.int64)
    state = tf.train.Checkpoint(done=done, values=variables, velocities=velocities)
    manager = tf.train.CheckpointManager(state, job.folder / "servers", max_to_keep=2)
    manager.restore_or_initialize()

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        began = done.read_value()
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True)) + sum(model.losses)
        for v, velocity, g in zip(
            variables, velocities, tape.gradient(loss, variables), strict=True
        ):
            velocity.assign(0.9 * velocity + g)
            v.assign_sub(job.numbers.lr * velocity)
        return loss, done.assign_add(1) - 1 - began

    flying, late, begun = deque(), [], time.perf_counter()

    def land(most: int) -> None:
        nonlocal begun
        while len(flying) > most:
            loss, behind = flying.popleft().fetch()
            late.append(int(behind))
            now = time.perf_counter()
            job.add(float(loss), now - begun)
            begun = now

    every = job.numbers.checkpoint_every or math.inf
    first = int(done)
    for number, batch in enumerate(job.batches(first), first + 1):
        flying.append(coordinator.schedule(step, args=batch))
        land(AT_ONCE * len(cluster["worker"]))
        if number % every == 0:
            land(0)
            manager.save()
    land(0)
    hosts = [host_of(address) for address in cluster["worker"]]
    staleness = {"mean_staleness": sum(late) / max(1, len(late)), "max_staleness": max(late or [0])}
    counts = {"workers": len(hosts), "servers": len(cluster["ps"])}
    job.write(
        "parameter-server",
        parameters_of(model),
        job.scores(model),
        hosts=hosts,
        asynchronous={**counts, **staleness},
    )


def main() -> int:
    """Lead this rank's members, or be one."""
    config = json.loads(os.environ.get("TF_CONFIG") or "null") or alone()
    cluster, task = config["cluster"], config.get("task", {"type": "worker", "index": 0})
    if "ps" not in cluster:
        return lead(cluster["worker"], task["index"])
    if task["type"] != "chief":
        serve(cluster, task["type"], task["index"])
    try:
        chief(cluster)
    except (tf.errors.UnavailableError, tf.errors.AbortedError) as fault:
        print(f"a server is lost, with its weights: {fault.message[:100]}", file=sys.stderr)
        return 9  # the leading rank starts this process again
    return 0


if __name__ == "__main__":
    sys.exit(main())
