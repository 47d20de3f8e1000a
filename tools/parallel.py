"""How far the model of tensor and pipeline parallelism is off published steps.

`python -m tools.parallel` fits the part of its peak that a GPU's matrices reach, one number per
family of GPUs, without each source, and shows the errors on that source's rows: those of
facts/parallel.csv, and of facts/throughput.csv the rows of llm-foundry and torchtitan, whose
weights are sharded, with what they say of checkpointing. Memory has nothing that is fitted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpcdl import facts
from hpcdl.predict.hardware import Machine, network_link, of_gpu, of_host
from hpcdl.predict.memory import Plan, activation_bytes, planned_bytes, state_bytes
from hpcdl.predict.network import (
    FLOAT_BYTES,
    HALF_BYTES,
    Network,
    Transformer,
    network,
    transformer,
)
from hpcdl.predict.parallel import Work, split
from hpcdl.predict.records import Record, read_records
from hpcdl.predict.validate import errors
from hpcdl.system.text import table

GIB = 2**30
_SHARDED = ("MosaicML llm-foundry", "PyTorch torchtitan")


@dataclass(frozen=True)
class Row:
    """A published step: what it was, its seconds, and GiB or GB of a GPU (0: not told)."""

    id: str
    source: str
    work: Work
    plan: Plan
    gpus: int
    seconds: float
    state: float = 0.0
    activations: float = 0.0
    memory: float = 0.0

    @property
    def family(self) -> str:
        """The family of its GPUs."""
        return self.work.machine.gpu.partition("-")[0]

    @property
    def group(self) -> str:
        """Rows that are told of together: a source's, those of ZeRO-3 in it apart."""
        kind = " (ZeRO-3)" if self.plan.zero > 2 and not self.plan.fused else ""
        return f"{self.source}{kind}, {self.family}"

    def predicted(self, efficiency: float) -> float:
        """Seconds, where matrices reach so much of the GPU's peak."""
        parts = split(replace(self.work, efficiency=efficiency), self.plan, self.gpus)
        return parts[0] + parts[1] + sum(parts[2].values())


def rows() -> list[Row]:
    """All rows that can be judged."""
    planned = [_planned(row) for row in facts.load("parallel")["records"]]
    return [*planned, *_sharded()]


def _planned(row: dict[str, Any]) -> Row:
    whole = {key: int(value) for key, value in row.items() if isinstance(value, float)}
    gated = row["gated"] == "true"  # Llama and its kin, which share no table either
    shape = Transformer(
        whole["hidden"], whole.get("inner") or 4 * whole["hidden"], whole["layers"], whole["heads"],
        whole["vocabulary"], gated, whole.get("keys", 0), untied=gated,
    )  # fmt: skip
    net = transformer(row["id"], shape, whole["tokens"])
    link = network_link("infiniband", row["network_gbps"])
    machine = replace(of_gpu(row["gpu"], "nvlink", 64, 4, link), per_node=whole["per_node"])
    replicas = whole["gpus"] // (whole["tensor"] * whole["stages"])
    plan = Plan(
        whole["tensor"], whole["stages"], whole["interleave"],
        whole["global_batch"] // replicas // whole["micro_batch"], row["sequence"] == "true",
        whole["zero"], row["checkpointing"], row["fused"] == "true",
    )  # fmt: skip
    seconds = row.get("seconds") or _seconds(row, net)
    return Row(row["id"], row["source"], _work(machine, net, whole["micro_batch"]), plan,
               whole["gpus"], seconds, row.get("state_gib", 0.0),
               row.get("activation_gib", 0.0), row.get("memory_gb", 0.0))  # fmt: skip


def _work(machine: Machine, net: Network, batch: int) -> Work:
    return Work(machine, net, batch, machine.flops[2], HALF_BYTES, FLOAT_BYTES, 1.0)


def _seconds(row: dict[str, Any], net: Network) -> float:
    """Seconds of a step, of a rate told in another way; 0 where none is."""
    sequences = row["global_batch"] / row["gpus"]
    if "tokens_per_second" in row:
        return float(sequences * row["tokens"] / row["tokens_per_second"])
    if "model_tflops" in row:
        return float(6 * net.macs * sequences / (row["model_tflops"] * 1e12))
    return _counted(row, net) / row["tflops"] if "tflops" in row else 0.0


def _counted(row: dict[str, Any], net: Network) -> float:
    """Tera-operations of a step and GPU as arXiv 2104.04473 counts them (equation 3)."""
    wide, blocks, tokens = row["hidden"], row["layers"], row["tokens"]
    more = 1 + tokens / (6 * wide) + row["vocabulary"] / (16 * blocks * wide)
    return float(96 * row["global_batch"] * tokens * blocks * wide**2 * more / row["gpus"] / 1e12)


def _sharded() -> Iterator[Row]:
    for row in read_records():
        gpus, batch = row.gpus or 1, row.batch or 1
        machine = of_host(row.gpu, row.hardware, gpus // row.nodes, row.interconnect)
        if row.source in _SHARDED and row.rate and machine:
            seconds = gpus * batch * row.accumulation / row.rate
            work = _work(machine, network(row.model, row.size), batch)
            yield Row(row.id, row.source, work, _plan_of(row), gpus, seconds)


def _plan_of(row: Record) -> Plan:
    zero = 3 if "FULL_SHARD" in row.software or row.update == "fsdp" else 2
    again = "full" if "checkpointing" in row.software else "none"
    return Plan(micro_batches=row.accumulation, zero=zero, checkpointing=again)


def fit(known: Sequence[Row]) -> float:
    """The part of the peak that suits best: the median of sources, of their rows' medians."""
    by: dict[str, list[float]] = {}
    for row in known:
        if row.seconds and "(ZeRO-3)" not in row.group:
            by.setdefault(row.source, []).append(_best(row))
    return statistics.median(statistics.median(found) for found in by.values())


def _best(row: Row) -> float:
    """The part of the peak at which a row is predicted as it was measured."""
    low, high = 0.05, 2.0
    for _ in range(30):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if row.predicted(middle) > row.seconds else (low, middle)
    return low


def left_out(known: Sequence[Row]) -> dict[str, list[float]]:
    """Relative errors of the rows of every group, fitted to the family's other sources.

    A family of one source is fitted to all other families.
    """
    found: dict[str, list[float]] = {}
    for group in sorted({row.group for row in known}):
        own = [row for row in known if row.group == group and row.seconds]
        if not own:
            continue
        others = [row for row in known if row.source != own[0].source]
        kin = [row for row in others if row.family == own[0].family]
        best = fit(kin or others)
        found[group] = [row.predicted(best) / row.seconds - 1 for row in own]
    return found


def memory_errors(known: Sequence[Row]) -> dict[str, list[float]]:
    """Relative errors of what a GPU keeps, by what was told and by source."""
    found: dict[str, list[float]] = {}
    for row in known:
        net, plan, batch = row.work.net, row.plan, row.work.batch
        if row.activations:
            size = activation_bytes(net, plan, batch, HALF_BYTES) / GIB
            found.setdefault("activations", []).append(size / row.activations - 1)
            size = state_bytes(net, plan, row.gpus // plan.gpus, HALF_BYTES) / GIB
            found.setdefault("state", []).append(size / row.state - 1)
        if row.memory:
            size = planned_bytes(net, plan, batch, row.gpus, HALF_BYTES) / 1e9
            found.setdefault("in all", []).append(size / row.memory - 1)
    return found


def main() -> None:
    """Print the fit of every family, and the errors."""
    known = rows()
    for family in sorted({row.family for row in known}):
        own = [row for row in known if row.family == family]
        print(f"{family}: matrices reach {fit(own):.3f} of the peak")
    off = {**left_out(known), **{f"memory, {k}": v for k, v in memory_errors(known).items()}}
    shown = [(name, errors(found)) for name, found in off.items()]
    print(table(
        [(name, str(e.rows), f"{e.median:.1%}", f"{e.ninetieth:.1%}", f"{e.bias:+.1%}")
         for name, e in shown], ("source left out", "rows", "median", "90 %", "bias"),
    ))  # fmt: skip


if __name__ == "__main__":
    main()
