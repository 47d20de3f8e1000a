"""`hpcdl job`: batch scripts for training jobs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.cli import cancel, lint, log, request, sweep, usage
from hpcdl.cli.framework import Command, Group, option, print_json, show, the_site
from hpcdl.system.amounts import at_least
from hpcdl.system.errors import ExitCode

if TYPE_CHECKING:
    from hpcdl.jobs import JobSpec, Script
    from hpcdl.jobs.submission import Submission
    from hpcdl.jobs.watch import Snapshot
    from hpcdl.site import Site
    from hpcdl.workflows.expectation import Expectation


def _written(args: argparse.Namespace) -> Script:
    from hpcdl.jobs.script import render_script

    site = request.asked_site(args)
    spec, module = request.spec_of(args, site), request.module_of(args, site, published=False)
    return render_script(site, request.checked(site, spec, module, queued=False), module)


def _render(args: argparse.Namespace) -> ExitCode:
    script = _written(args)
    if args.json:
        from dataclasses import asdict

        print_json({"script": script.text, "layout": asdict(script.layout)})
    else:
        _print_script(script)
    return ExitCode.OK


def _print_script(script: Script) -> None:
    """The script byte for byte, even where arguments are not valid UTF-8; a terminal's is inert."""
    if sys.stdout.isatty():
        print(script.text, end="")
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(script.text.encode(errors="surrogateescape"))
    sys.stdout.buffer.flush()


def _explain(args: argparse.Namespace) -> ExitCode:
    script = _written(args)
    if args.json:
        version = script.slurm_version
        print_json(
            [
                {"text": line.text, "reason": line.reason, "rule": line.rule(version)}
                for line in script.lines
            ]
        )
    else:
        print(script.explained)
    return ExitCode.OK


def _schema(args: argparse.Namespace) -> ExitCode:
    from hpcdl.jobs.schema import job_schema

    print_json(job_schema())
    return ExitCode.OK


def _submit_options(parser: argparse.ArgumentParser) -> None:
    request.options(parser)
    parser.add_argument("--watch", action="store_true", help="watch the job until it ends")
    parser.add_argument("--chain", type=int, default=1, metavar="N",
                        help="queue N jobs; each resumes where the last one stopped")  # fmt: skip


def _submit(args: argparse.Namespace) -> ExitCode:
    from dataclasses import asdict, replace

    from hpcdl.jobs.submission import place, submit

    site = request.asked_site(args)
    spec = replace(request.spec_of(args, site), chain=args.chain)
    module = request.module_of(args, site, published=True)
    request.checked(site, spec, module)
    if args.dry_run:
        return _would_submit(*place(site, spec, module), site, args)
    submission = submit(site, spec, module, None if args.json else _tell_submitted)
    expected = _expected(site, spec, submission.folder)
    said = {**_submission_data(submission), "expectation": expected and asdict(expected)}
    if not args.json:
        _show_expected(expected, site, spec)
    if args.watch:
        return _watch_to_the_end(submission, args, said)
    if args.json:
        print_json(said)
    return ExitCode.OK


def _tell_submitted(submission: Submission) -> None:
    if submission.resumed:
        print(f"job {submission.job_id} is that of the same command before, which was stopped",
              file=sys.stderr)  # fmt: skip
    print(f"job {submission.job_id} submitted\n  script {submission.script}\n"
          f"  log    {submission.log}\n  result {submission.result}", flush=True)  # fmt: skip


def _would_submit(script: Script, spec: JobSpec, site: Site, args: argparse.Namespace) -> ExitCode:
    """What --dry-run shows: the script, and what it should reach."""
    from dataclasses import asdict

    expected = _expected(site, spec)
    if args.json:
        print_json({"directory": spec.job_dir, "script": script.text,
                    "layout": asdict(script.layout),
                    "expectation": expected and asdict(expected)})  # fmt: skip
    else:
        print(f"would submit this script from {spec.job_dir}:\n")
        _print_script(script)
        _show_expected(expected, site, spec)
    return ExitCode.OK


def _expected(site: Site, spec: JobSpec, folder: Path | None = None) -> Expectation | None:
    """What the job should reach, kept in its directory; None where no prediction is possible."""
    from hpcdl.workflows.expectation import expect, keep

    expected = expect(site, spec)
    if expected and folder:
        keep(expected, folder)
    return expected


def _show_expected(expected: Expectation | None, site: Site, spec: JobSpec) -> None:
    from hpcdl.workflows.expectation import as_lines, why_none

    lack = why_none(site, spec) if expected is None else ""
    for line in as_lines(expected) if expected else filter(None, [lack]):
        print(f"  {line}")


def _watch_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="job id, or the job's directory")
    parser.add_argument("--once", action="store_true", help="print the current state once and exit")


def _watch(args: argparse.Namespace) -> ExitCode:
    from dataclasses import asdict

    from hpcdl.jobs.submission import find
    from hpcdl.jobs.watch import as_line, look

    submission = find(the_site(args), args.job)
    if not args.once:
        return _watch_to_the_end(submission, args, _submission_data(submission))
    snapshot = look(submission)
    return show(args, asdict(snapshot), as_line(snapshot))


def _watch_to_the_end(
    submission: Submission, args: argparse.Namespace, said: Mapping[str, object]
) -> ExitCode:
    """Follow the job; with --json, what was `said` of it and how it ended, as one object."""
    from dataclasses import asdict

    from hpcdl.jobs.watch import as_line, follow, watched
    from hpcdl.system.progress import StatusLine

    snapshot = None
    with watched(submission), StatusLine(quiet=args.json) as status:
        for snapshot in follow(submission):
            text = as_line(snapshot) + _last_line(submission, snapshot)
            status.show(text, key=(snapshot.state, snapshot.restarts))
    assert snapshot is not None
    if args.json:
        print_json({**said, **asdict(snapshot)})
    elif not snapshot.ok:
        _show_end_of_log(submission)
    return ExitCode.OK if snapshot.ok else ExitCode.NO


def _last_line(submission: Submission, snapshot: Snapshot) -> str:
    """The end of the log, where nothing better is known of a running job."""
    from hpcdl.system.safe_read import last_text

    if snapshot.state != "RUNNING" or snapshot.progress:
        return ""
    lines = last_text(submission.log, 2000).rstrip().splitlines()
    return f" | {lines[-1]}" if lines else ""


def _show_end_of_log(submission: Submission) -> None:
    from hpcdl.system.safe_read import last_text

    for line in last_text(submission.log).splitlines()[-12:]:
        print(f"| {line}", file=sys.stderr)
    print(f"log: {submission.log}", file=sys.stderr)


def _submission_data(submission: Submission) -> dict[str, object]:
    return {
        "job_id": submission.job_id,
        "chain": submission.chain,
        "directory": submission.folder,
        "script": submission.script,
        "log": submission.log,
        "result": submission.result,
    }


def _list(args: argparse.Namespace) -> ExitCode:
    from dataclasses import asdict

    from hpcdl.jobs.listing import as_text, own_jobs

    rows = own_jobs(the_site(args), args.last)
    return show(args, [asdict(row) for row in rows], as_text(rows))


def _report(args: argparse.Namespace) -> ExitCode:
    from dataclasses import asdict

    from hpcdl.jobs.job_report import as_text, summarize
    from hpcdl.jobs.submission import asked, find
    from hpcdl.jobs.watch import look, result_of
    from hpcdl.slurm.client import usage
    from hpcdl.workflows.expectation import compare, comparison_line, kept

    site = the_site(args)
    submission = find(site, args.job)
    snapshot, said = look(submission), asked(submission)
    partition = site.partitions.get(str(said.get("partition")))
    report = summarize(
        snapshot,
        result_of(submission),
        said,
        usage(snapshot.job_id),
        partition.cpus if partition else None,
    )
    expected = kept(submission.folder)
    found = compare(expected, report.images_per_second, report.ranks) if expected else None
    if args.json:
        used = report.usage and report.usage._asdict()
        print_json({**asdict(report), "usage": used, "expectation": expected and asdict(expected),
                    "comparison": found and found._asdict()})  # fmt: skip
    else:
        print(as_text(report))
        if expected and found:
            print(f"  {comparison_line(expected, found)}")
    return ExitCode.OK if report.ok else ExitCode.NO


GROUP = Group(
    "job",
    "batch jobs: render, submit, watch and report on training jobs",
    (
        Command("submit",
                "Write a job script and submit it; leave nothing behind if Slurm rejects it.",
                "hpcdl job submit --partition v100 --gpus 16 -- python my_train.py --lr 0.1",
                _submit, _submit_options, changes=True),
        Command("render", "Print the job script, and submit nothing.",
                "hpcdl job render --partition p100 --gpus 8 > job.sh", _render, request.options),
        Command("explain", "Print the job script with the reason for every line.",
                "hpcdl job explain --partition p100 --gpus 8", _explain, request.options),
        Command("schema", "Print the JSON Schema of job.yaml, for editors.",
                "hpcdl job schema > job.schema.json", _schema, site=False),
        Command("watch", "Watch a job: state, reason for waiting, progress.",
                "hpcdl job watch 4711", _watch, _watch_options),
        Command("log", "Print the end of a job's log; with -f what comes, until the job ends.",
                "hpcdl job log -f 4711", log.run, log.options),
        Command("list", "List your jobs with state, age and directory, newest first.",
                "hpcdl job list --last 5", _list,
                option("--last", type=at_least(1), default=20, metavar="N",
                       help="list the newest N jobs (20)")),
        Command("sweep",
                "Submit a matrix of jobs as job arrays; a second run submits only missing points.",
                "hpcdl job sweep --name scaling --over gpus=1,2,4 --over model=resnet50,vgg16",
                sweep.run, sweep.options, changes=True),
        Command("report",
                "Report a job's throughput, where each step's time went, and what to improve.",
                "hpcdl job report 4711", _report,
                option("job", metavar="JOB", help="job id, or the job's directory")),
        Command("usage", "Sum GPU hours, CPU hours and energy of jobs, from Slurm's accounting.",
                "hpcdl job usage --since 2026-01 --by account --by month --all-users", usage.run,
                usage.options),
        Command("lint",
                "Check any sbatch script against the rules of a Slurm release; exit 1 on errors.",
                "hpcdl job lint --slurm-version 22.05 train.sh", lint.run, lint.options),
        Command("cancel", "Cancel jobs.", "hpcdl job cancel 4711", cancel.run,
                option("jobs", nargs="+", metavar="JOB", help="job ids, or job directories"),
                changes=True),
    ),
)  # fmt: skip
