"""What every stack of a site is to be: the resolution, and the release that would come of it.

A `Target` is a release that is built, or only expected: known before anything is fetched or
compiled. Stacks from wheels are planned as `stack build` plans them; a stack that Spack compiles
is one release per kind of GPU and processor; it counts as built where a release has exactly the
resolved versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpcdl.site import Site
from hpcdl.stack.build import plan_build
from hpcdl.stack.recipe import MODULE, gpu_variant
from hpcdl.stack.release import (
    BrokenRelease,
    Release,
    read_release,
    release_ids,
    releases_folder,
)
from hpcdl.stack.resolve import Resolution, resolve
from hpcdl.system.errors import BadInput, MachineLacks


@dataclass(frozen=True)
class Target:
    """What the stack of some partitions is to be.

    `release` is None where nothing can be built, and `blocked` says why. `steps` are what is
    left to do before it can be published.
    """

    stack: str
    backend: str
    partitions: tuple[str, ...]
    resolution: Resolution
    release: Release | None
    built: bool
    steps: tuple[str, ...] = ()
    blocked: str = ""


def targets(site: Site, partition: str | None = None) -> tuple[Target, ...]:
    """The target of every partition's stack; partitions with one and the same share it.

    Raises:
        BadInput: an unknown partition, or pins that contradict each other or the facts.
    """
    names = [partition] if partition else list(site.partitions)
    groups: dict[tuple[object, ...], list[Resolution]] = {}
    for name in names:
        one = resolve(site, name)[0]
        groups.setdefault(_group(site, one), []).append(one)
    return tuple(_target(site, group) for group in groups.values())


def _group(site: Site, one: Resolution) -> tuple[object, ...]:
    """What tells releases apart: wheels are one for a stack, compiled ones are for a machine."""
    stack = (one.stack or MODULE, one.backend)
    if one.backend == "venv":
        return stack
    return (*stack, one.compute, site.partition(one.partition).target, *one.versions.items())


def _target(site: Site, group: Sequence[Resolution]) -> Target:
    names = tuple(one.partition for one in group)
    make = _from_wheels if group[0].backend == "venv" else _from_spack
    try:
        return make(site, names, group[0])
    except (MachineLacks, BadInput) as lack:
        why = "; ".join([lack.message, *lack.details[:1]])
        return Target(
            group[0].stack or MODULE, group[0].backend, names, group[0], None, False, blocked=why
        )


def _from_wheels(site: Site, names: tuple[str, ...], one: Resolution) -> Target:
    plan = plan_build(site, one.stack)
    release = plan.expected()
    if plan.exists:
        release = read_release(site, release.id)
    return Target(plan.request.name, "venv", names, one, release, plan.exists, tuple(plan.steps()))


def _from_spack(site: Site, names: tuple[str, ...], one: Resolution) -> Target:
    stack = one.stack or MODULE
    if not one.fits or one.compute is None:
        why = "no set of versions fits" if one.compute else "a partition without GPUs"
        hint = f"`hpcdl stack resolve --partition {one.partition}` says more"
        return Target(stack, "spack", names, one, None, False, blocked=f"{why}; {hint}")
    built = _built(site, stack, names, one)
    if built is not None:
        return Target(stack, "spack", names, one, built, True)
    expected = _expected(site, stack, names, one)
    versions = one.versions
    steps = (
        f"solve Spack's environment for {', '.join(names)}: TensorFlow {versions['tensorflow']}, "
        f"CUDA {versions['cuda']}, gcc {versions['gcc']}",
        f"fetch and compile what neither the build cache nor {site.paths.prefix} has",
    )
    return Target(stack, "spack", names, one, expected, False, steps)


def _built(site: Site, stack: str, names: tuple[str, ...], one: Resolution) -> Release | None:
    """The newest release that Spack built for these partitions with exactly these versions."""
    found = [
        release
        for release in _sound(site, release_ids(site))
        if (release.stack, release.backend) == (stack, "spack")
        and (not release.partitions or set(names) <= set(release.partitions))
        and all(release.versions.get(name, v) == v for name, v in one.versions.items())
    ]
    return max(found, key=lambda release: release.created, default=None)


def _expected(site: Site, stack: str, names: tuple[str, ...], one: Resolution) -> Release:
    assert one.compute is not None
    variant = f"{one.versions['tensorflow']}-{gpu_variant(one.versions['cuda'], one.compute)}"
    name = f"{stack}-{variant}"
    return Release(
        id=name,
        stack=stack,
        backend="spack",
        root=releases_folder(site) / name,
        module=f"{MODULE}/{variant}",
        versions=one.versions,
        partitions=names,
        proof=one.proof,
        created="",
        hpcdl="",
        lock=(),
    )


def _sound(site: Site, names: Iterable[str]) -> Iterable[Release]:
    for name in names:
        try:
            yield read_release(site, name)
        except BrokenRelease:
            continue
