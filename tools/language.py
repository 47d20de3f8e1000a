"""How far the model of split transformers is off published steps, and what is fitted of it.

The part of its peak that a GPU's matrices reach, one number per generation of GPUs beside fused
attention and one beside plain, and how it falls with narrower networks. Rows are those of
tools/data/parallel.csv, and of throughput.csv those of llm-foundry and torchtitan, whose weights
are sharded. Memory has nothing that is fitted. `tools.validate` prints and writes both.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import yaml

from hpcdl import facts
from hpcdl.predict.machine import (
    HALF_BYTES,
    Machine,
    NetworkSums,
    TransformerShape,
    network,
    network_link,
    of_gpu,
    transformer,
)
from hpcdl.predict.step import (
    ModelSplit,
    Workload,
    activation_bytes,
    family,
    planned_bytes,
    split_step,
    state_bytes,
)
from hpcdl.system.text import table
from tools.published import DATA, errors, machine_of, plan_of
from tools.published import rows as published_rows

GIB = 2**30
_FEWEST = 3
_SHARDED = ("MosaicML llm-foundry", "PyTorch torchtitan")


@dataclass(frozen=True)
class LanguageRow:
    """A published step: what it was, its seconds, and GiB or GB of a GPU (0: not told)."""

    id: str
    source: str
    machine: Machine
    work: Workload
    gpus: int
    seconds: float
    state: float = 0.0
    activations: float = 0.0
    memory: float = 0.0

    @property
    def plan(self) -> ModelSplit:
        """How it is split."""
        return self.work.plan or ModelSplit()

    @property
    def family(self) -> str:
        """The family of its GPUs."""
        return family(self.machine.gpu)

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
        computing, losses = split_step(self.machine, self.work, self.gpus, efficiency)
        stragglers = facts.load("predict")["law"]["straggler"] * math.log2(self.gpus)
        return computing * (1 + stragglers) + sum(losses.values())


def rows() -> list[LanguageRow]:
    """All rows that can be judged."""
    numbers = set(yaml.safe_load((DATA / "parallel.yaml").read_text())["numbers"])
    with (DATA / "parallel.csv").open(encoding="utf-8", newline="") as file:
        planned = [
            _planned({k: float(v) if k in numbers else v for k, v in row.items() if v})
            for row in csv.DictReader(file)
        ]
    return [*planned, *_sharded()]


def _planned(row: dict[str, Any]) -> LanguageRow:
    whole = {key: int(value) for key, value in row.items() if isinstance(value, float)}
    gated = row["gated"] == "true"  # Llama and its kin, which share no table either
    shape = TransformerShape(
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
    machine = replace(of_gpu(row["gpu"], "nvlink", 64, link), per_node=whole["per_node"])
    replicas = whole["gpus"] // (whole["tensor"] * whole["stages"])
    plan = ModelSplit(
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
    return LanguageRow(
        row["id"],
        row["source"],
        machine,
        Workload(net, whole["micro_batch"], "amp", plan=plan),
        whole["gpus"],
        seconds,
        row.get("state_gib", 0.0),
        row.get("activation_gib", 0.0),
        row.get("memory_gb", 0.0),
    )


def _seconds(row: dict[str, Any], net: NetworkSums) -> float:
    """Seconds of a step, of a rate told in another way; 0 where none is."""
    sequences = row["global_batch"] / row["gpus"]
    if "tokens_per_second" in row:
        return float(sequences * row["tokens"] / row["tokens_per_second"])
    if "model_tflops" in row:
        return float(6 * net.macs * sequences / (row["model_tflops"] * 1e12))
    return _counted(row, net) / row["tflops"] if "tflops" in row else 0.0


def _counted(row: dict[str, Any], net: NetworkSums) -> float:
    """Tera-operations of a step and GPU as arXiv 2104.04473 counts them (equation 3)."""
    wide, blocks, tokens = row["hidden"], row["layers"], row["tokens"]
    more = 1 + tokens / (6 * wide) + row["vocabulary"] / (16 * blocks * wide)
    return float(96 * row["global_batch"] * tokens * blocks * wide**2 * more / row["gpus"] / 1e12)


def _sharded() -> Iterator[LanguageRow]:
    for row in published_rows():
        if row.source not in _SHARDED or not row.rate:
            continue
        gpus, batch = row.gpus or 1, row.batch or 1
        machine = machine_of(row, gpus)
        if machine:
            seconds = gpus * batch * row.accumulation / row.rate
            work = Workload(network(row.model, row.size), batch, "amp", plan=plan_of(row))
            yield LanguageRow(row.id, row.source, machine, work, gpus, seconds)


def fit(known: Sequence[LanguageRow]) -> float:
    """The part of the peak that suits best: the median of sources, of their rows' medians."""
    by: dict[str, list[float]] = {}
    for row in known:
        if row.seconds and not row.late:
            by.setdefault(row.source, []).append(row.reached)
    return statistics.median(statistics.median(found) for found in by.values())


def left_out(known: Sequence[LanguageRow]) -> list[tuple[LanguageRow, float]]:
    """Every row and its relative error, fitted to the other sources of its kind.

    Where there is none, it is fitted to all other sources.
    """
    found: list[tuple[LanguageRow, float]] = []
    timed = [row for row in known if row.seconds]
    for source, kind in sorted({(row.source, row.kind) for row in timed}):
        others = [row for row in timed if row.source != source]
        best = fit([row for row in others if row.kind == kind] or others)
        own = [row for row in timed if (row.source, row.kind) == (source, kind)]
        found += [(row, row.predicted(best) / row.seconds - 1) for row in own]
    return found


def grouped(found: Sequence[tuple[LanguageRow, float]]) -> dict[str, list[float]]:
    """Errors of all rows with fused attention, of their families, and of every group."""
    by: dict[str, list[float]] = {}
    for row, error in found:
        if row.plan.fused:
            by.setdefault(" all with fused attention", []).append(error)
            by.setdefault(f" {row.family} with fused attention", []).append(error)
        by.setdefault(row.group, []).append(error)
    return dict(sorted(by.items()))


def likely(found: Sequence[tuple[LanguageRow, float]]) -> tuple[float, float]:
    """Factors on a rate between which eight of ten rows lie, each source counting as one."""
    rows_of = Counter(row.source for row, _ in found)
    ranked = sorted((1 + error, 1 / rows_of[row.source]) for row, error in found)
    total, reached, low, high = len(rows_of), 0.0, ranked[0][0], ranked[-1][0]
    for factor, weight in ranked:
        low = factor if reached < 0.1 * total else low
        reached += weight
        high = factor if reached - weight < 0.9 * total else high
    return low, high


def inside(found: Sequence[tuple[LanguageRow, float]]) -> dict[str, float]:
    """The part of rows inside a range that was made without their source, by kind."""
    hits: dict[str, list[bool]] = {}
    for row, error in found:
        others = [one for one in found if one[0].kind == row.kind and one[0].source != row.source]
        if others and not row.late:
            low, high = likely(others)
            name = f"{row.family}, {'fused' if row.plan.fused else 'plain'} attention"
            for key in ("all", name):
                hits.setdefault(key, []).append(low <= 1 + error <= high)
    return {name: statistics.fmean(values) for name, values in hits.items()}


def memory_errors(known: Sequence[LanguageRow]) -> dict[str, list[float]]:
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


def fitted() -> dict[str, Any]:
    """The part of the peak by attention and generation, as facts/predict.yaml has it.

    `other` generations take what all rows give; their range is that of generations left out.
    """
    known = [row for row in rows() if row.seconds and not row.late]
    judged = left_out(known)
    shipped: dict[str, Any] = {}
    for fused in (True, False):
        of_kind = [row for row in known if row.plan.fused == fused]
        own: dict[str, Any] = {}
        for name in sorted({row.family for row in of_kind}):
            kept = [row for row in of_kind if row.family == name]
            if len({row.source for row in kept}) >= _FEWEST:
                own[name] = _row(fit(kept), [one for one in judged if one[0] in kept])
        far = []
        for row in known:
            others = [one for one in of_kind if one.family != row.family] or of_kind
            far.append((row, row.predicted(fit(others)) / row.seconds - 1))
        own["other"] = _row(fit(of_kind), far)
        shipped["fused" if fused else "plain"] = own
    return shipped


def _row(part: float, judged: Sequence[tuple[LanguageRow, float]]) -> dict[str, float]:
    low, high = likely(judged)
    return {"part": round(part, 3), "low": round(low, 2), "high": round(high, 2)}


def report() -> str:
    """Errors of rows whose source was left out, and of memory."""
    known = rows()
    found = left_out(known)
    off = {**grouped(found), **{f"memory, {k}": v for k, v in memory_errors(known).items()}}
    lines = [(name.strip(), *errors(one).cells) for name, one in off.items()]
    parts = [(name, f"{part:.0%}") for name, part in inside(found).items()]
    return "\n".join(
        [
            table(lines, ("language models, source left out", "rows", "median", "90 %", "bias")),
            "",
            table(parts, ("language models inside the range of 80 %", "")),
        ]
    )
