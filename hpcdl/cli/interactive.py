"""`hpcdl job shell` and `hpcdl job jupyter`: to work on a node."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.cli import request
from hpcdl.cli.framework import command, option, print_json, the_site
from hpcdl.system.amounts import at_least
from hpcdl.system.errors import BadInput, CheckFailed, ExitCode

if TYPE_CHECKING:
    from hpcdl.jobs.interactive import Server
    from hpcdl.jobs.submission import Submission

_POLL_SECONDS = 1.0
_PORT = 8888


@command(
    "hpcdl job shell --partition v100 --gpus 1 --time 2:00:00",
    request.options,
    changes=True,
    rest="a program to run on the node in place of the prompt",
)
def shell(args: argparse.Namespace) -> ExitCode | int:
    """Open a shell on a node, with the module loaded; the job ends with it."""
    from hpcdl.jobs.interactive import plan_shell, run_shell

    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not args.rest and not terminal and not args.dry_run:
        raise BadInput(
            "there is no terminal to open a shell on",
            hint="write -- PROGRAM to run a program instead; `hpcdl job submit` runs batch jobs",
        )
    site = request.asked_site(args)
    args.asked.setdefault("name", "shell")
    spec = replace(request.spec_of(args, site), program=tuple(args.rest))
    module = request.module_of(site, spec, published=not args.dry_run)
    plan = plan_shell(site, spec, module, Path.cwd())
    if args.dry_run:
        print(f"would run: salloc {' '.join(plan.options)}\n\n{plan.files['shell.sh'].decode()}")
        return ExitCode.OK
    return run_shell(plan, terminal=terminal)


@command(
    "hpcdl job jupyter --partition v100 --gpus 1 --time 4:00:00",
    request.short_options,
    option("--job", "ID", "print again how to reach the JupyterLab of a running job"),
    option(
        "--local-port",
        "N",
        f"port on your own computer ({_PORT})",
        type=at_least(1, 65535),
        default=_PORT,
    ),
    option("--login", "HOST", "login node's name on your computer (default: this one)"),
    changes=True,
    rest="more arguments of jupyter-lab",
)
def jupyter(args: argparse.Namespace) -> ExitCode:
    """Start JupyterLab in a job, and print how to reach it from your computer."""
    from hpcdl.jobs import submission
    from hpcdl.jobs.interactive import notebook

    if args.job is not None:
        site = the_site(args)
        run = submission.require_this_cluster(submission.find(site, args.job))
    else:
        site = request.asked_site(args)
        args.asked.setdefault("name", "jupyter")
        asked = replace(request.spec_of(args, site), program=tuple(args.rest))
        spec = notebook(asked, Path.cwd())
        module = request.module_of(site, spec, published=not args.dry_run)
        if args.dry_run:
            print(submission.place(site, spec, module)[0].text, end="")
            return ExitCode.OK
        run = submission.submit(site, spec, module)
        print(f"job {run.job_id} submitted\n  log    {run.log}", file=sys.stderr)
    server = _wait(run)
    _tell(args, run, server)
    return ExitCode.OK


def _wait(job: Submission) -> Server:
    """Wait until JupyterLab listens; CheckFailed where the job ends before."""
    from hpcdl.jobs.interactive import server_of
    from hpcdl.jobs.watch import follow, watched

    shown = ""
    with watched(job):
        for snapshot in follow(job):
            if snapshot.ended:
                raise CheckFailed(
                    f"job {job.job_id} ended before JupyterLab listened: {snapshot.description}",
                    hint=f"its log says why: {job.log}",
                )
            if snapshot.state == "RUNNING" and (server := server_of(job.folder)):
                return server
            if snapshot.description != shown:
                shown = snapshot.description
                print(f"  {shown}", file=sys.stderr)
            time.sleep(_POLL_SECONDS)
    raise AssertionError("follow ends with an ended job")


def _tell(args: argparse.Namespace, job: Submission, server: Server) -> None:
    import getpass
    import platform

    login = f"{getpass.getuser()}@{args.login or platform.node()}"
    tunnel, url = server.tunnel(login, args.local_port), f"http://localhost:{args.local_port}/lab"
    if args.json:
        data = {"job_id": job.job_id, "node": server.node, "port": server.port}
        print_json({**data, "tunnel": tunnel, "url": url, "token_file": server.file})
        return
    # A terminal is its owner's; a log or a pipe may be read by others.
    token = f"?token={server.token}" if sys.stdout.isatty() else ""
    print(
        f"JupyterLab runs on {server.node} in job {job.job_id}\n"
        f"  on your computer   {tunnel}\n"
        f"  in its browser     {url}{token}\n"
        f"  token              {server.file} (only you can read it)\n"
        f"  show this again    hpcdl job jupyter --job {job.job_id}\n"
        f"  stop               hpcdl job cancel {job.job_id}"
    )
