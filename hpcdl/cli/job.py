"""`hpcdl job`: batch scripts for training jobs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.cli import interactive, request
from hpcdl.cli.framework import Group, command, option, print_json, show, the_site
from hpcdl.cli.lint import lint
from hpcdl.system.amounts import at_least
from hpcdl.system.errors import BadInput, ExitCode
from hpcdl.system.text import StatusLine

if TYPE_CHECKING:
    from hpcdl.jobs import JobScript, JobSpec
    from hpcdl.jobs.manifest import RunStatus
    from hpcdl.jobs.submission import Submission
    from hpcdl.jobs.sweep import SweepArray
    from hpcdl.jobs.watch import Array
    from hpcdl.site import Site

_NUMBER = at_least(1, 1_000_000)
_SHOWN = 20
_CHECKED = 200
_PIECE = 65536
_LINES = 100
_PRINTED = partial(request.options, leave_out=("chain",))


def _written(args: argparse.Namespace) -> JobScript:
    from hpcdl.jobs.script import render_script

    site = request.asked_site(args)
    spec = request.spec_of(args, site)
    return render_script(site, spec, request.checked(site, spec, queued=False))


@command(
    "hpcdl job render --partition p100 --gpus 8 > job.sh",
    option("--slurm-version", "V", "write the script for this Slurm release, not the site's"),
    _PRINTED,
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


@command("hpcdl job explain --partition p100 --gpus 8", _PRINTED, rest=request.PROGRAM)
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


@command(
    "hpcdl job submit --partition v100 --gpus 16 -- python my_train.py --lr 0.1",
    option("--watch", "watch the job until it ends"),
    request.options,
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
        data = _submission_data(submission)
        data["expectation"] = _expected(args, site, spec, submission.folder)
        if args.watch:
            return _watch_to_the_end(submission, args, data)
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
    partial(request.options, leave_out=("chain", "job_dir")),
    changes=True,
    rest=request.PROGRAM,
)
def _sweep(args: argparse.Namespace) -> ExitCode:
    """Submit a matrix of jobs as job arrays; a second run submits only missing points."""
    from hpcdl.jobs import sweep
    from hpcdl.jobs.sweep import check_keys, matrix_of, plan, request_of, samples
    from hpcdl.workflows.modules import modules_of_job

    site = request.asked_site(args)
    spec = request.spec_of(args, site)
    folder = sweep.sweep_directory(site, spec.name)
    if args.status:
        if kept := sweep.run_statuses(folder, None):
            return _show_sweep(kept, folder, args)
        hint = "the same command without --status submits it"
        raise BadInput(f"there is no sweep '{spec.name}' yet", hint=hint)
    matrix = matrix_of([request.pair("--over", text, "KEY=A,B") for text in args.over])
    exclude = [
        dict(request.pair("--exclude", pair.strip(), "KEY=A,KEY=B") for pair in text.split(","))
        for text in args.exclude
    ]
    check_keys(spec, matrix, request.train_options(spec.program))
    points = plan(site, spec, matrix, exclude)
    if all(reasons := [point.problem for point in points]):
        raise BadInput(
            "no point of the sweep can run",
            details=[*dict.fromkeys(reasons)][:_SHOWN],
            hint="correct the job, or --over KEY=A,B",
        )
    asked = request_of(spec)
    places = dict.fromkeys(point.spec.partition for point in points if not point.problem)
    modules = modules_of_job(site, spec, tuple(places), published=True)
    for point in samples(points)[:_CHECKED]:
        module = modules[point.spec.partition]
        request.checked(site, point.spec, queued=True, module=module)
    if args.dry_run:
        found = sweep.run_statuses(folder, points, request=asked)
        wanted = sweep.wanted_points(points, found, args.retry_failed)
        arrays = sweep.preview(site, folder, wanted, modules, args.running)
        return _show_sweep(found, folder, args, arrays)
    found = sweep.submit(
        site, folder, points, modules, args.running, request=asked, retry=args.retry_failed
    )
    return _show_sweep(found, folder, args)


def _show_sweep(
    statuses: Sequence[RunStatus],
    folder: Path,
    args: argparse.Namespace,
    arrays: Sequence[tuple[SweepArray, JobScript, Path, str]] = (),
) -> ExitCode:
    """Show the points of a sweep; for --dry-run also the scripts of `arrays`."""
    from hpcdl.jobs.sweep import DONE, FAILED, summary

    text = f"{folder.name}: {summary(statuses)}"
    failed = [run for run in statuses if run.state == FAILED]
    impossible = [run for run in statuses if run.problem]
    waiting = [run for run in statuses if run.waits_for]
    if args.json:
        shown = ("id", "values", "state", "job_id", "problem", "exit_code", "log")
        points = [{key: getattr(status, key) for key in shown} for status in statuses]
        scripts = [
            {"points": [point.id for point in group], "script": script.text}
            for group, script, *_ in arrays
        ]
        more = {"arrays": scripts} if args.dry_run else {}
        print_json({"directory": folder, "points": points, **more})
    elif args.dry_run:
        for group, script, *_ in arrays:
            print(f"# would submit an array of {len(group)}:\n{script.text}")
        print(f"# {text}")
    else:
        print(f"{text}\n  manifest {folder / 'sweep.json'}")
        for run in failed[:_SHOWN]:
            detail = f"exit code {run.exit_code}, log {run.log}"
            print(f"  failed: {_values(run)}: {detail}", file=sys.stderr)
        if failed:
            more_failed = f"{len(failed) - _SHOWN} more failed; " * (len(failed) > _SHOWN)
            print(f"  {more_failed}--retry-failed queues them again", file=sys.stderr)
    for one in () if args.json else impossible:
        print(f"  left out: {_values(one)}: {one.problem}", file=sys.stderr)
    if waiting and not args.json:
        print(
            f"  {len(waiting)} not queued yet: Slurm takes no more jobs now "
            f"({waiting[0].waits_for}). The same command queues them when others have ended.",
            file=sys.stderr,
        )
    unfinished = args.status and any(run.state != DONE for run in statuses)
    return ExitCode.PARTLY if impossible or unfinished or waiting else ExitCode.OK


def _values(one: RunStatus) -> str:
    return " ".join(f"{key}={value}" for key, value in one.values.items())


# ---- submitted jobs ----


@command("hpcdl job watch 4711", option("job", "JOB", "job id, or the job's directory"))
def _watch(args: argparse.Namespace) -> ExitCode:
    """Watch a job: state, reason for waiting, progress."""
    from hpcdl.jobs.submission import require_this_cluster

    submission = require_this_cluster(_found(the_site(args), args.job))
    return _watch_to_the_end(submission, args, _submission_data(submission))


def _watch_to_the_end(
    submission: Submission, args: argparse.Namespace, data: Mapping[str, object]
) -> ExitCode:
    """Follow the job; with --json, print `data` and how the job ended, as one object."""
    from hpcdl.jobs.watch import as_line, follow, watched
    from hpcdl.system.files import last_text

    snapshot = None
    with watched(submission), StatusLine(quiet=args.json) as status:
        for snapshot in follow(submission):
            unknown = snapshot.state == "RUNNING" and not snapshot.progress
            last = last_text(submission.log, 2000).rstrip().splitlines()[-1:] if unknown else []
            text = " | ".join([as_line(snapshot), *last])
            status.show(text, key=(snapshot.state, snapshot.restarts))
    assert snapshot is not None
    if args.json:
        print_json({**data, **asdict(snapshot)})
    elif not snapshot.ok:
        end = [f"| {line}\n" for line in last_text(submission.log).splitlines()[-12:]]
        print(*end, f"log: {submission.log}", sep="", file=sys.stderr)
    return ExitCode.OK if snapshot.ok else ExitCode.NO


def _submission_data(submission: Submission) -> dict[str, object]:
    """A submitted job as data."""
    return {
        "job_id": submission.job_id,
        "chain": submission.chain,
        "directory": submission.folder,
        "script": submission.script,
        "log": submission.log,
        "result": submission.result,
    }


@command(
    "hpcdl job log -f 4711",
    option("job", "JOB", "job id, or the job's directory"),
    option("-f --follow", "follow the log until the job ends, across requeues"),
)
def _log(args: argparse.Namespace) -> ExitCode:
    """Print the end of a job's log; with -f, follow it until the job ends."""
    from hpcdl.jobs.watch import watched
    from hpcdl.system.files import last_text

    submission = _found(the_site(args), args.job)
    # Where the file ends now is where following begins: nothing is printed twice or left out.
    end = submission.log.stat().st_size if submission.log.is_file() else 0
    lines = last_text(submission.log, end=end).splitlines()[-_LINES:]
    if args.json and not args.follow:
        print_json({"log": submission.log, "lines": lines})
        return ExitCode.OK
    with watched(submission):
        print("\n".join(lines), end="\n" if lines else "", flush=True)
        return _follow(submission, end) if args.follow else ExitCode.OK


def _follow(submission: Submission, start: int) -> ExitCode:
    from hpcdl.jobs.submission import require_this_cluster
    from hpcdl.jobs.watch import as_line, follow

    place, last, state = start, None, None
    require_this_cluster(submission)
    for last in follow(submission):
        place = _print_new(submission.log, place)
        if state is not None and (last.state, last.restarts) != state and not last.ended:
            print(f"--- {as_line(last)}", file=sys.stderr)
        state = (last.state, last.restarts)
    _print_new(submission.log, place, whole=False)
    assert last is not None
    print(f"--- {as_line(last)}", file=sys.stderr)
    return ExitCode.OK if last.ok else ExitCode.NO


def _print_new(path: Path, start: int, *, whole: bool = True) -> int:
    """Print the lines from `start` on, if not only `whole` ones also the last; give their end."""
    from hpcdl.system.files import open_regular

    with suppress(BadInput), open_regular(path, "log") as file:  # else it has not started yet
        file.seek(start)
        while piece := file.read(_PIECE):
            length = piece.rfind(b"\n") + 1
            if not length and (len(piece) == _PIECE or not whole):
                length = len(piece)
            text = piece[:length].decode(errors="replace")
            print(text, end="" if whole or text.endswith("\n") else "\n")
            start += length
            file.seek(start)
            if not length:
                break
    sys.stdout.flush()
    return start


@command(
    "hpcdl job list --last 5",
    option("--last", "N", "list the newest N jobs (20)", type=at_least(1), default=20),
)
def _list(args: argparse.Namespace) -> ExitCode:
    """List your jobs with state, age and directory, newest first."""
    from hpcdl.jobs.watch import list_text, own_jobs

    rows = own_jobs(the_site(args), args.last)
    return show(args, [*map(asdict, rows)], list_text(rows))


@command("hpcdl job report 4711", option("job", "JOB", "job id, or the job's directory"))
def _report(args: argparse.Namespace) -> ExitCode:
    """Report a job's throughput, where each step's time went, and what to improve."""
    from hpcdl.jobs.submission import require_this_cluster
    from hpcdl.jobs.watch import as_text, look, report_of
    from hpcdl.results.records import RESULT
    from hpcdl.workflows.expectation import compare, kept

    submission = require_this_cluster(_found(the_site(args), args.job))
    warned = (submission.folder / ".usr2").exists()
    report = report_of(look(submission), RESULT.find(submission.folder), warned=warned)
    expected = kept(submission.folder)
    reached = report["images_per_second"], report["ranks"]
    comparison = compare(expected, *reached) if expected else None
    beside = f"\n  {comparison.description}" if comparison else ""
    data = {
        **report,
        "expectation": expected and asdict(expected),
        "comparison": comparison and comparison._asdict(),
    }
    return show(args, data, as_text(report) + beside, ok=report["ok"])


@command(
    "hpcdl job cancel 4711",
    option("jobs", "JOB", "job ids, or job directories", nargs="+"),
    changes=True,
)
def _cancel(args: argparse.Namespace) -> ExitCode:
    """Cancel jobs."""
    from hpcdl.slurm import client

    site = the_site(args)
    try:
        ids = [*dict.fromkeys(job_id for job in args.jobs for job_id in _to_cancel(site, job))]
    except BadInput as fault:
        if args.jobs[1:]:
            fault.details = (*fault.details, "nothing was cancelled")
        raise
    if args.dry_run:
        print(f"would cancel {', '.join(map(str, ids))}")
        return ExitCode.OK
    active = {number for one in client.queue() if one.active for number in (one.id, one.array_job)}
    client.cancel(ids)  # all of them: the queue may be seconds old
    cancelled = [job_id for job_id in ids if job_id in active]
    ended = [job_id for job_id in ids if job_id not in active]
    both = (("cancelled", cancelled), ("had ended:", ended))
    lines = [f"{what} {', '.join(map(str, which))}" for what, which in both if which]
    return show(args, {"cancelled": cancelled, "ended": ended}, "\n".join(lines))


def _found(site: Site, which: str) -> Submission:
    """Return the submission of a job's id or directory; an id needs an answer from Slurm."""
    from hpcdl.jobs.submission import find
    from hpcdl.slurm.client import own_jobs

    try:
        return find(site, which)
    except BadInput:
        number = which.partition("_")[0]
        if number.isdecimal():
            own_jobs()  # raises: SLURM_CONF says whose jobs are looked for
            if array := _array(site, number):
                message = f"job {which} is of the array of a sweep or study in {array.folder}"
                hint = f"`hpcdl job list` has its state, {array.folder}/logs its logs; "
                hint += f"`hpcdl job cancel {number}` ends all of it"
                raise BadInput(message, hint=hint) from None
        raise


def _array(site: Site, number: str) -> Array | None:
    from hpcdl.jobs.watch import arrays

    return next((one for one in arrays(site) if str(one.job_id) == number), None)


def _to_cancel(site: Site, which: str) -> tuple[int, ...]:
    """The jobs of a run, or the array of a sweep."""
    from hpcdl.jobs.submission import require_this_cluster
    from hpcdl.system.trust import require_own

    try:
        run = _found(site, which)
    except BadInput:
        if not _array(site, which):
            raise
        return (int(which),)
    require_own(run.folder)  # a stranger's job.json could name any job of this user
    return require_this_cluster(run, site).chain


GROUP = Group(
    "job",
    (
        _submit,
        _render,
        _explain,
        interactive.shell,
        interactive.jupyter,
        _watch,
        _log,
        _list,
        _sweep,
        _report,
        lint,
        _cancel,
    ),
)
