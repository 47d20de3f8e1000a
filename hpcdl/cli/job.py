"""`hpcdl job`: batch scripts for training jobs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.cli import lint, queued, request, sweep
from hpcdl.cli.framework import Command, Group, option, print_json, show
from hpcdl.system.errors import ExitCode

if TYPE_CHECKING:
    from hpcdl.jobs import JobSpec, Script
    from hpcdl.jobs.submission import Submission
    from hpcdl.site import Site


def _written(args: argparse.Namespace) -> Script:
    from hpcdl.jobs.script import render_script

    site = request.asked_site(args)
    spec, module = request.spec_of(args, site), request.module_of(args, site, published=False)
    return render_script(site, request.checked(site, spec, module, queued=False), module)


def _render(args: argparse.Namespace) -> ExitCode:
    from dataclasses import asdict

    script = _written(args)
    if args.json:
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


def _render_options(parser: argparse.ArgumentParser) -> None:
    request.options(parser)
    told = parser.get_default("elsewhere")

    def elsewhere(option: str) -> str:
        to_a_file = option.strip("-")[:1] == "o" and told(option) == told("--output")
        return "the script goes to standard output: > FILE" if to_a_file else str(told(option))

    parser.set_defaults(elsewhere=elsewhere)


def _explain(args: argparse.Namespace) -> ExitCode:
    script = _written(args)
    data = [{"text": line.text, "reason": line.reason, "rule": line.rule(script.slurm_version)}
            for line in script.lines]  # fmt: skip
    return show(args, data, script.explained)


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
    from dataclasses import replace

    from hpcdl.jobs.submission import place, submit

    site = request.asked_site(args)
    spec = replace(request.spec_of(args, site), chain=args.chain)
    module = request.module_of(args, site, published=True)
    request.checked(site, spec, module)
    if args.dry_run:
        said = _would_submit(args, site, *place(site, spec, module))
    else:
        submission = submit(site, spec, module, None if args.json else _tell_submitted)
        said = queued.submission_data(submission)
        said["expectation"] = _expected(args, site, spec, submission.folder)
        if args.watch:
            return queued.watch_to_the_end(submission, args, said)
    if args.json:
        print_json(said)
    return ExitCode.OK


def _would_submit(
    args: argparse.Namespace, site: Site, script: Script, spec: JobSpec
) -> dict[str, object]:
    from dataclasses import asdict

    if not args.json:
        print(f"would submit this script from {spec.job_dir}:\n")
        _print_script(script)
    return {"directory": spec.job_dir, "script": script.text, "layout": asdict(script.layout),
            "expectation": _expected(args, site, spec)}  # fmt: skip


def _tell_submitted(submission: Submission) -> None:
    if submission.resumed:
        print(f"job {submission.job_id} is that of the same command before, which was stopped",
              file=sys.stderr)  # fmt: skip
    print(f"job {submission.job_id} submitted\n  script {submission.script}\n"
          f"  log    {submission.log}\n  result {submission.result}", flush=True)  # fmt: skip


def _expected(
    args: argparse.Namespace, site: Site, spec: JobSpec, folder: Path | None = None
) -> dict[str, object] | None:
    """Say what the job should reach, and keep it in its directory; None where nothing says so."""
    from dataclasses import asdict

    from hpcdl.workflows.expectation import as_lines, expect, keep, why_none

    expected = expect(site, spec)
    if expected and folder:
        keep(expected, folder)
    if not args.json:
        for line in as_lines(expected) if expected else filter(None, [why_none(site, spec)]):
            print(f"  {line}")
    return asdict(expected) if expected else None


GROUP = Group(
    "job",
    "batch jobs: render, submit, watch and report on training jobs",
    (
        Command("submit",
                "Write a job script and submit it; leave nothing behind if Slurm rejects it.",
                "hpcdl job submit --partition v100 --gpus 16 -- python my_train.py --lr 0.1",
                _submit, _submit_options, changes=True),
        Command("render", "Print the job script, and submit nothing.",
                "hpcdl job render --partition p100 --gpus 8 > job.sh", _render, _render_options),
        Command("explain", "Print the job script with the reason for every line.",
                "hpcdl job explain --partition p100 --gpus 8", _explain, request.options),
        Command("schema", "Print the JSON Schema of job.yaml, for editors.",
                "hpcdl job schema > job.schema.json", _schema, site=False),
        Command("watch", "Watch a job: state, reason for waiting, progress.",
                "hpcdl job watch 4711", queued.watch, queued.watch_options),
        Command("log", "Print the end of a job's log; with -f what comes, until the job ends.",
                "hpcdl job log -f 4711", queued.log, queued.log_options),
        Command("list", "List your jobs with state, age and directory, newest first.",
                "hpcdl job list --last 5", queued.list_jobs, queued.list_options),
        Command("sweep",
                "Submit a matrix of jobs as job arrays; a second run submits only missing points.",
                "hpcdl job sweep --name scaling --over gpus=1,2,4 --over model=resnet50,vgg16",
                sweep.run, sweep.options, changes=True),
        Command("report",
                "Report a job's throughput, where each step's time went, and what to improve.",
                "hpcdl job report 4711", queued.report,
                option("job", metavar="JOB", help="job id, or the job's directory")),
        Command("usage", "Sum GPU hours, CPU hours and energy of jobs, from Slurm's accounting.",
                "hpcdl job usage --since 2026-01 --by account --by month --all-users", queued.usage,
                queued.usage_options),
        Command("lint",
                "Check any sbatch script against the rules of a Slurm release; exit 1 on errors.",
                "hpcdl job lint --slurm-version 22.05 train.sh", lint.run, lint.options),
        Command("cancel", "Cancel jobs.", "hpcdl job cancel 4711", queued.cancel,
                queued.cancel_options, changes=True),
    ),
)  # fmt: skip
