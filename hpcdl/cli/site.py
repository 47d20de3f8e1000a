"""`hpcdl site`: describe the cluster."""

from __future__ import annotations

import argparse

from hpcdl.cli.framework import Command, Group, print_json, the_site
from hpcdl.system.errors import ExitCode


def _show(args: argparse.Namespace) -> ExitCode:
    from hpcdl.site.show import as_data, as_text

    site = the_site(args)
    if args.json:
        print_json(as_data(site))
    else:
        print(as_text(site))
    return ExitCode.OK


def _schema(args: argparse.Namespace) -> ExitCode:
    from hpcdl.site.schema import SITE

    print_json(SITE)
    return ExitCode.OK


GROUP = Group(
    "site",
    "describe the cluster: write, check and show its site file",
    (
        Command(
            "show", "Show the site as hpcdl understands it.", "hpcdl site show --site pi", _show
        ),
        Command(
            "schema",
            "Print the JSON Schema of the site file, for editors.",
            "hpcdl site schema > site.schema.json",
            _schema,
            site=False,
        ),
    ),
)
