"""`hpcdl stack`: the software, from wheels to a published module.

SIGTERM ends `build` and `adopt` as Ctrl-C does: what they run ends, half-made trees are removed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hpcdl.cli.framework import Group, command, option, show, the_site
from hpcdl.system.amounts import amount, positive
from hpcdl.system.errors import (
    BadInput,
    CheckFailed,
    ExitCode,
    HpcdlError,
    MissingPrerequisite,
    PartlyDone,
)
from hpcdl.system.signals import terminable
from hpcdl.system.text import duration, paint, table

if TYPE_CHECKING:
    from hpcdl.site import Site
    from hpcdl.stack.build import Blocked
    from hpcdl.stack.publish import PublishResult
    from hpcdl.stack.release import Release, ReleasePlan
    from hpcdl.stack.verify import Proof


def _resolve_arguments(parser: argparse.ArgumentParser) -> None:
    from hpcdl.site.sections import BACKENDS

    parser.add_argument("--partition", metavar="NAME", help="only this partition")
    parser.add_argument("--backend", choices=tuple(BACKENDS), help="only this build method")
    parser.add_argument("--why-not", metavar="NAME@VERSION", help="why this version is not chosen")


@command(
    "hpcdl stack resolve --site pi --partition k80 --why-not tensorflow@2.18", _resolve_arguments
)
def _resolve(args: argparse.Namespace) -> ExitCode:
    """Show the newest compatible versions for every partition, and what limits them."""
    from hpcdl.stack.resolve import Resolver, why_not
    from hpcdl.stack.resolve_solution import as_data, as_text

    site, chosen = the_site(args), (args.partition, args.backend)
    if args.why_not:
        found = why_not(site, args.why_not, *chosen)
    else:
        found = Resolver(site).resolve(*chosen)
    fits = all(one.fits for one in found if one.wanted or args.why_not)
    return show(args, as_data(found), as_text(found), ok=fits)


@command(
    "hpcdl stack plan --partition p100",
    option("--partition", "NAME", "only the stack of this partition"),
)
def _plan(args: argparse.Namespace) -> ExitCode:
    """Show what would be built and published, and what changes for users and checks."""
    from hpcdl.workflows.site_plan import as_text, plan

    found = plan(the_site(args), args.partition)
    show(args, found, as_text(found))
    # Whether this machine can build what is missing (its Pythons, compilers) plays no part.
    return ExitCode.CHANGES if found["changes"] or found["blocked"] else ExitCode.OK


_GATE_ARGUMENTS = (
    option("--local", "run the gate on this machine, not in jobs"),
    option("--partition", "NAME", "verify on this partition only", many=True),
    option(
        "--wait", "MINUTES", "time that a job may wait for its nodes (30)", type=amount, default=30
    ),
)


def _asked_of(args: argparse.Namespace) -> dict[str, Any]:
    """What the options ask of the gate."""
    return {"local": args.local, "partitions": args.partition, "wait_minutes": args.wait}


@command(
    "hpcdl stack publish tensorflow-2.21.0-cpu-1f0c9a3e",
    option("release", "release id (default: the newest one built)", nargs="?"),
    *_GATE_ARGUMENTS,
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
    say = progress_teller()
    gate, enough = choose_gate(site, read_release(site, release_id), say, **_asked_of(args))
    switch = publish(site, release_id, gate, say=say, enough=enough)
    return _show(site, switch, args)


_VERIFY_ARGUMENTS = (
    option("release", "release id (default: the published one)", nargs="?"),
    *_GATE_ARGUMENTS,
    option("--integrity", "only compare every file with the seal of the build; no job, no gate"),
)


def _verify_integrity(args: argparse.Namespace) -> ExitCode:
    from hpcdl.stack.release import find_release
    from hpcdl.stack.tree import check_integrity, shortened

    if args.local or args.partition:
        raise BadInput("--integrity reads files only: it takes neither --local nor --partition")
    site = the_site(args)
    found = check_integrity(find_release(site, args.release))
    lines = [
        f"{found.release}: {found.describe()} ({duration(found.seconds)})",
        *(f"  {line}" for line in shortened(found.faults)),
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
    gate, _ = choose_gate(site, release, progress_teller(), **_asked_of(args))
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
    from hpcdl.stack.modules import read_history
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
            "`hpcdl stack build` makes the same one again; of the current one, "
            "`hpcdl stack rollback` goes back to the one before",
        )
    if rows:
        read_history(site)  # a damaged one stops `publish` and `rollback`: it says so
    return ExitCode.OK


@command(
    "hpcdl stack gc --dry-run",
    option(
        "--keep", "COUNT", "number of last published releases to keep (3)", type=positive, default=3
    ),
    option("--unpublished", "remove releases that were never published, too"),
    changes=True,
)
def _gc(args: argparse.Namespace) -> ExitCode:
    """Remove releases that are not current, not recent and not used by any job."""
    from hpcdl.stack.gc import collect
    from hpcdl.workflows.releases import pinned_by_jobs

    site = the_site(args)
    collected = collect(
        site,
        lambda: pinned_by_jobs(site),
        keep=args.keep,
        unpublished=args.unpublished,
        dry_run=args.dry_run,
    )
    action = "would remove" if args.dry_run else "removed"
    rows = [[action, name, f"{size / 1e6:.0f} MB"] for name, size in collected.removed.items()]
    rows += [[action, name, "unfinished"] for name in collected.unfinished]
    rows += [[action, name, "no release needs it"] for name in collected.packages]
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
    from hpcdl.stack.sbom import (
        CYCLONEDX_FILE,
        audit,
        components,
        findings,
        idle_waivers,
        write_sbom,
    )

    site = the_site(args)
    release = find_release(site, args.release)
    inside = components(release)
    note = "" if args.dry_run else audit(release, inside)
    weaknesses = findings(site, release, inside)
    bill = write_sbom(release, weaknesses, dry_run=args.dry_run)
    cells = [[row["name"], row["version"], _licence(row)] for row in bill["components"]]
    lines = [table(cells, ["package", "version", "licence"])]
    for weakness in weaknesses:
        lines.append(
            f"\n{weakness.id} {', '.join(weakness.purls)}, {weakness.state}: {weakness.what}"
        )
        lines.append(f"  {weakness.describe()}")
    if idle := idle_waivers(site, weaknesses):
        lines.append(f"note: waivers that answer nothing in this release: {', '.join(idle)}")
    lines += [f"note: {note}"] if note else []
    lines += [] if args.dry_run else [f"wrote {release.root / CYCLONEDX_FILE}"]
    data = {"schema": 3, "release": release.id, "audit": note or None, "bill": bill}
    return show(args, {**data, "dry_run": args.dry_run}, "\n".join(lines))


def _licence(component: dict[str, Any]) -> str:
    """A component's licence in SPDX, or the words that are known."""
    for row in component.get("licenses", ()):
        known = row.get("license", {})
        unknown = f"unknown ({known.get('name')})"
        return str(row.get("expression") or known.get("id") or unknown)
    return "unknown"


def progress_teller() -> Callable[[str], None]:
    """A teller of what happens and when, on standard error."""
    start = time.monotonic()

    def say(what: str) -> None:
        elapsed = f"{duration(time.monotonic() - start):>12}"
        print(f"{paint(elapsed, 'dim', sys.stderr)}  {what}", file=sys.stderr, flush=True)

    return say


def _build_arguments(parser: argparse.ArgumentParser) -> None:
    from hpcdl.site.sections import BACKENDS

    add = parser.add_argument
    add("--name", metavar="STACK", help="stack of the site (default: the first)")
    add("--backend", choices=tuple(BACKENDS), help="build method (default: the site file's)")
    add("--partition", metavar="NAME", help="the build for this partition's GPUs only")


@command("hpcdl stack build --site embedded", _build_arguments, changes=True)
@terminable()
def _build(args: argparse.Namespace) -> ExitCode:
    """Build an immutable release, from wheels or with Spack: TensorFlow, Horovod, hpcdl."""
    from hpcdl.stack.build import Blocked, plan_stack

    site = the_site(args)
    plans, none = plan_stack(site, args.name, partition=args.partition, backend=args.backend)
    if args.dry_run:
        return _would_build(plans, args, none)
    lacks = [_lack(plan) for plan in plans]
    ready = [plan for plan, lack in zip(plans, lacks, strict=True) if lack is None]
    blocked = [
        *none,
        *(
            Blocked(plan.partitions or tuple(site.partitions), lack)
            for plan, lack in zip(plans, lacks, strict=True)
            if lack
        ),
    ]
    if not ready:
        first, *others = blocked
        details = [*first.fault.details, *map(str, others)]
        raise type(first.fault)(first.fault.message, details=details, hint=first.fault.hint)
    existed = [plan.exists for plan in ready]
    _built([plan.make(progress_teller()) for plan in ready], existed, args)
    if blocked:
        names = ", ".join(name for one in blocked for name in one.partitions)
        raise PartlyDone(
            f"partitions without a build: {names}",
            details=[str(one) for one in blocked],
            hint="what is built can be published; then mend this and run the same command again",
        )
    return ExitCode.OK


def _lack(plan: ReleasePlan) -> HpcdlError | None:
    try:
        plan.require_ready()
    except (MissingPrerequisite, BadInput) as fault:
        return fault
    return None


def _would_build(
    plans: Sequence[ReleasePlan], args: argparse.Namespace, blocked: Sequence[Blocked] = ()
) -> ExitCode:
    """Show what would be built; exits as the build would if this machine lacks something."""
    lacks = [_lack(plan) for plan in plans]
    data, lines = [], list[str]()
    for plan, lack in zip(plans, lacks, strict=True):
        data.append({**plan.as_data(), "blocked": lack.in_one_line() if lack else None})
        names = ", ".join(plan.expected().partitions)
        where = f" for {names}" if len(plans) + len(blocked) > 1 else ""
        steps = plan.steps() or [f"nothing: {plan.release_id} is already built"]
        stop = [f"not on this machine: {lack.in_one_line()}"] if lack else []
        lines += [f"would do{where}:", *(f"  {step}" for step in [*steps, *stop])]
    for one in blocked:
        data.append({"partitions": list(one.partitions), "blocked": one.fault.in_one_line()})
        lines.append(f"no build for {one}")
    show(args, data[0] if len(data) == 1 else {"schema": 1, "builds": data}, "\n".join(lines))
    faults = [*filter(None, lacks), *(one.fault for one in blocked)]
    if not faults:
        return ExitCode.OK
    if None in lacks:
        return ExitCode.PARTLY
    print("error: nothing can be built on this machine", file=sys.stderr)
    print("help: the plan says what is missing, and how to get it", file=sys.stderr)
    return faults[0].exit_code


def _built(
    releases: Sequence[Release], existed: Sequence[bool], args: argparse.Namespace
) -> ExitCode:
    from hpcdl.stack.release import as_record

    pairs = list(zip(releases, existed, strict=True))
    data = [{**as_record(one), "built": not was} for one, was in pairs]
    lines = [
        f"{one.id} {'was already built' if was else 'is built'} in {one.root}" for one, was in pairs
    ]
    lines += [f"next: hpcdl stack publish {one.id}" for one in releases]
    whole = data[0] if len(data) == 1 else {"schema": 1, "releases": data}
    return show(args, whole, "\n".join(lines))


@command(
    "hpcdl stack adopt spack/environments/p100 --name pascal",
    option("environment", "DIR", "its directory"),
    option("--name", "STACK", "stack of the site (default: the first)"),
    changes=True,
)
@terminable()
def _adopt(args: argparse.Namespace) -> ExitCode:
    """Make a release of an environment that Spack has installed."""
    from hpcdl.stack.spack_backend.spack_build import plan_adoption

    plan = plan_adoption(the_site(args), args.environment, args.name)
    if args.dry_run:
        return _would_build([plan], args)
    existed = plan.exists
    return _built([plan.make(progress_teller())], [existed], args)


GROUP = Group(
    "stack", (_resolve, _plan, _build, _adopt, _verify, _publish, _list, _rollback, _gc, _sbom)
)
