"""`hpcdl check accept`: a finding of the gate is accepted, sleeps, or is taken up again."""

from __future__ import annotations

import argparse
from datetime import date
from typing import TYPE_CHECKING

from hpcdl.cli.check_options import answer_of, history_option
from hpcdl.cli.framework import Command, a_day, print_json, the_site
from hpcdl.system.errors import ExitCode

if TYPE_CHECKING:
    from hpcdl.regress.accept import Edits
    from hpcdl.site import Site


def _options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("what", nargs="?", metavar="SERIES|ID",
        help="finding of the gate by its id or series (default: list the accepted)")  # fmt: skip
    add("--because", default="", metavar="TEXT", help="the reason; recorded and shown")
    add("--by", default="", metavar="NAME", help="who accepts it; recorded and shown")
    add("--until", type=a_day, metavar="DATE",
        help="let it sleep until this day; without, its level is normal from now on")  # fmt: skip
    add("--undo", action="store_true", help="take an acceptance back")
    history_option(parser)


def _accept(args: argparse.Namespace) -> ExitCode:
    from hpcdl.regress.accept import undo

    site = the_site(args)
    if args.what is None:
        return _list(site, args)
    edit = undo(site, args.what) if args.undo else _accepted(site, args)
    if not args.dry_run:
        edit.write()
    if args.json:
        print_json({"said": edit.said, "diff": edit.diff})
    else:
        print(edit.diff, end="")
        print(
            f"# {'would be ' if args.dry_run else ''}written below {site.paths.prefix}: {edit.said}"
        )
    return ExitCode.OK


def _accepted(site: Site, args: argparse.Namespace) -> Edits:
    from hpcdl.regress.accept import accept
    from hpcdl.regress.history import history_path, open_history
    from hpcdl.regress.identity import Series
    from hpcdl.regress.rulings import Acceptance
    from hpcdl.system.errors import BadInput

    for option, value in (("--because", args.because), ("--by", args.by)):
        if not value.strip() or not value.isprintable():
            raise BadInput(f"{option} is missing", hint="say on one line who accepts it and why")
    today = date.today().isoformat()
    if args.until and args.until < today:
        raise BadInput(f"--until {args.until} has passed", hint="name a day to come")
    given = Acceptance(
        "", Series("", "", "", ""), args.by, args.because, today, until=args.until or ""
    )
    answer = answer_of(site, args)
    with open_history(history_path(site, args.history), site.name) as history:
        return accept(site, history, answer, args.what, given)


def _list(site: Site, args: argparse.Namespace) -> ExitCode:
    from hpcdl.regress.accept import accepted_file, read_accepted
    from hpcdl.regress.identity import name_of
    from hpcdl.system.text import table

    rows = read_accepted(accepted_file(site))
    if args.json:
        print_json([{"id": one.id, "series": one.series._asdict(), "said": one.describe(),
                     "since": one.since, "until": one.until} for one in rows])  # fmt: skip
    elif rows:
        print(table([[one.id, name_of(one.series), one.describe()] for one in rows]))
    else:
        print("nothing is accepted")
    return ExitCode.OK


COMMANDS = (
    Command("accept",
            "Accept a finding of the gate: its level is normal now, or it sleeps until a day.",
            "hpcdl check accept 3f2a91c0 --because 'new driver' --by 'Ada'", _accept, _options,
            changes=True),
)  # fmt: skip
