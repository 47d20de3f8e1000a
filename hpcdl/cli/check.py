"""`hpcdl check`: nightly regression checks by ReFrame, and verdicts on their results."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.cli import check_history, check_references
from hpcdl.cli.check_options import answer_of, history_option, modules, request_of, selection, shown
from hpcdl.cli.framework import Command, Group, instead, option, print_json, show, the_site
from hpcdl.system.amounts import at_least
from hpcdl.system.errors import ExitCode

if TYPE_CHECKING:
    from hpcdl.regress.answer import GateAnswer
    from hpcdl.regress.runner import CheckOutcome
    from hpcdl.site import Site


def _settings(args: argparse.Namespace) -> ExitCode:
    from hpcdl.regress.reframe_adapter.settings import render_settings
    from hpcdl.slurm.execution import current_or_cluster
    from hpcdl.system.files import write_atomic
    from hpcdl.workflows.modules import modules_by_partition

    site = the_site(args)
    text = render_settings(site, modules_by_partition(site), execution=current_or_cluster())
    if args.output is None:
        return show(args, {"settings": text}, text, end="")
    write_atomic(args.output, text)
    text = f"wrote {args.output}; next: reframe -C {args.output} -r"
    return show(args, {"file": args.output}, text)


def _run_options(parser: argparse.ArgumentParser) -> None:
    selection(parser)
    add = parser.add_argument
    add("--distribute", action="store_true",
        help="run single-node checks on every node; name slow nodes")  # fmt: skip
    add("--waive", action="append", default=[], metavar="NAME",
        help="pass a check without a current reference")  # fmt: skip
    history_option(parser)
    add("--no-history", action="store_true", help="do not add the run to the history")
    add("--retries", type=at_least(0), metavar="N",
        help="run what fails again, up to N times; by default only what was too"
        " slow on a machine that emulates all nodes, once")  # fmt: skip
    add("--config", action="append", default=[], type=Path, metavar="FILE",
        help="ReFrame settings of your own beside hpcdl's, such as log handlers;"
        " may be repeated")  # fmt: skip
    parser.epilog = "after --: arguments of ReFrame, such as -J reservation=tests"
    instead(parser, {"all": "leave --tag and --name out", "list": "docs/checks.md has them"})
    parser.set_defaults(takes_program=True, behind="--name")
    parser.set_defaults(words=dict.fromkeys(("smoke", "nightly", "weekly", "node"), "--tag"))


def _run(args: argparse.Namespace) -> ExitCode:
    from hpcdl.regress.reframe_adapter.releases import require_reframe
    from hpcdl.regress.runner import as_data, run_checks
    from hpcdl.regress.show import gate_text, outcome_text
    from hpcdl.system.progress import StatusLine

    require_reframe()
    _require_options(args.set)
    site = the_site(args)
    with StatusLine(quiet=args.json) as status:
        outcome = run_checks(site, modules(site, args), request_of(args), shown(status))
    if not args.json:
        print(outcome_text(outcome), flush=True)
    remembered = _remember(site, outcome, args)
    answer = _gate_now(site, args) if remembered else None
    if args.json:
        print_json({**as_data(outcome), "gate": answer.as_data() if answer else None})
    elif answer:
        print(gate_text(answer))
    if not outcome.ok:
        return ExitCode.NO
    return ExitCode.PARTLY if remembered is False else ExitCode.OK


def _require_options(settings: Sequence[str]) -> None:
    from hpcdl.system.errors import BadInput
    from hpcdl.system.text import did_you_mean
    from hpcdl.train.options import ARGUMENTS

    known = [argument.field for argument in ARGUMENTS]
    for setting in settings:
        name = setting.partition("=")[0].lstrip("-").replace("-", "_")
        if name not in known:
            hint = did_you_mean(name, known) or "see `hpcdl train --help`"
            raise BadInput(f"--set {setting}: `hpcdl train` has no option {name}", hint=hint)


def _gate_now(site: Site, args: argparse.Namespace) -> GateAnswer | None:
    """The gate's answer after the run, the same as `hpcdl check gate` gives; None where it fails.

    The run itself is done by then: what hinders the gate is told, and ends nothing.
    """
    from hpcdl.system.errors import HpcdlError

    try:
        return answer_of(site, args)
    except HpcdlError as error:
        print(f"no answer of the gate: {error.render()}", file=sys.stderr)
        return None


def _remember(site: Site, outcome: CheckOutcome, args: argparse.Namespace) -> bool | None:
    """Add a run to the history, and whether that was done.

    None where none was to be: runs with --set do not count.
    """
    from hpcdl.regress.exchange import of_outcome
    from hpcdl.regress.history import history_path, open_history
    from hpcdl.system.errors import HpcdlError

    if outcome.settings or args.no_history:
        return None
    try:
        with open_history(history_path(site, args.history), site.name) as history:
            history.add(of_outcome(outcome))
    except HpcdlError as error:
        again = f"`hpcdl check history import {outcome.directory.path}` adds it later"
        print(f"not in the history: {error.render()}\n{again}", file=sys.stderr)
        return False
    return True


def _ci_options(parser: argparse.ArgumentParser) -> None:
    from hpcdl.regress.ci import DAYS, KINDS

    add = parser.add_argument
    add("kind", choices=(*KINDS, "grafana"), help="system that runs it, or shows its results")
    add("--output", type=Path, metavar="PATH", help="output file; for systemd a directory")
    add("--at", default="02:00", metavar="HH:MM", help="start of the nightly checks (02:00)")
    add("--day", default="sunday", choices=DAYS, help="day of the weekly checks (sunday)")
    add("--runner", default="", metavar="TAG", help="runner tag (default: the site's name)")
    add("--user", default="", metavar="NAME", help="systemd: user who runs the checks")
    add("--command", default="", metavar="PATH", help="hpcdl executable to run (default: this one)")
    add("--notify", default="", metavar="FILE", help="whom the gate tells what has changed")
    add("--on-failure", default="", metavar="UNIT", help="systemd: unit to start after a failure")
    add("--mail-type", default="", metavar="TYPE", help="scrontab: when Slurm mails, such as FAIL")
    add("--mail-user", default="", metavar="ADDRESS", help="scrontab: whom Slurm mails")


def _ci(args: argparse.Namespace) -> ExitCode:
    from dataclasses import fields

    from hpcdl.regress.ci import Request, dashboard, render, site_file, this_command, write

    site = the_site(args)
    given = {one.name: getattr(args, one.name, "") for one in fields(Request)}
    request = Request(**given | {"site_file": site_file(args.kind, site, args.site),
                                 "command": args.command or this_command()})  # fmt: skip
    files = dashboard() if args.kind == "grafana" else render(args.kind, site, request)
    if args.output is None or args.dry_run:
        several = len(files) > 1
        texts = [f"# {name}\n{text}" if several else text for name, text in files.items()]
        return show(args, {"files": files}, "\n".join(texts), end="")
    written = write(files, args.output)
    return show(args, {"files": written}, "\n".join(f"wrote {path}" for path in written))


GROUP = Group(
    "check",
    "nightly regression checks: runs, references, verdicts, history, gate",
    (
        Command("run", "Run checks on the cluster and print a verdict for each.",
                "hpcdl check run --partition p100 --tag smoke", _run, _run_options),
        Command("settings", "Print ReFrame settings for the site.",
                "hpcdl check settings --output settings.py", _settings,
                option("--output", type=Path, metavar="FILE",
                       help="write to FILE, not to the screen")),
        Command("ci",
                "Render a nightly pipeline (GitLab, GitHub, scrontab, systemd), or a dashboard.",
                "hpcdl check ci gitlab --output .gitlab-ci.yml", _ci, _ci_options, changes=True),
        *check_history.COMMANDS,
        *check_references.COMMANDS,
    ),
)  # fmt: skip
