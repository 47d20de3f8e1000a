"""How far the model of tensor and pipeline parallelism is off published steps.

`python -m tools.parallel` fits the part of its peak that a GPU's matrices reach, one number per
family of GPUs beside fused attention and one beside plain, without each source, and shows the
errors on that source's rows: those of facts/parallel.csv, and of facts/throughput.csv the rows of
llm-foundry and torchtitan, whose weights are sharded, with what they say of checkpointing. Memory
has nothing that is fitted.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from hpcdl import facts
from hpcdl.predict.hardware import Machine, network_link, of_gpu, of_host
from hpcdl.predict.network import (
    FLOAT_BYTES,
    HALF_BYTES,
    Network,
    Transformer,
    network,
    transformer,
)
from hpcdl.predict.parallel import (
    Plan,
    Work,
    activation_bytes,
    family,
    planned_bytes,
    split,
    state_bytes,
)
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
        return family(self.work.machine.gpu)

    @property
    def group(self) -> str:
        """Rows that are told of together: a source's, those of ZeRO-3 in it apart."""
        kind = " (ZeRO-3)" if self.late else ""
        plain = "" if self.plan.fused else f", plain attention{kind}"
        return f"{self.source}, {self.family}{plain}"

    @property
    def late(self) -> bool:
        """DeepSpeed's ZeRO-3 of 2021, which hid nothing of its gathering."""
        return self.plan.zero > 2 and not self.plan.fused

    @cached_property
    def reached(self) -> float:
        """The part of the peak at which it is predicted as it was measured."""
        low, high = 0.05, 2.0
        for _ in range(30):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.predicted(middle) > self.seconds else (low, middle)
        return low

    @property
    def kind(self) -> tuple[str, bool]:
        """Rows that share the part of the peak: a family's, with fused attention or without."""
        return self.family, self.plan.fused

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
        whole["hidden"],
        whole.get("inner") or 4 * whole["hidden"],
        whole["layers"],
        whole["heads"],
        whole["vocabulary"],
        gated,
        whole.get("keys", 0),
        untied=gated,
    )
    net = transformer(row["id"], shape, whole["tokens"])
    link = network_link("infiniband", row["network_gbps"])
    machine = replace(of_gpu(row["gpu"], "nvlink", 64, 4, link), per_node=whole["per_node"])
    replicas = whole["gpus"] // (whole["tensor"] * whole["stages"])
    plan = Plan(
        whole["tensor"],
        whole["stages"],
        whole["interleave"],
        whole["global_batch"] // replicas // whole["micro_batch"],
        row["sequence"] == "true",
        whole["zero"],
        row["checkpointing"],
        row["fused"] == "true",
    )
    seconds = row.get("seconds") or _seconds(row, net)
    return Row(
        row["id"],
        row["source"],
        _work(machine, net, whole["micro_batch"]),
        plan,
        whole["gpus"],
        seconds,
        row.get("state_gib", 0.0),
        row.get("activation_gib", 0.0),
        row.get("memory_gb", 0.0),
    )


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
        if row.seconds and not row.late:
            by.setdefault(row.source, []).append(row.reached)
    return statistics.median(statistics.median(found) for found in by.values())


def left_out(known: Sequence[Row]) -> list[tuple[Row, float]]:
    """Every row and its relative error, fitted to the other sources of its kind.

    Where there is none, it is fitted to all other sources.
    """
    found: list[tuple[Row, float]] = []
    told = [row for row in known if row.seconds]
    for source, kind in sorted({(row.source, row.kind) for row in told}):
        others = [row for row in told if row.source != source]
        best = fit([row for row in others if row.kind == kind] or others)
        own = [row for row in told if (row.source, row.kind) == (source, kind)]
        found += [(row, row.predicted(best) / row.seconds - 1) for row in own]
    return found


def grouped(found: Sequence[tuple[Row, float]]) -> dict[str, list[float]]:
    """Errors of all rows with fused attention, of their families, and of every group."""
    by: dict[str, list[float]] = {}
    for row, error in found:
        if row.plan.fused:
            by.setdefault(" all with fused attention", []).append(error)
            by.setdefault(f" {row.family} with fused attention", []).append(error)
        by.setdefault(row.group, []).append(error)
    return dict(sorted(by.items()))


def likely(found: Sequence[tuple[Row, float]]) -> tuple[float, float]:
    """Factors on a rate between which eight of ten rows lie, each source counting as one."""
    rows_of = Counter(row.source for row, _ in found)
    ranked = sorted((1 + error, 1 / rows_of[row.source]) for row, error in found)
    total, reached, low, high = len(rows_of), 0.0, ranked[0][0], ranked[-1][0]
    for factor, weight in ranked:
        low = factor if reached < 0.1 * total else low
        reached += weight
        high = factor if reached - weight < 0.9 * total else high
    return low, high


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
    found = left_out(known)
    for kind in sorted({row.kind for row in known}):
        own = [row for row in known if row.kind == kind]
        low, high = likely([one for one in found if one[0].kind == kind and not one[0].late])
        name = f"{kind[0]}, {'fused' if kind[1] else 'plain'} attention"
        print(f"{name}: {fit(own):.3f} of the peak, likely {low:.2f} to {high:.2f}")
    off = {**grouped(found), **{f"memory, {k}": v for k, v in memory_errors(known).items()}}
    shown = [(name.strip(), errors(one)) for name, one in off.items()]
    print(
        table(
            [
                (name, str(e.rows), f"{e.median:.1%}", f"{e.ninetieth:.1%}", f"{e.bias:+.1%}")
                for name, e in shown
            ],
            ("source left out", "rows", "median", "90 %", "bias"),
        )
    )


if __name__ == "__main__":
    main()
