"""What every stack of a site is to be: the resolution, and the release that would come of it.

A `Target` is a release that is built, or only expected: known before anything is fetched or
compiled, planned as `stack build` plans it. What cannot be planned here is a target without a
release, and says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcdl.site import Site
from hpcdl.stack.build import plan_build
from hpcdl.stack.recipe import MODULE
from hpcdl.stack.release import BrokenRelease, Release, read_release
from hpcdl.stack.resolve import resolve
from hpcdl.stack.resolve_solution import Resolution
from hpcdl.stack.spack_backend.spack_build import plan_spack
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.run import CommandFailed


@dataclass(frozen=True)
class Target:
    """What the stack of some partitions is to be.

    `blocked` says why it cannot be built here. `release` is None where nothing fits at all, or
    where no stack serves the partitions, and `stack` is empty. `steps` are what is left to do
    before it can be published, `notes` what a user should know of it.
    """

    stack: str
    backend: str
    partitions: tuple[str, ...]
    resolution: Resolution
    release: Release | None
    built: bool
    steps: tuple[str, ...] = ()
    blocked: str = ""
    notes: tuple[str, ...] = ()


def targets(site: Site, partition: str | None = None) -> tuple[Target, ...]:
    """The target of every stack that serves a partition, or of the one that serves `partition`.

    The last one may be of no stack: for partitions that none of the site's stacks serves.
    """
    names = [partition] if partition else list(site.partitions)
    groups: dict[tuple[str, str, tuple[object, ...]], list[Resolution]] = {}
    unserved: list[Resolution] = []
    for name in names:
        one = resolve(site, name)[0]
        if one.stack is None and site.stacks:
            unserved.append(one)
        else:
            # From wheels, each TensorFlow is a build of its own, with GPUs or without; what fits
            # none is told for itself.
            own = (one.versions.get("tensorflow", ""), one.compute is not None, one.problems)
            key = own if one.backend == "venv" else ()
            groups.setdefault((one.stack or MODULE, one.backend, key), []).append(one)
    found = [_target(site, *key[:2], group) for key, group in groups.items()]
    if unserved:
        note = "none of the site's stacks names them: their jobs load what the others have"
        left = tuple(one.partition for one in unserved)
        found.append(Target("", "", left, unserved[0], None, built=False, notes=(note,)))
    return tuple(found)


def _target(site: Site, stack: str, backend: str, group: Sequence[Resolution]) -> Target:
    names, one = tuple(one.partition for one in group), group[0]
    name = one.stack  # None where the site file names no stacks
    try:
        venv = backend == "venv"
        plan = plan_build(site, name, names[0]) if venv else plan_spack(site, name)
        release = plan.expected()
        if plan.exists:
            release = read_release(site, release.id)
        steps, lack = tuple(plan.steps()), ""
    except (MissingPrerequisite, BadInput, BrokenRelease, CommandFailed) as fault:
        return Target(stack, backend, names, one, None, False, blocked=fault.in_one_line())
    try:
        plan.require_ready(only_look=True)
    except (MissingPrerequisite, BadInput, CommandFailed) as fault:
        lack = fault.in_one_line()
    idle = ", ".join(name for name in names if site.partition(name).gpu is not None)
    note = f"a build for CPUs, as `variant: cpu` says: it leaves the GPUs of {idle} idle"
    notes = (note,) if idle and "cuda" not in release.versions else ()
    return Target(stack, backend, names, one, release, plan.exists, steps, lack, notes)
