"""A study's report: what its `report` yields, panels and tables, and the rules with their evidence.

`study show` shows it of no results, and report.md has the same text above figure and tables, which
are the lists of report.json. Missing results come first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from hpcdl import __version__
from hpcdl.regress.formats import markdown_table
from hpcdl.system.chart import Curve, Panel, svg
from hpcdl.system.files import make_directory, write_atomic, write_json
from hpcdl.system.text import markdown_cell
from hpcdl.system.trust import require_own
from hpcdl.workflows.study.cells import Cell, StudyPlan, but
from hpcdl.workflows.study.declared import Published, line_of
from hpcdl.workflows.study.findings import ANSWERS, Results

Row = Mapping[str, Any]
_JSON_ONLY = frozenset({"job_id", "release", "result"})


class ResultTable(NamedTuple):
    """Measurements side by side."""

    title: str
    rows: Sequence[Row]


Parts = Iterator[Panel | ResultTable]
"""What a report has besides its tables of all cells."""


def rate(results: Results, title: str = "Throughput") -> Panel:
    """Images per second over ranks."""
    curves = [*_curves(results)]
    return Panel(title, _ranks(results), "images/s, all ranks", curves, log_x=2, log_y=10)


def speedup(
    results: Results, title: str = "Speed-up", published: Sequence[Published] = ()
) -> Panel:
    """Throughput over one rank's, beside what was published and what is ideal."""
    beside = [Curve(group.label, [*group.gains.items()], "published") for group in published]
    tops = [one.ranks for one in results.measured] + [one.gpus for one in results.predicted]
    top = max([1, *tops, *(gpus for group in published for gpus in group.gains)])
    counts = [2**power for power in range(10) if 2**power <= top]
    beside.append(Curve("a GPU each: ideal", [(n, n) for n in counts], "ideal"))
    if results.shared:
        best = [(float(n), results.ideal(n)) for n in counts]
        beside.append(Curve("shared cores: at best", best, "bound"))
    curves = [*_curves(results, over_one=True), *beside]
    return Panel(title, _ranks(results), "speed-up over one rank", curves, log_x=2, log_y=2)


def _ranks(results: Results) -> str:
    return "ranks, on shared CPU cores" if results.shared else "GPUs, one rank each"


def _curves(results: Results, *, over_one: bool = False) -> Iterator[Curve]:
    """Every series' measured line, and the predicted one with markers where nothing ran."""
    for number, (name, series) in enumerate(results.series().items()):
        base = results.alone(series[0])
        if over_one and base is None:
            continue
        unit = base.rate if over_one and base else 1.0
        rows = [(one.ranks, one.rate, *one.spread) for one in series]
        yield _curve(name, rows, "measured", number, unit)
        own = [one for one in results.predicted if results.series_of(one.values) == name]
        if base and own:
            rows = sorted((one.gpus, one.rate, one.low, one.high) for one in own)
            rows = [(1, base.rate, base.rate, base.rate), *rows]
            yield _curve(f"{name}, predicted", rows, "predicted", number, unit)


def _curve(
    name: str, rows: Sequence[tuple[int, float, float, float]], style: str, number: int, unit: float
) -> Curve:
    rates, low, high = ([row[at] / unit for row in rows] for at in (1, 2, 3))
    points = [(float(row[0]), rate) for row, rate in zip(rows, rates, strict=True)]
    return Curve(name, points, style, number, low, high)


def phases(results: Results, title: str = "Where a step's time goes") -> ResultTable:
    """The parts of a step: milliseconds in the mean, and percent of the step."""
    rows = [
        {"cell": one.name}
        | {f"{k} (ms)": f"{1e3 * s:.3g} ({one.shares[k]:.0%})" for k, s in one.seconds.items()}
        for one in results.measured
    ]
    return ResultTable(title, rows)


def milliseconds(part: str) -> Callable[[Cell], float]:
    """Return a table's value: what computing, input or another part of a step takes."""
    return lambda one: 1e3 * one.seconds[part]


def hidden(one: Cell) -> float | None:
    """Return a table's value: percent of the exchange that a step's computing hides."""
    alone = one.result.get("exchange")
    return 100 * max(0.0, 1 - one.seconds["communication"] / alone) if alone else None


def table(
    results: Results,
    title: str,
    columns: str,
    value: Callable[[Cell], float | None] = lambda measured: measured.rate,
) -> ResultTable:
    """A column for each value of a key, also for one that has no result: its cells say `-`."""
    every = [but(cell.values, columns, "run") for cell in results.cells]
    keys = dict.fromkeys(key for values in every for key in values)
    varied = [key for key in keys if len({values.get(key) for values in every}) > 1]
    rows: dict[str, dict[str, str]] = {}
    for cell in results.cells:
        name = ", ".join(f"{k} {cell.values[k]}" for k in varied or keys if k in cell.values)
        number = value(cell) if cell.result else None
        text = "-" if number is None else f"{number:.4g}"
        rows.setdefault(name, {"cell": name})[cell.values[columns]] = text
    return ResultTable(title, [*rows.values()])


# ---- text and plain values ----


def unmeasured(plan: StudyPlan) -> Results:
    """The results of a study that did not run, with its rules: what is asked."""
    cells = tuple(
        replace(one, state="missing", reason=one.point.problem or "not run yet")
        for one in plan.cells
    )
    results = Results(plan, cells, cells)
    with line_of(plan.study.path):
        plan.scale.judge(results)
    return results


def as_data(results: Results) -> dict[str, Any]:
    """The report as plain values; `machine` is known where something was measured."""
    plan, study = results.plan, results.plan.study
    machine = {"cores": results.cores, "busy": results.busy}
    return {
        "schema": 5,
        "study": study.name,
        **{key: getattr(study, key) for key in ("title", "question", "origin", "found")},
        "scale": plan.name,
        "site": plan.site.name,
        "takes": plan.scale.takes,
        "shows": plan.scale.shows,
        "accepted": results.accepted,
        "answer": results.answer,
        **({"machine": machine} if results.measured else {}),
        "missing": [
            {"values": dict(one.values), "state": one.state, "reason": one.reason}
            for one in results.missing
        ],
        "acceptance": [
            {"holds": ANSWERS[rule.ok], **rule._asdict()} for rule in results.protocol.verdicts
        ],
        "measured": [_measured(results, one) for one in results.measured],
        "predicted": [{**one._asdict(), "error": one.error} for one in results.predicted],
        "not_predicted": list(results.not_predicted),
        "published": [asdict(group) for group in study.published],
    }


def _measured(results: Results, one: Cell) -> Row:
    base = results.alone(one)
    names = ("values", "ranks", "rate", "spread", "seconds", "metrics")
    return {
        **{name: getattr(one, name) for name in names},
        "speedup": one.rate / base.rate if base else None,
        "efficiency": results.efficiency_of(one),
        "job_id": one.result["job"]["id"],
        "release": one.result["release"],
        "result": str(one.results / "result.json"),
    }


def as_text(results: Results, cell: Callable[[str], str] = str) -> str:
    """The question, the answer, and each rule with its evidence; `cell` makes names harmless."""
    plan, study = results.plan, results.plan.study
    place = f"{study.name}, scale {plan.name}, site {plan.site.name}"
    rules = [
        f"- [{ANSWERS[one.ok]}] {one.says}"
        + (f": {cell(one.evidence)}" if one.evidence and results.measured else "")
        for one in results.protocol.verdicts
    ]
    missing = [f"- {cell(f'{one.name}: {one.reason}')}" for one in results.missing]
    blocks = [
        f"# {study.title}",
        f"{place}, accepted: {results.answer}",
        *([f"Note: {results.busy}"] if results.busy and results.measured else []),
        f"Question: {study.question}",
        f"Original study: {study.origin}",
        f"Original result: {study.found}",
        f"What this scale can show: {plan.scale.shows}",
        *([f"It takes {plan.scale.takes}"] if plan.scale.takes else []),
        *(["\n".join(["Missing results:", "", *missing])] if missing else []),
        "\n".join(["Acceptance rules:", "", *rules]),
    ]
    return "\n\n".join(blocks)


def write_report(results: Results, target: Path) -> dict[str, Path]:
    """Write report.md, report.json and figure.svg; gives their paths.

    Raises MissingPrerequisite: another user has made the directory, or a link in its place.
    """
    make_directory(target)
    for place in (target.parent, target):
        require_own(place)
    with line_of(results.plan.study.path):
        parts = list(results.plan.study.report(results))
    panels = [part for part in parts if isinstance(part, Panel)]
    tables = {part.title: part.rows for part in parts if isinstance(part, ResultTable)}
    paths = {name: target / name for name in ("report.md", "report.json", "figure.svg")}
    write_atomic(paths["figure.svg"], svg(panels, _caption(results)))
    write_atomic(paths["report.md"], "\n\n".join(_markdown(results, tables)) + "\n")
    write_json(paths["report.json"], {**as_data(results), "tables": tables})
    return paths


def _caption(results: Results) -> str:
    plan = results.plan
    cores = f", all ranks on {results.cores} cores" if results.shared else ""
    return (
        f"{plan.study.name}, scale {plan.name}, site {plan.site.name}{cores}. Filled markers are "
        "measured: the median step, bars the 5th to 95th percentile of the steps. Hollow markers "
        "are predicted from the run of one rank, on shared cores of two; bars: eight times in "
        "ten. Grey ones are published by others."
    )


def _markdown(results: Results, tables: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    data = as_data(results)
    yield as_text(results, markdown_cell)
    yield f"![{results.plan.study.title}](figure.svg)"
    named = {key.capitalize(): data[key] for key in ("measured", "predicted", "published")}
    for title, rows in {**tables, **named}.items():
        yield from _section(title, rows)
    yield from (f"Not predicted: {gap}" for gap in results.not_predicted)
    releases = sorted({str(row["release"]) for row in data["measured"]})
    day = time.strftime("%Y-%m-%d")
    yield f"Release: {', '.join(releases)}. Written by hpcdl {__version__} on {day}."


def _section(title: str, rows: Sequence[Row]) -> Iterator[str]:
    """A table under its title: the keys of its rows, without those that are empty in all."""
    texts = [{key: _text(value) for key, value in row.items()} for row in rows]
    keys = dict.fromkeys(key for row in texts for key, text in row.items() if text)
    head = [key for key in keys if key not in _JSON_ONLY]
    cells = [[row.get(key, "") for key in head] for row in texts]
    if rows:
        yield f"## {title}"
        yield "\n".join(markdown_table([key.replace("_", " ") for key in head], cells))


def _text(value: Any) -> str:
    """A plain value as text."""
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_text(part)}" for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value))
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
