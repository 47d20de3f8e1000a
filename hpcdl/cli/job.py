"""`hpcdl job`: batch scripts for training jobs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.cli.framework import Command, Group, print_json, the_site
from hpcdl.system.errors import BadInput, ExitCode

if TYPE_CHECKING:
    from hpcdl.jobs import JobSpec, Module, Script
    from hpcdl.jobs.submission import Submission
    from hpcdl.jobs.sweep_run import Standing
    from hpcdl.jobs.watch import Snapshot
    from hpcdl.site import Site
    from hpcdl.workflows.expectation import Expectation


def _request(parser: argparse.ArgumentParser) -> None:
    """The options that describe a job."""
    add = parser.add_argument
    add("--partition", metavar="NAME", help="partition (else the site's default)")
    add("--gpus", type=int, metavar="N", help="GPUs in all, one rank each")
    add("--nodes", type=int, metavar="N", help="nodes")
    add("--gpus-per-node", type=int, metavar="N", help="GPUs on each node")
    add("--tasks-per-node", type=int, metavar="N", help="ranks on each node without GPUs")
    add("--cpus-per-task", type=int, metavar="N", help="CPUs of a rank (else its share)")
    add("--time", metavar="TIME", help="walltime, as for sbatch (else an hour)")
    add("--name", help="name of the job (else train)")
    add(
        "--launcher",
        help="horovod (default), horovod-mpirun, multiworker or single",
    )
    add("--module", action="append", default=[], metavar="NAME[/VERSION]",
        help="module to load instead of the release's; may be repeated")  # fmt: skip
    add("--no-module", action="store_true", help="load no module")
    add("--env", action="append", default=[], metavar="K=V", help="a variable of the job")
    add("--account", metavar="NAME", help="account to charge")
    add("--qos", metavar="NAME", help="quality of service")
    add("--data", metavar="DIR", help="data set; jobs see it as HPCDL_DATA")
    add("--stage-data", action="store_true", help="copy it to the nodes' own disks first")
    add("--container", metavar="IMAGE", help="image to run the program in, modules left out")
    add("--no-preflight", action="store_true", help="start without checking the allocation")
    add("--job-dir", type=Path, metavar="DIR", help="folder of the job's files")
    add("--file", type=Path, metavar="FILE", help="job.yaml; options go before what it says")
    add("--slurm-version", metavar="V", help="write for this release, not the site's")
    parser.epilog = "after --: the program, or options of `hpcdl train`"
    parser.set_defaults(takes_program=True)


def _asked(args: argparse.Namespace) -> Site:
    """The site, as of --slurm-version. What --file says fills the options that are not given."""
    if args.file is not None:
        _fill(args)
    site = the_site(args)
    if args.slurm_version is None:
        return site
    from hpcdl.jobs.dialect import with_version

    return with_version(site, args.slurm_version)


def _fill(args: argparse.Namespace) -> None:
    from hpcdl.jobs.schema import load_request

    said = load_request(args.file)
    shape = ("gpus", "nodes", "gpus_per_node", "tasks_per_node")
    if any(getattr(args, key) is not None for key in shape):
        said = {key: value for key, value in said.items() if key not in shape}
    if "job_dir" in said:
        said["job_dir"] = Path(said["job_dir"])
    for key, value in said.items():
        if getattr(args, key, "") is None:
            setattr(args, key, value)
    args.env = [*(f"{name}={value}" for name, value in said["env"].items()), *args.env]
    args.no_module = args.no_module or (said.get("modules") == [] and not args.module)
    args.module = args.module or said.get("modules", [])
    args.stage_data = args.stage_data or said["stage_data"]
    args.no_preflight = args.no_preflight or not said["preflight"]
    args.rest = args.rest or said.get("program", [])


def _spec(args: argparse.Namespace, site: Site) -> JobSpec:
    from hpcdl.jobs.spec import JobSpec, command_of, minutes_of

    return JobSpec(
        partition=args.partition or site.default_partition,
        gpus=args.gpus,
        nodes=args.nodes,
        gpus_per_node=args.gpus_per_node,
        tasks_per_node=args.tasks_per_node,
        cpus_per_task=args.cpus_per_task,
        minutes=minutes_of(args.time) if args.time is not None else None,
        name="train" if args.name is None else args.name,
        launcher="horovod" if args.launcher is None else args.launcher,
        program=command_of(args.rest),
        environment=dict(_pair("--env", text, "NAME=VALUE") for text in args.env),
        account=args.account,
        qos=args.qos,
        job_dir=args.job_dir.absolute() if args.job_dir else None,
        preflight=not args.no_preflight,
        data=str(Path(args.data).absolute()) if args.data else None,
        stage=args.stage_data,
        container=args.container,
    )


def _pair(option: str, text: str, form: str) -> tuple[str, str]:
    """`NAME=VALUE` as two."""
    name, sign, value = text.partition("=")
    if not sign:
        raise BadInput(f"{option} {text!r} has no '='", hint=f"write {form}")
    return name, value


def _module(args: argparse.Namespace, site: Site, *, published: bool) -> Module:
    from hpcdl.workflows.modules import check_available, module_for

    # A container brings its own software: no module, unless one is named.
    none = args.no_module or (args.container is not None and not args.module)
    partition = args.partition or site.default_partition
    module = module_for(site, args.module, partition=partition, none=none, published=published)
    if published and args.module:
        check_available(site, module)
    return module


def _render(args: argparse.Namespace) -> ExitCode:
    from hpcdl.jobs.script import render_script

    site = _asked(args)
    script = render_script(site, _spec(args, site), _module(args, site, published=False))
    if args.json:
        from dataclasses import asdict

        print_json({"script": script.text, "layout": asdict(script.layout)})
    else:
        _print_script(script)
    return ExitCode.OK


def _print_script(script: Script) -> None:
    """The script byte for byte, whatever bytes its arguments are made of."""
    sys.stdout.flush()
    sys.stdout.buffer.write(script.text.encode(errors="surrogateescape"))
    sys.stdout.buffer.flush()


def _explain(args: argparse.Namespace) -> ExitCode:
    from hpcdl.jobs.script import explain, render_script

    site = _asked(args)
    script = render_script(site, _spec(args, site), _module(args, site, published=False))
    if args.json:
        version = script.slurm_version
        print_json(
            [
                {"text": line.text, "reason": line.reason, "rule": line.rule(version)}
                for line in script.lines
            ]
        )
    else:
        print(explain(script))
    return ExitCode.OK


def _schema(args: argparse.Namespace) -> ExitCode:
    from hpcdl.jobs.schema import JOB

    print_json(JOB)
    return ExitCode.OK


def _submit_options(parser: argparse.ArgumentParser) -> None:
    _request(parser)
    parser.add_argument("--watch", action="store_true", help="follow the job to its end")
    parser.add_argument("--chain", type=int, default=1, metavar="N",
                        help="queue N jobs, each going on where the last one stopped")  # fmt: skip


def _submit(args: argparse.Namespace) -> ExitCode:
    from dataclasses import asdict, replace

    from hpcdl.jobs.submission import place, submit

    site = _asked(args)
    spec = replace(_spec(args, site), chain=args.chain)
    module = _module(args, site, published=True)
    if args.dry_run:
        return _would_submit(*place(site, spec, module), site, args)
    submission = submit(site, spec, module)
    if not args.json:
        print(f"job {submission.job_id} submitted\n  script {submission.script}\n"
              f"  log    {submission.log}\n  result {submission.result}", flush=True)  # fmt: skip
    expected = _expected(site, spec, submission.folder)
    if args.json and not args.watch:
        print_json({**_submission_data(submission), "expectation": expected and asdict(expected)})
    elif not args.json:
        _show_expected(expected)
    return _watch_to_the_end(submission, args) if args.watch else ExitCode.OK


def _would_submit(script: Script, spec: JobSpec, site: Site, args: argparse.Namespace) -> ExitCode:
    """What --dry-run shows: the script, and what it should reach."""
    from dataclasses import asdict

    expected = _expected(site, spec)
    if args.json:
        print_json({"folder": spec.job_dir, "script": script.text, "layout": asdict(script.layout),
                    "expectation": expected and asdict(expected)})  # fmt: skip
    else:
        print(f"would submit this script from {spec.job_dir}:\n")
        _print_script(script)
        _show_expected(expected)
    return ExitCode.OK


def _expected(site: Site, spec: JobSpec, folder: Path | None = None) -> Expectation | None:
    """What the job should reach, kept in its folder; None where nothing says so."""
    from hpcdl.workflows.expectation import expect, keep

    expected = expect(site, spec)
    if expected and folder:
        keep(expected, folder)
    return expected


def _show_expected(expected: Expectation | None) -> None:
    from hpcdl.workflows.expectation import as_lines

    for line in as_lines(expected) if expected else ():
        print(f"  {line}")


def _watch_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="job id, or the job's folder")
    parser.add_argument("--once", action="store_true", help="say how it stands and leave")


def _watch(args: argparse.Namespace) -> ExitCode:
    from hpcdl.jobs.submission import find
    from hpcdl.jobs.watch import as_line, look

    submission = find(the_site(args), args.job)
    if not args.once:
        return _watch_to_the_end(submission, args)
    snapshot = look(submission)
    print_json(_snapshot_data(snapshot)) if args.json else print(as_line(snapshot))
    return ExitCode.OK


def _watch_to_the_end(submission: Submission, args: argparse.Namespace) -> ExitCode:
    from hpcdl.jobs.watch import follow
    from hpcdl.system.progress import StatusLine

    snapshot = None
    with StatusLine(quiet=args.json) as status:
        for snapshot in follow(submission):
            status.show(_line(snapshot), key=(snapshot.state, snapshot.restarts))
    assert snapshot is not None
    if args.json:
        print_json({**_submission_data(submission), **_snapshot_data(snapshot)})
    elif not snapshot.ok:
        _show_end_of_log(submission)
    return ExitCode.OK if snapshot.ok else ExitCode.NO


def _line(snapshot: Snapshot) -> str:
    from hpcdl.jobs.watch import as_line

    return as_line(snapshot)


def _show_end_of_log(submission: Submission) -> None:
    lines = submission.log.read_text(errors="replace") if submission.log.exists() else ""
    for line in lines.splitlines()[-12:]:
        print(f"| {line}", file=sys.stderr)
    print(f"log: {submission.log}", file=sys.stderr)


def _submission_data(submission: Submission) -> dict[str, object]:
    return {
        "job_id": submission.job_id,
        "chain": submission.chain,
        "folder": submission.folder,
        "script": submission.script,
        "log": submission.log,
        "result": submission.result,
    }


def _snapshot_data(snapshot: Snapshot) -> dict[str, object]:
    from dataclasses import asdict

    return asdict(snapshot)


def _from_one(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:12]) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"'{text[:30]}' is no whole number from 1")
    return int(text)


def _sweep_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--over", action="append", default=[], metavar="KEY=A,B", help="values of one key")
    add("--exclude", action="append", default=[], metavar="KEY=A,KEY=B", help="points to leave out")
    add("--running", type=_from_one, metavar="N", help="the most jobs at a time")
    add("--limit", type=_from_one, default=1000, metavar="N", help="the most points (1000)")
    add("--status", action="store_true", help="say how the sweep stands, and leave")
    _request(parser)


def _sweep(args: argparse.Namespace) -> ExitCode:
    from hpcdl.jobs import sweep_run
    from hpcdl.jobs.sweep import matrix_of, plan

    site = _asked(args)
    spec = _spec(args, site)
    folder = sweep_run.sweep_folder(site, spec.name)
    matrix = matrix_of([_pair("--over", text, "KEY=A,B") for text in args.over])
    exclude = [dict(_pair("--exclude", pair, "KEY=A,KEY=B") for pair in text.split(","))
               for text in args.exclude]  # fmt: skip
    points = plan(site, spec, matrix, exclude, limit=args.limit)
    if args.status:
        found = sweep_run.standings(folder, points)
    else:
        module = _module(args, site, published=True)
        if args.dry_run:
            for group, script in sweep_run.preview(site, folder, points, module, args.running):
                print(f"# would submit an array of {len(group.points)}:\n{script.text}")
            return ExitCode.OK
        found = sweep_run.submit(site, folder, points, module, args.running)
    return _show_sweep(found, folder, args)


def _show_sweep(found: Sequence[Standing], folder: Path, args: argparse.Namespace) -> ExitCode:
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


def _report_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="job id, or the job's folder")


def _report(args: argparse.Namespace) -> ExitCode:
    from dataclasses import asdict

    from hpcdl.jobs.report import as_text, summarize
    from hpcdl.jobs.submission import asked, find
    from hpcdl.jobs.watch import look, result_of, usage_of
    from hpcdl.workflows.expectation import compare, comparison_line, kept

    submission = find(the_site(args), args.job)
    report = summarize(
        look(submission), result_of(submission), asked(submission), usage_of(submission)
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


def _lint_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="sbatch scripts; - is stdin"
    )
    parser.add_argument(
        "--slurm-version", metavar="X.Y", help="release to judge for (else the site's)"
    )
    parser.add_argument("--partition", metavar="NAME", help="partition it is meant for")
    parser.add_argument("--sarif", action="store_true", help="print SARIF for code scanners")


def _lint(args: argparse.Namespace) -> ExitCode:
    import os

    from hpcdl.jobs.lint import run_lint

    site = the_site(args) if args.site or args.partition or os.environ.get("HPCDL_SITE") else None
    return run_lint(
        args.files,
        args.slurm_version or (site.slurm.version if site else None),
        args.json,
        partition=site.partition(args.partition) if site and args.partition else None,
        as_sarif=args.sarif,
    )


def _cancel_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("jobs", nargs="+", metavar="JOB", help="job ids, or jobs' folders")


def _cancel(args: argparse.Namespace) -> ExitCode:
    from hpcdl.jobs.submission import find
    from hpcdl.slurm import client

    site = the_site(args)
    ids = [job_id for job in args.jobs for job_id in find(site, job).chain]
    if args.dry_run:
        print(f"would cancel {', '.join(map(str, ids))}")
        return ExitCode.OK
    client.cancel(ids)
    print_json({"cancelled": ids}) if args.json else print(f"cancelled {', '.join(map(str, ids))}")
    return ExitCode.OK


GROUP = Group(
    "job",
    "batch scripts: render, submit and follow training jobs",
    (
        Command(
            "submit",
            "Write a job's script, ask Slurm whether it would run, and queue it.",
            "hpcdl job submit --partition v100 --gpus 16 -- python my_train.py --lr 0.1",
            _submit,
            _submit_options,
            changes=True,
        ),
        Command(
            "render",
            "Print a job's script, and nothing else.",
            "hpcdl job render --partition p100 --gpus 8 > job.sh",
            _render,
            _request,
        ),
        Command(
            "explain",
            "Print a job's script with the reason and the rule of every line.",
            "hpcdl job explain --partition p100 --gpus 8",
            _explain,
            _request,
        ),
        Command(
            "schema",
            "Print the JSON Schema of job.yaml, for editors.",
            "hpcdl job schema > job.schema.json",
            _schema,
            site=False,
        ),
        Command(
            "watch",
            "Follow a job: state, reason for waiting, progress.",
            "hpcdl job watch 4711",
            _watch,
            _watch_options,
        ),
        Command(
            "sweep",
            "Run a matrix of jobs as job arrays; run it again to submit only what is missing.",
            "hpcdl job sweep --name scaling --over gpus=1,2,4 --over model=resnet50,vgg16",
            _sweep,
            _sweep_options,
            changes=True,
        ),
        Command(
            "report",
            "Say how fast a job was, where each step's time went, and what to do about it.",
            "hpcdl job report 4711",
            _report,
            _report_options,
        ),
        Command(
            "lint",
            "Judge any sbatch script by the rules of its Slurm release; exit 1 on errors.",
            "hpcdl job lint --slurm-version 22.05 train.sh",
            _lint,
            _lint_options,
        ),
        Command(
            "cancel",
            "Cancel jobs.",
            "hpcdl job cancel 4711",
            _cancel,
            _cancel_options,
            changes=True,
        ),
    ),
)
