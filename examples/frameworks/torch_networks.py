"""PyTorch: four networks trained by DistributedDataParallel, one process per GPU or CPU.

    hpcdl job submit --gpus 4 --launcher torch -- python3 torch_networks.py --model resnet50

All-reduce runs bucket by bucket while back-propagation computes the next; what outlasts it, from
the last bucket's gradients to the last average, is the step's communication.
"""

import os
import sys
import time

import harness

try:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
except ImportError as fault:
    sys.exit(f"error: PyTorch is not installed for {sys.executable}: {fault}")


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
    layers = [
        conv(3, 64, 7, 2),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        conv(64, 64, 1),
        conv(64, 192, 3),
    ]
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


class Vit(nn.Module):
    """ViT-S/16 (arXiv 2010.11929); the mean of the patches is classified (arXiv 2205.01580)."""

    def __init__(self, classes: int, side: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 384, 16, 16)
        self.positions = nn.Parameter(0.02 * torch.randn((side // 16) ** 2, 384))
        self.blocks = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(
                    384, 6, 1536, 0.0, "gelu", 1e-6, batch_first=True, norm_first=True
                )
                for _ in range(12)
            )
        )
        self.head = nn.Sequential(nn.LayerNorm(384, 1e-6), nn.Linear(384, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102 - as of every module
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        x = self.head[0](self.blocks(x)).mean(1)
        return self.head[1](x)


class Clock:
    """Moments of a step on the device: what was asked for before must be done."""

    def __init__(self, device: torch.device) -> None:
        self.cuda, self.marks = device.type == "cuda", {}

    def mark(self, name: str) -> None:
        """Note the moment; a later one of the same name replaces it."""
        event = torch.cuda.Event(enable_timing=True) if self.cuda else None
        self.marks[name] = event or time.perf_counter()
        if event:
            event.record()

    def between(self, first: str, last: str) -> float:
        """Seconds from one moment to another."""
        a, b = self.marks[first], self.marks[last]
        if self.cuda:
            b.synchronize()
        return a.elapsed_time(b) / 1000 if self.cuda else b - a


def main() -> None:
    """Train, and let rank 0 write result.json."""
    asked = harness.options(__doc__)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)  # what objects are gathered on, and events recorded
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if not cuda:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    harness.autotune(torch.backends)
    torch.manual_seed(asked.seed)
    batches, clock = harness.Batches(asked, rank, ranks), Clock(device)
    form = torch.contiguous_format if asked.layout == "nchw" else torch.channels_last
    side = batches.images.shape[1]
    built = Vit(1000, side) if asked.model == "vit_s16" else globals()[asked.model](1000)
    built(torch.zeros(2, 3, side, side))  # lazy layers learn their widths
    model = nn.parallel.DistributedDataParallel(built.to(device, memory_format=form))

    def averaged(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        clock.mark("ready")  # the last bucket's is when all local gradients were there
        return allreduce_hook(None, bucket)

    model.register_comm_hook(None, averaged)
    optimizer = torch.optim.SGD(model.parameters(), asked.lr, momentum=0.9)
    record = harness.Record(asked, ranks)
    for step in range(asked.steps):
        clock.mark("begun")
        images, labels = (torch.from_numpy(part).to(device) for part in batches(step))
        images = images.permute(0, 3, 1, 2).contiguous(memory_format=form)
        clock.mark("fed")
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        clock.mark("averaged")
        optimizer.step()
        clock.mark("updated")
        record.add(
            clock.between("begun", "updated"),
            float(loss),
            input=clock.between("begun", "fed"),
            compute=clock.between("fed", "ready"),
            communication=clock.between("ready", "averaged"),
            update=clock.between("averaged", "updated"),
        )
    count = sum(value.numel() for value in built.parameters())
    gradients = torch.zeros(count, device=device)

    def exchange() -> None:
        dist.all_reduce(gradients)
        torch.cuda.synchronize() if cuda else None

    record.exchange = harness.seconds_of(exchange) if ranks > 1 else None
    hosts: list[str] = [""] * ranks
    dist.all_gather_object(hosts, harness.host())
    if rank == 0:
        name = torch.cuda.get_device_name(device) if cuda else None
        record.write("torch", {"torch": torch.__version__}, hosts, count, name)
    del model  # in PyTorch 1.13 it must not be the last that has the group: its end would hang
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
