"""MXNet: four networks trained by its key-value store or by Horovod, one process per GPU or CPU.

    hpcdl job submit --gpus 4 --launcher multiworker -- python3 mxnet_networks.py --model resnet50

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
    from mxnet import gluon
    from mxnet.gluon import nn
    from mxnet.gluon.contrib.nn import HybridConcurrent, Identity
except ImportError as fault:
    sys.exit(f"error: MXNet is not installed for {sys.executable}: {fault}")


def chain(*layers: gluon.Block) -> nn.HybridSequential:
    """Layers one after the other."""
    found = nn.HybridSequential()
    found.add(*layers)
    return found


def alexnet(classes: int) -> gluon.HybridBlock:
    """AlexNet in one tower (arXiv 1404.5997)."""
    layers = [nn.Conv2D(64, 11, 4, 2, activation="relu"), nn.MaxPool2D(3, 2)]
    layers += [nn.Conv2D(192, 5, padding=2, activation="relu"), nn.MaxPool2D(3, 2)]
    layers += [nn.Conv2D(width, 3, padding=1, activation="relu") for width in (384, 256, 256)]
    layers += [nn.MaxPool2D(3, 2), nn.Flatten()]
    for _ in range(2):
        layers += [nn.Dropout(0.5), nn.Dense(4096, activation="relu")]
    return chain(*layers, nn.Dense(classes))


def conv(width: int, size: int, stride: int = 1) -> gluon.HybridBlock:
    """A convolution with batch normalisation and ReLU."""
    plain = nn.Conv2D(width, size, stride, size // 2, use_bias=False)
    return chain(plain, nn.BatchNorm(epsilon=1e-3), nn.Activation("relu"))


def googlenet(classes: int) -> gluon.HybridBlock:
    """GoogLeNet (arXiv 1409.4842) with batch normalisation, without auxiliary heads."""
    pool = {"pool_size": 3, "strides": 2, "ceil_mode": True}
    layers = [conv(64, 7, 2), nn.MaxPool2D(**pool), conv(64, 1), conv(192, 3)]
    for blocks in harness.INCEPTIONS:
        layers.append(nn.MaxPool2D(**pool))
        for one, reduce_a, three_a, reduce_b, three_b, project in blocks:
            branches = HybridConcurrent(axis=1)
            branches.add(
                conv(one, 1),
                chain(conv(reduce_a, 1), conv(three_a, 3)),
                chain(conv(reduce_b, 1), conv(three_b, 3)),
                chain(nn.MaxPool2D(3, 1, 1), conv(project, 1)),
            )
            layers.append(branches)
    return chain(*layers, nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dropout(0.2), nn.Dense(classes))


class Sum(gluon.HybridBlock):
    """What blocks give, added up."""

    def __init__(self, *blocks: gluon.Block) -> None:
        super().__init__()
        self.blocks = blocks
        for block in blocks:
            self.register_child(block)

    def hybrid_forward(self, F: object, x: object) -> object:  # noqa: N803, D102 - of every block
        return F.add_n(*(block(x) for block in self.blocks))


def resnet50(classes: int) -> gluon.HybridBlock:
    """ResNet-50 (arXiv 1512.03385); biases and the place of the stride as in Keras."""

    def unit(width: int, size: int, stride: int = 1) -> tuple[gluon.Block, ...]:
        plain = nn.Conv2D(width, size, stride, size // 2)
        return plain, nn.BatchNorm(epsilon=1.001e-5)

    relu = nn.Activation("relu")
    layers = [*unit(64, 7, 2), relu, nn.MaxPool2D(3, 2, 1)]
    for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for number in range(count):
            stride = 2 if width > 64 and number == 0 else 1
            main = (*unit(width, 1, stride), relu, *unit(width, 3), relu, *unit(4 * width, 1))
            short = unit(4 * width, 1, stride) if number == 0 else (Identity(),)
            layers += [Sum(chain(*main), chain(*short)), relu]
    return chain(*layers, nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(classes))


class Attention(gluon.HybridBlock):
    """Self-attention of six heads over (batch, patches, 384)."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.outward = (nn.Dense(width, flatten=False) for width in (1152, 384))

    def hybrid_forward(self, F: object, x: object) -> object:  # noqa: N803, D102 - of every block
        query, key, value = (
            F.reshape(F.transpose(F.reshape(part, (0, 0, 6, 64)), (0, 2, 1, 3)), (-3, 0, 0))
            for part in F.split(self.inward(x), 3, axis=2)
        )
        scores = F.softmax(F.batch_dot(query / 8.0, key, transpose_b=True))
        mixed = F.reshape(F.batch_dot(scores, value), (-4, -1, 6, 0, 0))
        return self.outward(F.reshape(F.transpose(mixed, (0, 2, 1, 3)), (0, 0, -3)))


class Patches(gluon.HybridBlock):
    """Patches of 16 x 16 pixels, each with its place."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.cut = nn.Conv2D(384, 16, 16)
        shape = (1, (side // 16) ** 2, 384)
        self.places = self.params.get("places", shape=shape, init=mx.init.Normal(0.02))

    def hybrid_forward(self, F: object, x: object, places: object) -> object:  # noqa: N803, D102
        return F.broadcast_add(F.transpose(F.reshape(self.cut(x), (0, 0, -1)), (0, 2, 1)), places)


def vit_s16(classes: int, side: int) -> gluon.HybridBlock:
    """ViT-S/16 (arXiv 2010.11929); the mean of the patches is classified (arXiv 2205.01580)."""
    layers: list[gluon.Block] = [Patches(side)]
    for _ in range(12):
        attention = chain(nn.LayerNorm(epsilon=1e-6), Attention())
        inner = nn.Dense(1536, flatten=False), nn.GELU(), nn.Dense(384, flatten=False)
        layers += [
            Sum(attention, Identity()),
            Sum(chain(nn.LayerNorm(epsilon=1e-6), *inner), Identity()),
        ]
    mean = nn.HybridLambda(lambda F, x: F.mean(x, axis=1))  # noqa: N803
    return chain(*layers, nn.LayerNorm(epsilon=1e-6), mean, nn.Dense(classes))


def main() -> None:
    """Train, and let rank 0 write result.json."""
    asked = harness.options(__doc__)
    ranks, rank, local, hvd = (
        max(1, len(WORKERS)),
        RANK,
        int(os.environ.get("SLURM_LOCALID", 0)),
        None,
    )
    if not TASKS:
        import horovod.mxnet as hvd

        hvd.init()
        ranks, rank, local = hvd.size(), hvd.rank(), hvd.local_rank()
    device = mx.gpu(local) if mx.context.num_gpus() else mx.cpu()
    mx.random.seed(asked.seed)
    batches = harness.Batches(asked, rank, ranks)
    side = batches.images.shape[1]
    build = globals()[asked.model]
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
    loss_of, images = (
        gluon.loss.SoftmaxCrossEntropyLoss(),
        asked.batch_per_rank * (1 if hvd else ranks),
    )

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
    hosts = (
        hvd.allgather_object(harness.host())
        if hvd
        else [*(address.rpartition(":")[0] for address in WORKERS)]
    )
    if rank == 0:
        count = sum(one.data().size for one in weights.values())
        record.write(
            "mxnet",
            {"mxnet": mx.__version__},
            hosts,
            count,
            "GPU" if device.device_type == "gpu" else None,
        )


if __name__ == "__main__":
    main()
