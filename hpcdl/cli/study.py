"""`hpcdl study`: reproductions of published scaling studies."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from hpcdl.cli.framework import Group, command, option, show, the_site
from hpcdl.system.errors import ExitCode, Stopped

if TYPE_CHECKING:
    from hpcdl.jobs.sweep import Modules
    from hpcdl.workflows.study.cells import StudyPlan


_WHICH = (
    option("study", "STUDY", "name of a study, or a study file"),
    option("--scale", "SCALE", "small (default) or full", default="small"),
)


def _plan(args: argparse.Namespace) -> StudyPlan:
    """The plan on the partitions of the options, or on those that it was run on."""
    from hpcdl.cli.request import pair
    from hpcdl.workflows.study.cells import make_plan, noted_partitions, study_folder
    from hpcdl.workflows.study.declared import load_study

    form = "FRAMEWORK=PATH, such as torch=/usr/bin/python3"
    pythons = dict(pair("--python", text, form) for text in getattr(args, "python", ()))
    study, site = load_study(args.study), the_site(args)
    partitions = noted_partitions(study_folder(site, study, args.scale))
    if "partition" in args:
        partitions = tuple(name for name in args.partition.split(",") if name)
    return make_plan(site, study, args.scale, partitions, pythons)


@command("hpcdl study list", site=False)
def _list(args: argparse.Namespace) -> ExitCode:
    """List the studies and their questions."""
    from hpcdl.system.text import table
    from hpcdl.workflows.study.declared import load_study, shipped

    studies = [load_study(name) for name in shipped()]
    keys = ("name", "title", "question", "origin")
    data = {"schema": 1, "studies": [{key: getattr(one, key) for key in keys} for one in studies]}
    return show(args, data, table([[one.name, one.title] for one in studies]))


@command("hpcdl study show aliyun-resnet50 --scale full", *_WHICH)
def _show(args: argparse.Namespace) -> ExitCode:
    """Show a study: its question, its jobs, and its acceptance rules."""
    from hpcdl.workflows.study.report import as_data, as_text, unmeasured

    asked = unmeasured(_plan(args))
    return show(args, as_data(asked), as_text(asked))


@command(
    "hpcdl study run sjtu-inception --scale small",
    *_WHICH,
    option("--partition", "A,B", "partitions to use instead of the study's", default=""),
    option(
        "--python",
        "FRAMEWORK=PATH",
        "interpreter of a framework, if the module has none",
        many=True,
    ),
    option("--no-wait", "submit the jobs and exit"),
    changes=True,
)
def _run(args: argparse.Namespace) -> ExitCode:
    """Run a study's jobs and write its report; run it again to resume."""
    from hpcdl.jobs.sweep import run_statuses, summary
    from hpcdl.workflows.modules import modules_by_partition
    from hpcdl.workflows.study import running

    plan = _plan(args)
    places = tuple(dict.fromkeys(cell.point.spec.partition for cell in plan.possible))
    modules = modules_by_partition(plan.site, places, published=not args.dry_run)
    if args.dry_run:
        return _show_scripts(plan, modules, args)
    for step in running.start(plan, modules):
        print(step, file=sys.stderr)
    for line in running.nodes_down(plan):
        print(f"note: {line}", file=sys.stderr)
    if args.no_wait:
        text = summary(run_statuses(plan.folder, plan.points))
        return show(args, {"directory": plan.folder, "summary": text}, text)
    _wait(plan, args)
    return _report_of(plan, args)


def _wait(plan: StudyPlan, args: argparse.Namespace) -> None:
    from hpcdl.jobs.sweep import summary
    from hpcdl.system.text import StatusLine
    from hpcdl.workflows.study.running import wait

    try:
        with StatusLine(quiet=args.json) as status:
            for statuses in wait(plan):
                text = f"{plan.study.name}: {summary(statuses)}"
                status.show(text, key=text)
    except KeyboardInterrupt as fault:
        raise Stopped(
            "stopped waiting; submitted jobs continue",
            hint=f"`hpcdl study run {args.study} --scale {args.scale}` resumes",
        ) from fault


@command("hpcdl study report sjtu-inception", *_WHICH)
def _report(args: argparse.Namespace) -> ExitCode:
    """Write the report from the results so far: Markdown, JSON and a figure."""
    return _report_of(_plan(args), args)


def _report_of(plan: StudyPlan, args: argparse.Namespace) -> ExitCode:
    from hpcdl.workflows.study.report import as_data, as_text, write_report
    from hpcdl.workflows.study.running import collect, last_run_statuses

    results = collect(plan, last_run_statuses(plan))
    paths = write_report(results, plan.folder / "report")
    files = f"report {paths['report.md']}\nfigure {paths['figure.svg']}"
    show(args, {**as_data(results), "files": paths}, f"{as_text(results)}\n{files}")
    # With missing results, or with those of a busy machine, there is no answer.
    if results.missing or results.accepted is None:
        return ExitCode.PARTLY
    return ExitCode.OK if results.accepted else ExitCode.NO


def _show_scripts(plan: StudyPlan, modules: Modules, args: argparse.Namespace) -> ExitCode:
    from hpcdl.workflows.study.running import scripts

    arrays = [*scripts(plan, modules)]
    left_out = {cell.name: cell.point.problem for cell in plan.cells if cell.point.problem}
    texts = [f"# would submit an array of {count}:\n{text}" for count, text in arrays]
    more = [f"# left out: {name}: {problem}" for name, problem in left_out.items()]
    rows = [{"jobs": count, "script": text} for count, text in arrays]
    data = {"cells": len(plan.possible), "left_out": left_out, "scripts": rows}
    show(args, data, "\n".join([*texts, *more]))
    return ExitCode.PARTLY if left_out else ExitCode.OK


GROUP = Group("study", (_list, _show, _run, _report))
