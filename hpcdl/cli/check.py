"""`hpcdl check`: nightly regression checks by ReFrame, references, verdicts on their results."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdl.cli import check_history
from hpcdl.cli.framework import Group, command, option, print_json, show, the_site
from hpcdl.system.amounts import at_least
from hpcdl.system.errors import BadInput, ExitCode, HpcdlError
from hpcdl.system.files import write_atomic
from hpcdl.system.resources import scratch_directory
from hpcdl.system.text import did_you_mean, table

if TYPE_CHECKING:
    from hpcdl.jobs import Module
    from hpcdl.regress.answer import GateAnswer
    from hpcdl.regress.nodes import Key
    from hpcdl.regress.reframe_adapter.process import CheckRequest, Progress
    from hpcdl.regress.run_directory import RunDirectory
    from hpcdl.regress.runner import CheckOutcome, Doubts
    from hpcdl.regress.verdict import Verdict
    from hpcdl.site import Site
    from hpcdl.system.text import StatusLine


def modules(site: Site, args: argparse.Namespace) -> dict[str, Module]:
    """The module of every partition that is checked."""
    from hpcdl.workflows.modules import modules_by_partition

    return modules_by_partition(site, args.partition, published=True)


_CHECKS = option(
    "--checks",
    "PATH",
    "file or directory of ReFrame checks instead of hpcdl's own",
    type=Path,
    many=True,
)
_SELECTION = (
    option("--partition", "NAME", "partition to check (default: all)", many=True),
    option("--tag", "TAG", "only checks with this tag: smoke, nightly, weekly, node", many=True),
    option("--name", "NAME", "only this check, or CHECK/CASE", many=True),
    _CHECKS,
)


def _request_of(args: argparse.Namespace, **more: Any) -> CheckRequest:
    from hpcdl.regress.reframe_adapter.process import CheckRequest

    return CheckRequest(
        partitions=tuple(args.partition),
        tags=tuple(args.tag),
        names=tuple(args.name),
        paths=tuple(args.checks),
        repeat=args.runs,
        **more,
    )


def _shown(status: StatusLine) -> Progress:
    """Return the function that updates the status line while checks run."""
    from hpcdl.regress.formats import progress_line

    def progress(directory: RunDirectory) -> None:
        text, key = progress_line(directory)
        status.show(text, key=key)

    return progress


@command("hpcdl check list --checks my_checks.py", _CHECKS)
def _list(args: argparse.Namespace) -> ExitCode:
    """List the checks: parameters, tags, partitions that they fit, references."""
    from hpcdl.regress.references import load_references
    from hpcdl.regress.reframe_adapter.process import described, require_reframe

    require_reframe()
    site = the_site(args)
    for path in args.checks:
        if not path.exists():
            raise BadInput(f"there are no checks at {path}", hint="name a file or a directory")
    with scratch_directory() as there:
        settings = there / "settings.py"
        write_atomic(settings, _settings_of(site))
        checks = described(settings, args.checks)
    referenced = [row.check for row in load_references(site).values()]
    rows = [
        {
            "name": one["display_name"],
            "tags": sorted(one["tags"]),
            "partitions": [where.rpartition(":")[2] for where in one["valid_systems"]],
            "references": referenced.count(one["@class"]),
        }
        for one in checks
    ]
    header = ("check", "tags", "partitions", "references")
    cells = [
        [row["name"], ", ".join(row["tags"]), ", ".join(row["partitions"]), str(row["references"])]
        for row in rows
    ]
    return show(args, rows, table(cells, header) if rows else "there are no checks")


@command("hpcdl check settings > settings.py")
def _settings(args: argparse.Namespace) -> ExitCode:
    """Print ReFrame settings for the site."""
    text = _settings_of(the_site(args))
    return show(args, {"settings": text}, text, end="")


def _settings_of(site: Site) -> str:
    from hpcdl.regress.reframe_adapter.settings import render_settings
    from hpcdl.slurm.execution import current_or_cluster
    from hpcdl.workflows.modules import modules_by_partition

    return render_settings(site, modules_by_partition(site), execution=current_or_cluster())


@command(
    "hpcdl check run --partition p100 --tag smoke",
    *_SELECTION,
    option(
        "--set", "NAME=VALUE", "option of the training program, such as delay_ms=400", many=True
    ),
    option("--distribute", "run single-node checks on every node; name slow nodes"),
    option("--waive", "NAME", "pass a check without a current reference", many=True),
    option(
        "--runs",
        "N",
        "run every check N times; the median counts (1, and again what is suspicious)",
        type=at_least(1),
        default=1,
    ),
    rest="arguments of ReFrame, such as -J reservation=tests",
)
def _run(args: argparse.Namespace) -> ExitCode:
    """Run checks on the cluster and print a verdict for each."""
    from hpcdl.regress.answer import gate_text
    from hpcdl.regress.formats import outcome_text
    from hpcdl.regress.reframe_adapter.process import require_reframe
    from hpcdl.regress.runner import as_data, run_checks
    from hpcdl.system.text import StatusLine

    require_reframe()
    _require_options(args.set)
    site = the_site(args)
    request = _request_of(
        args,
        settings=tuple(args.set),
        waived=tuple(args.waive),
        distribute=args.distribute,
        passed=tuple(args.rest),
    )
    with StatusLine(quiet=args.json) as status:
        chosen, doubts = modules(site, args), _doubts(site)
        outcome = run_checks(site, chosen, request, _shown(status), doubts)
    if not args.json:
        print(outcome_text(outcome), flush=True)
    remembered = _remember(site, outcome)
    answer = _gate_now(site) if remembered else None
    if args.json:
        print_json({**as_data(outcome), "gate": answer.as_data() if answer else None})
    elif answer:
        print(gate_text(answer))
    if not outcome.ok:
        return ExitCode.NO
    return ExitCode.PARTLY if remembered is False else ExitCode.OK


def _doubts(site: Site) -> Doubts:
    """Return the function that finds the cases of tonight to measure again, by the history."""
    from hpcdl.regress.exchange import of_verdicts
    from hpcdl.regress.gate import doubtful, rulings_of
    from hpcdl.regress.history import read_history
    from hpcdl.regress.nodes import key_of

    rulings = rulings_of(site)

    def doubts(verdicts: Sequence[Verdict]) -> set[Key]:
        try:
            with read_history(site) as history:
                found = doubtful(history, of_verdicts(verdicts, site.name), rulings)
        except HpcdlError:  # reported where the run is added to it
            return set()
        cases = {(one.check, one.case, one.partition, one.environment) for one in found}
        return {key for key in map(key_of, verdicts) if not key.planned and key[:4] in cases}

    return doubts


def _require_options(settings: Sequence[str]) -> None:
    from hpcdl.train.options import OPTIONS

    known = [option.name for option in OPTIONS]
    for setting in settings:
        name = setting.partition("=")[0].lstrip("-").replace("-", "_")
        if name not in known:
            hint = did_you_mean(name, known) or "see `hpcdl train --help`"
            raise BadInput(f"--set {setting}: `hpcdl train` has no option {name}", hint=hint)


def _gate_now(site: Site) -> GateAnswer | None:
    """The gate's answer after the run, the same as `hpcdl check gate` gives; None where it fails.

    The run itself is done by then: a fault of the gate is printed, and ends nothing.
    """
    from hpcdl.regress.gate import answer_now

    try:
        return answer_now(site)
    except HpcdlError as error:
        print(f"no answer of the gate: {error.render()}", file=sys.stderr)
        return None


def _remember(site: Site, outcome: CheckOutcome) -> bool | None:
    """Add a run to the history, and whether that was done.

    None where none was to be: runs with --set or -S do not count.
    """
    from hpcdl.regress.exchange import of_outcome
    from hpcdl.regress.history import history_path, open_history

    if outcome.settings:
        print(f"not in the history: the run set {', '.join(outcome.settings)}", file=sys.stderr)
        return None
    try:
        with open_history(history_path(site), site.name) as history:
            history.add(of_outcome(outcome))
    except HpcdlError as error:
        again = f"`hpcdl check history import {outcome.directory.path}` adds it later"
        print(f"not in the history: {error.render()}\n{again}", file=sys.stderr)
        return False
    return True


@command(
    "hpcdl check night --notify notify.yaml",
    option("--weekly", "the weekly checks, not the nightly ones and those of every node"),
    option("--runs", "N", "run every check N times (1)", type=at_least(1), default=1),
    option("--notify", "FILE", "notify the people in FILE of what has changed", type=Path),
)
def _night(args: argparse.Namespace) -> ExitCode:
    """Run a whole night: checks, pages in WORK/checks/reports, gate; exit code 0 if all is well."""
    from hpcdl.regress.ci import run_night

    site = the_site(args)
    well = run_night(site, weekly=args.weekly, runs=args.runs, notify=args.notify)
    return ExitCode.OK if well else ExitCode.NO


def _ci_options(parser: argparse.ArgumentParser) -> None:
    from hpcdl.regress.ci import KINDS

    add = parser.add_argument
    add("kind", choices=KINDS, help="system that runs it")
    add("--output", type=Path, metavar="PATH", help="output file; for systemd a directory")
    add("--at", default="02:00", metavar="HH:MM", help="start of the nightly checks (02:00)")
    add("--user", default="", metavar="NAME", help="systemd: user who runs the checks (you)")
    add("--runs", type=at_least(1), default=1, metavar="N", help="run every check N times (1)")
    add("--explain", action="store_true", help="say what it will do tonight, and write nothing")
    add("--notify", default="", metavar="FILE", help="whom the gate notifies of changes")


@command("hpcdl check ci gitlab --output .gitlab-ci.yml", _ci_options, changes=True)
def _ci(args: argparse.Namespace) -> ExitCode:
    """Render a nightly pipeline: GitLab, GitHub, scrontab or systemd."""
    from hpcdl.regress.ci import (
        Request,
        explained,
        render,
        site_file,
        this_command,
        unit_user,
        write,
    )

    site = the_site(args)
    given: dict[str, Any] = {one.name: getattr(args, one.name, "") for one in fields(Request)}
    if args.kind == "systemd":
        given["user"] = unit_user(args.user, site)
    request = Request(
        **given | {"site_file": site_file(args.kind, site, args.site), "command": this_command()}
    )
    if args.explain:
        text = explained(site, request)
        return show(args, {"explained": text.splitlines()}, text)
    files = render(args.kind, site, request)
    if args.output is None or args.dry_run:
        several = len(files) > 1
        texts = [f"# {name}\n{text}" if several else text for name, text in files.items()]
        return show(args, {"files": files}, "\n".join(texts), end="")
    written = write(files, args.output)
    return show(args, {"files": written}, "\n".join(f"wrote {path}" for path in written))


@command(
    "hpcdl check references measure --partition p100 --runs 5",
    option("action", "measure or show", choices=("measure", "show")),
    *_SELECTION,
    option("--runs", "N", "number of runs to measure (5)", type=at_least(1), default=5),
    changes=True,
)
def _references(args: argparse.Namespace) -> ExitCode:
    """Measure or show the reference values that results are compared with."""
    if args.action == "measure":
        return _measure(args)
    for name, value in (("--tag", args.tag), ("--checks", args.checks)):
        if value:
            raise BadInput(
                f"`references {args.action}` takes no {name}",
                hint="select with --partition and --name; see --help",
            )
    return _show_references(args)


def _measure(args: argparse.Namespace) -> ExitCode:
    from hpcdl.regress.formats import references_text
    from hpcdl.regress.reframe_adapter.process import require_reframe
    from hpcdl.regress.runner import measure
    from hpcdl.system.text import StatusLine

    require_reframe()
    site, request = the_site(args), _request_of(args)
    if args.dry_run:
        what = ", ".join([*request.names, *(f"tag {tag}" for tag in request.tags)]) or "every check"
        where = ", ".join(part.label for part in site.by_groups(request.partitions))
        text = f"would run {what} {request.repeat} times on {where}, and write the references"
        return show(args, {"runs": request.repeat, "files": [], "references": []}, text)
    with StatusLine(quiet=args.json) as status:
        rows, edits = measure(site, modules(site, args), request, _shown(status))
    files = [edit.path for edit in edits.files]
    data = {"files": files, "references": [*map(asdict, rows)]}
    written = [f"wrote {file}: review it like code" for file in files]
    return show(args, data, "\n".join([references_text(rows), *written]))


def _show_references(args: argparse.Namespace) -> ExitCode:
    from hpcdl.regress.formats import references_text
    from hpcdl.regress.references import load_references

    rows = [
        row
        for row in load_references(the_site(args), args.partition).values()
        if not args.name or row.names & {*args.name}
    ]
    return show(args, [*map(asdict, rows)], references_text(rows))


GROUP = Group("check", (_run, _list, _settings, _night, _ci, *check_history.COMMANDS, _references))
