"""PyTorch: a linear model trained by all ranks; stops when told to, resumes where it stopped."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

STEPS = 60
asked: list[int] = []
signal.signal(signal.SIGUSR2, lambda number, _: asked.append(number))

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
plain = torch.nn.Linear(4, 1)
model = torch.nn.parallel.DistributedDataParallel(plain)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
file, first = Path("checkpoint.pt"), 0
if file.exists():
    saved = torch.load(file)
    plain.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"]


def save(step: int) -> None:
    if rank == 0:
        state = {"model": plain.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, "checkpoint.new")
        Path("checkpoint.new").replace(file)


print(f"rank {rank} of {world}, local {os.environ['LOCAL_RANK']}, from step {first}", flush=True)
for step in range(first, STEPS):
    inputs = torch.rand(8, 4, generator=torch.Generator().manual_seed(1000 * step + rank))
    optimizer.zero_grad()
    loss = ((model(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()
    loss.backward()
    optimizer.step()
    wanted = torch.tensor(len(asked))
    dist.all_reduce(wanted)
    if wanted or step % 10 == 9:
        save(step + 1)
    if wanted:
        sys.exit(75)
    time.sleep(float(os.environ.get("PAUSE", "0")))
if rank == 0:
    print("ended", *(f"{one:.6f}" for one in plain.weight.flatten().tolist()), flush=True)
