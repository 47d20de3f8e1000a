"""`hpcdl job sweep`: a matrix of jobs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.cli import request
from hpcdl.cli.framework import at_least, print_json
from hpcdl.system.errors import ExitCode

if TYPE_CHECKING:
    from hpcdl.jobs.sweep_run import Standing

_MOST = 1_000_000


def options(parser: argparse.ArgumentParser) -> None:
    """The matrix, and the options of a job."""
    add = parser.add_argument
    add("--over", action="append", default=[], metavar="KEY=A,B", help="values of one key")
    add("--exclude", action="append", default=[], metavar="KEY=A,KEY=B", help="points to leave out")
    add("--running", type=at_least(1, _MOST), metavar="N", help="the most jobs at a time")
    add("--limit", type=at_least(1, _MOST), default=1000, metavar="N",
        help="the most points (1000)")  # fmt: skip
    add("--status", action="store_true", help="say how the sweep stands, and leave")
    request.options(parser)


def run(args: argparse.Namespace) -> ExitCode:
    """Queue what is missing of a sweep, or say how it stands."""
    from hpcdl.jobs import sweep_run
    from hpcdl.jobs.sweep import matrix_of, plan

    site = request.asked_site(args)
    spec = request.spec_of(args, site)
    folder = sweep_run.sweep_folder(site, spec.name)
    matrix = matrix_of([request.pair("--over", text, "KEY=A,B") for text in args.over])
    exclude = [dict(request.pair("--exclude", pair, "KEY=A,KEY=B") for pair in text.split(","))
               for text in args.exclude]  # fmt: skip
    points = plan(site, spec, matrix, exclude, limit=args.limit)
    if args.status:
        found = sweep_run.standings(folder, points)
    else:
        module = request.module_of(args, site, published=True)
        if args.dry_run:
            for group, script in sweep_run.preview(site, folder, points, module, args.running):
                print(f"# would submit an array of {len(group.points)}:\n{script.text}")
            return ExitCode.OK
        found = sweep_run.submit(site, folder, points, module, args.running)
    return _show(found, folder, args)


def _show(found: Sequence[Standing], folder: Path, args: argparse.Namespace) -> ExitCode:
    from hpcdl.jobs.sweep_run import DONE, IMPOSSIBLE, summary

    if args.json:
        rows = [{"id": one.point.id, "values": one.point.values, "state": one.state,
                 "job_id": one.job_id, "problem": one.point.problem} for one in found]  # fmt: skip
        print_json({"folder": folder, "points": rows})
    else:
        print(f"{folder.name}: {summary(found)}\n  manifest {folder / 'sweep.json'}")
        for one in found:
            if one.state == IMPOSSIBLE:
                values = " ".join(f"{key}={value}" for key, value in one.point.values.items())
                print(f"  left out: {values}: {one.point.problem}", file=sys.stderr)
    if any(one.state == IMPOSSIBLE for one in found):
        return ExitCode.PARTLY
    return ExitCode.PARTLY if args.status and any(o.state != DONE for o in found) else ExitCode.OK
