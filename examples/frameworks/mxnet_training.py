"""MXNet: its key-value store or Horovod train mxnet_networks, one process per GPU or CPU.

    hpcdl job submit --gpus 4 --launcher multiworker -- python3 mxnet_training.py --model resnet50

Every rank starts a server of `dist_sync` beside itself, rank 0 the scheduler, too: they ask nobody
for a password, so trusted networks only. By `--launcher horovod` Horovod's all-reduce exchanges.
MXNet's engine sends a gradient as soon as it is there, while back-propagation computes the next:
what a whole step takes longer than local gradients and the update is its communication.
"""

import json
import os
import socket
import subprocess
import sys
import time

import harness

TASKS = json.loads(os.environ.get("TF_CONFIG") or "{}")  # of the launcher, for any framework
WORKERS = TASKS.get("cluster", {}).get("worker", [])
RANK = TASKS.get("task", {}).get("index", 0)


def start_store() -> list[subprocess.Popen[bytes]]:
    """Start this rank's part of the store; MXNet reads where it is as it is imported."""
    places = [address.rpartition(":") for address in WORKERS]
    where = {
        "DMLC_PS_ROOT_URI": socket.gethostbyname(places[0][0]),
        "DMLC_PS_ROOT_PORT": places[0][2],
        "DMLC_NODE_HOST": socket.gethostbyname(places[RANK][0]),
        "DMLC_NUM_WORKER": str(len(WORKERS)),
        "DMLC_NUM_SERVER": str(len(WORKERS)),
    }
    os.environ.update(where, DMLC_ROLE="worker", DMLC_WORKER_ID=str(RANK))
    argv = [sys.executable, "-c", "import mxnet"]  # it serves until the workers have ended
    roles = ("scheduler", "server") if RANK == 0 else ("server",)
    return [subprocess.Popen(argv, env={**os.environ, "DMLC_ROLE": role}) for role in roles]


STORE = start_store() if len(WORKERS) > 1 else []
try:
    import mxnet as mx
    import mxnet_networks
    from mxnet import gluon
except ImportError as fault:
    sys.exit(f"error: MXNet is not installed for {sys.executable}: {fault}")


def main() -> None:
    """Train, and let rank 0 write result.json."""
    asked = harness.options(__doc__)
    ranks, rank, hvd = max(1, len(WORKERS)), RANK, None
    local = int(os.environ.get("SLURM_LOCALID", 0))
    if not TASKS:
        import horovod.mxnet as hvd

        hvd.init()
        ranks, rank, local = hvd.size(), hvd.rank(), hvd.local_rank()
    device = mx.gpu(local) if mx.context.num_gpus() else mx.cpu()
    mx.random.seed(asked.seed)
    batches = harness.Batches(asked, rank, ranks)
    side = batches.images.shape[1]
    build = getattr(mxnet_networks, asked.model)
    model = build(1000, side) if asked.model == "vit_s16" else build(1000)
    model.initialize(mx.init.Xavier(), ctx=device)
    model.hybridize()
    model(mx.nd.zeros((2, 3, side, side), device))  # layers learn their widths
    weights = {name: one for name, one in model.collect_params().items() if one.grad_req != "null"}
    sgd = {"learning_rate": asked.lr, "momentum": 0.9}
    if hvd:
        hvd.broadcast_parameters(model.collect_params())
        trainer = hvd.DistributedTrainer(weights, "sgd", sgd)
    else:
        store = mx.kv.create("dist_sync") if ranks > 1 else None
        trainer = gluon.Trainer(weights, "sgd", sgd, kvstore=store, update_on_kvstore=False)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    images = asked.batch_per_rank * (1 if hvd else ranks)

    def gradients(*batch: mx.nd.NDArray) -> mx.nd.NDArray:
        with mx.autograd.record():
            loss = loss_of(model(batch[0]), batch[1])
        loss.backward()
        return loss

    record, rows = harness.Record(asked, ranks), []
    for step in range(asked.steps):
        begun = time.perf_counter()
        batch = [mx.nd.array(part, device) for part in batches(step)]
        batch[0] = batch[0].transpose((0, 3, 1, 2))
        mx.nd.waitall()
        fed = time.perf_counter()
        loss = gradients(*batch)
        trainer.step(images)
        mx.nd.waitall()
        rows.append((time.perf_counter() - begun, float(loss.mean().asscalar()), fed - begun))
    wait = mx.nd.waitall

    def fresh() -> None:
        gradients(*batch)
        wait()

    updating = harness.seconds_of(lambda: (trainer.update(images), wait()), fresh)
    alone = harness.seconds_of(fresh) if ranks > 1 else 1e9
    record.add_all(rows, updating, alone)
    if ranks > 1:
        record.exchange = harness.seconds_of(lambda: (trainer.allreduce_grads(), wait()), fresh)
    hosts = [address.rpartition(":")[0] for address in WORKERS]
    if hvd:
        hosts = hvd.allgather_object(harness.host())
    if rank == 0:
        count = sum(one.data().size for one in weights.values())
        gpu = "GPU" if device.device_type == "gpu" else None
        record.write("mxnet", {"mxnet": mx.__version__}, hosts, count, gpu)


if __name__ == "__main__":
    main()
