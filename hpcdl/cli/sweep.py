"""`hpcdl job sweep`: a matrix of jobs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.cli import request
from hpcdl.cli.framework import print_json
from hpcdl.cli.train import train_options
from hpcdl.system.amounts import at_least
from hpcdl.system.errors import ExitCode

if TYPE_CHECKING:
    from hpcdl.jobs.spec import Module
    from hpcdl.jobs.sweep_run import RunStatus
    from hpcdl.site import Site

_MOST = 1_000_000
_SHOWN = 20
_CHECKED = 200


def options(parser: argparse.ArgumentParser) -> None:
    """The matrix, and the options of a job."""
    add = parser.add_argument
    add("--over", action="append", default=[], metavar="KEY=A,B", help="values of a key")
    add("--exclude", action="append", default=[], metavar="KEY=A,KEY=B", help="points to leave out")
    add("--running", type=at_least(1, _MOST), metavar="N",
        help="most jobs to run at the same time, over all arrays")  # fmt: skip
    add("--limit", type=at_least(1, _MOST), default=1000, metavar="N",
        help="most points allowed (1000)")  # fmt: skip
    add("--retry-failed", action="store_true", help="queue points that failed again, too")
    add("--status", action="store_true", help="print the state of the sweep and exit")
    request.options(parser)


def run(args: argparse.Namespace) -> ExitCode:
    """Queue what is missing of a sweep, or show its state."""
    from hpcdl.jobs import sweep_run
    from hpcdl.jobs.manifest import request_of
    from hpcdl.jobs.sweep import check_keys, matrix_of, plan, samples

    site = request.asked_site(args)
    spec = request.spec_of(args, site)
    folder = sweep_run.sweep_directory(site, spec.name)
    matrix = matrix_of([request.pair("--over", text, "KEY=A,B") for text in args.over])
    exclude = [dict(request.pair("--exclude", pair, "KEY=A,KEY=B") for pair in text.split(","))
               for text in args.exclude]  # fmt: skip
    if args.status and not matrix and (points := sweep_run.kept_points(folder, spec)):
        return _show(sweep_run.run_statuses(folder, points), folder, args)
    check_keys(spec, matrix, train_options(spec.program))
    points = plan(site, spec, matrix, exclude, limit=args.limit)
    asked = request_of(spec, args.module)
    if args.status:
        return _show(sweep_run.run_statuses(folder, points, request=asked), folder, args)
    places = dict.fromkeys(point.spec.partition for point in points if not point.problem)
    modules = request.modules_of(args, site, tuple(places), published=True)
    for point in samples(points)[:_CHECKED]:
        request.checked(site, point.spec, modules[point.spec.partition])
    if args.dry_run:
        found = sweep_run.run_statuses(folder, points, request=asked)
        return _would_submit(found, site, folder, modules, args)
    found = sweep_run.submit(site, folder, points, modules, args.running, request=asked,
                             retry=args.retry_failed)  # fmt: skip
    return _show(found, folder, args)


def _would_submit(
    found: Sequence[RunStatus], site: Site, folder: Path, modules: Mapping[str, Module],
    args: argparse.Namespace,
) -> ExitCode:  # fmt: skip
    """What --dry-run shows: the scripts of what is missing, and what cannot run."""
    from hpcdl.jobs.sweep_run import preview, summary

    arrays = preview(site, folder, found, modules, args.running, args.retry_failed)
    if args.json:
        scripts = [{"points": [point.id for point in group.points], "script": script.text}
                   for group, script, _ in arrays]  # fmt: skip
        print_json({"directory": folder, "points": _rows(found), "arrays": scripts})
    else:
        for group, script, _ in arrays:
            print(f"# would submit an array of {len(group.points)}:\n{script.text}")
        print(f"# {folder.name}: {summary(found)}")
        _name_impossible(found)
    return ExitCode.PARTLY if any(one.point.problem for one in found) else ExitCode.OK


def _show(found: Sequence[RunStatus], folder: Path, args: argparse.Namespace) -> ExitCode:
    from hpcdl.jobs.sweep_run import DONE, FAILED, summary

    if args.json:
        print_json({"directory": folder, "points": _rows(found)})
    else:
        print(f"{folder.name}: {summary(found)}\n  manifest {folder / 'sweep.json'}")
        failed = [one for one in found if one.state == FAILED]
        for one in failed[:_SHOWN]:
            said = f"exit code {one.exit_code}, log {one.log}"
            print(f"  failed: {_values(one)}: {said}", file=sys.stderr)
        if failed:
            more = f"{len(failed) - _SHOWN} more failed; " if len(failed) > _SHOWN else ""
            print(f"  {more}--retry-failed queues them again", file=sys.stderr)
        _name_impossible(found)
    unfinished = args.status and any(one.state != DONE for one in found)
    impossible = any(one.point.problem for one in found)
    return ExitCode.PARTLY if impossible or unfinished else ExitCode.OK


def _rows(found: Sequence[RunStatus]) -> list[dict[str, object]]:
    return [{"id": one.point.id, "values": one.point.values, "state": one.state,
             "job_id": one.job_id, "problem": one.point.problem, "exit_code": one.exit_code,
             "log": one.log} for one in found]  # fmt: skip


def _name_impossible(found: Sequence[RunStatus]) -> None:
    for one in found:
        if one.point.problem:
            print(f"  left out: {_values(one)}: {one.point.problem}", file=sys.stderr)


def _values(one: RunStatus) -> str:
    return " ".join(f"{key}={value}" for key, value in one.point.values.items())
