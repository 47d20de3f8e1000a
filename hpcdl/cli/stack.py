"""`hpcdl stack`: the software, from wheels to a published module."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.cli.framework import Command, Group, print_json, the_site
from hpcdl.system.errors import BadInput, ExitCode
from hpcdl.system.signals import terminable
from hpcdl.system.text import duration, paint, table

if TYPE_CHECKING:
    from hpcdl.site import Site
    from hpcdl.stack.build import BuildPlan
    from hpcdl.stack.publish import Switch
    from hpcdl.stack.release import Release
    from hpcdl.stack.spack.build import SpackPlan
    from hpcdl.stack.verify import Proof


def _in_order(act: Callable[[argparse.Namespace], ExitCode]) -> Callable[..., ExitCode]:
    """SIGTERM ends the command as Ctrl-C does: what it runs ends, half-made trees are removed."""

    @wraps(act)
    def ended_in_order(args: argparse.Namespace) -> ExitCode:
        with terminable():
            return act(args)

    return ended_in_order


def _progress() -> Callable[[str], None]:
    """A teller of what happens and when, on standard error."""
    start = time.monotonic()

    def say(what: str) -> None:
        elapsed = f"{duration(time.monotonic() - start):>12}"
        print(f"{paint(elapsed, 'dim', sys.stderr)}  {what}", file=sys.stderr, flush=True)

    return say


def _resolve_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--partition", metavar="NAME", help="this partition only")
    parser.add_argument("--backend", choices=["venv", "spack"], help="this way of building only")
    parser.add_argument("--why-not", metavar="NAME@VERSION", help="why a version is not the answer")


def _resolve(args: argparse.Namespace) -> ExitCode:
    from hpcdl.stack import resolve_show as show
    from hpcdl.stack.resolve import resolve, why_not

    site = the_site(args)
    if args.why_not:
        answers = why_not(site, args.why_not, args.partition, args.backend)
        print_json(show.answers_data(answers)) if args.json else print(show.answers_text(answers))
        return ExitCode.OK if all(one.fits for one in answers) else ExitCode.NO
    found = resolve(site, args.partition, args.backend)
    print_json(show.as_data(found)) if args.json else print(show.as_text(found))
    return ExitCode.OK if all(one.fits for one in found if one.wanted) else ExitCode.NO


def _plan_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--partition", metavar="NAME", help="this partition's stack only")


def _plan(args: argparse.Namespace) -> ExitCode:
    from hpcdl.workflows import plan_show
    from hpcdl.workflows.plan import plan

    found = plan(the_site(args), args.partition)
    print_json(plan_show.as_data(found)) if args.json else print(plan_show.as_text(found))
    if found.changes:
        return ExitCode.CHANGES
    return ExitCode.NO if found.blocked else ExitCode.OK


def _concretize_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("environments", nargs="*", help="k80, p100, v100, a100, h100; all")
    parser.add_argument("--partition", metavar="NAME", help="a site's partition instead")
    parser.add_argument("--render", action="store_true", help="only write the spack.yaml files")
    parser.add_argument("--folder", metavar="DIR", help="where environments/ is; the checkout's")
    parser.add_argument("--time-limit", type=_positive, metavar="SECONDS", help="of each one (400)")


def _concretize(args: argparse.Namespace) -> ExitCode:
    from hpcdl.stack.spack.concretize import concretize, plan, render_work
    from hpcdl.stack.spack.show import plan_text, solved_data, solved_text

    work = plan(args.environments, args.partition, args.folder, lambda: the_site(args))
    data, text = work.as_data(), plan_text(work, args.render)
    if not args.dry_run:
        render_work(work)
    if args.dry_run or args.render:
        print_json(data) if args.json else print(text)
        return ExitCode.OK
    found = [
        concretize(work.root, one, _progress(), time_limit=args.time_limit)
        for one in work.environments
    ]
    print_json(solved_data(found)) if args.json else print(solved_text(found))
    return ExitCode.OK if not any(one.differences for one in found) else ExitCode.NO


def _build_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", metavar="STACK", help="which of the site's stacks; the first")
    parser.add_argument(
        "--backend", choices=["venv", "spack"], help="how it is built; as the site says"
    )
    spack = parser.add_argument_group("with Spack")
    spack.add_argument("--jobs", type=int, metavar="COUNT", help="processes at a time; all CPUs")
    spack.add_argument("--unsigned", action="store_true", help="do not sign the build cache")
    spack.add_argument("--time-limit", type=_positive, metavar="SECONDS",
                       help="of the solver (400)")  # fmt: skip


def _build(args: argparse.Namespace) -> ExitCode:
    from hpcdl.stack.recipe import find_request

    site = the_site(args)
    backend = args.backend or find_request(site, args.name).backend
    return _build_spack(site, args) if backend == "spack" else _build_venv(site, args)


def _build_venv(site: Site, args: argparse.Namespace) -> ExitCode:
    from hpcdl.stack.build import build, plan_build

    if args.jobs or args.unsigned or args.time_limit:
        raise BadInput("--jobs, --unsigned and --time-limit are for stacks that Spack builds")
    plan = plan_build(site, args.name)
    if args.dry_run:
        return _would_build(plan, args)
    existed = plan.exists
    return _built(build(plan, _progress()), existed, args)


def _build_spack(site: Site, args: argparse.Namespace) -> ExitCode:
    from hpcdl.stack.spack.build import Options, build_spack, plan_spack
    from hpcdl.stack.spack.show import progress
    from hpcdl.system.progress import StatusLine

    if args.jobs is not None and args.jobs < 1:
        raise BadInput("--jobs must be at least 1")
    plan = plan_spack(site, args.name)
    if args.dry_run:
        return _would_build(plan, args)
    existed, options = plan.exists, Options(args.jobs, args.unsigned, args.time_limit)
    with StatusLine(sys.stderr) as line:
        release = build_spack(plan, _progress(), progress(line), options)
    return _built(release, existed, args)


def _would_build(plan: BuildPlan | SpackPlan, args: argparse.Namespace) -> ExitCode:
    if args.json:
        print_json(plan.as_data())
    else:
        steps = plan.steps() or [f"nothing: {plan.release_id} is built"]
        print("\n".join(["would do:", *(f"  {step}" for step in steps)]))
    return ExitCode.OK


def _built(release: Release, existed: bool, args: argparse.Namespace) -> ExitCode:
    from hpcdl.stack.release import as_record

    if args.json:
        print_json({**as_record(release), "built": not existed})
    else:
        print(f"{release.id} {'was built before' if existed else 'is built'} in {release.root}")
        print(f"next: hpcdl stack publish {release.id}")
    return ExitCode.OK


def _mirror_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("environments", nargs="*", help="k80, p100, v100, a100, h100; all")
    parser.add_argument("--name", metavar="STACK", help="a stack of the site instead")
    parser.add_argument("--folder", metavar="DIR", required=True, help="the mirror's folder")
    parser.add_argument("--bazel-cache", metavar="DIR",
                        help="bazel's downloads to take in (else HPCDL_BAZEL_CACHE)")  # fmt: skip


def _mirror(args: argparse.Namespace) -> ExitCode:
    from hpcdl.stack.spack.mirror import choose_environments, make_mirror, plan_mirror
    from hpcdl.stack.spack.show import mirror_text

    root, names = choose_environments(args.environments, args.name, lambda: the_site(args))
    mirror = plan_mirror(Path(args.folder).absolute(), root, names, args.bazel_cache)
    if args.dry_run:
        print_json(mirror.as_data()) if args.json else print(mirror_text(mirror))
        return ExitCode.OK
    path = make_mirror(mirror, root, _progress())
    if args.json:
        print_json({**mirror.as_data(), "missing": [], "manifest": str(path)})
        return ExitCode.OK
    print(f"{len(mirror.sources)} files are in {mirror.folder}; {path.name} lists them")
    for note in mirror.notes():
        print(f"note: {note}")
    print(f'in the site file there: spack: {{mirrors: {{local: "file://{mirror.folder}"}}}}')
    return ExitCode.OK


def _gate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("release", nargs="?", help="release id; without it the newest one built")
    parser.add_argument("--local", action="store_true",
                        help="run the gate on this machine, not in jobs")  # fmt: skip
    parser.add_argument("--partition", action="append", default=[], metavar="NAME",
                        help="prove it on this partition only; may be given again")  # fmt: skip
    parser.add_argument("--wait", type=_minutes, default=30, metavar="MINUTES",
                        help="how long a job may wait for its nodes (30)")  # fmt: skip


def _minutes(text: str) -> float:
    """A time to wait: 0 or more."""
    return 0.0 if text.strip() in {"0", "0.0"} else _positive(text)


def _positive(text: str) -> float:
    """A length of time; `nan` would wait for ever."""
    with suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"'{text[:30]}' is no number above 0")


def _publish_arguments(parser: argparse.ArgumentParser) -> None:
    _gate_arguments(parser)
    parser.add_argument(
        "--verify-again", action="store_true", help="run the gate even if its proof is stored"
    )


def _publish(args: argparse.Namespace) -> ExitCode:
    from hpcdl.stack.publish import newest, plan_publish, publish
    from hpcdl.stack.release import read_release
    from hpcdl.workflows.gate import choose_gate

    site = the_site(args)
    release_id = args.release or newest(site)
    if args.dry_run:
        return _show(site, plan_publish(site, release_id), args)
    say = _progress()
    gate, enough = choose_gate(site, read_release(site, release_id), say, local=args.local,
                               partitions=args.partition, wait_minutes=args.wait)  # fmt: skip
    switch = publish(site, release_id, gate, say=say, verify_again=args.verify_again, enough=enough)
    return _show(site, switch, args)


def _verify(args: argparse.Namespace) -> ExitCode:
    from hpcdl.stack.publish import newest, verify
    from hpcdl.stack.release import read_release
    from hpcdl.workflows.gate import choose_gate

    site = the_site(args)
    release = read_release(site, args.release or newest(site))
    gate, _ = choose_gate(site, release, _progress(), local=args.local,
                          partitions=args.partition, wait_minutes=args.wait)  # fmt: skip
    proof = verify(site, release.id, gate)
    if args.json:
        print_json(proof.as_data())
    else:
        _print_checks(proof)
        end = f"passed the gate: {proof.in_words()}" if proof.passed else "did not pass the gate"
        print(f"{proof.release} {end}")
    return ExitCode.OK if proof.passed else ExitCode.NO


def _print_checks(proof: Proof) -> None:
    for check in proof.checks:
        mark = "skipped" if check.skipped else "ok" if check.ok else "FAILED"
        print(f"  {mark:<8} {check.in_words()} ({duration(check.seconds)})")


def _rollback_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "release", nargs="?", help="release id; without it the one published before"
    )


def _rollback(args: argparse.Namespace) -> ExitCode:
    from hpcdl.stack.publish import plan_rollback, rollback

    site = the_site(args)
    act = plan_rollback if args.dry_run else rollback
    return _show(site, act(site, args.release), args)


def _show(site: Site, switch: Switch, args: argparse.Namespace) -> ExitCode:
    """What was switched, or would be."""
    if args.json:
        print_json({"schema": 1, "dry_run": args.dry_run, **switch.as_data()})
        return ExitCode.OK
    if switch.proof:
        _print_checks(switch.proof)
    modules = site.paths.prefix / "current" / "modules"
    would = "would become" if args.dry_run else "is"
    was = f" (was {switch.before})" if switch.changes and switch.before else ""
    print(f"current {would} {switch.after}{was}")
    if not args.dry_run:
        print(f"users: module use {modules} && module load tensorflow")
    return ExitCode.OK


def _list(args: argparse.Namespace) -> ExitCode:
    from hpcdl.stack.publish import overview

    rows = overview(the_site(args))
    if args.json:
        print_json({"schema": 1, "releases": rows})
    elif not rows:
        print("no releases yet; `hpcdl stack build` makes one")
    else:
        cells = [
            ["*" if row["current"] else "", row["id"], row["module"], row["created"],
             row["state"], row["proof"]]
            for row in rows
        ]  # fmt: skip
        print(table(cells, ["", "release", "module", "created", "state", "proof"]))
    return ExitCode.OK


def _gc_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep", type=int, default=3, metavar="COUNT",
                        help="how many of the last published ones stay (3)")  # fmt: skip
    parser.add_argument(
        "--unpublished", action="store_true", help="also those that were never published"
    )


def _gc(args: argparse.Namespace) -> ExitCode:
    from hpcdl.stack.gc import collect
    from hpcdl.workflows.releases import pinned_by_jobs

    site = the_site(args)
    if args.keep < 1:
        raise BadInput("--keep must be at least 1: the current release always stays")
    found = collect(site, lambda: pinned_by_jobs(site), keep=args.keep,
                    unpublished=args.unpublished, dry_run=args.dry_run)  # fmt: skip
    if args.json:
        print_json({**found.as_data(), "dry_run": args.dry_run})
        return ExitCode.OK
    word = "would remove" if args.dry_run else "removed"
    rows = [[word, name, f"{size / 1e6:.0f} MB"] for name, size in found.removed.items()]
    rows += [[word, name, "unfinished"] for name in found.unfinished]
    rows += [[word, name, f"{size / 1e6:.0f} MB"] for name, size in found.packages.items()]
    rows += [["keeps", name, why] for name, why in found.kept.items()]
    print(table(rows) if rows else "nothing to remove")
    if found.note:
        print(f"note: {found.note}")
    return ExitCode.OK


def _release_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("release", nargs="?", help="release id; without it the current one")


def _sbom(args: argparse.Namespace) -> ExitCode:
    from hpcdl.stack.components import components
    from hpcdl.stack.records import read_records, waivers_of
    from hpcdl.stack.release import current_id, read_release
    from hpcdl.stack.sbom import write_sboms

    site = the_site(args)
    named = args.release or current_id(site)
    if named is None:
        raise BadInput("nothing is published", hint="name a release; `hpcdl stack list` has them")
    release = read_release(site, named)
    inside = components(release)
    waivers = waivers_of(release, read_records(site))
    files = [] if args.dry_run else list(write_sboms(release, waivers))
    if args.json:
        rows = [vars(component) for component in inside]
        print_json({"schema": 1, "release": release.id, "files": files, "components": rows})
        return ExitCode.OK
    cells = [[one.name, one.version, one.licence or f"unknown ({one.words})"] for one in inside]
    print(table(cells, ["package", "version", "licence"]))
    for waiver in waivers:
        print(f"\n{waiver.weakness} is waived until {waiver.until} by {waiver.owner}:")
        print(f"  {waiver.because}")
    for path in files:
        print(f"written: {path}")
    return ExitCode.OK


def _accept_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("agreement", help="such as cuda or cudnn")
    parser.add_argument("--by", required=True, metavar="NAME", help="who accepts it")


def _accept(args: argparse.Namespace) -> ExitCode:
    from hpcdl.stack.records import accept

    accepted = accept(the_site(args), args.agreement, args.by, dry_run=args.dry_run)
    if args.json:
        print_json({"schema": 1, "dry_run": args.dry_run, **vars(accepted)})
    else:
        would = "would be noted" if args.dry_run else "noted"
        print(f"{would}: {accepted.by} accepted '{accepted.agreement}' at {accepted.at}")
    return ExitCode.OK


def _waive_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("weakness", help="such as CVE-2024-10190")
    parser.add_argument("--because", required=True, metavar="TEXT", help="why it is out of reach")
    parser.add_argument("--owner", required=True, metavar="NAME", help="who answers for that")
    parser.add_argument("--until", required=True, metavar="YEAR-MONTH-DAY", help="its last day")


def _waive(args: argparse.Namespace) -> ExitCode:
    from hpcdl.stack.records import Waiver, waive

    waiver = Waiver(args.weakness, args.because, args.owner, args.until)
    waive(the_site(args), waiver, dry_run=args.dry_run)
    if args.json:
        print_json({"schema": 1, "dry_run": args.dry_run, **vars(waiver)})
    else:
        would = "would be noted" if args.dry_run else "noted"
        print(f"{would}: {waiver.weakness} is waived until {waiver.until} by {waiver.owner}")
    return ExitCode.OK


GROUP = Group(
    "stack",
    "the software: build, verify, publish and roll back releases",
    (
        Command(
            "resolve",
            "Show the newest working versions for every partition, and what holds them back.",
            "hpcdl stack resolve --site pi --partition k80 --why-not tensorflow@2.18",
            _resolve,
            _resolve_arguments,
        ),
        Command(
            "plan",
            "Show what would be built and published, and what that changes for users and checks.",
            "hpcdl stack plan --partition p100",
            _plan,
            _plan_arguments,
        ),
        Command(
            "concretize",
            "Render Spack's environments and let Spack solve them, with a time limit.",
            "hpcdl stack concretize p100",
            _in_order(_concretize),
            _concretize_arguments,
            changes=True,
        ),
        Command(
            "build",
            "Build an immutable release, from wheels or with Spack: TensorFlow, Horovod, hpcdl.",
            "hpcdl stack build --site embedded",
            _in_order(_build),
            _build_arguments,
            changes=True,
        ),
        Command(
            "mirror",
            "Fetch every source that Spack's builds need, for machines without internet.",
            "hpcdl stack mirror p100 --folder /data/spack-mirror",
            _in_order(_mirror),
            _mirror_arguments,
            changes=True,
        ),
        Command(
            "verify",
            "Run the gate on a release in jobs, through its own module, and keep the proof.",
            "hpcdl stack verify tensorflow-2.21.0-cpu-1f0c9a3e --partition p100",
            _verify,
            _gate_arguments,
        ),
        Command(
            "publish",
            "Verify a release through its module and make it current at one stroke.",
            "hpcdl stack publish tensorflow-2.21.0-cpu-1f0c9a3e",
            _publish,
            _publish_arguments,
            changes=True,
        ),
        Command("list", "Show the releases and which one is current.", "hpcdl stack list", _list),
        Command(
            "rollback",
            "Make the release published before the current one current again.",
            "hpcdl stack rollback",
            _rollback,
            _rollback_arguments,
            changes=True,
        ),
        Command(
            "gc",
            "Remove releases that nothing needs: not current, not pinned by a job, not recent.",
            "hpcdl stack gc --dry-run",
            _gc,
            _gc_arguments,
            changes=True,
        ),
        Command(
            "sbom",
            "Show what is inside a release, with licences, and write SPDX and CycloneDX files.",
            "hpcdl stack sbom",
            _sbom,
            _release_argument,
            changes=True,
        ),
        Command(
            "accept-eula",
            "Note that somebody accepted a licence agreement that a publish needs.",
            "hpcdl stack accept-eula cuda --by 'Ada Lovelace'",
            _accept,
            _accept_arguments,
            changes=True,
        ),
        Command(
            "waive",
            "Note why a known weakness cannot be reached here, who answers for it, until when.",
            "hpcdl stack waive CVE-2024-10190 --because 'no elastic jobs are run here' "
            "--owner 'Ada Lovelace' --until 2027-06-30",
            _waive,
            _waive_arguments,
            changes=True,
        ),
    ),
)
