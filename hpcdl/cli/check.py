"""`hpcdl check`: nightly regression checks by ReFrame, and verdicts on their results."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.cli.framework import Command, Group, a_day, at_least, print_json, the_site
from hpcdl.system.errors import ExitCode

if TYPE_CHECKING:
    from hpcdl.jobs import Module
    from hpcdl.regress.check_request import CheckRequest
    from hpcdl.regress.reframe_adapter.process import Progress
    from hpcdl.regress.run_directory import RunDirectory
    from hpcdl.regress.runner import CheckOutcome
    from hpcdl.site import Site
    from hpcdl.system.progress import StatusLine


def _modules(site: Site, args: argparse.Namespace) -> dict[str, Module]:
    """The module of every partition that is checked."""
    from hpcdl.workflows.modules import modules_by_partition

    return modules_by_partition(site, args.partition, published=True)


def _selection(parser: argparse.ArgumentParser) -> None:
    """The options that choose checks."""
    add = parser.add_argument
    add("--partition", action="append", default=[], metavar="NAME",
        help="partition to check; may be repeated (default: all)")  # fmt: skip
    add("--tag", action="append", default=[], metavar="TAG",
        help="only checks with this tag: smoke, nightly, weekly")  # fmt: skip
    add("--name", action="append", default=[], metavar="NAME",
        help="only this check, or CHECK/CASE")  # fmt: skip
    add("--checks", action="append", default=[], type=Path, metavar="PATH",
        help="file or directory of ReFrame checks instead of hpcdl's own")  # fmt: skip
    add("--set", action="append", default=[], metavar="NAME=VALUE",
        help="option of the training program, such as delay_ms=400")  # fmt: skip


def _request(args: argparse.Namespace) -> CheckRequest:
    from hpcdl.regress.check_request import CheckRequest

    return CheckRequest(
        partitions=tuple(args.partition),
        tags=tuple(args.tag),
        names=tuple(args.name),
        settings=tuple(args.set),
        waived=tuple(getattr(args, "waive", ())),
        paths=tuple(args.checks),
        distribute=getattr(args, "distribute", False),
        repeat=getattr(args, "runs", 1),
        retries=getattr(args, "retries", None),
    )


def _settings_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write to FILE, not to the screen"
    )


def _settings(args: argparse.Namespace) -> ExitCode:
    from hpcdl.regress.reframe_adapter.settings import render_settings
    from hpcdl.slurm.execution import current_or_cluster
    from hpcdl.system.files import write_atomic
    from hpcdl.workflows.modules import modules_by_partition

    site = the_site(args)
    text = render_settings(site, modules_by_partition(site), execution=current_or_cluster())
    if args.output is None:
        print_json({"settings": text}) if args.json else print(text, end="")
        return ExitCode.OK
    write_atomic(args.output, text)
    if args.json:
        print_json({"file": args.output})
    else:
        print(f"wrote {args.output}; next: reframe -C {args.output} -r")
    return ExitCode.OK


def _run_options(parser: argparse.ArgumentParser) -> None:
    _selection(parser)
    parser.add_argument("--distribute", action="store_true",
                        help="run single-node checks on every node; name slow nodes")  # fmt: skip
    parser.add_argument("--waive", action="append", default=[], metavar="NAME",
                        help="pass a check without a current reference")  # fmt: skip
    _history_option(parser)
    parser.add_argument(
        "--no-history", action="store_true", help="do not add the run to the history"
    )
    parser.add_argument("--retries", type=at_least(0), metavar="N",
                        help="run what fails again, up to N times; by default only what was too"
                        " slow on a machine that emulates all nodes, once")  # fmt: skip


def _run(args: argparse.Namespace) -> ExitCode:
    from hpcdl.regress.reframe_adapter.releases import require_reframe
    from hpcdl.regress.runner import as_data, run_checks
    from hpcdl.regress.show import outcome_text
    from hpcdl.system.progress import StatusLine

    require_reframe()
    site = the_site(args)
    with StatusLine(quiet=args.json) as status:
        outcome = run_checks(site, _modules(site, args), _request(args), _shown(status))
    print_json(as_data(outcome)) if args.json else print(outcome_text(outcome))
    remembered = _remember(site, outcome, args)
    if not outcome.ok:
        return ExitCode.NO
    return ExitCode.OK if remembered else ExitCode.PARTLY


def _remember(site: Site, outcome: CheckOutcome, args: argparse.Namespace) -> bool:
    """Add a run to the history, and whether that was done; runs with --set do not count."""
    from hpcdl.regress.exchange import of_outcome
    from hpcdl.regress.history import history_path, open_history
    from hpcdl.system.errors import HpcdlError

    if args.set or args.no_history:
        return True
    try:
        with open_history(history_path(site, args.history)) as history:
            history.add(of_outcome(outcome))
    except HpcdlError as error:
        again = f"`hpcdl check history import {outcome.directory.path}` adds it later"
        print(f"not in the history: {error.render()}\n{again}", file=sys.stderr)
        return False
    return True


def _history_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--history", type=Path, metavar="FILE",
                        help="history file (default: HPCDL_HISTORY, or one per site)")  # fmt: skip


def _shown(status: StatusLine) -> Progress:
    """What renews a status line while checks run."""
    from hpcdl.regress.show import progress_line

    def progress(directory: RunDirectory) -> None:
        text, key = progress_line(directory)
        status.show(text, key=key)

    return progress


def _references_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("measure", "propose", "show"),
                        help="measure; propose a change from past runs; or show")  # fmt: skip
    _selection(parser)
    parser.add_argument(
        "--runs", type=at_least(1), default=5, metavar="N", help="number of runs to measure (5)"
    )
    parser.add_argument("--write", action="store_true", help="propose: apply the change")
    parser.add_argument("--if-missing", action="store_true",
                        help="measure: only checks of --name without a reference")  # fmt: skip


def _references(args: argparse.Namespace) -> ExitCode:
    actions = {"measure": _measure, "propose": _propose, "show": _show_references}
    _refuse_without_meaning(args)
    return actions[args.action](args)


def _refuse_without_meaning(args: argparse.Namespace) -> None:
    """Options that would be ignored, or would turn slowed runs into references."""
    from hpcdl.system.errors import BadInput

    given = {"--set": args.set}
    if args.action != "measure":
        given |= {"--tag": args.tag, "--checks": args.checks, "--if-missing": args.if_missing}
    if args.action != "propose":
        given |= {"--write": args.write}
    for option, value in given.items():
        if value:
            why = "a run with changed options cannot be a reference" if option == "--set" else ""
            raise BadInput(
                f"`references {args.action}` takes no {option}",
                hint=why or "select with --partition and --name; see --help",
            )


def _propose(args: argparse.Namespace) -> ExitCode:
    from dataclasses import asdict

    from hpcdl.regress.propose import propose
    from hpcdl.regress.show import proposals_text

    site = the_site(args)
    drafts = propose(site, _modules(site, args), args.partition, args.name)
    if args.write and not args.dry_run:
        drafts.write(site)
    if args.json:
        rows = [asdict(row) for proposal in drafts.proposals for row in proposal.rows]
        diffs = {str(proposal.path): proposal.diff for proposal in drafts.proposals}
        print_json({"diffs": diffs, "references": rows, "waiting": drafts.waiting})
    else:
        print(proposals_text(drafts), end="")
    return ExitCode.OK


def _measure(args: argparse.Namespace) -> ExitCode:
    from dataclasses import asdict

    from hpcdl.regress.measure import covered, measure
    from hpcdl.regress.reframe_adapter.releases import require_reframe
    from hpcdl.regress.show import references_text
    from hpcdl.system.progress import StatusLine

    require_reframe()
    site = the_site(args)
    modules, request = _modules(site, args), _request(args)
    if args.if_missing and covered(site, modules, request):
        return _show_references(args)
    with StatusLine(quiet=args.json) as status:
        done = measure(site, modules, request, _shown(status), write=not args.dry_run)
    if args.json:
        print_json({"files": done.files, "references": [asdict(row) for row in done.references]})
    else:
        print(references_text(done.references))
        for file in done.files:
            print(f"wrote {file}: review it like code")
    return ExitCode.OK


def _show_references(args: argparse.Namespace) -> ExitCode:
    from dataclasses import asdict

    from hpcdl.regress.references import load_references
    from hpcdl.regress.show import references_text

    site = the_site(args)
    chosen = site.by_groups(args.partition)
    sets = sorted({partition.reference_set for partition in chosen})
    partitions = {partition.label for partition in chosen}
    rows = [
        row
        for name in sets
        for row in load_references(site, name).values()
        if row.partition in partitions and (not args.name or row.names & set(args.name))
    ]
    print_json([asdict(row) for row in rows]) if args.json else print(references_text(rows))
    return ExitCode.OK


def _drift_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE",
                        help="CSV: date,value and optionally release,driver,node")  # fmt: skip


def _drift(args: argparse.Namespace) -> ExitCode:
    from hpcdl.regress.drift import analyse
    from hpcdl.regress.series import analysis_data, analysis_text, read_series

    analysis = analyse(read_series(args.file))
    print_json(analysis_data(analysis)) if args.json else print(analysis_text(analysis))
    return ExitCode.NO if analysis.alarm or analysis.slow_nodes else ExitCode.OK


def _history_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=("show", "export", "import"),
        help="what to do",
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE",
                        help="import: JSON lines, CSV, or run directories")  # fmt: skip
    parser.add_argument("--csv", action="store_true", help="export: CSV instead of JSON lines")
    parser.add_argument(
        "--since", type=a_day, metavar="DATE", help="only results from this date on"
    )
    _history_option(parser)


def _history(args: argparse.Namespace) -> ExitCode:
    from hpcdl.regress.exchange import FORMATS
    from hpcdl.regress.history import history_path, open_history
    from hpcdl.regress.show import history_text

    path = history_path(the_site(args), args.history)
    if args.action == "import":
        return _import(args, path)
    with open_history(path) as history:
        if args.action == "export":
            for line in FORMATS["csv" if args.csv else "jsonl"](history.results(args.since or "")):
                print(line)
        elif args.json:
            print_json([{"check": s[0], "case": s[1], "partition": s[2], "metric": s[3]}
                        for s in history.series()])  # fmt: skip
        else:
            print(history_text(history, path))
    return ExitCode.OK


def _import(args: argparse.Namespace, path: Path) -> ExitCode:
    from hpcdl.regress.exchange import incoming, refuse_cut
    from hpcdl.regress.history import open_history

    files = incoming(args.files)
    if args.dry_run:
        print(f"would add at most {sum(1 for file in files for _ in file)} results to {path}")
    else:
        with open_history(path) as history:
            added = history.add(result for file in files for result in file)
        print_json({"added": added}) if args.json else print(f"{added} new results in {path}")
    refuse_cut(files)
    return ExitCode.OK


def _gate_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--partition", action="append", default=[], metavar="NAME",
                        help="only this partition; may be repeated")  # fmt: skip
    parser.add_argument("--name", action="append", default=[], metavar="NAME",
                        help="only this check")  # fmt: skip
    _history_option(parser)


def _gate(args: argparse.Namespace) -> ExitCode:
    from dataclasses import asdict
    from datetime import datetime, timezone

    from hpcdl.regress.gate import ask
    from hpcdl.regress.history import history_path, open_history
    from hpcdl.regress.show import gate_text
    from hpcdl.slurm.execution import current_or_cluster

    site = the_site(args)
    named = site.by_groups(args.partition) if args.partition else ()
    partitions = tuple(partition.label for partition in named)
    with open_history(history_path(site, args.history)) as history:
        answer = ask(history, partitions=partitions, names=tuple(args.name),
                     now=datetime.now(timezone.utc), execution=current_or_cluster())  # fmt: skip
    if args.json:
        findings = [asdict(finding) for finding in answer.findings]
        warnings = [asdict(finding) for finding in answer.warnings]
        print_json({"open": answer.open, "series": answer.series, "findings": findings,
                    "warnings": warnings,
                    "ended": [list(series) for series in answer.ended]})  # fmt: skip
    else:
        print(gate_text(answer))
    return ExitCode.OK if answer.open else ExitCode.NO


def _report_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", type=Path, metavar="RUN",
                        help="run directory (default: the newest)")  # fmt: skip
    parser.add_argument("--format", default="markdown", metavar="NAME",
                        help="markdown (default), junit, prometheus or json")  # fmt: skip
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write to FILE, not to the screen"
    )
    parser.add_argument("--html", type=Path, metavar="FILE",
                        help="write a page of verdicts, history, nodes and logs")  # fmt: skip
    parser.add_argument("--nights", type=at_least(1), default=365, metavar="N",
                        help="days of history on the page (365)")  # fmt: skip
    _history_option(parser)


def _report(args: argparse.Namespace) -> ExitCode:
    from hpcdl.regress.formats import FORMATS, read_run
    from hpcdl.system.errors import BadInput
    from hpcdl.system.files import write_atomic
    from hpcdl.system.text import did_you_mean

    if args.html is not None:
        return _page(args)
    name = "json" if args.json else args.format
    if name not in FORMATS:
        raise BadInput(f"unknown format '{name}'", hint=did_you_mean(name, FORMATS))
    run = read_run(args.folder or the_site(args).paths.work / "checks" / "latest")
    text = FORMATS[name](run)
    print(text, end="") if args.output is None else write_atomic(args.output, text)
    return ExitCode.OK


def _page(args: argparse.Namespace) -> ExitCode:
    from hpcdl.regress.formats import read_run
    from hpcdl.regress.history import history_path, open_history
    from hpcdl.regress.report import directory_of, night_page, read_files
    from hpcdl.regress.run_directory import runs_directory
    from hpcdl.system.files import write_atomic

    site = the_site(args)
    named = args.folder or site.paths.work / "checks" / "latest"
    run = read_run(named)
    files = read_files(run, directory_of(run, named, runs_directory(site)))
    with open_history(history_path(site, args.history)) as history:
        page = night_page(run, history, files, site=site.name, nights=args.nights)
    write_atomic(args.html, page)
    if args.json:
        print_json({"file": args.html, "bytes": args.html.stat().st_size})
    else:
        print(f"wrote {args.html}; open it in a browser, no network needed")
    return ExitCode.OK


def _ci_options(parser: argparse.ArgumentParser) -> None:
    from hpcdl.regress.ci import DAYS, KINDS

    add = parser.add_argument
    add("kind", choices=tuple(KINDS), help="system that runs the pipeline")
    add("--output", type=Path, metavar="PATH", help="output file; for systemd a directory")
    add("--at", default="02:00", metavar="HH:MM", help="start of the nightly checks (02:00)")
    add("--day", default="sunday", choices=DAYS, help="day of the weekly checks (sunday)")
    add("--runner", default="", metavar="TAG", help="runner tag (default: the site's name)")
    add("--user", default="", metavar="NAME", help="systemd: user who runs the checks")
    add("--command", default="", metavar="PATH", help="hpcdl executable to run (default: this one)")


def _ci(args: argparse.Namespace) -> ExitCode:
    from hpcdl.regress.ci import Request, render, site_file, this_command, write

    site = the_site(args)
    request = Request(
        site_file=site_file(args.kind, site, args.site),
        command=args.command or this_command(),
        at=args.at, day=args.day, runner=args.runner, user=args.user,
    )  # fmt: skip
    files = render(args.kind, site, request)
    if args.output is None or args.dry_run:
        several = len(files) > 1
        texts = [f"# {name}\n{text}" if several else text for name, text in files.items()]
        print_json({"files": files}) if args.json else print("\n".join(texts), end="")
        return ExitCode.OK
    written = write(files, args.output)
    if args.json:
        print_json({"files": written})
    else:
        print("\n".join(f"wrote {path}" for path in written))
    return ExitCode.OK


GROUP = Group(
    "check",
    "nightly regression checks: runs, references, verdicts, history, gate",
    (
        Command(
            "run",
            "Run checks on the cluster and print a verdict for each.",
            "hpcdl check run --partition p100 --tag smoke",
            _run,
            _run_options,
        ),
        Command(
            "settings",
            "Print ReFrame settings for the site.",
            "hpcdl check settings --output settings.py",
            _settings,
            _settings_options,
        ),
        Command(
            "gate",
            "Decide from the history whether a pipeline may continue: exit code 0 or 1.",
            "hpcdl check gate --partition p100",
            _gate,
            _gate_options,
        ),
        Command(
            "history",
            "Show, export or import the history of results.",
            "hpcdl check history export > nights.jsonl",
            _history,
            _history_options,
            changes=True,
        ),
        Command(
            "report",
            "Report a run's verdicts as a page, Markdown, JUnit, Prometheus or JSON.",
            "hpcdl check report --html night.html",
            _report,
            _report_options,
        ),
        Command(
            "ci",
            "Render a nightly pipeline: GitLab CI, GitHub Actions, scrontab or systemd.",
            "hpcdl check ci gitlab --output .gitlab-ci.yml",
            _ci,
            _ci_options,
            changes=True,
        ),
        Command(
            "drift",
            "Detect lasting changes in a series of nightly values.",
            "hpcdl check drift nights.csv --json",
            _drift,
            _drift_options,
            site=False,
        ),
        Command(
            "references",
            "Measure, propose or show the reference values that results are compared with.",
            "hpcdl check references measure --partition p100 --runs 5",
            _references,
            _references_options,
            changes=True,
        ),
    ),
)
