"""Commands for submitted jobs: `hpcdl job watch`, `log`, `list`, `report`, `cancel`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.cli.framework import command, option, print_json, show, the_site
from hpcdl.system.amounts import at_least
from hpcdl.system.errors import BadInput, ExitCode
from hpcdl.system.text import StatusLine

if TYPE_CHECKING:
    from hpcdl.jobs.listing import Array
    from hpcdl.jobs.submission import Submission
    from hpcdl.site import Site

_MOST = 1_000_000
_PIECE = 65536


@command(
    "hpcdl job watch 4711",
    option("job", "JOB", "job id, or the job's directory"),
    option("--once", "print the current state once and exit"),
)
def watch(args: argparse.Namespace) -> ExitCode:
    """Watch a job: state, reason for waiting, progress."""
    from hpcdl.jobs.submission import require_this_cluster
    from hpcdl.jobs.watch import as_line, look

    submission = require_this_cluster(_found(the_site(args), args.job))
    if not args.once:
        return watch_to_the_end(submission, args, submission_data(submission))
    snapshot = look(submission)
    return show(args, asdict(snapshot), as_line(snapshot))


def watch_to_the_end(
    submission: Submission, args: argparse.Namespace, data: Mapping[str, object]
) -> ExitCode:
    """Follow the job; with --json, print `data` and how the job ended, as one object."""
    from hpcdl.jobs.watch import as_line, follow, watched
    from hpcdl.system.safe_read import last_text

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


def submission_data(submission: Submission) -> dict[str, object]:
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
    option(
        "-n --lines", "N", "last lines to begin with (100)", type=at_least(1, _MOST), default=100
    ),
    option("-f --follow", "follow the log until the job ends, across requeues"),
)
def log(args: argparse.Namespace) -> ExitCode:
    """Print the end of a job's log; with -f, follow it until the job ends."""
    from hpcdl.jobs.watch import watched
    from hpcdl.system.safe_read import last_text

    submission = _found(the_site(args), args.job)
    # Where the file ends now is where following begins: nothing is printed twice or left out.
    end = submission.log.stat().st_size if submission.log.is_file() else 0
    lines = last_text(submission.log, end=end).splitlines()[-args.lines :]
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
    place = _print_new(submission.log, place)
    for rest in _pieces(submission.log, place):  # a last line without an end
        print(rest.decode(errors="replace"))
    assert last is not None
    print(f"--- {as_line(last)}", file=sys.stderr)
    return ExitCode.OK if last.ok else ExitCode.NO


def _print_new(path: Path, start: int) -> int:
    """Print the whole lines from `start` on; gives where they end."""
    for piece in _pieces(path, start):
        whole = piece[: piece.rfind(b"\n") + 1] or (piece if len(piece) == _PIECE else b"")
        print(whole.decode(errors="replace"), end="")
        start += len(whole)
        if len(whole) < len(piece):
            break
    sys.stdout.flush()
    return start


def _pieces(path: Path, start: int) -> Iterator[bytes]:
    from hpcdl.system.safe_read import open_regular

    try:
        with open_regular(path, "log") as file:
            while True:
                file.seek(start)
                piece = file.read(_PIECE)
                if not piece:
                    return
                yield piece
                start += piece.rfind(b"\n") + 1 or len(piece)
    except BadInput:  # it has not started yet
        return


@command(
    "hpcdl job list --last 5",
    option("--last", "N", "list the newest N jobs (20)", type=at_least(1), default=20),
)
def list_(args: argparse.Namespace) -> ExitCode:
    """List your jobs with state, age and directory, newest first."""
    from hpcdl.jobs.listing import as_text, own_jobs

    rows = own_jobs(the_site(args), args.last)
    return show(args, [*map(asdict, rows)], as_text(rows))


@command("hpcdl job report 4711", option("job", "JOB", "job id, or the job's directory"))
def report(args: argparse.Namespace) -> ExitCode:
    """Report a job's throughput, where each step's time went, and what to improve."""
    from hpcdl.jobs.job_report import as_text, summarize
    from hpcdl.jobs.submission import asked, require_this_cluster
    from hpcdl.jobs.watch import look, result_of
    from hpcdl.slurm.client import usage
    from hpcdl.workflows.expectation import compare, comparison_line, kept

    site = the_site(args)
    submission = require_this_cluster(_found(site, args.job))
    snapshot, request = look(submission), asked(submission.folder)
    partition = site.partitions.get(str(request.get("partition")))
    cpus = partition.cpus if partition else None
    report = summarize(
        snapshot,
        result_of(submission),
        request,
        usage(snapshot.job_id),
        cpus,
        warned=(submission.folder / ".usr2").exists(),
    )
    expected = kept(submission.folder)
    comparison = compare(expected, report.images_per_second, report.ranks) if expected else None
    beside = f"\n  {comparison_line(expected, comparison)}" if expected and comparison else ""
    used = report.usage and report.usage._asdict()
    data = {
        **asdict(report),
        "usage": used,
        "expectation": expected and asdict(expected),
        "comparison": comparison and comparison._asdict(),
    }
    return show(args, data, as_text(report) + beside, ok=report.ok)


@command(
    "hpcdl job cancel 4711",
    option("jobs", "JOB", "job ids, or job directories", nargs="+"),
    changes=True,
)
def cancel(args: argparse.Namespace) -> ExitCode:
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
    from hpcdl.jobs.listing import arrays

    return next((one for one in arrays(site) if str(one.job_id) == number), None)


def _to_cancel(site: Site, which: str) -> tuple[int, ...]:
    """The jobs of a run, or the array of a sweep."""
    from hpcdl.jobs.submission import is_indexed, of_another_cluster
    from hpcdl.system.trust import require_own

    try:
        run = _found(site, which)
    except BadInput:
        if not _array(site, which):
            raise
        return (int(which),)
    require_own(run.folder)  # a stranger's job.json could name any job of this user
    if not is_indexed(site, run):
        raise of_another_cluster(run)
    return run.chain
