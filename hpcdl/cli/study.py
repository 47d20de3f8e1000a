"""`hpcdl study`: reproductions of published scaling studies."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.cli.framework import Group, command, option, show, the_site
from hpcdl.system.errors import ExitCode, Stopped

if TYPE_CHECKING:
    from hpcdl.jobs.sweep import Modules
    from hpcdl.workflows.study.cells import Plan


_WHICH = (
    option("study", "STUDY", "name of a study, or a study file"),
    option("--scale", "SCALE", "small (default) or full", default="small"),
    option("--partition", "A,B", "partitions to use instead, in the study's order", default=""),
)


def _plan(args: argparse.Namespace) -> Plan:
    from hpcdl.cli.request import pair
    from hpcdl.jobs.program import check_image, image_of
    from hpcdl.workflows.study.cells import make_plan
    from hpcdl.workflows.study.load import load_study

    partitions = [name for name in args.partition.split(",") if name]
    form = "FRAMEWORK=PATH, such as torch=/usr/bin/python3"
    pythons = dict(pair("--python", text, form) for text in getattr(args, "python", ()))
    image = image_of(Path.cwd(), getattr(args, "container", None))
    check_image(Path.cwd(), image)
    study = load_study(args.study)
    return make_plan(the_site(args), study, args.scale, partitions, pythons, image or "")


@command("hpcdl study list", site=False)
def _list(args: argparse.Namespace) -> ExitCode:
    """List the studies and their questions."""
    from hpcdl.system.text import table
    from hpcdl.workflows.study.load import load_study, shipped

    studies = [load_study(name) for name in shipped()]
    keys = ("name", "title", "question", "origin")
    data = {"schema": 1, "studies": [{key: getattr(one, key) for key in keys} for one in studies]}
    return show(args, data, table([[one.name, one.title] for one in studies]))


@command("hpcdl study show aliyun-resnet50 --scale full", *_WHICH)
def _show(args: argparse.Namespace) -> ExitCode:
    """Show a study: its question, its jobs, and its acceptance rules."""
    from hpcdl.workflows.study.report import show_data, show_text

    plan = _plan(args)
    return show(args, show_data(plan), show_text(plan))


@command(
    "hpcdl study run sjtu-inception --scale small",
    *_WHICH,
    option(
        "--python",
        "FRAMEWORK=PATH",
        "interpreter of a framework, if the module has none",
        many=True,
    ),
    option("--container", "IMAGE", "container image of the jobs that run in one"),
    option("--no-wait", "submit the jobs and exit"),
    option("--module", "NAME[/VERSION]", "module to load instead of the release's", many=True),
    changes=True,
)
def _run(args: argparse.Namespace) -> ExitCode:
    """Run a study's jobs and write its report; run it again to resume."""
    from hpcdl.workflows.modules import check_available, modules_by_partition
    from hpcdl.workflows.study import running

    plan = _plan(args)
    places = tuple(dict.fromkeys(cell.point.spec.partition for cell in plan.possible))
    modules = modules_by_partition(plan.site, places, named=args.module, published=not args.dry_run)
    if args.dry_run:
        return _show_scripts(plan, modules, args)
    for module in dict.fromkeys(modules.values()) if args.module else ():
        check_available(plan.site, module)
    for step in running.start(plan, modules):
        print(step, file=sys.stderr)
    for line in running.nodes_down(plan):
        print(f"note: {line}", file=sys.stderr)
    if args.no_wait:
        text = running.summary(running.run_statuses(plan))
        return show(args, {"directory": plan.folder, "summary": text}, text)
    _wait(plan, args)
    return _report_of(plan, plan.folder / "report", args)


def _wait(plan: Plan, args: argparse.Namespace) -> None:
    from hpcdl.system.text import StatusLine
    from hpcdl.workflows.study.running import summary, wait

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


@command(
    "hpcdl study report sjtu-inception --output sjtu",
    *_WHICH,
    option("--output", "DIR", "directory of the report (default: beside the results)", type=Path),
)
def _report(args: argparse.Namespace) -> ExitCode:
    """Write the report from the results so far: Markdown, JSON and a figure."""
    plan = _plan(args)
    return _report_of(plan, args.output or plan.folder / "report", args)


def _report_of(plan: Plan, target: Path, args: argparse.Namespace) -> ExitCode:
    from hpcdl.workflows.study.report import as_data, as_text, write_report
    from hpcdl.workflows.study.running import collect, last_run_statuses

    results = collect(plan, last_run_statuses(plan))
    paths = write_report(results, target)
    files = f"report {paths['report.md']}\nfigure {paths['figure.svg']}"
    show(args, {**as_data(results), "files": paths}, f"{as_text(results)}\n{files}")
    # With missing results, or with those of a busy machine, there is no answer.
    if results.missing or results.accepted is None:
        return ExitCode.PARTLY
    return ExitCode.OK if results.accepted else ExitCode.NO


def _show_scripts(plan: Plan, modules: Modules, args: argparse.Namespace) -> ExitCode:
    from hpcdl.workflows.study.report import scripts_data, scripts_text
    from hpcdl.workflows.study.running import check_scripts

    checked = tuple(check_scripts(plan, modules))
    data = scripts_data(plan, checked)
    show(args, data, scripts_text(data, verbose=args.verbose))
    if any(one.errors for one in checked):
        return ExitCode.NO
    return ExitCode.PARTLY if plan.impossible else ExitCode.OK


GROUP = Group("study", (_list, _show, _run, _report))
