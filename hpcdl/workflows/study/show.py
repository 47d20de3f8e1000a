"""Studies as text and as plain values: the list, one of them, and scripts that were checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdl.system.text import count_of, table
from hpcdl.workflows.study.load import load_study, shipped
from hpcdl.workflows.study.model import Run, Scale
from hpcdl.workflows.study.run import Checked
from hpcdl.workflows.study.study_plan import Plan


def list_text() -> str:
    """A line for each study."""
    return table([[study.name, study.title] for study in map(load_study, shipped())])


def list_data() -> dict[str, Any]:
    """The studies as plain values."""
    return {
        "schema": 1,
        "studies": [
            {
                "name": study.name,
                "title": study.title,
                "question": study.question,
                "origin": study.origin,
            }
            for study in map(load_study, shipped())
        ],
    }


def show_text(plan: Plan) -> str:
    """The question, the matrix, how long it takes, and the acceptance rules."""
    study, scale = plan.study, plan.scale
    parts = [
        f"{study.name}: {study.title}\n{study.question}\nfirst asked by {study.origin}\n"
        f"they found: {study.found}",
        f"scale {scale.name} on {plan.site.name}: {scale.shows}",
        "\n".join(_run_text(plan, run) for run in scale.runs),
        *_takes_text(scale),
        "must hold:\n" + "\n".join(f"  {rule.says}" for rule in scale.acceptance),
    ]
    if study.published:
        labels = "\n".join(f"  {one.label}" for one in study.published)
        parts.append(f"set beside:\n{labels}")
    if plan.impossible:
        left = [f"  {cell.label}: {cell.point.problem}" for cell in plan.impossible]
        parts.append("cannot run here, and is left out:\n" + "\n".join(left))
    return "\n\n".join(parts)


def show_data(plan: Plan) -> dict[str, Any]:
    """Return what `show` prints, as plain values."""
    study, scale = plan.study, plan.scale
    return {
        "schema": 2,
        "name": study.name,
        "title": study.title,
        "question": study.question,
        "origin": study.origin,
        "found": study.found,
        "scale": scale.name,
        "shows": scale.shows,
        "takes": scale.takes,
        "site": plan.site.name,
        "runs": [{**vars(run), "reads": run.reads and vars(run.reads)} for run in scale.runs],
        "cells": [
            {
                "run": cell.run.name,
                "id": cell.point.id,
                "values": dict(cell.values),
                "problem": cell.point.problem,
            }
            for cell in plan.cells
        ],
        "acceptance": [{"rule": rule.rule, "says": rule.says} for rule in scale.acceptance],
        "published": [one.label for one in study.published],
    }


def scripts_text(plan: Plan, checked: Sequence[Checked], *, verbose: bool) -> str:
    """Return the output of lint and bash for the scripts; with `verbose` the scripts, too."""
    rows, blocks = [], []
    for entry in checked:
        nodes = count_of(entry.script.layout.nodes, "node")
        ranks = count_of(entry.script.layout.tasks_per_node, "rank")
        rows.append(
            [
                entry.run.name,
                entry.partition,
                f"{nodes} x {ranks}",
                count_of(entry.tasks, "job"),
                "; ".join(entry.errors) or "clean",
            ]
        )
        if verbose:
            blocks.append(f"# {entry.run.name}: an array of {entry.tasks}\n{entry.script.text}")
    cells = len(plan.possible)
    left = [f"left out: {cell.label}: {cell.point.problem}" for cell in plan.impossible]
    last = f"{cells} cells in {len(checked)} scripts, checked by lint and bash -n"
    return "\n".join([*blocks, table(rows), *left, *_takes_text(plan.scale), last])


def scripts_data(plan: Plan, checked: Sequence[Checked]) -> dict[str, Any]:
    """Scripts that were checked, as plain values."""
    return {
        "schema": 2,
        "study": plan.study.name,
        "scale": plan.scale.name,
        "site": plan.site.name,
        "cells": len(plan.possible),
        "left_out": [
            {"values": dict(cell.values), "problem": cell.point.problem} for cell in plan.impossible
        ],
        "takes": plan.scale.takes,
        "scripts": [
            {
                "run": one.run.name,
                "tasks": one.tasks,
                "errors": list(one.errors),
                "warnings": list(one.warnings),
                "script": one.script.text,
            }
            for one in checked
        ],
    }


def _run_text(plan: Plan, run: Run) -> str:
    cells = [cell for cell in plan.possible if cell.run.name == run.name]
    own = (*plan.cells_of(run), None)[0]
    matrix = own.run.over if own else run.over  # with the partitions that are really used
    over = " x ".join(f"{key} {', '.join(values)}" for key, values in matrix.items())
    later = f"; predicted: {', '.join(map(str, run.predict))} GPUs" if run.predict else ""
    again = f", each {run.repeats} times" if run.repeats > 1 else ""
    again += f" up to {run.repeat_up_to} GPUs" if again and run.repeat_up_to else ""
    slow = run.reads.megabytes_per_second if run.reads else 0
    ways = [f"at {slow:g} MB/s"] if slow else []
    ways += ["never from memory"] if run.reads and not run.reads.cached else []
    reads = f"; data are read {' and '.join(ways)}" if ways else ""
    return f"  {run.name}: {len(cells)} jobs: {over}{again}{reads}{later}"


def _takes_text(scale: Scale) -> list[str]:
    """A line for scales whose jobs share the cores of one machine."""
    shared = scale.execution.shared_cores
    return [f"takes: {scale.takes or 'not measured yet'}"] if shared else []
