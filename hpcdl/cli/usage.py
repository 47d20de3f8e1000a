"""`hpcdl job usage`: GPU hours, CPU hours and energy from Slurm's accounting."""

from __future__ import annotations

import argparse
import re
from contextlib import suppress
from pathlib import Path

from hpcdl.cli.framework import show, the_site
from hpcdl.system.errors import BadInput, ExitCode
from hpcdl.system.text import did_you_mean

_DATE = re.compile(r"(\d{4})-(\d{2})(?:-(\d{2}))?\Z", re.ASCII)
_DAYS = 365


def options(parser: argparse.ArgumentParser) -> None:
    """The time, whose jobs, and what they are summed by."""
    add = parser.add_argument
    add("--since", metavar="DATE", help="from YYYY-MM or YYYY-MM-DD on (default: a year ago)")
    add("--until", metavar="DATE", help="before YYYY-MM or YYYY-MM-DD (default: now)")
    add("--by", action="append", default=[], metavar="KEY",
        help="month (default), user, account, partition, name or module; repeatable")  # fmt: skip
    add("--figure", type=Path, metavar="FILE",
        help="write a bar per month, by the other keys, as .svg, .png or .pdf")  # fmt: skip
    add("--all-users", action="store_true", help="everybody's jobs, as far as Slurm shows them")


def run(args: argparse.Namespace) -> ExitCode:
    """Print what jobs took of the machine."""
    from dataclasses import asdict
    from datetime import date, timedelta

    from hpcdl.jobs.submission import asked, find
    from hpcdl.jobs.usage import KEYS, as_text, shares, write_usage
    from hpcdl.slurm.consumed import consumed
    from hpcdl.system.figures import check_figure

    site = the_site(args)
    keys = tuple(dict.fromkeys(args.by)) or ("month",)
    for key in keys:
        if key not in KEYS:
            raise BadInput(f"usage is not summed by '{key}'", hint=did_you_mean(key, KEYS))
    if args.figure:
        check_figure(args.figure)
        keys = keys if "month" in keys else ("month", *keys)
    since = _day("--since", args.since) or (date.today() - timedelta(days=_DAYS)).isoformat()
    until = _day("--until", args.until) or "now"

    def module(job_id: int) -> str:
        try:
            return " ".join(map(str, asked(find(site, str(job_id))).get("modules") or ()))
        except BadInput:  # hpcdl did not submit it
            return ""

    found = shares(consumed(since, until, everybody=args.all_users), keys, module)
    if args.figure:
        write_usage(found, keys, args.figure)
    rows = [{**asdict(one), "group": dict(zip(keys, one.group, strict=True))} for one in found]
    data = {"since": since, "until": until, "by": keys, "usage": rows}
    return show(args, data, as_text(found, keys))


def _day(option: str, text: str | None) -> str | None:
    """A date as sacct takes it, '2026-03' as its first day."""
    if text is None:
        return None
    from datetime import date

    match = _DATE.match(text)
    with suppress(ValueError):
        if match:
            return date(int(match[1]), int(match[2]), int(match[3] or 1)).isoformat()
    raise BadInput(f"{option} {text[:40]!r} is no date", hint="write 2026-03 or 2026-03-15")
