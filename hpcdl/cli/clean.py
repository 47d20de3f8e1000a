"""`hpcdl clean`: removes what has accumulated."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hpcdl.cli.framework import command, option, show, the_site
from hpcdl.system.errors import ExitCode
from hpcdl.system.signals import terminable
from hpcdl.system.text import table

if TYPE_CHECKING:
    from hpcdl.workflows.clean import Item


@command(
    "hpcdl clean --dry-run",
    option(
        "kinds", "KIND", "check-runs, job-index, logs, failures, cache (default: each)", nargs="*"
    ),
    changes=True,
)
@terminable()
def _clean(args: argparse.Namespace) -> ExitCode:
    """Remove old runs, logs, records and what can be made again: nothing that is in use."""
    from hpcdl.workflows.clean import clean

    found = clean(the_site(args), args.kinds, dry_run=args.dry_run)
    data = {"schema": 1, "items": [item._asdict() for item in found]}
    return show(args, data, _as_text(found, args.dry_run, args.verbose))


def _as_text(items: list[Item], dry_run: bool, verbose: bool) -> str:
    gone = [item for item in items if not item.kept]
    rows = [
        [item.kind, f"{item.size / 1e6:.1f} MB", f"{item.age:.0f} days", str(item.path), item.kept]
        for item in items
        if not item.kept or verbose
    ]
    total = f"{sum(item.size for item in gone) / 1e6:.1f} MB"
    kept = len(items) - len(gone)
    stays = f"; {kept} more stay, for they are needed (-v names them)" if kept else ""
    summary = f"{len(gone)} {'would go' if dry_run else 'went'}, {total}{stays}"
    header = ("kind", "size", "age", "path", "stays because" if verbose else "")
    return f"{table(rows, header)}\n{summary}" if rows else summary


COMMAND = _clean
