"""Fits what `hpcdl predict` ships, and says how far it is off: `python -m tools.validate`.

The two numbers of the scaling law, ranges, effects of one GPU's rate and the utilisation of
language models are fitted to tools/data. Every figure printed is of rows whose source the fit has
not seen (`left out`); of one GPU also where the row's pair of GPU and network is hidden. Options:

    --write           write facts/predict.yaml and facts/throughput.csv again
    --aside FILE      judge the rows of a file that nothing was fitted to, of the same columns
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from hpcdl import facts
from hpcdl.predict.machine import names as networks
from hpcdl.predict.machine import network, of_gpu
from hpcdl.predict.request import kind_of
from hpcdl.predict.start import (
    USUAL_BATCH,
    OneGpuRow,
    effect_keys,
    intensity,
    reached,
    roof,
    units_of,
)
from hpcdl.predict.step import (
    ENDLESS,
    PRECISIONS,
    Workload,
    exchange_seconds,
    split_step,
    utilisation,
)
from hpcdl.system.files import write_atomic
from hpcdl.system.text import table
from tools import language
from tools.published import (
    ComparedPair,
    Side,
    errors,
    gpu_of,
    model_of,
    pairs,
    precision_of,
    records,
    rows,
)

FACTS = Path(facts.path("predict"))
_PRIOR = (0.02, 0.3)
_SOURCE = -0.75
"""A row weighs as this power of the rows of its source."""
_RIDGE, _HUBER, _ROUNDS = 0.02, 0.05, 30
_SCALE = {"least": 0.05, "per_loss": 0.5}
_TAIL, _ONE_TAIL = 0.07, 0.08
"""Less than a tenth: unseen sources lie farther off than those the fit has seen."""
_LAW = 0.03
"""The constant law that a model must beat: 1 / (1 + 0.03 log2 N)."""
# Rows without effect that the ridge counts for each effect, and for the slope.
_EFFECTS = {
    "generation_units": 0.5,
    "card_units": 4.0,
    "network": 0.3,
    "network_units": 2.0,
    "kind_units": 2.0,
    "framework": 2.0,
    "source": 2.0,
    "source_network": 1.0,
}
_SLOPE = 2.0
_HEADER = """\
# Written by `python -m tools.validate --write`; do not edit. Fitted to tools/data.
# law: what a step loses, see hpcdl/predict/step.py. ranges: the middle 80 % of (measured - expected
# loss) / scale of rows whose source was left out, both in logarithms. one_gpu: factors on the rate
# of one GPU, by how it is known. effects: logs of the part of the roofline that is reached.
# utilisation: the part of its peak that matrices of language models reach.
# proof: run
schema: 1
"""


# ---- the scaling law ----


@dataclass(frozen=True)
class LawPair:
    """A pair as the fit sees it: the law's two parts of both ends, and the measured loss."""

    source: str
    kind: str
    parts: tuple[float, ...]
    base: tuple[float, ...]
    fixed: tuple[float, float]
    loss: float
    gpus: tuple[int, int]

    def expected(self, law: Sequence[float]) -> float:
        """The loss by the law, in logarithms."""
        here, there = (
            1 + fixed + sum(a * b for a, b in zip(parts, law, strict=True))
            for fixed, parts in zip(self.fixed, (self.parts, self.base), strict=True)
        )
        return math.log(here / there)


def law_pair(pair: ComparedPair) -> LawPair:
    """What the law says of a pair: parts of one GPU's step, which the base tells."""
    measured = guess = pair.there.gpus / (pair.base.rate or 1.0)
    for _ in range(4):  # the base's own losses are taken off the seconds of an image
        parts, fixed = _parts(pair.there, guess)
        guess = measured / (1 + fixed + sum(a * b for a, b in zip(parts, _PRIOR, strict=True)))
    here, there = _parts(pair.here, guess), _parts(pair.there, guess)
    return LawPair(
        pair.row.source,
        kind_of(pair.here.nodes, real=pair.here.work.feed is not ENDLESS),
        here[0],
        there[0],
        (here[1], there[1]),
        math.log(pair.linear / pair.measured),
        (pair.here.gpus, pair.there.gpus),
    )


def _parts(side: Side, image: float) -> tuple[tuple[float, float], float]:
    """The law's two parts at one end as parts of computing, and what is lost besides.

    One GPU takes `image` seconds for an image.
    """
    compute = image * side.images
    if side.work.plan:
        split = side.machine, side.work
        part = utilisation(side.machine.gpu, side.work.plan)["part"]
        pace = compute / split_step(*split, 1, part)[0]
        computing, losses = split_step(*split, side.gpus, part, pace)
        part = computing / compute
        return (part * math.log2(side.gpus), 0.0), part + sum(losses.values()) / compute - 1
    sent = _exchange(side) / compute
    wait = side.work.feed.wait(compute, side.images, side.gpus, side.nodes) / compute
    if side.form == "no_overlap":
        return (math.log2(side.gpus), 0.0), sent + wait
    return (math.log2(side.gpus), sent), wait


def _exchange(side: Side) -> float:
    """Seconds of an exchange where nothing hides it: an all-reduce, or both ways of servers."""
    machine, net, local = side.machine, side.work.net, max(1, side.gpus // side.nodes)
    if side.form != "parameter_server" or side.gpus < 2:
        return exchange_seconds(machine, side.work, local, side.nodes)
    latency = machine.inside.latency + (machine.between.latency if side.nodes > 1 else 0.0)
    sent = net.parameters * side.work.gradient_bytes / side.server_rate
    return 2 * sent + 2 * net.tensors * latency


def fit_law(found: Sequence[LawPair]) -> tuple[float, ...]:
    """The two numbers: a robust fit (Huber)."""
    here, there = np.array([p.parts for p in found]), np.array([p.base for p in found])
    fixed, loss = np.array([p.fixed for p in found]), np.array([p.loss for p in found])
    counts = Counter(p.source for p in found)
    weights = np.array([counts[p.source] ** _SOURCE for p in found])
    law, prior = np.array(_PRIOR), np.array(_PRIOR)
    for _ in range(_ROUNDS):
        now, before = 1 + fixed[:, 0] + here @ law, 1 + fixed[:, 1] + there @ law
        slope = here / now[:, None] - there / before[:, None]
        error = loss - np.log(now / before)
        robust = weights * np.minimum(1, _HUBER / np.maximum(abs(error), 1e-9))
        normal = slope.T @ (robust[:, None] * slope)
        ridge = np.diag(_RIDGE * np.diag(normal) + 1e-9)
        step = slope.T @ (robust * error) + ridge @ (prior - law)
        law = np.maximum(0.0, law + np.linalg.solve(normal + ridge, step))
    return tuple(map(float, law))


def losses_left_out(found: Sequence[LawPair]) -> list[float]:
    """The loss of every pair by a law that was fitted without the pair's source."""
    laws = {
        source: fit_law([p for p in found if p.source != source])
        for source in {p.source for p in found}
    }
    return [pair.expected(laws[pair.source]) for pair in found]


def _scale(loss: float) -> float:
    return _SCALE["least"] + _SCALE["per_loss"] * max(0.0, loss)


def ranges_of(found: Sequence[LawPair], losses: Sequence[float]) -> dict[str, dict[str, float]]:
    """The middle 80 % of scaled errors by kind; a source weighs as the root of its rows."""
    scores: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for pair, loss in zip(found, losses, strict=True):
        scores[pair.kind].append(((pair.loss - loss) / _scale(loss), pair.source))
    every = [score for group in scores.values() for score in group]
    shipped = {}
    for kind in ("within", "real", "across"):
        low, high = _middle(scores.get(kind) or every)
        shipped[kind] = {"low": round(low, 3), "high": round(high, 3)}
    return shipped


def _middle(scores: Sequence[tuple[float, str]]) -> tuple[float, float]:
    """The weighted percentiles between which a range lies."""
    counts = Counter(source for _, source in scores)
    ordered = sorted((score, counts[source] ** -0.5) for score, source in scores)
    total, passed, low, high = sum(weight for _, weight in ordered), 0.0, ordered[0][0], 0.0
    for score, weight in ordered:
        low = score if passed <= _TAIL * total else low
        high = score if passed <= (1 - _TAIL) * total else high
        passed += weight
    return low, high


def inside(
    found: Sequence[LawPair], losses: Sequence[float], ranges: dict[str, dict[str, float]]
) -> dict[str, float]:
    """The part of pairs inside their range, by kind and over all."""
    hits: dict[str, list[bool]] = defaultdict(list)
    for pair, loss in zip(found, losses, strict=True):
        score = (pair.loss - loss) / _scale(loss)
        row = ranges[pair.kind]
        for name in ("all", pair.kind, "from one GPU" if pair.gpus[1] == 1 else "from several"):
            hits[name].append(row["low"] <= score <= row["high"])
    return {name: sum(got) / len(got) for name, got in hits.items()}


# ---- one GPU ----


def single_rows() -> list[OneGpuRow]:
    """The rows that give one GPU's rate, of work that is stated."""
    found = (single_row(record) for record in records() if not unstated(record))
    return [row for row in found if row]


def single_row(record: dict[str, Any]) -> OneGpuRow | None:
    """A record as the product sees it; None where it is no rate of one known GPU and network."""
    model, precision = model_of(record["model"]), precision_of(record.get("precision", "fp32"))
    usable = record["gpus"] == 1 and record.get("images_per_sec")
    if not usable or model not in networks() or precision not in PRECISIONS:
        return None
    gpu = gpu_of(record["gpu"])
    machine = of_gpu(gpu, "pcie3", 1, None) if gpu else None
    if machine is None or machine.lacks(precision):
        return None
    size = record.get("sequence_length") or record.get("image_size")
    net, batch = network(model, int(size) if size else None), record.get("batch_per_gpu")
    work, rate = Workload(net, int(batch or USUAL_BATCH), precision), record["images_per_sec"]
    return OneGpuRow(
        record["source"],
        machine.gpu,
        model,
        net.height,
        int(batch) if batch else None,
        units_of(precision),
        record.get("framework", ""),
        record.get("xla") == "true",
        rate,
        round(math.log(rate * roof(machine, work) / work.batch), 4),
    )


def fit_effects(found: Sequence[OneGpuRow]) -> dict[str, Any]:
    """Effects that add up to the log of the part of the roofline: one ridge over all."""
    nets = [network(row.model, row.size) for row in found]
    usual = statistics.fmean(map(intensity, nets))
    columns: dict[tuple[str, str], int] = {}
    keyed = []
    for row, net in zip(found, nets, strict=True):
        framework = row.framework.partition(" ")[0] + (" with XLA" if row.xla else "")
        keys = effect_keys(row.gpu, net, row.precision, framework)
        keys |= {
            "source": row.source,
            "source_network": f"{row.source} {row.precision} {row.model}",
        }
        keys["slope"] = f"{row.gpu.partition('-')[0]} {row.precision}"
        keyed.append(list(keys.items()))
        for key in keyed[-1]:
            columns.setdefault(key, len(columns))
    matrix = np.zeros((len(found), len(columns)))
    for at, (keys_of, net) in enumerate(zip(keyed, nets, strict=True)):
        for key in keys_of:
            matrix[at, columns[key]] = intensity(net) - usual if key[0] == "slope" else 1.0
    ridge = np.diag([_EFFECTS.get(name, _SLOPE) for name, _ in columns])
    parts = np.array([row.part for row in found])
    middle = float(parts.mean())
    values = np.linalg.solve(matrix.T @ matrix + ridge, matrix.T @ (parts - middle))
    shipped: dict[str, Any] = {"middle": round(middle, 4), "intensity": round(usual, 4)}
    for (name, key), column in columns.items():
        if not name.startswith("source"):
            shipped.setdefault(name, {})[key] = round(float(values[column]), 3)
    return shipped


Judged = tuple[float, str]
"""The log of a predicted rate over the measured one, and the row's source."""


def one_gpu_errors(found: Sequence[OneGpuRow]) -> dict[str, list[Judged]]:
    """Errors by what was hidden from the prediction."""
    kinds: dict[str, list[Judged]] = {"same": [], "foreign": [], "borrowed": [], "unseen": []}
    sources: dict[str, list[OneGpuRow]] = defaultdict(list)
    joined: dict[tuple[str, ...], list[OneGpuRow]] = defaultdict(list)
    networks: dict[str, list[OneGpuRow]] = defaultdict(list)
    for row in found:
        sources[row.source].append(row)
        joined[row.gpu, row.precision, row.model].append(row)
        networks[row.model].append(row)

    def judge(hidden: Sequence[OneGpuRow], kind: Callable[[OneGpuRow, bool, bool], str]) -> None:
        gone = set(hidden)
        left = [row for row in found if row not in gone]
        effects = fit_effects(left)
        for row in hidden:
            net, machine = network(row.model, row.size), of_gpu(row.gpu, "pcie3", 1, None)
            work = Workload(net, row.batch or USUAL_BATCH, row.precision)
            name = row.framework.partition(" ")[0]
            framework = name + (" with XLA" if row.xla else "")
            part, nearest = reached(machine, work, framework, left, effects)
            alike = nearest is not None and nearest.framework.startswith(name)
            group = kind(row, nearest is not None, alike)
            if group:
                kinds[group].append((part - row.part, row.source))

    for hidden in sources.values():
        judge(hidden, lambda _, joins, alike: ("same" if alike else "foreign") if joins else "")
    for hidden in joined.values():
        judge(hidden, lambda *_: "borrowed")
    for hidden in networks.values():
        judge(hidden, lambda *_: "unseen")
    return kinds


def one_gpu_inside(judged: Sequence[Judged]) -> float:
    """The part of rows inside a range that was made without their source."""
    hits = []
    for source in {source for _, source in judged}:
        bounds = one_gpu_ranges({"": [one for one in judged if one[1] != source]})[""]
        own = [math.exp(-log) for log, of in judged if of == source]
        hits += [bounds["low"] <= factor <= bounds["high"] for factor in own]
    return statistics.fmean(hits)


def one_gpu_ranges(found: dict[str, list[Judged]]) -> dict[str, dict[str, float]]:
    """Factors on a predicted rate between which eight of ten measured rates lay."""
    shipped = {}
    for kind, logs in found.items():
        ordered = sorted(-log for log, _ in logs)  # measured over predicted
        tail = int(_ONE_TAIL * len(ordered))
        low, high = math.exp(ordered[tail]), math.exp(ordered[-1 - tail])
        shipped[kind] = {"low": round(low, 3), "high": round(high, 3)}
    return shipped


# ---- what is shipped ----

_COLUMNS = (
    "id", "source", "gpu", "gpus", "nodes", "framework", "model", "image_size", "sequence_length",
    "batch_per_gpu", "precision", "xla", "data", "images_per_sec", "speedup", "date", "proof",
    "part",
)  # fmt: skip

_ROWS_HEADER = """\
# Written by `python -m tools.validate --write` from tools/data, which has all rows, and where each
# was read; do not edit. Published rates: of one GPU, which predictions start from, and those that
# references.yaml names by their id (throughput.csv, one a line). Empty cells are left out: one
# node, float32, published. part: the log of the part of the roofline that one GPU reached; a row
# without it says nothing of a rate.
# source: tools/data/throughput.yaml
schema: 1
numbers: [gpus, nodes, image_size, sequence_length, batch_per_gpu, images_per_sec, speedup, part]
"""


def unstated(record: dict[str, Any]) -> bool:
    """Whether a row's stated work is not the work that was done."""
    bert = record["model"] == "bert_large" and record.get("sequence_length") == 512
    # BERT-large at 512 tokens would be beyond the peak of a V100 there: padding is skipped.
    skipped = bert and record["source"].startswith("NVIDIA")
    skipped = skipped and record["framework"].startswith(("PyTorch", "PaddlePaddle"))
    demo = "demo" in record.get("data", "") or "do not use" in record.get("notes", "")
    return bool(skipped or demo)


def shipped_rows() -> tuple[str, str]:
    """The rows that the product reads, as YAML beside and CSV.

    They are those of one GPU, and those that references name.
    """
    wanted, sources = _named_rows(), dict[str, str]()
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for record in records():
        row, named = single_row(record), record["id"] in wanted
        if not named and (not row or unstated(record)):
            continue
        cells = {key: f"{v:g}" if isinstance(v, float) else v for key, v in record.items()}
        if row:
            cells |= {
                "gpu": row.gpu,
                "model": row.model,
                "precision": precision_of(record.get("precision", "fp32")),
            }
            cells["part"] = "" if unstated(record) else f"{row.part:g}"
        cells["source"] = sources.setdefault(record["source"], f"s{len(sources) + 1}")
        cells["xla"] = "true" if record.get("xla") == "true" else ""
        for key, usual in (("nodes", "1"), ("proof", "published"), ("precision", "fp32")):
            cells[key] = "" if cells.get(key) == usual else cells.get(key, "")
        writer.writerow(cells if named else {**cells, "id": "", "date": "", "data": ""})
    listed = {code: name for name, code in sources.items()}
    return _ROWS_HEADER + yaml.safe_dump({"sources": listed}, sort_keys=False), text.getvalue()


def _named_rows() -> set[str]:
    sets = facts.load("references")["sets"].values()
    return {name for groups in sets for group in groups for name in group["records"]}


def fitted() -> dict[str, Any]:
    """All coefficients of facts/predict.yaml."""
    found = [law_pair(pair) for pair in pairs(rows())[0]]
    single = single_rows()
    law = [round(value, 4) for value in fit_law(found)]
    return {
        "law": dict(zip(("straggler", "exchange"), law, strict=True)),
        "scale": _SCALE,
        "ranges": ranges_of(found, losses_left_out(found)),
        "one_gpu": one_gpu_ranges(one_gpu_errors(single)),
        "effects": fit_effects(single),
        "utilisation": language.fitted(),
    }


def _written(values: dict[str, Any]) -> str:
    return _HEADER + yaml.safe_dump(values, sort_keys=False, default_flow_style=None, width=110)


# ---- the table ----


def scaling_table(found: Sequence[LawPair], losses: Sequence[float]) -> str:
    """The law beside simple ones, and its errors by source."""
    simple = [
        math.log((1 + _LAW * math.log2(p.gpus[0])) / (1 + _LAW * math.log2(p.gpus[1])))
        for p in found
    ]
    lines: list[tuple[str, ...]] = []
    for name, kept in (
        ("all", lambda _: True),
        ("from one GPU", lambda p: p.gpus[1] == 1),
        ("within a node", lambda p: p.kind != "across"),
        ("across nodes", lambda p: p.kind == "across"),
    ):
        for law, told in (
            ("the law", losses),
            ("1/(1 + 0.03 log2 N)", simple),
            ("linear scaling", [0.0] * len(found)),
        ):
            picked = [
                math.exp(p.loss - loss) - 1 for p, loss in zip(found, told, strict=True) if kept(p)
            ]
            if picked:
                lines.append((name, law, *errors(picked).cells))
    wins, by_source = 0, []
    for source in dict.fromkeys(p.source for p in found):
        both = [
            errors(
                [
                    math.exp(p.loss - loss) - 1
                    for p, loss in zip(found, told, strict=True)
                    if p.source == source
                ]
            )
            for told in (losses, simple)
        ]
        wins += both[0].median < both[1].median
        by_source.append((source, *both[0].cells))
    head = ("rows", "", "median", "90 %", "bias")
    return "\n".join(
        [
            table(lines, ("", "", *head[0:1], "median", "90 %", "bias")),
            "",
            f"better than the constant law in {wins} of {len(by_source)} sources",
            "",
            table(by_source, ("source, left out", "rows", "median", "90 %", "bias")),
        ]
    )


def report() -> str:
    """All figures, of rows that the fits have not seen."""
    compared, unfit = pairs(rows())
    found = [law_pair(pair) for pair in compared]
    losses = losses_left_out(found)
    ranges = _ranges_left_out(found, losses)
    single = single_rows()
    one = one_gpu_errors(single)
    names = {
        "same": "another source's rows, same framework",
        "foreign": "another source's rows, other frameworks",
        "borrowed": "pair of GPU and network hidden",
        "unseen": "network hidden",
    }
    alone = [
        (
            names[kind],
            *errors([math.exp(log) - 1 for log, _ in logs]).cells,
            f"{one_gpu_inside(logs):.0%}",
        )
        for kind, logs in one.items()
    ]
    return "\n".join(
        [
            f"{len(found)} rows of {len({p.source for p in found})} sources, each from the row of "
            "the fewest GPUs of its source; the source left out",
            "",
            scaling_table(found, losses),
            "",
            table([(k, f"{v:.0%}") for k, v in ranges.items()], ("inside the range of 80 %", "")),
            "",
            table(alone, ("one GPU", "rows", "median", "90 %", "bias", "inside")),
            "",
            language.report(),
            "",
            f"{len(unfit)} rows of several GPUs are not compared: "
            + "; ".join(f"{count}: {why}" for why, count in Counter(unfit.values()).most_common(6)),
        ]
    )


def _ranges_left_out(found: Sequence[LawPair], losses: Sequence[float]) -> dict[str, float]:
    """The part of pairs inside ranges that were made without their source."""
    hits: dict[str, list[float]] = defaultdict(list)
    for source in {p.source for p in found}:
        other = [at for at, p in enumerate(found) if p.source != source]
        ranges = ranges_of([found[at] for at in other], [losses[at] for at in other])
        own = [at for at, p in enumerate(found) if p.source == source]
        for at in own:
            for name, part in inside([found[at]], [losses[at]], ranges).items():
                hits[name].append(part)
    return {name: statistics.fmean(got) for name, got in hits.items()}


def aside(path: Path) -> str:
    """The shipped law and ranges on the rows of a file that nothing was fitted to."""
    compared, unfit = pairs(rows(path))
    shipped = facts.load("predict")
    found = [law_pair(pair) for pair in compared]
    losses = [pair.expected(tuple(shipped["law"].values())) for pair in found]
    part = inside(found, losses, shipped["ranges"])
    lines = [scaling_table(found, losses), "", *(f"inside: {k} {v:.0%}" for k, v in part.items())]
    return "\n".join([*lines, *(f"not compared: {name}: {why}" for name, why in unfit.items())])


def main(argv: Iterable[str] | None = None) -> int:
    """Print the table, or write what is shipped."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--aside", type=Path)
    args = parser.parse_args(None if argv is None else list(argv))
    if args.write:
        write_atomic(FACTS, _written(fitted()))
        beside, table_of_rows = shipped_rows()
        write_atomic(facts.path("throughput"), beside)
        write_atomic(facts.rows_path("throughput"), table_of_rows)
    elif args.aside:
        print(aside(args.aside))
    else:
        print(report())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
