"""The results of a study, as its rules ask for them: yes, no, or not decided, with the numbers.

    with results.rule("agree", "the partitions are within 12 % of each other"):
        assert results.where(gpus=(1, 2)).gap("partition") <= 0.12

A measured number compares like one; the comparison is noted as the rule's evidence. It raises
`Undecided` where cells are missing that it would look at. What is measured and breaks a rule is a
no, whatever is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import combinations
from statistics import median
from typing import NamedTuple

from hpcdl.jobs.spec import is_train
from hpcdl.predict.request import ScalingRequest, answer
from hpcdl.results.records import RESULT
from hpcdl.system.errors import BadInput
from hpcdl.workflows.study.cells import Cell, StudyPlan, but
from hpcdl.workflows.study.declared import SYNTHETIC, Values, known

ANSWERS = {True: "yes", False: "no", None: "not decided"}
_PENDING = frozenset({"queued", "running", "missing"})
_SHOWN = 4
_OTHERS = 0.1
"""The part of the cores that others may have before times say little."""


class Predicted(NamedTuple):
    """A predicted cell: images per second and its likely bounds; `measured` where it also ran."""

    values: Values
    gpus: int
    rate: float
    low: float
    high: float
    measured: float | None = None

    @property
    def error(self) -> float | None:
        """Predicted over measured, less one."""
        return self.measured and self.rate / self.measured - 1


class Undecided(Exception):
    """What was measured does not decide a rule."""


class RuleVerdict(NamedTuple):
    """The verdict on a rule: `ok` is None if it is not decided; `evidence` is the numbers."""

    rule: str
    says: str
    ok: bool | None
    evidence: str


@dataclass
class Protocol:
    """The verdicts so far, and the evidence of the rule that is being judged."""

    verdicts: list[RuleVerdict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    timed: bool = True


@dataclass(frozen=True)
class Amount:
    """A measured number, of one cell or more: it compares as all of them do.

    Of `lacking` cells nothing is known.
    """

    protocol: Protocol
    text: str
    values: Sequence[float]
    lacking: Sequence[str]
    form: str

    def __le__(self, bound: float) -> bool:
        return self._compare("at most", bound, lambda value: value <= bound)

    def __ge__(self, bound: float) -> bool:
        return self._compare("at least", bound, lambda value: value >= bound)

    def _compare(self, words: str, bound: float, fits: Callable[[float], bool]) -> bool:
        if self.values:
            self.protocol.notes.append(f"{self.text}; {words} {bound:{self.form}}")
            self.protocol.timed = True
            if not all(map(fits, self.values)):
                return False
        _require_all(self.lacking, "" if self.values else self.text)
        return True


@dataclass(frozen=True)
class Results:
    """The results of a study, or of some of its cells; `every` cell is of the whole study."""

    plan: StudyPlan
    cells: tuple[Cell, ...]
    every: tuple[Cell, ...]
    predicted: tuple[Predicted, ...] = ()
    not_predicted: tuple[str, ...] = ()
    protocol: Protocol = field(default_factory=Protocol)

    # ---- choosing ----

    @property
    def measured(self) -> tuple[Cell, ...]:
        """The cells that have a result."""
        return tuple(one for one in self.cells if one.result)

    @property
    def missing(self) -> tuple[Cell, ...]:
        """The cells that have none."""
        return tuple(one for one in self.cells if not one.result)

    def where(self, **values: object) -> Results:
        """The results of cells with these values, such as `run="training", gpus=(2, 4)`."""
        asked = {
            key.replace("_", "-"): set(map(str, value if isinstance(value, tuple) else (value,)))
            for key, value in values.items()
        }
        self._check(asked)

        def chosen(one: Cell | Predicted) -> bool:
            return all(one.values.get(key) in choices for key, choices in asked.items())

        cells, predicted = filter(chosen, self.cells), filter(chosen, self.predicted)
        return replace(self, cells=tuple(cells), predicted=tuple(predicted))

    def _check(self, asked: Mapping[str, set[str]]) -> None:
        """Raise BadInput for a key or a value of no cell: of either scale, by one `judge`."""
        every: dict[str, set[str]] = {}
        for jobs in (*self.plan.study.small.jobs, *self.plan.study.full.jobs):
            named = {key: (value,) for key, value in jobs.named.items()}
            for key, values in {"run": (jobs.name,), **named, **jobs.matrix}.items():
                every.setdefault(key, set()).update(values)
        for key, choices in asked.items():
            known(key, every, "key of cells")
            for value in sorted(choices) if key != "partition" else ():  # which the user may name
                known(value, sorted(every[key]), key)

    def pairs(self, key: str) -> Iterator[tuple[Cell, Cell]]:
        """Measurements that differ in one key alone."""
        for one, other in combinations(self.measured, 2):
            if but(one.values, key) == but(other.values, key):
                yield one, other

    # ---- the machine and the series ----

    @property
    def shared(self) -> bool:
        """Whether all ranks share the cores of one machine."""
        return self.plan.scale.single_node

    @property
    def unfinished(self) -> bool:
        """Whether cells of the study have not run yet; those that failed have."""
        return any(one.state in _PENDING for one in self.missing)

    @property
    def accepted(self) -> bool | None:
        """Whether every rule holds; None where a rule is not decided."""
        answers = [verdict.ok for verdict in self.protocol.verdicts]
        return False if False in answers else None if None in answers else True

    @property
    def answer(self) -> str:
        """`yes`, `no`, `unfinished` while jobs have not ended, or `not decided`."""
        return "unfinished" if self.unfinished else ANSWERS[self.accepted]

    @property
    def busy(self) -> str:
        """Whether other programs worked on the machine that ranks share, in words; else nothing."""
        others = [one.others for one in self.every if one.others is not None]
        several, worst = sum(part >= _OTHERS for part in others), max(others, default=0.0)
        if self.shared and not others:
            return "nobody watched the machine while jobs ran: `study run` does while it waits"
        words = f"the machine was busy: other programs had up to {worst:.0%} of its cores"
        return f"{words} ({several} of {len(others)} jobs)" if self.shared and several else ""

    @property
    def cores(self) -> int:
        """Cores of the machine that ran the jobs."""
        return next((one.cores for one in self.every if one.result), 1)

    def ideal(self, ranks: int) -> float:
        """The speed-up that nothing could exceed: ranks, or the cores that they share."""
        cpus = min(self.plan.scale.cpus_per_rank or 1, self.cores)
        return max(1.0, min(float(ranks), self.cores / cpus if self.shared else ranks))

    def alone(self, one: Cell) -> Cell | None:
        """The one-rank run of a measurement's series."""
        return next(
            (other for other in self._alike(one) if other.result and other.ranks == 1), None
        )

    def _alike(self, one: Cell) -> list[Cell]:
        """The cells of the study that differ from one in their number of GPUs alone."""
        values = but(one.values, "gpus", "nodes")
        return [other for other in self.every if but(other.values, "gpus", "nodes") == values]

    def efficiency_of(self, one: Cell) -> float | None:
        """A measurement's rate over one rank's times GPUs, or times the shared cores."""
        base = self.alone(one)
        return one.rate / base.rate / self.ideal(one.gpus) if base else None

    def series_of(self, values: Values) -> str:
        """The name of these values' series in the figure."""
        study = self.plan.study
        return ", ".join(values[k] for k in study.series if k in values) or study.name

    def series(self) -> dict[str, list[Cell]]:
        """The measurements by series, in rising ranks."""
        found: dict[str, list[Cell]] = {self.series_of(one.values): [] for one in self.measured}
        for one in sorted(self.measured, key=lambda one: one.ranks):
            found[self.series_of(one.values)].append(one)
        return found

    # ---- rules ----

    @contextmanager
    def rule(self, name: str, says: str) -> Iterator[None]:
        """Judge the asserts of a `with` block as one rule.

        No rule fails before all jobs have ended; none that compares times does on a busy machine.
        """
        protocol = self.protocol
        protocol.notes, protocol.timed = [], True
        decided: bool | None = True
        why = ""
        try:
            yield
            if not protocol.notes:  # asserts of the study's own
                _require_all(self._missing())
        except Undecided as fault:
            decided, why = None, str(fault)
        except AssertionError as fault:
            late = "jobs have not ended" if self.unfinished else self.busy * protocol.timed
            decided, why = None if late else False, "; ".join(filter(None, [str(fault), late]))
        except (ArithmeticError, LookupError, ValueError):
            if any(one.result for one in self.every):
                raise
            decided, why = None, "nothing was measured"
        evidence = "; ".join(filter(None, [*protocol.notes, why]))
        protocol.verdicts.append(RuleVerdict(name, says, decided, evidence))

    def judge_runs(self, ranks: str) -> None:
        """Judge what every study asks of its jobs: that all ran, one rank on each GPU."""
        with self.rule("complete", "every cell has a result"):
            assert self.complete()
        with self.rule("one-rank-per-gpu", ranks):
            assert self.one_rank_per_gpu()

    def _missing(self) -> list[str]:
        """The cells that a rule would look at and that have no measurement."""
        return [one.name for one in self.missing]

    def _fact(self, holds: bool, text: str) -> bool:
        """Note something that holds or not, however fast jobs ran."""
        if not self.measured:
            raise Undecided("nothing was measured")
        self.protocol.notes.append(text)
        self.protocol.timed = False
        if holds:
            _require_all(self._missing())
        return holds

    def _amount(self, what: str, values: Mapping[str, float | None], form: str = ".1%") -> Amount:
        """A number of each name; of one that is None, and of missing cells, nothing is known."""
        amounts = {name: value for name, value in values.items() if value is not None}
        lacking = [*(name for name in values if name not in amounts), *self._missing()]
        parts = [f"{value:{form}} ({name})" for name, value in amounts.items()]
        if len(parts) > _SHOWN:
            low, high = min(amounts.values()), max(amounts.values())
            parts = [f"{low:{form}} to {high:{form}} in {len(parts)} cells"]
        nothing = f"{what}: none is known" if self.measured else "nothing was measured"
        text = f"{what} {', '.join(parts)}" if amounts else nothing
        return Amount(self.protocol, text, tuple(amounts.values()), lacking, form)

    def complete(self) -> bool:
        """Every cell has a result."""
        count, missing = len(self.cells), len(self.missing)
        return self._fact(not missing, f"{count - missing} of {count} cells have a result")

    def one_rank_per_gpu(self) -> bool:
        """As many ranks as GPUs asked for, spread evenly, each with one; `single` takes all in one.

        That no two ranks have the same one is what the preflight of every job sees to.
        """
        opens = {0, 1} if self.shared else {1}
        wrong = [
            one.name
            for one in self.measured
            if one.point.spec.launcher != "single"
            and (
                one.ranks != one.gpus
                or len(set(one.result["layout"]["ranks_per_node"])) != 1
                or int(one.result["layout"]["gpu_per_rank"]) not in opens
            )
        ]
        count = len(self.measured)
        return self._fact(not wrong, f"{count - len(wrong)} of {count} jobs{_but_not(wrong)}")

    def equal(self, name: str, over: str) -> bool:
        """Results that differ in one key alone hold the same value, such as of `parameters`."""
        pairs = [(one.result.get(name), two.result.get(name), one) for one, two in self.pairs(over)]
        odd = [f"{a} and {b} ({one.name})" for a, b, one in pairs if a is None or a != b]
        text = f"{len(pairs) - len(odd)} of {len(pairs)} pairs have the same {name}{_but_not(odd)}"
        return self._fact(bool(pairs) and not odd, text)

    def efficiency(self, *gpus: int) -> Amount:
        """Throughput over one rank's times GPUs; on a single node, times its cores."""
        asked = self.where(gpus=(*gpus, 1))
        several = [one for one in asked.measured if one.gpus in gpus]
        return asked._amount("efficiency", {one.name: self.efficiency_of(one) for one in several})

    def gap(self, key: str) -> Amount:
        """By how much two that differ in one key alone differ."""
        values: dict[str, float | None] = {
            one.name: max(one.rate / other.rate, other.rate / one.rate) - 1
            for one, other in self.pairs(key)
        }
        return self._amount("they differ by", values)

    def ratio(self, key: str, better: str, worse: str) -> Amount:
        """How many times as fast one is as the other, in images/s of all steps together."""
        both = self.where(**{key: (better, worse)})
        values: dict[str, float | None] = {}
        for pair in both.pairs(key):
            speeds = {one.values[key]: one.mean_rate for one in pair}
            values[pair[0].name] = speeds[better] / speeds[worse]
        return both._amount(f"{better} over {worse}, times", values, ".2f")

    def prediction_error(self) -> Amount:
        """The median error of predictions that also ran."""
        errors = [abs(one.error) for one in self.predicted if one.error is not None]
        return self._amount(
            "error", {f"median of {len(errors)} cells": median(errors)} if errors else {}
        )

    def metric(self, name: str) -> Amount:
        """A score, such as accuracy."""
        return self._amount(name, {one.name: one.metrics.get(name) for one in self.measured}, ".3f")

    def share(self, part: str) -> Amount:
        """The part of a step's time that `compute`, `input` or another part takes."""
        values = {one.name: one.shares[part] for one in self.measured}
        return self._amount(f"of a step, {part} takes", values)


def _require_all(lacking: Sequence[str], why: str = "") -> None:
    """Raise Undecided for cells of which nothing is known, or for another reason."""
    if lacking:
        nothing = f"undecided, for nothing is known of {_few(lacking)}"
        raise Undecided(f"{why}; {nothing}" if why else nothing)
    if why:
        raise Undecided(why)


def _but_not(names: Sequence[str]) -> str:
    return f"; not so: {_few(names)}" if names else ""


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return "; ".join(names[:_SHOWN]) + more


# ---- predictions ----


def predict(results: Results) -> Results:
    """The results with predictions, by hpcdl.predict, for every series with a one-rank measurement.

    Ranks that share the cores of one machine exchange by these cores, too, at a rate that no site
    file knows: there predictions start from the result of two ranks.
    """
    predicted: list[Predicted] = []
    gaps: list[str] = []
    for base in results.measured:
        if base.ranks == 1 and base.jobs.predict:
            try:
                predicted += _series(results, base)
            except BadInput as fault:
                gaps.append(f"{base.name}: {fault.message}")
    return replace(results, predicted=tuple(predicted), not_predicted=tuple(gaps))


def _series(results: Results, base: Cell) -> Iterator[Predicted]:
    """All counts of a series but those that it starts from."""
    spec, alike = base.point.spec, results._alike(base)
    if not is_train(spec.program):
        raise BadInput("the model is of `hpcdl train`, not of another program")
    ran = {one.ranks: one for one in alike if one.result}
    start = ran.get(2, base) if results.shared else base
    possible = (one.gpus for one in alike if not one.point.problem)
    counts = {*possible, *ran, *base.jobs.predict} - {1, start.ranks}
    request = ScalingRequest(
        results.plan.site.partition(spec.partition),
        gpus=",".join(map(str, sorted(counts))),
        real=base.data != SYNTHETIC and not results.shared,
        result=start.results / RESULT.name,
        cores=results.cores if results.shared else None,
    )
    for point in answer(request).points:
        values = {**base.values, "gpus": str(point.gpus)}
        rates = (point.images_per_second, point.low, point.high)
        own = ran[point.gpus].rate if point.gpus in ran else None
        yield Predicted(values, point.gpus, *rates, own)
