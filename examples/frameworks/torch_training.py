"""PyTorch: DistributedDataParallel trains torch_networks, one process per GPU or CPU.

    hpcdl job submit --gpus 4 --launcher torch -- python3 torch_training.py --model resnet50

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
    import torch_networks
    from torch import nn
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
except ImportError as fault:
    sys.exit(f"error: PyTorch is not installed for {sys.executable}: {fault}")


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
    build = getattr(torch_networks, asked.model)
    built = build(1000, side) if asked.model == "vit_s16" else build(1000)
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
