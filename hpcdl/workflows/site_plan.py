"""`hpcdl stack plan`: what would be built, published and loaded, before anything is done.

Each stack of a site has a `StackTarget`, planned as `stack build` plans it. It is compared with
what is published: versions, modules and what a plain load gives where, jobs that wait or run,
references that would become STALE. Nothing is written. Below is the plan as text and as data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from hpcdl.regress.references import load_references
from hpcdl.site import Site
from hpcdl.stack.dispatch import Event, read_history
from hpcdl.stack.modules import render_modules
from hpcdl.stack.plans import plan_stack
from hpcdl.stack.publish import PublishedState, shown_after
from hpcdl.stack.release import (
    BrokenRelease,
    Release,
    ReleasePlan,
    current_id,
    read_release,
    release_for,
)
from hpcdl.stack.resolve import Resolver, find_request
from hpcdl.system.errors import BadInput, HpcdlError, MissingPrerequisite
from hpcdl.system.run import CommandFailed
from hpcdl.system.text import paint, table
from hpcdl.workflows.releases import Use, uses

_SHOWN = 10
"""As many jobs are named."""


@dataclass(frozen=True)
class StackTarget:
    """The planned stack of some partitions.

    `blocked` says why it cannot be built here. `release` is None where nothing fits at all, or
    where no stack serves the partitions, and `stack` is empty. `steps` are what is left to do
    before it can be published, `notes` what a user should know of it.
    """

    stack: str
    backend: str
    partitions: tuple[str, ...]
    release: Release | None
    built: bool
    steps: tuple[str, ...] = ()
    blocked: str = ""
    notes: tuple[str, ...] = ()


def targets(site: Site, partition: str | None = None) -> tuple[StackTarget, ...]:
    """The target of every build of the site's stacks, or of the one that serves `partition`.

    The last one may be of no stack: for partitions that none of the site's stacks serves.
    """
    names = [site.partition(partition).name] if partition else list(site.partitions)
    homes = {name: site.stack_for(name) for name in names}
    left = tuple(name for name, home in homes.items() if home is None and site.stacks)
    stacks = dict.fromkeys(home.name for home in homes.values() if home)
    stack_targets = [
        target
        for name in ([*stacks] if site.stacks else [None])
        for target in _of_stack(site, name, partition)
    ]
    if left:
        note = "no stack names these partitions: their jobs load what is published for others"
        stack_targets.append(StackTarget("", "", left, None, built=False, notes=(note,)))
    return tuple(stack_targets)


def _of_stack(site: Site, name: str | None, partition: str | None) -> Iterator[StackTarget]:
    """The targets of one stack; where it cannot be planned at all, one that says why."""
    stack = find_request(site, name)
    try:
        plans, blocked = plan_stack(site, name, partition=partition)
    except (BadInput, HpcdlError) as fault:
        names = Resolver(site).members(stack)
        why = fault.in_one_line()
        yield StackTarget(stack.name, stack.backend, names, None, built=False, blocked=why)
        return
    for one in blocked:
        why = one.fault.in_one_line()
        yield StackTarget(stack.name, stack.backend, one.partitions, None, built=False, blocked=why)
    for plan in plans:
        yield _target(site, plan)


def _target(site: Site, plan: ReleasePlan) -> StackTarget:
    release = plan.expected()
    stack, backend = plan.request.name, release.backend
    names = plan.partitions or tuple(site.partitions)
    steps, lack = tuple[str, ...](), ""
    try:
        if plan.exists:
            release = read_release(site, release.id)
        steps = tuple(plan.steps())
        plan.require_ready(only_look=True)
    except (MissingPrerequisite, BadInput, CommandFailed) as fault:
        lack = fault.in_one_line()
    except BrokenRelease as fault:
        why = fault.in_one_line()
        return StackTarget(stack, backend, names, None, built=False, blocked=why)
    idle = ", ".join(name for name in names if site.partition(name).gpu is not None)
    note = f"a build for CPUs, as `variant: cpu` says: it leaves the GPUs of {idle} idle"
    notes = (note,) if idle and "cuda" not in release.versions else ()
    return StackTarget(stack, backend, names, release, plan.exists, steps, lack, notes)


@dataclass(frozen=True)
class VersionChange:
    """A part of a stack in another version; None is a part that was not or will not be there."""

    component: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class StackPlan:
    """One target beside the release that its partitions have now."""

    target: StackTarget
    before: Release | None
    versions: tuple[VersionChange, ...]

    @property
    def publishes(self) -> bool:
        """Return whether another release than now would become the partitions' own."""
        after = None if self.target.blocked else self.target.release
        return after is not None and (self.before is None or self.before.id != after.id)


@dataclass(frozen=True)
class Default:
    """The release of a plain `module load tensorflow` on a partition, before and after."""

    partition: str
    before: Release | None
    after: Release

    @property
    def changes(self) -> bool:
        """Return whether it is another release."""
        return self.before is None or self.before.id != self.after.id

    @property
    def serves(self) -> bool:
        """Return whether the release is for that partition."""
        return not self.after.partitions or self.partition in self.after.partitions


@dataclass(frozen=True)
class ModulesPlan:
    """Modules by full name: new ones, names that lead to another release, what else is written."""

    added: tuple[str, ...]
    moved: tuple[str, ...]
    defaults: tuple[Default, ...]
    rewritten: bool

    @property
    def changes(self) -> bool:
        """Return whether users would see anything else than now."""
        moved = any(default.changes for default in self.defaults)
        return bool(self.added or self.moved or moved or self.rewritten)


@dataclass(frozen=True)
class JobsPlan:
    """Active jobs: `pinned` keep their release, `affected` load what would change by its name.

    `unknown` are those whose script cannot be read; `away` says why Slurm was not asked.
    """

    pinned: tuple[Use, ...] = ()
    affected: tuple[tuple[Use, str], ...] = ()
    unknown: tuple[Use, ...] = ()
    away: str = ""


@dataclass(frozen=True)
class StaleReferences:
    """References of a partition that would not be of its release any more."""

    partition: str
    reference_set: str
    count: int
    measured_with: str


@dataclass(frozen=True)
class SitePlan:
    """All that would change."""

    site_name: str
    stacks: tuple[StackPlan, ...]
    modules: ModulesPlan
    jobs: JobsPlan
    references: tuple[StaleReferences, ...]

    @property
    def changes(self) -> bool:
        """Return whether anything would change."""
        return self.modules.changes or any(stack.publishes for stack in self.stacks)

    @property
    def blocked(self) -> bool:
        """Return whether a stack cannot be built at all."""
        return any(stack.target.blocked for stack in self.stacks)


def plan(site: Site, partition: str | None = None) -> SitePlan:
    """Return what building and publishing every stack, or that of one partition, would change."""
    stacks = tuple(_stack_plan(site, target) for target in targets(site, partition))
    modules = _modules_plan(site, stacks)
    changed = {default.partition: default for default in modules.defaults if default.changes}
    return SitePlan(
        site_name=site.name,
        stacks=stacks,
        modules=modules,
        jobs=_jobs_plan(site, modules, changed),
        references=tuple(_stale(site, changed)),
    )


def _stack_plan(site: Site, target: StackTarget) -> StackPlan:
    after = target.release.id if target.release else None
    have = [_serving(site, name) for name in target.partitions]
    # Where the partitions have different releases now, one that changes counts for all.
    before = next((one for one in have if one is None or one.id != after), have[0])
    return StackPlan(target, before, tuple(_version_changes(target, before)))


def _serving(site: Site, partition: str) -> Release | None:
    """The release that a partition has now; None too where what is published is damaged."""
    try:
        return release_for(site, partition)
    except BrokenRelease:
        return None


def _version_changes(target: StackTarget, before: Release | None) -> Iterator[VersionChange]:
    after = target.release
    if after is None or (before is not None and before.id == after.id):
        return
    # Where there was nothing, the components say enough.
    old, new = (_contents(before), _contents(after)) if before else ({}, after.versions)
    if not after.lock:
        # Not locked yet: what no component names is not known, and so no change.
        old = {name: version for name, version in old.items() if name in new}
    for name in dict.fromkeys([*new, *old]):
        if name != "driver" and old.get(name) != new.get(name):
            yield VersionChange(name, old.get(name), new.get(name))


def _contents(release: Release) -> dict[str, str]:
    """Every version in a release: its components, then the packages of its lock."""
    named = ("hpcdl", "horovod", "tensorflow-cpu")  # among the components
    packages = {
        entry["name"]: entry["version"] for entry in release.lock if entry["name"] not in named
    }
    own = {"hpcdl": release.hpcdl} if release.hpcdl else {}
    return {**release.versions, **own, **packages}


def _modules_plan(site: Site, stacks: Sequence[StackPlan]) -> ModulesPlan:
    history = read_history(site)
    new = [stack.target.release for stack in stacks if stack.publishes and stack.target.release]
    events = [*history, *(Event("publish", release.id) for release in new)]
    after = shown_after(site, events, expected=new)
    if after is None:
        return ModulesPlan((), (), (), rewritten=False)
    before, then = _names(shown_after(site, history)), _names(after)
    own = {name for stack in stacks if stack.target.stack for name in stack.target.partitions}
    defaults = [
        Default(name, _serving(site, name), release)
        for name, release in after.chosen.partitions.items()
    ]
    return ModulesPlan(
        added=tuple(name for name in then if name not in before),
        moved=tuple(n for n, name in then.items() if before.get(n, name) != name),
        # Where nothing can be built for a partition, what the others have is not for it.
        defaults=tuple(
            default
            for default in defaults
            if default.before or default.serves or default.partition not in own
        ),
        rewritten=not new and current_id(site) is not None and _differ(site, after),
    )


def _names(shown: PublishedState | None) -> dict[str, str]:
    """Release ids by the full names of the modules that lead to them."""
    return {release.module: release.id for release in shown.releases} if shown else {}


def _differ(site: Site, shown: PublishedState) -> bool:
    """Return whether the modulefiles on disk are not those that a publish would write now."""
    modules = site.paths.prefix / "current" / "modules"
    with suppress(OSError):
        return any(
            (modules / name).read_text(encoding="utf-8") != text
            for name, text in render_modules(site, *shown).items()
        )
    return True


def _jobs_plan(site: Site, modules: ModulesPlan, changed: Mapping[str, Default]) -> JobsPlan:
    try:
        jobs = uses(site)
    except MissingPrerequisite as lack:
        return JobsPlan(away=lack.message)
    affected = [(use, _what_changes(use, modules, changed)) for use in jobs if use.loads]
    return JobsPlan(
        pinned=tuple(use for use in jobs if use.releases),
        affected=tuple((use, other) for use, other in affected if other and not use.releases),
        unknown=tuple(use for use in jobs if not use.known),
    )


def _what_changes(use: Use, modules: ModulesPlan, changed: Mapping[str, Default]) -> str:
    """Describe what a job that loads by name gets instead after the publish; '' if nothing."""
    for name in use.loads:
        default = changed.get(use.job.partition)
        if "/" not in name and default is not None:
            was = default.before.module if default.before else "nothing"
            return f"{default.after.module} instead of {was}"
        if name in modules.moved:
            return f"another build of {name}"
    return ""


def _stale(site: Site, changed: Mapping[str, Default]) -> Iterator[StaleReferences]:
    by_set: dict[str, dict[str, Counter[str]]] = {}
    for part in site.by_groups(list(changed)) if changed else ():
        name, after = part.reference_set, changed[part.name].after.id
        if name not in by_set:  # a set is read once, for all its partitions
            by_set[name] = {}
            for row in load_references(site, name).values():
                if row.release is not None:
                    by_set[name].setdefault(row.partition, Counter())[row.release] += 1
        for release, count in by_set[name].get(part.label, Counter()).items():
            if release != after:
                yield StaleReferences(part.label, name, count, release)


# ---- as text and as data ----


def as_text(plan: SitePlan) -> str:
    """The plan as a page."""
    parts = ["\n".join(_stack(one)) for one in plan.stacks]
    sections = {
        "modules": _modules(plan),
        "jobs": _jobs(plan.jobs),
        "references": _references(plan),
    }
    for title, lines in sections.items():
        found = [f"  {line}" for line in lines]
        if found:
            parts.append("\n".join([paint(title, "bold"), *found]))
    parts.append(_next(plan))
    return "\n\n".join(parts)


def _stack(planned: StackPlan) -> Iterator[str]:
    target, after = planned.target, planned.target.release
    names = ", ".join(target.partitions)
    if not target.stack:
        yield paint(f"no stack for {names}", "bold")
        yield from (f"  note: {note}" for note in target.notes)
        return
    yield paint(f"stack {target.stack}, {target.backend}, for {names}", "bold")
    if target.blocked:
        yield f"  cannot be built here: {target.blocked}"
    if after is None:
        return
    if not planned.publishes and not target.blocked:
        yield f"  nothing to do: {after.id} is published ({after.proof})"
        return
    was = planned.before.id if planned.before else "nothing"
    known = after.id if target.built or after.lock else f"{after.id}-..."
    yield f"  release {was} -> {known}; evidence: {after.proof}"
    yield from (f"  {step}" for step in target.steps or [f"nothing to build: {after.id} is built"])
    yield from (f"  note: {note}" for note in target.notes)
    rows = [
        [f"  {row.component}", f"{row.before or '-'} -> {row.after or '-'}"]
        for row in planned.versions
    ]
    if rows:
        yield table(rows)


def _modules(plan: SitePlan) -> Iterator[str]:
    modules = plan.modules
    yield from (f"new: {name}" for name in modules.added)
    yield from (f"{name} would lead to another build" for name in modules.moved)
    groups: dict[tuple[str, str], list[str]] = {}
    for one in modules.defaults:
        if one.changes:
            was = one.before.module if one.before else "nothing"
            groups.setdefault((was, one.after.module), []).append(one.partition)
    for (before, after), names in groups.items():
        then = "another build of it" if before == after else after
        yield f"a plain load on {', '.join(names)}: {before} -> {then}"
    if modules.rewritten:
        yield "the modulefiles would be written again"


def _jobs(jobs: JobsPlan) -> Iterator[str]:
    if jobs.away:
        yield f"jobs are unknown: {jobs.away}"
    if jobs.pinned:
        yield f"{len(jobs.pinned)} waiting or running, with their release in the script: unaffected"
    for use, other in jobs.affected[:_SHOWN]:
        job = f"{use.job.id} ({use.job.name}, {use.job.partition}, {use.job.state.lower()})"
        yield f"{job} loads by name, and would get {other} if it loads it later"
    if len(jobs.affected) > _SHOWN:
        yield f"... and {len(jobs.affected) - _SHOWN} more"
    if jobs.unknown:
        yield f"{len(jobs.unknown)} whose script only root or a Slurm operator can read"


def _references(plan: SitePlan) -> Iterator[str]:
    for row in plan.references:
        many = "reference" if row.count == 1 else "references"
        yield (
            f"{row.partition}: {row.count} {many} of set '{row.reference_set}', measured with "
            f"{row.measured_with}, would be STALE: "
            f"hpcdl check references measure --partition {row.partition}"
        )


def _next(plan: SitePlan) -> str:
    if not plan.changes:
        return "something is in the way" if plan.blocked else "nothing would change"
    todo = [one.target for one in plan.stacks if one.publishes]
    stuck = {one.target.stack for one in plan.stacks if one.target.blocked}
    builds, publishes = [], []
    for target in todo:
        if not target.built:
            only = f" --partition {target.partitions[0]}" if target.stack in stuck else ""
            builds.append(f"hpcdl stack build --name {target.stack}{only}")
        # An id is known once the wheels are locked or the environment is solved.
        known = target.release and (target.built or target.release.lock)
        name = target.release.id if target.release and known else "ID"
        publishes.append(f"hpcdl stack publish {name}")
    lines = [*builds, *publishes] or ["hpcdl stack publish"]
    return "\n".join(["next:", *(f"  {line}" for line in dict.fromkeys(lines))])


def as_data(plan: SitePlan) -> dict[str, Any]:
    """The plan as JSON values."""
    return {
        "schema": 1,
        "site": plan.site_name,
        "changes": plan.changes,
        "blocked": plan.blocked,
        "stacks": [_stack_data(stack) for stack in plan.stacks],
        "modules": {
            "added": list(plan.modules.added),
            "moved": list(plan.modules.moved),
            "rewritten": plan.modules.rewritten,
            "defaults": [
                {
                    "partition": default.partition,
                    "before": _release_data(default.before),
                    "after": _release_data(default.after),
                    "changes": default.changes,
                }
                for default in plan.modules.defaults
            ],
        },
        "jobs": {
            "away": plan.jobs.away or None,
            "pinned": [_use_data(use) for use in plan.jobs.pinned],
            "affected": [{**_use_data(use), "gets": other} for use, other in plan.jobs.affected],
            "unknown": [_use_data(use) for use in plan.jobs.unknown],
        },
        "references": [asdict(row) for row in plan.references],
    }


def _stack_data(planned: StackPlan) -> dict[str, Any]:
    target = planned.target
    return {
        "stack": target.stack or None,
        "backend": target.backend or None,
        "partitions": list(target.partitions),
        "before": _release_data(planned.before),
        "after": _release_data(target.release),
        "built": target.built,
        "publishes": planned.publishes,
        "blocked": target.blocked or None,
        "steps": list(target.steps),
        "notes": list(target.notes),
        "versions": [asdict(change) for change in planned.versions],
    }


def _release_data(release: Release | None) -> dict[str, Any] | None:
    if release is None:
        return None
    return {
        "id": release.id,
        "module": release.module,
        "proof": release.proof,
        "created": release.created or None,
    }


def _use_data(use: Use) -> dict[str, Any]:
    job = use.job
    return {
        "job": job.id,
        "name": job.name,
        "partition": job.partition,
        "state": job.state,
        "releases": list(use.releases),
        "loads": list(use.loads),
    }
