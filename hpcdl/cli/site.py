"""`hpcdl site`: describe the cluster."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hpcdl.cli.framework import Command, Group, print_json, show, the_site
from hpcdl.system.errors import BadInput, ExitCode


def _show(args: argparse.Namespace) -> ExitCode:
    from hpcdl.site.show import as_data, as_text

    site = the_site(args)
    return show(args, as_data(site), as_text(site))


def _init_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--output", type=Path, metavar="FILE", help="write to FILE instead of the screen")
    add("--force", action="store_true", help="replace an existing file")
    parser.set_defaults(behind="--output")


def _init(args: argparse.Namespace) -> ExitCode:
    from hpcdl.site.live import draft, look
    from hpcdl.system.files import write_atomic

    if args.output and args.output.is_dir():
        raise BadInput(f"{args.output} is a directory", hint="name a file in it")
    if args.output and args.output.exists() and not args.force:
        raise BadInput(f"{args.output} already exists", hint="give --force to replace it")
    found = draft(look())
    if args.json:
        print_json({"text": found.text, "questions": found.questions})
    elif args.output and not args.dry_run:
        write_atomic(args.output, found.text)
        print(f"wrote {args.output}; next: hpcdl site check --site {args.output}")
    else:
        print(found.text, end="")
    for question in found.questions:
        print(f"to fill in: {question}", file=sys.stderr)
    return ExitCode.PARTLY if found.questions else ExitCode.OK


def _check(args: argparse.Namespace) -> ExitCode:
    from hpcdl.site.live import compare, look
    from hpcdl.system.text import table

    site = the_site(args)
    drift = compare(site, look())
    if args.json:
        print_json({"site": site.name, "drift": [one._asdict() for one in drift]})
    elif drift:
        rows = [(one.key, one.file, one.cluster) for one in drift]
        print(table(rows, ("key", "site file", "cluster")))
    else:
        print(f"{site.source} and the cluster agree")
    return ExitCode.NO if drift else ExitCode.OK


def _schema(args: argparse.Namespace) -> ExitCode:
    from hpcdl.site.schema import site_schema

    print_json(site_schema())
    return ExitCode.OK


GROUP = Group(
    "site",
    "describe the cluster: write, check and show its site file",
    (
        Command("init",
                "Draft a commented site file from the live Slurm; exit 6 if values are missing.",
                "hpcdl site init --output site.yaml", _init, _init_options, changes=True,
                site=False),
        Command("check", "Compare the site file with the live Slurm; exit 1 when they differ.",
                "hpcdl site check --site site.yaml", _check),
        Command("show", "Show the site file with all defaults.", "hpcdl site show --site pi",
                _show),
        Command("schema", "Print the JSON Schema of the site file, for editors.",
                "hpcdl site schema > site.schema.json", _schema, site=False),
    ),
)  # fmt: skip
