"""`hpcdl job lint`: anybody's batch scripts, against Slurm's rules."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.cli.framework import command, option, the_site
from hpcdl.system.errors import BadInput, ExitCode

if TYPE_CHECKING:
    from hpcdl.site import Site
    from hpcdl.slurm.fits import Cluster


@command(
    "hpcdl job lint --slurm-version 22.05 train.sh",
    option(
        "files", "FILE", "sbatch scripts, and directories of them; - is stdin", nargs="*", type=Path
    ),
    option("--slurm-version", "X.Y", "Slurm release to check for (default: the site's)"),
    option("--live", "ask the Slurm on PATH what it has and allows, and sbatch what it refuses"),
    option("--advice", "print advice, too: what depends on the site or the program"),
    rest="more files",
)
def lint(args: argparse.Namespace) -> ExitCode:
    """Check any sbatch script against the rules of a Slurm release; exit 1 on errors."""
    from hpcdl.jobs.lint.lint_report import run_lint

    files = [*args.files, *map(Path, args.rest)]
    if not files:
        raise BadInput("nothing to check", hint="name scripts or directories; - is stdin")
    site, version = _lint_site(args), args.slurm_version
    if args.live and not version:
        from hpcdl.slurm import client

        version = client.version()
    return run_lint(
        files,
        version or (site.slurm.version if site else None),
        args.json,
        cluster=_lint_cluster(args, site),
        advice=args.advice,
        live=args.live,
    )


def _lint_cluster(args: argparse.Namespace, site: Site | None) -> Cluster | None:
    """Return the cluster's limits and names; None if neither Slurm nor a site file gives them."""
    if args.live:
        from hpcdl.slurm.client import live_cluster

        return live_cluster()
    if site:
        from hpcdl.jobs.layout import cluster_of

        return cluster_of(site)
    return None


def _lint_site(args: argparse.Namespace) -> Site | None:
    """The site to check for; None where none is named or installed, or none is needed."""
    from hpcdl.site.load import installed_site_file

    named = args.site or os.environ.get("HPCDL_SITE")
    other = args.slurm_version or args.live or installed_site_file() is None
    return the_site(args) if named or not other else None
