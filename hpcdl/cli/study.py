"""`hpcdl study`: reproductions of published scaling studies."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdl.cli.framework import Group, command, option, print_json, show, the_site
from hpcdl.system.errors import ExitCode, Stopped

if TYPE_CHECKING:
    from hpcdl.workflows.study.study_plan import Plan


def _which(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", metavar="STUDY", help="name of a study, or a study file")
    parser.add_argument("--scale", default="small", help="small (default) or full")
    parser.add_argument(
        "--partition",
        default="",
        metavar="A,B",
        help="partitions to use instead, in the study's order",
    )


def _report_options(parser: argparse.ArgumentParser) -> None:
    _which(parser)
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="directory of the report (default: beside the results)",
    )


def _plan(args: argparse.Namespace) -> Plan:
    from hpcdl.cli.request import pair
    from hpcdl.jobs.program import check_image, image_of
    from hpcdl.workflows.study.load import load_study, scale_of
    from hpcdl.workflows.study.study_plan import make_plan

    study = load_study(args.study)
    partitions = [name for name in args.partition.split(",") if name]
    form = "FRAMEWORK=PATH, such as torch=/usr/bin/python3"
    pythons = dict(pair("--python", text, form) for text in getattr(args, "python", ()))
    image = image_of(Path.cwd(), getattr(args, "container", None))
    check_image(Path.cwd(), image)
    return make_plan(
        the_site(args), study, scale_of(study, args.scale), partitions, pythons, image or ""
    )


@command("hpcdl study list", site=False)
def _list(args: argparse.Namespace) -> ExitCode:
    """List the studies and their questions."""
    from hpcdl.workflows.study.show import list_data, list_text

    return show(args, list_data(), list_text())


@command(
    "hpcdl study show aliyun-resnet50 --scale full",
    _which,
)
def _show(args: argparse.Namespace) -> ExitCode:
    """Show a study: its question, its jobs, and its acceptance rules."""
    from hpcdl.workflows.study.show import show_data, show_text

    plan = _plan(args)
    return show(args, show_data(plan), show_text(plan))


@command("hpcdl study schema > study.schema.json", site=False)
def _schema(args: argparse.Namespace) -> ExitCode:
    """Print the JSON Schema of a study file, for editors."""
    from hpcdl.workflows.study.load import study_schema

    print_json(study_schema())
    return ExitCode.OK


@command(
    "hpcdl study run sjtu-inception --scale small",
    _report_options,
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
    from hpcdl.system.figures import require_matplotlib
    from hpcdl.workflows.modules import check_available, modules_by_partition
    from hpcdl.workflows.study import run

    plan = _plan(args)
    if not (args.dry_run or args.no_wait):  # then the command ends in a report
        require_matplotlib()
    places = tuple(dict.fromkeys(cell.point.spec.partition for cell in plan.possible))
    modules = modules_by_partition(plan.site, places, named=args.module, published=not args.dry_run)
    if args.dry_run:
        return _show_scripts(plan, run.check_scripts(plan, modules), args)
    for module in dict.fromkeys(modules.values()) if args.module else ():
        check_available(plan.site, module)
    run.start(plan, modules, lambda what: print(what, file=sys.stderr))
    for line in run.nodes_down(plan):
        print(f"note: {line}", file=sys.stderr)
    if args.no_wait:
        found = run.run_statuses(plan)
        data = {"directory": plan.folder, "summary": run.summary(found)}
        return show(args, data, run.summary(found))
    _wait(plan, args)
    return _write(plan, args)


def _wait(plan: Plan, args: argparse.Namespace) -> None:
    from hpcdl.system.text import StatusLine
    from hpcdl.workflows.study.run import summary, wait

    try:
        with StatusLine(quiet=args.json) as status:
            for found in wait(plan):
                text = f"{plan.study.name}: {summary(found)}"
                status.show(text, key=text)
    except KeyboardInterrupt as fault:
        raise Stopped(
            "stopped waiting; submitted jobs continue",
            hint=f"`hpcdl study run {args.study} --scale {args.scale}` resumes",
        ) from fault


@command(
    "hpcdl study report sjtu-inception --output sjtu",
    _which,
    option("--output", "DIR", "directory of the report (default: beside the results)", type=Path),
)
def _report(args: argparse.Namespace) -> ExitCode:
    """Write the report from the results so far: Markdown, HTML, JSON and a figure."""
    return _write(_plan(args), args)


def _write(plan: Plan, args: argparse.Namespace) -> ExitCode:
    from hpcdl.workflows.study.collect import collect
    from hpcdl.workflows.study.run import last_run_statuses
    from hpcdl.workflows.study.study_report import as_data, as_text, make_report, write_report

    report = make_report(collect(plan, last_run_statuses(plan)))
    paths = write_report(report, args.output or plan.folder / "report")
    files = f"report {paths['html']}\n       {paths['md']}\nfigure {paths['svg']}"
    show(args, {**as_data(report), "files": paths}, f"{as_text(report)}\n{files}")
    # With missing results, or with those of a busy machine, there is no answer.
    if report.findings.missing or report.accepted is None:
        return ExitCode.PARTLY
    return ExitCode.OK if report.accepted else ExitCode.NO


def _show_scripts(plan: Plan, checked: Any, args: argparse.Namespace) -> ExitCode:
    from hpcdl.workflows.study.show import scripts_data, scripts_text

    show(args, scripts_data(plan, checked), scripts_text(plan, checked, verbose=args.verbose))
    if any(one.errors for one in checked):
        return ExitCode.NO
    return ExitCode.PARTLY if plan.impossible else ExitCode.OK


GROUP = Group("study", (_list, _show, _run, _report, _schema))
