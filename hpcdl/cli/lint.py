"""`hpcdl job lint`: any batch script against Slurm's rules."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.cli.framework import instead, the_site
from hpcdl.system.errors import BadInput, ExitCode

if TYPE_CHECKING:
    from hpcdl.jobs.lint.cluster import Cluster
    from hpcdl.site import Site


_INSTEAD = {
    "fix write in-place": "it changes nothing: each finding says what to write instead",
    "ignore disable skip select":
        "no rule is left out; --json has the rule of each finding, to filter by",
    "rules list-rules list": "docs/lint.md has all rules; --explain RULE prints one",
    "strict pedantic all": "--advice prints advice, too",
    "gpus nodes time gres ntasks": "the #SBATCH lines of the script say that",
    "q quiet": "> /dev/null: the exit code tells",
}  # fmt: skip


def options(parser: argparse.ArgumentParser) -> None:
    """The scripts, and what they are checked for."""
    parser.set_defaults(takes_files=True)
    instead(parser, _INSTEAD)
    add = parser.add_argument
    # fmt: off
    add("files", nargs="*", type=Path, metavar="FILE",
        help="sbatch scripts, and directories of them; - is stdin")
    add("--slurm-version", metavar="X.Y", help="Slurm release to check for (default: the site's)")
    add("--partition", metavar="NAME", help="partition that the scripts will run on")
    add("--live", action="store_true",
        help="ask the Slurm on PATH for its release, partitions, accounts, QOS, GRES and features")
    add("--plugin-options", metavar="NAME,...",
        help="all long options that plug-ins (SPANK) add, without dashes (default: the site's)")
    add("--explain", metavar="RULE", help="print a rule and its source")
    add("--advice", action="store_true",
        help="print advice, too: what depends on the site or the program")
    add("--sarif", action="store_true", help="print SARIF, for code scanners")
    # fmt: on


def run(args: argparse.Namespace) -> ExitCode:
    """Check the scripts and print what is found."""
    from hpcdl.jobs.lint import explain
    from hpcdl.jobs.lint.lint_report import run_lint

    if args.explain:
        print(explain(args.explain))
        return ExitCode.OK
    files = [*args.files, *map(Path, args.rest)]
    if not files:
        raise BadInput("nothing to check", hint="name scripts or directories; - is stdin")
    site, version = _lint_site(args), args.slurm_version
    if args.live and not version:
        from hpcdl.slurm import client

        version = client.version()
    return run_lint(
        files, version or (site.slurm.version if site else None), args.json,
        partition=site.partition(args.partition) if site and args.partition else None,
        cluster=_cluster(args, site), as_sarif=args.sarif, advice=args.advice,
    )  # fmt: skip


def _cluster(args: argparse.Namespace, site: Site | None) -> Cluster | None:
    """What the cluster has; None where nobody says."""
    if not (args.live or site or args.plugin_options):
        return None
    from dataclasses import replace

    from hpcdl.jobs.lint.cluster import Cluster, of_live, of_site

    cluster = of_live() if args.live else of_site(site) if site else Cluster()
    if args.plugin_options is None:
        return cluster
    names = {name.strip().lstrip("-") for name in args.plugin_options.split(",")}
    return replace(cluster, plugin_options=frozenset(names - {""}))


def _lint_site(args: argparse.Namespace) -> Site | None:
    """The site to check for; None where none is named or installed, or none is needed."""
    import os

    from hpcdl.site.load import installed_site_file

    named = args.site or args.partition or os.environ.get("HPCDL_SITE")
    other = args.slurm_version or args.live or installed_site_file() is None
    return the_site(args) if named or not other else None
