"""AlexNet, GoogLeNet, ResNet-50 and ViT-S/16 in MXNet, with as many weights as `hpcdl train`."""

import harness
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.contrib.nn import HybridConcurrent, Identity


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
            threes = [(reduce_a, three_a), (reduce_b, three_b)]
            branches = [chain(conv(less, 1), conv(width, 3)) for less, width in threes]
            pooled = chain(nn.MaxPool2D(3, 1, 1), conv(project, 1))
            layers.append(HybridConcurrent(axis=1))
            layers[-1].add(conv(one, 1), *branches, pooled)
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
        wider = chain(nn.LayerNorm(epsilon=1e-6), *inner)
        layers += [Sum(attention, Identity()), Sum(wider, Identity())]
    mean = nn.HybridLambda(lambda F, x: F.mean(x, axis=1))  # noqa: N803
    return chain(*layers, nn.LayerNorm(epsilon=1e-6), mean, nn.Dense(classes))
