"""`hpcdl stack`: the software, from wheels to a published module."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.cli import building
from hpcdl.cli.framework import Group, command, option, show, the_site
from hpcdl.system.amounts import amount
from hpcdl.system.errors import BadInput, CheckFailed, ExitCode
from hpcdl.system.text import duration, table

if TYPE_CHECKING:
    from hpcdl.site import Site
    from hpcdl.stack.publish import PublishResult
    from hpcdl.stack.verify import Proof


def _resolve_arguments(parser: argparse.ArgumentParser) -> None:
    from hpcdl.stack.release import BACKENDS

    parser.add_argument("--partition", metavar="NAME", help="only this partition")
    parser.add_argument("--backend", choices=BACKENDS, help="only this build method")
    parser.add_argument("--why-not", metavar="NAME@VERSION", help="why this version is not chosen")


@command(
    "hpcdl stack resolve --site pi --partition k80 --why-not tensorflow@2.18", _resolve_arguments
)
def _resolve(args: argparse.Namespace) -> ExitCode:
    """Show the newest compatible versions for every partition, and what limits them."""
    from hpcdl.stack import resolve_show
    from hpcdl.stack.resolve import Resolver, why_not

    site, chosen = the_site(args), (args.partition, args.backend)
    if args.why_not:
        found = why_not(site, args.why_not, *chosen)
    else:
        found = Resolver(site).resolve(*chosen)
    fits = all(one.fits for one in found if one.wanted or args.why_not)
    return show(args, resolve_show.as_data(found), resolve_show.as_text(found), ok=fits)


@command(
    "hpcdl stack plan --partition p100",
    option("--partition", "NAME", "only the stack of this partition"),
)
def _plan(args: argparse.Namespace) -> ExitCode:
    """Show what would be built and published, and what changes for users and checks."""
    from hpcdl.workflows.site_plan import as_text, plan

    found = plan(the_site(args), args.partition)
    show(args, found, as_text(found))
    if found["changes"]:
        return ExitCode.CHANGES
    return ExitCode.NO if found["blocked"] else ExitCode.OK


_GATE_ARGUMENTS = (
    option("--local", "run the gate on this machine, not in jobs"),
    option("--partition", "NAME", "verify on this partition only", many=True),
    option(
        "--wait", "MINUTES", "time that a job may wait for its nodes (30)", type=amount, default=30
    ),
)


@command(
    "hpcdl stack publish tensorflow-2.21.0-cpu-1f0c9a3e",
    option("release", "release id (default: the newest one built)", nargs="?"),
    *_GATE_ARGUMENTS,
    option("--verify-again", "run the gate even if its evidence is stored"),
    changes=True,
)
def _publish(args: argparse.Namespace) -> ExitCode:
    """Verify a release through its module and make it current atomically."""
    from hpcdl.stack.publish import newest, plan_publish, publish
    from hpcdl.stack.release import read_release
    from hpcdl.workflows.gate import choose_gate

    site = the_site(args)
    release_id = args.release or newest(site)
    if args.dry_run:
        return _show(site, plan_publish(site, release_id), args)
    say = building.progress_teller()
    gate, enough = choose_gate(
        site,
        read_release(site, release_id),
        say,
        local=args.local,
        partitions=args.partition,
        wait_minutes=args.wait,
    )
    switch = publish(site, release_id, gate, say=say, verify_again=args.verify_again, enough=enough)
    return _show(site, switch, args)


_VERIFY_ARGUMENTS = (
    option("release", "release id (default: the published one)", nargs="?"),
    *_GATE_ARGUMENTS,
    option("--integrity", "only compare every file with the seal of the build; no job, no gate"),
)


def _verify_integrity(args: argparse.Namespace) -> ExitCode:
    from hpcdl.stack.release import find_release
    from hpcdl.stack.seal import check_integrity

    if args.local or args.partition:
        raise BadInput("--integrity reads files only: it takes neither --local nor --partition")
    site = the_site(args)
    found = check_integrity(find_release(site, args.release))
    lines = [
        f"{found.release}: {found.describe()} ({duration(found.seconds)})",
        *(f"  {line}" for line in found.faults()),
    ]
    return show(args, found.as_data(), "\n".join(lines), ok=found.ok)


@command("hpcdl stack verify tensorflow-2.21.0-cpu-1f0c9a3e --partition p100", *_VERIFY_ARGUMENTS)
def _verify(args: argparse.Namespace) -> ExitCode:
    """Run the gate: test a release in jobs through its module, and store the evidence."""
    if args.integrity:
        return _verify_integrity(args)
    from hpcdl.stack.publish import verify
    from hpcdl.stack.release import find_release
    from hpcdl.workflows.gate import choose_gate

    site = the_site(args)
    release = find_release(site, args.release)
    gate, _ = choose_gate(
        site,
        release,
        building.progress_teller(),
        local=args.local,
        partitions=args.partition,
        wait_minutes=args.wait,
    )
    proof = verify(site, release.id, gate)
    end = f"passed the gate: {proof.describe()}" if proof.passed else "did not pass the gate"
    text = "\n".join([*_checks(proof), f"{proof.release} {end}"])
    return show(args, proof.as_data(), text, ok=proof.passed)


def _checks(proof: Proof) -> list[str]:
    marks = ["skipped" if one.skipped else "ok" if one.ok else "FAILED" for one in proof.checks]
    return [
        f"  {mark:<8} {check.describe()} ({duration(check.seconds)})"
        for mark, check in zip(marks, proof.checks, strict=True)
    ]


@command(
    "hpcdl stack rollback",
    option("release", "release id (default: the one published before)", nargs="?"),
    changes=True,
)
def _rollback(args: argparse.Namespace) -> ExitCode:
    """Make the previously published release current again."""
    from hpcdl.stack.publish import plan_rollback, rollback

    site = the_site(args)
    act = plan_rollback if args.dry_run else rollback
    return _show(site, act(site, args.release), args)


def _show(site: Site, switch: PublishResult, args: argparse.Namespace) -> ExitCode:
    from hpcdl.stack.publish import overview

    for row in overview(site):
        if not row["created"]:  # what it had to leave out is said as well
            print(f"no partition gets {row['id']}, which is {row['state']}", file=sys.stderr)
    would = "would become" if args.dry_run else "is"
    was = f" (was {switch.before})" if switch.changes and switch.before else ""
    lines = _checks(switch.proof) if switch.proof else []
    lines.append(f"current {would} {switch.after}{was}")
    groups: dict[tuple[str, str], list[str]] = {}
    for name, move in switch.moves.items():
        groups.setdefault(move, []).append(name)
    lines += [
        f"  {', '.join(names)}: {had or 'nothing'} -> {gets}"
        for (had, gets), names in groups.items()
    ]
    if switch.changes and not groups:
        lines.append("  every partition keeps the release that it has")
    if not args.dry_run:
        path = f"{site.paths.prefix}/current/modules"
        lines.append(f"users: module use {path} && module load tensorflow")
    data = {"schema": 1, "dry_run": args.dry_run, **switch.as_data()}
    return show(args, data, "\n".join(lines))


_COLUMNS = {
    "id": "release",
    "module": "module",
    "created": "created",
    "state": "state",
    "proof": "evidence",
}


@command("hpcdl stack list")
def _list(args: argparse.Namespace) -> ExitCode:
    """List the releases and mark the current one."""
    from hpcdl.stack.dispatch import read_history
    from hpcdl.stack.publish import overview

    rows = overview(site := the_site(args))
    cells = [["*" if row["current"] else "", *(row[key] for key in _COLUMNS)] for row in rows]
    text = table(cells, ["", *_COLUMNS.values()])
    text = text if rows else "no releases yet; `hpcdl stack build` makes one"
    show(args, {"schema": 1, "releases": rows}, text)
    broken = [str(row["state"]) for row in rows if not row["created"]]
    if broken:
        raise CheckFailed(
            f"{len(broken)} of {len(rows)} releases cannot be read",
            details=broken,
            hint="releases are never edited: move the directory of a broken one away, then "
            "`hpcdl stack build` makes the same one again",
        )
    if rows:
        read_history(site)  # a damaged one stops `publish` and `rollback`: it says so
    return ExitCode.OK


@command(
    "hpcdl stack gc --dry-run",
    option("--keep", "COUNT", "number of last published releases to keep (3)", type=int, default=3),
    option("--unpublished", "remove releases that were never published, too"),
    option(
        "--interactive-default",
        "assume that interactive jobs (salloc, srun) loaded no version by name",
    ),
    changes=True,
)
def _gc(args: argparse.Namespace) -> ExitCode:
    """Remove releases that are not current, not recent and not used by any job."""
    from hpcdl.stack.gc import collect
    from hpcdl.workflows.releases import pinned_by_jobs

    site = the_site(args)
    if args.keep < 1:
        raise BadInput(
            "--keep must be at least 1: the current release always stays",
            hint="leave it out to keep 3",
        )
    collected = collect(
        site,
        lambda: pinned_by_jobs(site, interactive=not args.interactive_default),
        keep=args.keep,
        unpublished=args.unpublished,
        dry_run=args.dry_run,
    )
    action = "would remove" if args.dry_run else "removed"
    rows = [[action, name, f"{size / 1e6:.0f} MB"] for name, size in collected.removed.items()]
    rows += [[action, name, "unfinished"] for name in collected.unfinished]
    rows += [[action, name, f"{size / 1e6:.0f} MB"] for name, size in collected.packages.items()]
    rows += [["keeps", name, why] for name, why in collected.kept.items()]
    text = table(rows) if rows else "nothing to remove"
    text += f"\nnote: {collected.note}" if collected.note else ""
    return show(args, {**collected.as_data(), "dry_run": args.dry_run}, text)


@command(
    "hpcdl stack sbom",
    option("release", "release id (default: the published one)", nargs="?"),
    changes=True,
)
def _sbom(args: argparse.Namespace) -> ExitCode:
    """List a release's packages, licences, known vulnerabilities; write a CycloneDX file."""
    from hpcdl.stack.release import find_release
    from hpcdl.stack.sbom import audit, components, findings, write_sbom

    site = the_site(args)
    release = find_release(site, args.release)
    inside = components(release)
    note = "" if args.dry_run else audit(release, inside)
    weaknesses = findings(site, release, inside)
    files = [] if args.dry_run else [write_sbom(release, weaknesses)]
    data = {
        "schema": 2,
        "release": release.id,
        "files": files,
        "components": [component.as_data() for component in inside],
        "vulnerabilities": [weakness.as_data() for weakness in weaknesses],
        "audit": note or None,
    }
    rows = [one.as_data() for one in inside]
    cells = [
        [str(row["name"]), str(row["version"]), str(row["licence"] or f"unknown ({row['words']})")]
        for row in rows
    ]
    lines = [table(cells, ["package", "version", "licence"])]
    for weakness in weaknesses:
        lines.append(
            f"\n{weakness.id} {', '.join(weakness.purls)}, {weakness.state}: {weakness.what}"
        )
        lines.append(f"  {weakness.describe()}")
    lines += [f"note: {note}"] if note else []
    return show(args, data, "\n".join([*lines, *(f"wrote {path}" for path in files)]))


@command(
    "hpcdl stack accept-eula cuda --by 'Ada Lovelace'",
    option("agreement", "licence agreement, such as cuda or cudnn"),
    option("--by", "NAME", "who accepts it", required=True),
    changes=True,
)
def _accept_eula(args: argparse.Namespace) -> ExitCode:
    """Record that a licence agreement, which publishing needs, was accepted."""
    from hpcdl.stack.waivers import accept

    made = accept(the_site(args), args.agreement, args.by, dry_run=args.dry_run)
    would = "would be recorded" if args.dry_run else "recorded"
    text = f"{would}: {made['by']} accepted '{made['agreement']}' at {made['at']}"
    return show(args, {"schema": 1, "dry_run": args.dry_run, **made}, text)


@command(
    "hpcdl stack kernel --prefix /opt/jupyter",
    option("release", "release id (default: the published one)", nargs="?"),
    option(
        "--prefix",
        "DIR",
        "for all users of the Jupyter installed there, such as /opt/jupyter; else only for you",
    ),
    changes=True,
)
def _kernel(args: argparse.Namespace) -> ExitCode:
    """Install a Jupyter kernel that works without a loaded module."""
    from hpcdl.stack.modules import install_kernel, plan_kernel
    from hpcdl.stack.release import find_release

    site = the_site(args)
    prefix = Path(args.prefix).absolute() if args.prefix else None
    release = find_release(site, args.release)
    kernel = plan_kernel(site, release, follow=args.release is None, prefix=prefix)
    if not args.dry_run:
        install_kernel(kernel)
    text = f"{'would write' if args.dry_run else 'wrote'} {kernel.file}\n"
    text += f"Jupyter shows it as '{kernel.content['display_name']}'"
    return show(args, {**kernel.as_data(), "dry_run": args.dry_run}, text)


GROUP = Group(
    "stack",
    (
        _resolve,
        _plan,
        *building.COMMANDS,
        _verify,
        _publish,
        _list,
        _rollback,
        _gc,
        _sbom,
        _accept_eula,
        _kernel,
    ),
)
