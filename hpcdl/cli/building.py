"""`hpcdl stack build` and `adopt`: the commands that run for long.

SIGTERM ends them as Ctrl-C does: what they run ends, half-made trees are removed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hpcdl.cli.framework import command, option, show, the_site
from hpcdl.system.errors import BadInput, ExitCode, HpcdlError, MissingPrerequisite, PartlyDone
from hpcdl.system.signals import terminable
from hpcdl.system.text import StatusLine, duration, paint

if TYPE_CHECKING:
    from hpcdl.stack.plans import Blocked
    from hpcdl.stack.release import Release, ReleasePlan


def progress_teller() -> Callable[[str], None]:
    """A teller of what happens and when, on standard error."""
    start = time.monotonic()

    def say(what: str) -> None:
        elapsed = f"{duration(time.monotonic() - start):>12}"
        print(f"{paint(elapsed, 'dim', sys.stderr)}  {what}", file=sys.stderr, flush=True)

    return say


def _build_arguments(parser: argparse.ArgumentParser) -> None:
    from hpcdl.stack.release import BACKENDS

    add = parser.add_argument
    add("--name", metavar="STACK", help="stack of the site (default: the first)")
    add("--backend", choices=BACKENDS, help="build method (default: the site file's)")
    add("--partition", metavar="NAME", help="the build for this partition's GPUs only")
    wheels = parser.add_argument_group("from wheels")
    wheels.add_argument(
        "--without-horovod", action="store_true", help="for tf.distribute: no compiler is needed"
    )


@command("hpcdl stack build --site embedded", _build_arguments, changes=True)
@terminable()
def _build(args: argparse.Namespace) -> ExitCode:
    """Build an immutable release, from wheels or with Spack: TensorFlow, Horovod, hpcdl."""
    from hpcdl.stack.plans import Blocked, plan_stack
    from hpcdl.stack.resolve import find_request

    site = the_site(args)
    by_spack = (args.backend or find_request(site, args.name).backend) != "wheels"
    if by_spack and args.without_horovod:
        raise BadInput("--without-horovod is for stacks from wheels")
    plans, none = plan_stack(
        site,
        args.name,
        partition=args.partition,
        backend=args.backend,
        without_horovod=args.without_horovod,
    )
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
    with StatusLine(sys.stderr) as line:
        made = [_make(plan, line) for plan in ready]
    _built(made, existed, args)
    if blocked:
        names = ", ".join(name for one in blocked for name in one.partitions)
        raise PartlyDone(
            f"partitions without a build: {names}",
            details=[str(one) for one in blocked],
            hint="what is built can be published; then mend this and run the same command again",
        )
    return ExitCode.OK


def _make(plan: ReleasePlan, line: StatusLine) -> Release:
    """Build one release."""
    from hpcdl.stack.build import BuildPlan, build
    from hpcdl.stack.spack_backend.make import progress
    from hpcdl.stack.spack_backend.spack_build import SpackPlan, build_spack

    say = progress_teller()
    if isinstance(plan, BuildPlan):
        return build(plan, say)
    assert isinstance(plan, SpackPlan)
    return build_spack(plan, say, progress(line))


def _lack(plan: ReleasePlan, *, only_look: bool = False) -> HpcdlError | None:
    try:
        plan.require_ready(only_look=only_look)
    except (MissingPrerequisite, BadInput) as fault:
        return fault
    return None


def _would_build(
    plans: Sequence[ReleasePlan], args: argparse.Namespace, blocked: Sequence[Blocked] = ()
) -> ExitCode:
    """Show what would be built; exits as the build would if this machine lacks something."""
    lacks = [_lack(plan, only_look=True) for plan in plans]
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
    option("environment", "ENV", "its directory, or the name of one that Spack manages"),
    option("--name", "STACK", "stack of the site (default: the first)"),
    changes=True,
)
@terminable()
def _adopt(args: argparse.Namespace) -> ExitCode:
    """Make a release of an environment that Spack has installed."""
    from hpcdl.stack.spack_backend.adopt import adopt_installed, plan_adoption

    plan = plan_adoption(the_site(args), args.environment, args.name)
    if args.dry_run:
        return _would_build([plan], args)
    existed = plan.exists
    return _built([adopt_installed(plan, progress_teller())], [existed], args)


COMMANDS = (_build, _adopt)
