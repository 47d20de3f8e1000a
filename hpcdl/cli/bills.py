"""`hpcdl stack sbom`, `accept-eula`, `waive` and `kernel`: what goes with a release."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.cli.framework import Command, option, print_json, show, the_site
from hpcdl.system.errors import BadInput, ExitCode
from hpcdl.system.text import table

if TYPE_CHECKING:
    from hpcdl.site import Site
    from hpcdl.stack.release import Release


def _named(site: Site, release_id: str | None) -> Release:
    """The named release, or the current one."""
    from hpcdl.stack.release import current_id, read_release

    named = release_id or current_id(site)
    if named is None:
        raise BadInput("nothing is published", hint="name a release; `hpcdl stack list` shows them")
    return read_release(site, named)


def _sbom(args: argparse.Namespace) -> ExitCode:
    from hpcdl.stack.components import components
    from hpcdl.stack.findings import ARCHIVE, dated, findings, osv_file
    from hpcdl.stack.sbom import write_sboms

    site = the_site(args)
    release = _named(site, args.release)
    inside = components(release)
    found = findings(site, release, inside)
    source = osv_file(site)
    files = [] if args.dry_run else list(write_sboms(release, found))
    if args.json:
        rows = [vars(component) for component in inside]
        print_json({"schema": 1, "release": release.id, "files": files, "components": rows,
                    "vulnerabilities": [one.as_data() for one in found],
                    "osv": dated(source) if source else None})  # fmt: skip
        return ExitCode.OK
    cells = [[one.name, one.version, one.licence or f"unknown ({one.words})"] for one in inside]
    print(table(cells, ["package", "version", "licence"]))
    for one in found:
        print(f"\n{one.id} {', '.join(one.packages)}, {one.state}: {one.what}")
        print(f"  {one.describe()}")
    told = f"{source} of {dated(source)}" if source else (
        f"no file of OSV: fetch {ARCHIVE} to {site.paths.prefix / 'osv.zip'}")  # fmt: skip
    print(f"\nknown vulnerabilities: hpcdl's own list, and {told}")
    for path in files:
        print(f"wrote {path}")
    return ExitCode.OK


def _accept_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("agreement", help="licence agreement, such as cuda or cudnn")
    parser.add_argument("--by", required=True, metavar="NAME", help="who accepts it")


def _accept(args: argparse.Namespace) -> ExitCode:
    from hpcdl.stack.records import accept

    accepted = accept(the_site(args), args.agreement, args.by, dry_run=args.dry_run)
    said = f"{accepted.by} accepted '{accepted.agreement}' at {accepted.at}"
    return _recorded(args, vars(accepted), said)


def _recorded(args: argparse.Namespace, values: dict[str, str], said: str) -> ExitCode:
    would = "would be recorded" if args.dry_run else "recorded"
    return show(args, {"schema": 1, "dry_run": args.dry_run, **values}, f"{would}: {said}")


def _waive_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("vulnerability", metavar="CVE", help="such as CVE-2024-10190")
    parser.add_argument("--because", required=True, metavar="TEXT", help="why not exploitable")
    parser.add_argument("--owner", required=True, metavar="NAME", help="who is responsible")
    parser.add_argument("--until", required=True, metavar="YEAR-MONTH-DAY", help="last valid day")


def _waive(args: argparse.Namespace) -> ExitCode:
    from hpcdl.stack.findings import known_names
    from hpcdl.stack.records import Waiver, waive

    waiver = Waiver(args.vulnerability, args.because, args.owner, args.until)
    site = the_site(args)
    waive(site, waiver, known_here=known_names(site), dry_run=args.dry_run)
    said = f"{waiver.weakness} is waived until {waiver.until} by {waiver.owner}"
    return _recorded(args, vars(waiver), said)


def _kernel_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("release", nargs="?", help="release id (default: whatever is published)")
    parser.add_argument("--prefix", metavar="DIR",
                        help="for all users of the Jupyter installed there, such as /opt/jupyter; "
                        "else only for you")  # fmt: skip


def _kernel(args: argparse.Namespace) -> ExitCode:
    from hpcdl.stack.kernel import install_kernel, plan_kernel

    site = the_site(args)
    prefix = Path(args.prefix).absolute() if args.prefix else None
    release = _named(site, args.release)
    kernel = plan_kernel(site, release, follow=args.release is None, prefix=prefix)
    if not args.dry_run:
        install_kernel(kernel)
    said = f"{'would write' if args.dry_run else 'wrote'} {kernel.file}\n"
    said += f"Jupyter shows it as '{kernel.content['display_name']}'"
    return show(args, {**kernel.as_data(), "dry_run": args.dry_run}, said)


COMMANDS = (
    Command("sbom", "List a release's packages and licences; write SPDX and CycloneDX files.",
            "hpcdl stack sbom", _sbom,
            option("release", nargs="?", help="release id (default: the current one)"),
            changes=True),
    Command("accept-eula", "Record that a licence agreement, which publishing needs, was accepted.",
            "hpcdl stack accept-eula cuda --by 'Ada Lovelace'", _accept, _accept_arguments,
            changes=True),
    Command("waive",
            "Record why a known vulnerability cannot be exploited here, with owner and last day.",
            "hpcdl stack waive CVE-2024-10190 --because 'no elastic jobs are run here' "
            "--owner 'Ada Lovelace' --until 2027-06-30",
            _waive, _waive_arguments, changes=True),
    Command("kernel", "Install a Jupyter kernel that works without a loaded module.",
            "hpcdl stack kernel --prefix /opt/jupyter", _kernel, _kernel_arguments, changes=True),
)  # fmt: skip
