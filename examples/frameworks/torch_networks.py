"""AlexNet, GoogLeNet, ResNet-50 and ViT-S/16 in PyTorch, with as many weights as `hpcdl train`."""

import harness
import torch
from torch import nn


def alexnet(classes: int) -> nn.Module:
    """AlexNet in one tower (arXiv 1404.5997)."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2)]
    layers += [nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)]
    for before, after in ((192, 384), (384, 256), (256, 256)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
    layers += [nn.MaxPool2d(3, 2), nn.Flatten()]
    for _ in range(2):
        layers += [nn.Dropout(), nn.LazyLinear(4096), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(4096, classes))


def conv(before: int, after: int, size: int, stride: int = 1) -> nn.Module:
    """A convolution with batch normalisation and ReLU."""
    plain = nn.Conv2d(before, after, size, stride, size // 2, bias=False)
    return nn.Sequential(plain, nn.BatchNorm2d(after, eps=1e-3), nn.ReLU())


class Inception(nn.Module):
    """Four branches side by side."""

    def __init__(self, before: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        one, reduce_a, three_a, reduce_b, three_b, project = widths
        self.branches = nn.ModuleList(
            [
                conv(before, one, 1),
                nn.Sequential(conv(before, reduce_a, 1), conv(reduce_a, three_a, 3)),
                nn.Sequential(conv(before, reduce_b, 1), conv(reduce_b, three_b, 3)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(before, project, 1)),
            ]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102 - as of every module
        return torch.cat([branch(x) for branch in self.branches], 1)


def googlenet(classes: int) -> nn.Module:
    """GoogLeNet (arXiv 1409.4842) with batch normalisation, without auxiliary heads."""
    layers = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, ceil_mode=True)]
    layers += [conv(64, 64, 1), conv(64, 192, 3)]
    width = 192
    for blocks in harness.INCEPTIONS:
        layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
        for widths in blocks:
            layers.append(Inception(width, widths))
            width = widths[0] + widths[2] + widths[4] + widths[5]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(width, classes))
    return nn.Sequential(*layers, *head)


class Bottleneck(nn.Module):
    """A residual block; biases and the place of the stride as in Keras."""

    def __init__(self, before: int, width: int, stride: int, *, first: bool) -> None:
        super().__init__()

        def normal(a: int, b: int, size: int, step: int = 1) -> list[nn.Module]:
            return [nn.Conv2d(a, b, size, step, size // 2), nn.BatchNorm2d(b, eps=1.001e-5)]

        self.main = nn.Sequential(
            *normal(before, width, 1, stride),
            nn.ReLU(),
            *normal(width, width, 3),
            nn.ReLU(),
            *normal(width, 4 * width, 1),
        )
        self.short = nn.Sequential(*(normal(before, 4 * width, 1, stride) if first else []))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102 - as of every module
        return nn.functional.relu(self.main(x) + self.short(x))


def resnet50(classes: int) -> nn.Module:
    """ResNet-50 (arXiv 1512.03385)."""
    layers = [
        nn.Conv2d(3, 64, 7, 2, 3),
        nn.BatchNorm2d(64, eps=1.001e-5),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    before = 64
    for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for number in range(count):
            stride = 2 if width > 64 and number == 0 else 1
            layers.append(Bottleneck(before, width, stride, first=number == 0))
            before = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


class vit_s16(nn.Module):  # noqa: N801 - a network's name, as those above
    """ViT-S/16 (arXiv 2010.11929); the mean of the patches is classified (arXiv 2205.01580)."""

    def __init__(self, classes: int, side: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 384, 16, 16)
        self.positions = nn.Parameter(0.02 * torch.randn((side // 16) ** 2, 384))
        how = {
            "activation": "gelu",
            "layer_norm_eps": 1e-6,
            "batch_first": True,
            "norm_first": True,
        }
        blocks = [nn.TransformerEncoderLayer(384, 6, 1536, 0.0, **how) for _ in range(12)]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.LayerNorm(384, 1e-6), nn.Linear(384, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102 - as of every module
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        x = self.head[0](self.blocks(x)).mean(1)
        return self.head[1](x)
