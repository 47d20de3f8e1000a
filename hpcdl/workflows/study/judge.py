"""The acceptance of a study, rule by rule: yes, no, or not known yet, always with the numbers.

A rule looks at measurements only. What cannot be evaluated because cells are missing is `None`,
never a yes; what is measured and breaks a rule is a no, whatever is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median

from hpcdl.workflows.study import collect as lines
from hpcdl.workflows.study.collect import CellMeasured, Findings
from hpcdl.workflows.study.forecast import Predicted, median_error
from hpcdl.workflows.study.model import SYNTHETIC, AcceptanceRule, matches
from hpcdl.workflows.study.study_plan import Cell

_SHOWN = 3
_EVEN = 0.15
"""By how much the two fastest of equal jobs differ at most on a machine that does nothing else."""


@dataclass(frozen=True)
class RuleVerdict:
    """The verdict on a rule: `ok` is None if it cannot be evaluated; `evidence` is the numbers."""

    rule: AcceptanceRule
    ok: bool | None
    evidence: str


@dataclass(frozen=True)
class Evidence:
    """The input of a rule: measurements that its `where` chooses, and all the rest."""

    rule: AcceptanceRule
    findings: Findings
    predicted: tuple[Predicted, ...]
    measured: tuple[CellMeasured, ...]

    @property
    def pairs(self) -> Iterator[tuple[CellMeasured, CellMeasured]]:
        """Measurements that differ in the rule's `over` alone."""
        for one, other in combinations(self.measured, 2):
            if lines.but(one.values, self.rule.over) == lines.but(other.values, self.rule.over):
                yield one, other


Answer = tuple[bool | None, str]


def judge(findings: Findings, predicted: tuple[Predicted, ...]) -> tuple[RuleVerdict, ...]:
    """Check every rule of the scale."""
    return tuple(_verdict(rule, findings, predicted) for rule in findings.plan.scale.acceptance)


def _verdict(
    rule: AcceptanceRule, findings: Findings, predicted: tuple[Predicted, ...]
) -> RuleVerdict:
    measured = tuple(result for result in findings.measured if _chosen(rule, result.cell))
    if rule.rule != "complete" and not measured:
        return RuleVerdict(rule, None, "nothing was measured")
    relevant = tuple(
        prediction
        for prediction in predicted
        if matches(prediction.values, rule.where)
        and (not rule.gpus or prediction.gpus in rule.gpus)
    )
    ok, text = _RULES[rule.rule](Evidence(rule, findings, relevant, measured))
    missing = _missing(rule, findings) if ok else []
    if missing:
        return RuleVerdict(
            rule, None, f"{text}; undecided, because these are missing: {_few(missing)}"
        )
    return RuleVerdict(rule, ok, text)


def _chosen(rule: AcceptanceRule, cell: Cell) -> bool:
    """Return whether a rule uses a cell; some use one rank whatever their `gpus` are."""
    counts = (*rule.gpus, 1) if rule.rule in {"efficiency", "model"} else rule.gpus
    return matches(cell.named, rule.where) and (not rule.gpus or cell.gpus in counts)


def _missing(rule: AcceptanceRule, findings: Findings) -> list[str]:
    """The cells that a rule would look at, were they measured; one job of several is enough."""
    known = [result.values for result in findings.measured]
    return [
        f"{gap.cell.run.name}: {gap.cell.label}"
        for gap in findings.missing
        if _chosen(rule, gap.cell)
        and gap.cell.named not in known
        and gap.cell.attempt == 0
        and _compared(rule, gap.cell, findings)
    ]


def _compared(rule: AcceptanceRule, cell: Cell, findings: Findings) -> bool:
    """Return whether a cell could change a verdict: rules that compare need a similar cell."""
    if rule.rule == "linear":
        return not lines.throttled(cell.run) and cell.data != SYNTHETIC
    if rule.rule == "model":
        return bool(cell.run.predict)
    if not rule.over:
        return True
    values = {
        other.named.get(rule.over)
        for other in findings.plan.cells
        if lines.but(other.named, rule.over) == lines.but(cell.named, rule.over)
    }
    asked = {rule.better, rule.worse} if rule.rule == "faster" else values
    return cell.named.get(rule.over) in asked and asked <= values and len(asked) > 1


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return "; ".join(names[:_SHOWN]) + more


def _complete(evidence: Evidence) -> Answer:
    missing = evidence.findings.missing
    count = len(evidence.findings.plan.cells)
    return not missing, f"{count - len(missing)} of {count} cells have a result"


def _agree(evidence: Evidence) -> Answer:
    """A gap beyond the bound counts where neither steps nor rounds of the two overlap.

    Jobs of one round ran one after the other: what the machine did meanwhile is in both.
    """
    rule = evidence.rule
    pairs = [pair for pair in evidence.pairs if _kindred(evidence.findings, *pair)]
    if not pairs:
        return None, f"no two cells differ in '{rule.over}' alone, on GPUs of one kind"
    limit = rule.bound
    gaps = [(pair, *_gap(*pair)) for pair in pairs]
    wide = [(pair, least) for pair, gap, least in gaps if gap > limit]
    text = ", ".join(f"{gap:.1%} on {pair[0].ranks}" for pair, gap, _ in gaps)
    summary = f"they differ by {text}; at most {limit:.0%}"
    if any(least > limit and not _overlap(one, other) for (one, other), least in wide):
        return False, summary
    if wide:
        return None, f"{summary}, which the spread of their steps and rounds does not decide"
    return True, summary


def _kindred(findings: Findings, one: CellMeasured, other: CellMeasured) -> bool:
    """Whether two ran on GPUs of one architecture: P100-PCIe and P100-SXM2, not P100 and V100."""
    if findings.shared:
        return True
    places = (findings.plan.site.partition(x.cell.point.spec.partition) for x in (one, other))
    return len({place.gpu and place.gpu.compute for place in places}) == 1


def _gap(one: CellMeasured, other: CellMeasured) -> tuple[float, float]:
    """By how much the faster is faster in the median and in the worst of rounds that both had."""
    both = {*one.rounds} & {*other.rounds}
    ratios = [one.rounds[n] / other.rounds[n] for n in both] or [one.rate / other.rate]
    middle = median(ratios)
    return (middle - 1, min(ratios) - 1) if middle >= 1 else (1 / middle - 1, 1 / max(ratios) - 1)


def _overlap(one: CellMeasured, other: CellMeasured) -> bool:
    """Return whether the ranges of the two's steps overlap (5th to 95th percentile)."""
    return one.spread[0] <= other.spread[1] and other.spread[0] <= one.spread[1]


def _efficiency(evidence: Evidence) -> Answer:
    """Throughput over the one-rank run's times GPUs; where cores are shared, times cores."""
    rule = evidence.rule
    asked = [result for result in evidence.measured if result.cell.gpus in rule.gpus]
    every = [(lines.efficiency(evidence.findings, result), result) for result in asked]
    shares = [(share, result) for share, result in every if share is not None]
    lone = [result.cell.label for share, result in every if share is None]
    if not shares:
        return None, "no series has both one rank and the ranks asked for"
    text = ", ".join(f"{share:.0%} ({result.cell.label})" for share, result in shares)
    text += f"; at least {rule.bound:.0%}"
    if min(share for share, _ in shares) < rule.bound:
        return False, text
    return (None, f"{text}; no one-rank run beside {_few(lone)}") if lone else (True, text)


def _faster(evidence: Evidence) -> Answer:
    rule = evidence.rule
    both = [{result.values.get(rule.over): result for result in pair} for pair in evidence.pairs]
    wins = [
        (by[rule.better].speed / by[rule.worse].speed, by[rule.better])
        for by in both
        if rule.better in by and rule.worse in by
    ]
    if not wins:
        return None, f"no cell ran with both {rule.better} and {rule.worse}"
    text = ", ".join(f"{ratio:.2f} times on {result.ranks}" for ratio, result in wins)
    return fmean(ratio for ratio, _ in wins) >= rule.bound, (
        f"{rule.better} is {text} as fast as {rule.worse}; at least {rule.bound:g} in the mean"
    )


def _one_rank_per_gpu(evidence: Evidence) -> Answer:
    """As many ranks as GPUs asked for, spread evenly, each with one; `single` takes all in one.

    That no two ranks have the same one is what the preflight of every job sees to (exit code 22).
    """
    opens = {1} if evidence.findings.plan.scale.execution.real_gpus else {0, 1}
    layouts = [
        (result, result.result["layout"])
        for result in evidence.measured
        if result.cell.point.spec.launcher != "single"
    ]
    wrong = [
        result.cell.label
        for result, layout in layouts
        if result.ranks != result.cell.gpus
        or len(set(layout["ranks_per_node"])) != 1
        or int(layout["gpu_per_rank"]) not in opens
    ]
    opened = max((int(layout["gpu_per_rank"]) for _, layout in layouts), default=0)
    note = "no rank opened more than one GPU" if opened else "ranks saw no GPU of the driver's"
    text = f"{len(layouts) - len(wrong)} of {len(layouts)} jobs; {note}"
    return not wrong, text + (f"; not so: {', '.join(wrong)}" if wrong else "")


def _model(evidence: Evidence) -> Answer:
    error = median_error(evidence.predicted)
    if error is None:
        return None, "nothing was both predicted and measured"
    limit = evidence.rule.bound
    count = sum(prediction.error is not None for prediction in evidence.predicted)
    text = f"median error {error:.1%} of {count} cells; at most {limit:.0%}"
    uneven = [result.cell.label for result in evidence.measured if result.unevenness > _EVEN]
    if error > limit and uneven and evidence.findings.shared:
        return None, f"{text}; the machine was busy: equal jobs disagree ({_few(uneven)})"
    predicted = [prediction.values for prediction in evidence.predicted]
    silent = [
        result.cell.label
        for result in evidence.measured
        if result.ranks > 1 and result.cell.run.predict and result.values not in predicted
    ]
    if error <= limit and silent:
        return None, f"{text}; the model does not predict {_few(silent)}"
    return error <= limit, text


def _metric(evidence: Evidence) -> Answer:
    rule = evidence.rule
    found = [one.metrics[rule.metric] for one in evidence.measured if rule.metric in one.metrics]
    without = [one.cell.label for one in evidence.measured if rule.metric not in one.metrics]
    if not found:
        return None, f"no result holds '{rule.metric}'"
    text = f"{rule.metric} {min(found):.3f} to {max(found):.3f}; at least {rule.bound:g}"
    if min(found) < rule.bound:
        return False, text
    return (None, f"{text}; without it: {_few(without)}") if without else (True, text)


def _equal(evidence: Evidence) -> Answer:
    """Results that differ in one key alone say the same of something, such as `parameters`."""
    name = evidence.rule.metric
    pairs = list(evidence.pairs)
    odd = [
        f"{one.result.get(name)} and {other.result.get(name)} ({one.cell.label})"
        for one, other in pairs
        if one.result.get(name) is None or one.result.get(name) != other.result.get(name)
    ]
    if not pairs:
        return None, f"no two cells differ in '{evidence.rule.over}' alone"
    text = f"{len(pairs) - len(odd)} of {len(pairs)} pairs have the same {name}"
    return not odd, text + (f"; not so: {_few(odd)}" if odd else "")


def _linear(evidence: Evidence) -> Answer:
    """Above memory an epoch may be longer than the line through those below says, by the bound."""
    limit = evidence.rule.bound
    gaps: list[float] = []
    text, unknown = [], []
    for name, series in lines.by_size(evidence.findings, evidence.measured).items():
        line = lines.line_of(evidence.findings, series)
        above = [
            result
            for result in series
            if (result.size or 0) > lines.memory_bytes(evidence.findings)
        ]
        if line is None or not above:
            lack = "line through two sizes below" if line is None else "size above"
            unknown.append(f"{name} has no {lack} memory")
            continue
        for result in above:
            every = (min(result.epochs), result.epoch_seconds or 0, max(result.epochs))
            low, gap, high = (seconds / line.predicted(result.size or 0) - 1 for seconds in every)
            gaps.append(gap)
            text.append(f"{name} {gap:+.0%} (its epochs {low:+.0%} to {high:+.0%})")
    if not gaps:
        return None, "; ".join(unknown) or "no cell read a whole data set"
    details = "; ".join([", ".join(text), *unknown])
    summary = (
        f"an epoch above memory, over what those below predict: {details}; at most +{limit:.0%}"
    )
    if max(gaps) > limit:
        return False, summary
    return None if unknown else True, summary


def _input_share(evidence: Evidence) -> Answer:
    """Storage-bound or not, with the share of the steps that waited for input."""
    shares, rule = [one.shares["input"] for one in evidence.measured], evidence.rule
    low, high, bound = min(shares), max(shares), rule.bound
    kind = (
        "storage-bound"
        if low > bound
        else "not storage-bound"
        if high <= bound
        else "storage-bound in part"
    )
    enough = rule.at_least is None or low >= rule.at_least
    ok = enough and (rule.at_most is None or high <= rule.at_most)
    text = f"ranks wait for input {low:.1%} to {high:.1%} of a step"
    return ok, f"{text}: {kind} (beyond {bound:.0%})"


def _share(evidence: Evidence) -> Answer:
    rule = evidence.rule
    shares = [one.shares[rule.part] for one in evidence.measured]
    text = f"{rule.part} takes {min(shares):.1%} to {max(shares):.1%} of a step"
    return min(shares) >= rule.bound, f"{text}; at least {rule.bound:.0%}"


_RULES: dict[str, Callable[[Evidence], Answer]] = {
    "complete": _complete,
    "agree": _agree,
    "efficiency": _efficiency,
    "faster": _faster,
    "one-rank-per-gpu": _one_rank_per_gpu,
    "model": _model,
    "metric": _metric,
    "equal": _equal,
    "linear": _linear,
    "input-share": _input_share,
    "share": _share,
}
