"""`hpcdl check gate`, `accept`, `history` and `report`: evaluate the nights so far."""

from __future__ import annotations

import argparse
import os
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.cli.framework import a_day, command, option, show, the_site
from hpcdl.system.errors import BadInput, ExitCode
from hpcdl.system.files import write_atomic
from hpcdl.system.text import did_you_mean, table

if TYPE_CHECKING:
    from hpcdl.regress.answer import Acceptance
    from hpcdl.regress.formats import Run
    from hpcdl.regress.references import Edits
    from hpcdl.site import Site


@command(
    "hpcdl check history export > nights.jsonl",
    option("action", "what to do", choices=("show", "export", "import")),
    option(
        "files",
        "FILE",
        "import: JSON lines, run directories, ReFrame's own files",
        nargs="*",
        type=Path,
    ),
    changes=True,
)
def _history(args: argparse.Namespace) -> ExitCode:
    """Show, export or import the history of results."""
    from hpcdl.regress.exchange import as_json_lines
    from hpcdl.regress.formats import history_text
    from hpcdl.regress.history import history_path, read_history

    site = the_site(args)
    path = history_path(site)
    if args.action == "import":
        return _import(args, site, path)
    with read_history(site) as history:
        if args.action == "export":
            for line in as_json_lines(history.results()):
                print(line)
            return ExitCode.OK
        return show(args, [one._asdict() for one in history.series()], history_text(history, path))


def _import(args: argparse.Namespace, site: Site, path: Path) -> ExitCode:
    from hpcdl.regress.exchange import incoming, refuse_cut
    from hpcdl.regress.history import open_history
    from hpcdl.regress.reframe_adapter.settings import reframe_name

    files = incoming(args.files, reframe_name(site.name))
    if args.dry_run:
        print(f"would add at most {sum(1 for file in files for _ in file)} results to {path}")
    else:
        with open_history(path, site.name) as history:
            added = history.add(result for file in files for result in file)
        show(args, {"added": added}, f"{added} new results in {path}")
    refuse_cut(files)
    return ExitCode.OK


@command(
    "hpcdl check gate --partition p100",
    option("--partition", "NAME", "only this partition", many=True),
    option("--all", "list every finding, not only their causes"),
)
def _gate(args: argparse.Namespace) -> ExitCode:
    """Decide from the history whether a pipeline may continue: exit code 0 or 1."""
    from hpcdl.regress.answer import gate_text
    from hpcdl.regress.gate import answer_now

    site = the_site(args)
    named = site.by_groups(args.partition) if args.partition else ()
    partitions = tuple(partition.label for partition in named)
    answer = answer_now(site, partitions=partitions)
    show(args, answer.as_data(), gate_text(answer, every=args.all))
    return ExitCode.OK if answer.open else ExitCode.NO


@command(
    "hpcdl check report --format html --output night.html",
    option("folder", "RUN", "run directory (default: the newest)", nargs="?", type=Path),
    option(
        "--format",
        "NAME",
        "markdown (default), html: a page of findings, verdicts and history; junit, prometheus, "
        "json",
        default="markdown",
    ),
    option("--output", "FILE", "write to FILE, not to the screen", type=Path),
)
def _report(args: argparse.Namespace) -> ExitCode:
    """Report a run's verdicts as a page, Markdown, JUnit, Prometheus or JSON."""
    from hpcdl.regress.formats import FORMATS, read_run
    from hpcdl.regress.gate import answer_now

    name = "json" if args.json else args.format
    if name not in {"html", *FORMATS}:
        raise BadInput(f"unknown format '{name}'", hint=did_you_mean(name, ["html", *FORMATS]))
    site = None if args.folder and name != "html" and not _is_named(args) else the_site(args)
    named = args.folder or _newest(site)
    run = read_run(named)
    if site and name == "html":
        text = _page(site, run)
    else:
        text = FORMATS[name](run, answer_now(site) if site else None)
    print(text, end="") if args.output is None else write_atomic(args.output, text)
    return ExitCode.OK


def _newest(site: Site | None) -> Path:
    """The newest run with verdicts: one that was stopped has none."""
    checks = (site.paths.work if site else Path()) / "checks"
    with_verdicts = sorted(checks.glob("runs/*/verdicts.json"))
    return with_verdicts[-1].parent if with_verdicts else checks / "latest"


def _is_named(args: argparse.Namespace) -> bool:
    """Whether a site is named or found; a file of verdicts can be shown without one."""
    from hpcdl.site import find_site_file

    try:
        return find_site_file(args.site).exists()
    except BadInput:
        return bool(args.site or os.environ.get("HPCDL_SITE"))


def _page(site: Site, run: Run) -> str:
    from hpcdl.regress.gate import answer_now
    from hpcdl.regress.history import read_history
    from hpcdl.regress.report import night_page

    answer = answer_now(site)
    with read_history(site) as history:
        return night_page(run, history, site=site.name, answer=answer)


@command(
    "hpcdl check accept 3f2a91c0 --because 'new driver' --by 'Ada'",
    option(
        "what",
        "SERIES|ID",
        "finding of the gate by its id or series (default: list the accepted)",
        nargs="?",
    ),
    option("--because", "TEXT", "the reason; recorded and shown", default=""),
    option("--by", "NAME", "who accepts it; recorded and shown", default=""),
    option(
        "--until",
        "DATE",
        "snooze it until this day; without --until, its level is normal from now on",
        type=a_day,
    ),
    option("--undo", "take an acceptance back"),
    changes=True,
)
def _accept(args: argparse.Namespace) -> ExitCode:
    """Accept a finding of the gate: its level is normal now, or it is snoozed until a day."""
    from hpcdl.regress.gate import undo

    site = the_site(args)
    if args.what is None and (args.because or args.by or args.until or args.undo):
        raise BadInput("no finding is named", hint="`hpcdl check gate --all` lists them by id")
    if args.what is None:
        return _list(site, args)
    return _write(site, args, undo(site, args.what) if args.undo else _accepted(site, args))


def _accepted(site: Site, args: argparse.Namespace) -> Edits:
    from hpcdl.regress.gate import accept, answer_now
    from hpcdl.regress.history import read_history

    given = _given(args, args.until or "")
    with read_history(site) as history:
        return accept(site, history, answer_now(site), args.what, given)


def _given(args: argparse.Namespace, until: str = "") -> Acceptance:
    """Who accepts something, why, and until when."""
    from hpcdl.regress.answer import Acceptance
    from hpcdl.regress.identity import Series

    for name, value in (("--because", args.because), ("--by", args.by)):
        if not value.strip() or not value.isprintable():
            raise BadInput(f"{name} is missing", hint="say on one line who accepts it and why")
    today = date.today().isoformat()
    if until and until < today:
        raise BadInput(f"--until {until} has passed", hint="name a day to come")
    return Acceptance("", Series("", "", "", ""), args.by, args.because, today, until=until)


@command(
    "hpcdl check retire throughput/resnet50 --because renamed --by Ada",
    option("what", "SERIES", "a series, or CHECK/CASE for all its metrics"),
    option("--because", "TEXT", "the reason; recorded and shown", default=""),
    option("--by", "NAME", "who retires it; recorded and shown", default=""),
    changes=True,
)
def _retire(args: argparse.Namespace) -> ExitCode:
    """Retire series that give no more results, such as of a renamed check: none is missed."""
    from hpcdl.regress.gate import retire
    from hpcdl.regress.history import read_history

    site, given = the_site(args), _given(args)
    with read_history(site) as history:
        return _write(site, args, retire(site, history, args.what, given))


def _write(site: Site, args: argparse.Namespace, edit: Edits) -> ExitCode:
    if not args.dry_run:
        edit.write()
    done = "would be written" if args.dry_run else "written"
    text = f"{edit.diff}# {done} below {site.paths.prefix}: {edit.summary}"
    return show(args, {"said": edit.summary, "diff": edit.diff}, text)


def _list(site: Site, args: argparse.Namespace) -> ExitCode:
    from hpcdl.regress.gate import accepted_file, read_accepted
    from hpcdl.regress.identity import name_of

    rows = read_accepted(accepted_file(site))
    data = [
        {
            "id": acceptance.id,
            "series": acceptance.series._asdict(),
            "said": acceptance.describe(),
            "since": acceptance.since,
            "until": acceptance.until,
        }
        for acceptance in rows
    ]
    text = table(
        [[acceptance.id, name_of(acceptance.series), acceptance.describe()] for acceptance in rows]
    )
    return show(args, data, text if rows else "nothing is accepted")


COMMANDS = (_gate, _history, _report, _accept, _retire)
