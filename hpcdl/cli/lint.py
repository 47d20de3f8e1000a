"""`hpcdl job lint`: any batch script against Slurm's rules."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.cli.framework import the_site
from hpcdl.system.errors import ExitCode

if TYPE_CHECKING:
    from hpcdl.site import Site


def options(parser: argparse.ArgumentParser) -> None:
    """The scripts, and what they are checked for."""
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="sbatch scripts; - is stdin"
    )
    parser.add_argument(
        "--slurm-version", metavar="X.Y", help="Slurm release to check for (default: the site's)"
    )
    parser.add_argument(
        "--partition", metavar="NAME", help="partition that the scripts will run on"
    )
    parser.add_argument("--sarif", action="store_true", help="print SARIF, for code scanners")


def run(args: argparse.Namespace) -> ExitCode:
    """Check the scripts and print what is found."""
    from hpcdl.jobs.lint import run_lint

    site = _lint_site(args)
    return run_lint(
        args.files,
        args.slurm_version or (site.slurm.version if site else None),
        args.json,
        partition=site.partition(args.partition) if site and args.partition else None,
        as_sarif=args.sarif,
    )


def _lint_site(args: argparse.Namespace) -> Site | None:
    """The site to check for; None where none is named or installed, or none is needed."""
    import os

    from hpcdl.site.load import installed_site_file

    if args.site or args.partition or os.environ.get("HPCDL_SITE"):
        return the_site(args)
    if args.slurm_version or installed_site_file() is None:
        return None
    return the_site(args)
