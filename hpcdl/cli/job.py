"""`hpcdl job`: batch scripts for training jobs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.cli import interactive, queued, request
from hpcdl.cli.framework import Group, command, option, print_json, show, the_site
from hpcdl.cli.train import train_options
from hpcdl.jobs.spec import job_schema
from hpcdl.system.amounts import at_least
from hpcdl.system.errors import BadInput, ExitCode

if TYPE_CHECKING:
    from hpcdl.jobs import JobScript, JobSpec, Module
    from hpcdl.jobs.submission import Submission
    from hpcdl.jobs.sweep_run import RunStatus
    from hpcdl.site import Site
    from hpcdl.slurm.fits import Cluster

_NUMBER = at_least(1, 1_000_000)
_SHOWN = 20
_CHECKED = 200


def _written(args: argparse.Namespace) -> JobScript:
    from hpcdl.jobs.script import render_script

    site = request.asked_site(args)
    spec = request.spec_of(args, site)
    return render_script(site, spec, request.checked(site, spec, queued=False))


@command(
    "hpcdl job render --partition p100 --gpus 8 > job.sh",
    option("--slurm-version", "V", "write the script for this Slurm release, not the site's"),
    request.options,
    rest=request.PROGRAM,
)
def _render(args: argparse.Namespace) -> ExitCode:
    """Print the job script, and submit nothing."""
    script = _written(args)
    if args.json:
        print_json({"script": script.text, "layout": asdict(script.layout)})
    else:
        _print_script(script)
    return ExitCode.OK


@command("hpcdl job explain --partition p100 --gpus 8", request.options, rest=request.PROGRAM)
def _explain(args: argparse.Namespace) -> ExitCode:
    """Print the job script with the reason for every line."""
    script = _written(args)
    data = [
        {"text": line.text, "reason": line.reason, "rule": line.rule(script.slurm_version)}
        for line in script.lines
    ]
    return show(args, data, script.explained)


def _print_script(script: JobScript) -> None:
    """The script byte for byte, even where arguments are not valid UTF-8; a terminal's is inert."""
    if sys.stdout.isatty():
        print(script.text, end="")
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(script.text.encode(errors="surrogateescape"))
    sys.stdout.buffer.flush()


@command("hpcdl job schema > job.schema.json", site=False)
def _schema(args: argparse.Namespace) -> ExitCode:
    """Print the JSON Schema of job.yaml, for editors."""
    print_json(job_schema())
    return ExitCode.OK


@command(
    "hpcdl job submit --partition v100 --gpus 16 -- python my_train.py --lr 0.1",
    request.options,
    option("--watch", "watch the job until it ends"),
    changes=True,
    rest=request.PROGRAM,
)
def _submit(args: argparse.Namespace) -> ExitCode:
    """Write a job script and submit it; leave nothing behind if Slurm rejects it."""
    from hpcdl.jobs.submission import place, submit

    site = request.asked_site(args)
    spec = request.spec_of(args, site)
    module = request.checked(site, spec, queued=True)
    if args.dry_run:
        script, placed = place(site, spec, module)
        if not args.json:
            print(f"would submit this script from {placed.job_dir}:\n")
            _print_script(script)
        data: dict[str, object] = {
            "directory": placed.job_dir,
            "script": script.text,
            "layout": asdict(script.layout),
            "expectation": _expected(args, site, placed),
        }
    else:
        submission = submit(site, spec, module, None if args.json else _tell_submitted)
        data = queued.submission_data(submission)
        data["expectation"] = _expected(args, site, spec, submission.folder)
        if args.watch:
            return queued.watch_to_the_end(submission, args, data)
    if args.json:
        print_json(data)
    return ExitCode.OK


def _tell_submitted(submission: Submission) -> None:
    if submission.resumed:
        print(
            f"job {submission.job_id} is that of the same command before, which was stopped",
            file=sys.stderr,
        )
    print(
        f"job {submission.job_id} submitted\n  script {submission.script}\n"
        f"  log    {submission.log}\n  result {submission.result}",
        flush=True,
    )


def _expected(
    args: argparse.Namespace, site: Site, spec: JobSpec, folder: Path | None = None
) -> dict[str, object] | None:
    """Print the expected speed and keep it in the job's directory; None if there is none."""
    from hpcdl.workflows.expectation import as_lines, expect, keep, why_none

    expected = expect(site, spec)
    if expected and folder:
        keep(expected, folder)
    if not args.json:
        for line in as_lines(expected) if expected else filter(None, [why_none(site, spec)]):
            print(f"  {line}")
    return asdict(expected) if expected else None


# ---- sweeps ----


@command(
    "hpcdl job sweep --name scaling --over gpus=1,2,4 --over model=resnet50,vgg16",
    option("--over", "KEY=A,B", "values of a key", many=True),
    option("--exclude", "KEY=A,KEY=B", "points to leave out", many=True),
    option("--running", "N", "most jobs to run at the same time, over all arrays", type=_NUMBER),
    option("--retry-failed", "queue points that failed again, too"),
    option("--status", "print the state of the sweep and exit"),
    partial(request.options, leave_out=("chain",)),
    changes=True,
    rest=request.PROGRAM,
)
def _sweep(args: argparse.Namespace) -> ExitCode:
    """Submit a matrix of jobs as job arrays; a second run submits only missing points."""
    from hpcdl.jobs import sweep_run
    from hpcdl.jobs.sweep import check_keys, matrix_of, plan, request_of, samples
    from hpcdl.workflows.modules import modules_of_job

    site = request.asked_site(args)
    spec = request.spec_of(args, site)
    folder = sweep_run.sweep_directory(site, spec.name)
    matrix = matrix_of([request.pair("--over", text, "KEY=A,B") for text in args.over])
    exclude = [
        dict(request.pair("--exclude", pair.strip(), "KEY=A,KEY=B") for pair in text.split(","))
        for text in args.exclude
    ]
    if args.status and not matrix and (points := sweep_run.kept_points(folder, spec)):
        return _show_sweep(sweep_run.run_statuses(folder, points), folder, args)
    if not args.status:  # what was submitted so is shown
        check_keys(spec, matrix, train_options(spec.program))
    points = plan(site, spec, matrix, exclude)
    asked = request_of(spec)
    if not args.status and all(point.problem for point in points):
        reasons = dict.fromkeys(point.problem for point in points)
        raise BadInput(
            "no point of the sweep can run",
            details=[*reasons][:_SHOWN],
            hint="correct --over or the job",
        )
    if args.status:
        return _show_sweep(sweep_run.run_statuses(folder, points, request=asked), folder, args)
    places = dict.fromkeys(point.spec.partition for point in points if not point.problem)
    modules = modules_of_job(site, spec, tuple(places), published=True)
    for point in samples(points)[:_CHECKED]:
        module = modules[point.spec.partition]
        request.checked(site, point.spec, queued=True, module=module)
    if args.dry_run:
        found = sweep_run.run_statuses(folder, points, request=asked)
        return _would_sweep(found, site, folder, modules, args)
    found = sweep_run.submit(
        site, folder, points, modules, args.running, request=asked, retry=args.retry_failed
    )
    return _show_sweep(found, folder, args)


def _would_sweep(
    statuses: Sequence[RunStatus],
    site: Site,
    folder: Path,
    modules: Mapping[str, Module],
    args: argparse.Namespace,
) -> ExitCode:
    """Show, for --dry-run, the scripts of missing points and the points that cannot run."""
    from hpcdl.jobs.sweep_run import preview, summary

    arrays = preview(site, folder, statuses, modules, args.running, args.retry_failed)
    if args.json:
        scripts = [
            {"points": [point.id for point in group.points], "script": script.text}
            for group, script, *_ in arrays
        ]
        print_json({"directory": folder, "points": _rows(statuses), "arrays": scripts})
    else:
        for group, script, *_ in arrays:
            print(f"# would submit an array of {len(group.points)}:\n{script.text}")
        print(f"# {folder.name}: {summary(statuses)}")
        _name_impossible(statuses)
    return ExitCode.PARTLY if any(one.point.problem for one in statuses) else ExitCode.OK


def _show_sweep(statuses: Sequence[RunStatus], folder: Path, args: argparse.Namespace) -> ExitCode:
    from hpcdl.jobs.sweep_run import DONE, FAILED, summary

    if args.json:
        print_json({"directory": folder, "points": _rows(statuses)})
    else:
        print(f"{folder.name}: {summary(statuses)}\n  manifest {folder / 'sweep.json'}")
        failed = [run for run in statuses if run.state == FAILED]
        for run in failed[:_SHOWN]:
            detail = f"exit code {run.exit_code}, log {run.log}"
            print(f"  failed: {_values(run)}: {detail}", file=sys.stderr)
        if failed:
            more = f"{len(failed) - _SHOWN} more failed; " if len(failed) > _SHOWN else ""
            print(f"  {more}--retry-failed queues them again", file=sys.stderr)
        _name_impossible(statuses)
        if waiting := [run for run in statuses if run.waits_for]:
            print(
                f"  {len(waiting)} not queued yet: Slurm takes no more jobs now "
                f"({waiting[0].waits_for}). The same command queues them when others have ended.",
                file=sys.stderr,
            )
    held_back = any(run.waits_for for run in statuses)
    unfinished = args.status and any(run.state != DONE for run in statuses)
    impossible = any(run.point.problem for run in statuses)
    return ExitCode.PARTLY if impossible or unfinished or held_back else ExitCode.OK


def _rows(statuses: Sequence[RunStatus]) -> list[dict[str, object]]:
    return [
        {
            "id": one.point.id,
            "values": one.point.values,
            "state": one.state,
            "job_id": one.job_id,
            "problem": one.point.problem,
            "exit_code": one.exit_code,
            "log": one.log,
        }
        for one in statuses
    ]


def _name_impossible(found: Sequence[RunStatus]) -> None:
    for one in found:
        if one.point.problem:
            print(f"  left out: {_values(one)}: {one.point.problem}", file=sys.stderr)


def _values(one: RunStatus) -> str:
    return " ".join(f"{key}={value}" for key, value in one.point.values.items())


# ---- lint ----


@command(
    "hpcdl job lint --slurm-version 22.05 train.sh",
    option(
        "files", "FILE", "sbatch scripts, and directories of them; - is stdin", nargs="*", type=Path
    ),
    option("--slurm-version", "X.Y", "Slurm release to check for (default: the site's)"),
    option("--live", "ask the Slurm on PATH what it has and allows, and sbatch what it refuses"),
    option("--explain", "RULE", "print a rule and its source"),
    option("--advice", "print advice, too: what depends on the site or the program"),
    option("--sarif", "print SARIF, for code scanners"),
    rest="more files",
)
def _lint(args: argparse.Namespace) -> ExitCode:
    """Check any sbatch script against the rules of a Slurm release; exit 1 on errors."""
    from hpcdl.jobs.lint import explain
    from hpcdl.jobs.lint.lint_report import run_lint

    if args.explain:
        print(explain(args.explain))
        return ExitCode.OK
    files = [*args.files, *map(Path, args.rest)]
    if not files:
        raise BadInput("nothing to check", hint="name scripts or directories; - is stdin")
    site, version = _lint_site(args), args.slurm_version
    if args.live and not version:
        from hpcdl.slurm import client

        version = client.version()
    return run_lint(
        files,
        version or (site.slurm.version if site else None),
        args.json,
        cluster=_lint_cluster(args, site),
        as_sarif=args.sarif,
        advice=args.advice,
        live=args.live,
    )


def _lint_cluster(args: argparse.Namespace, site: Site | None) -> Cluster | None:
    """Return the cluster's limits and names; None if neither Slurm nor a site file gives them."""
    if args.live:
        from hpcdl.slurm.live_limits import live_cluster

        return live_cluster()
    if site:
        from hpcdl.jobs.limits import cluster_of

        return cluster_of(site)
    return None


def _lint_site(args: argparse.Namespace) -> Site | None:
    """The site to check for; None where none is named or installed, or none is needed."""
    from hpcdl.site.load import installed_site_file

    named = args.site or os.environ.get("HPCDL_SITE")
    other = args.slurm_version or args.live or installed_site_file() is None
    return the_site(args) if named or not other else None


GROUP = Group(
    "job",
    (
        _submit,
        _render,
        _explain,
        _schema,
        interactive.shell,
        interactive.jupyter,
        queued.watch,
        queued.log,
        queued.list_,
        _sweep,
        queued.report,
        _lint,
        queued.cancel,
    ),
)
