"""`hpcdl stack plan`: what would be built, published and loaded, before anything is done.

Each stack of a site has a `StackTarget`, planned as `stack build` plans it. It is compared with
what is published: versions, modules and what a plain load gives where, jobs that wait or run,
references that would become STALE. Nothing is written. The plan is the JSON document that the
command prints; `as_text` reads it, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hpcdl.regress.references import load_references
from hpcdl.site import Site
from hpcdl.stack.build import plan_stack
from hpcdl.stack.modules import Event, read_history, render_modules
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
        plan.require_ready()
    except (MissingPrerequisite, BadInput, CommandFailed) as fault:
        lack = fault.in_one_line()
    except BrokenRelease as fault:
        why = fault.in_one_line()
        return StackTarget(stack, backend, names, None, built=False, blocked=why)
    idle = ", ".join(name for name in names if site.partition(name).gpu is not None)
    note = f"a build for CPUs, as `variant: cpu` says: it leaves the GPUs of {idle} idle"
    notes = (note,) if idle and "cuda" not in release.versions else ()
    return StackTarget(stack, backend, names, release, plan.exists, steps, lack, notes)


def plan(site: Site, partition: str | None = None) -> dict[str, Any]:
    """What building and publishing every stack, or that of one partition, would change: JSON."""
    chosen = targets(site, partition)
    stacks = [_stack(site, target) for target in chosen]
    new = [
        target.release
        for target, row in zip(chosen, stacks, strict=True)
        if row["publishes"] and target.release
    ]
    stacked = {name for target in chosen if target.stack for name in target.partitions}
    modules, after = _modules(site, new, stacked)
    users_see = modules["added"] or modules["moved"] or modules["rewritten"]
    return {
        "schema": 1,
        "site": site.name,
        "changes": bool(users_see or new or after),
        "blocked": any(target.blocked for target in chosen),
        "stacks": stacks,
        "modules": modules,
        "jobs": _jobs(site, modules, after),
        "references": list(_stale(site, {name: one["after"]["id"] for name, one in after.items()})),
    }


def _release(release: Release | None) -> dict[str, Any] | None:
    if release is None:
        return None
    return {
        "id": release.id,
        "module": release.module,
        "proof": release.proof,
        "created": release.created or None,
    }


def _stack(site: Site, target: StackTarget) -> dict[str, Any]:
    """A target beside the release that its partitions have now."""
    after = target.release
    have = [_serving(site, name) for name in target.partitions]
    # Where the partitions have different releases now, one that changes counts for all.
    before = next((one for one in have if one is None or not after or one.id != after.id), have[0])
    changes = after is not None and (before is None or before.id != after.id)
    return {
        "stack": target.stack or None,
        "backend": target.backend or None,
        "partitions": list(target.partitions),
        "before": _release(before),
        "after": _release(after),
        "built": target.built,
        # The id is final once the wheels are locked or the environment is solved.
        "final": bool(target.built or (after and after.lock)),
        "publishes": changes and not target.blocked,
        "blocked": target.blocked or None,
        "steps": list(target.steps),
        "notes": list(target.notes),
        "versions": list(_versions(before, after)) if after and changes else [],
    }


def _serving(site: Site, partition: str) -> Release | None:
    """The release that a partition has now; None too where what is published is damaged."""
    try:
        return release_for(site, partition)
    except BrokenRelease:
        return None


def _versions(before: Release | None, after: Release) -> Iterator[dict[str, str | None]]:
    """What changes its version; None is a part that was not or will not be there."""
    # Where there was nothing, the components say enough.
    old, new = (_contents(before), _contents(after)) if before else ({}, after.versions)
    if not after.lock:
        # Not locked yet: what no component names is not known, and so no change.
        old = {name: version for name, version in old.items() if name in new}
    for name in dict.fromkeys([*new, *old]):
        if name != "driver" and old.get(name) != new.get(name):
            yield {"component": name, "before": old.get(name), "after": new.get(name)}


def _contents(release: Release) -> dict[str, str]:
    """Every version in a release: its components, then the packages of its lock."""
    named = ("hpcdl", "horovod", "tensorflow-cpu")  # among the components
    packages = {
        entry["name"]: entry["version"] for entry in release.lock if entry["name"] not in named
    }
    own = {"hpcdl": release.hpcdl} if release.hpcdl else {}
    return {**release.versions, **own, **packages}


def _modules(
    site: Site, new: Sequence[Release], stacked: Collection[str]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Modules by full name, and the plain loads that change by partition.

    New ones, names that lead to another release, what a plain load gives before and after, and
    whether only files are written again. `stacked` are the partitions that a stack names.
    """
    history = read_history(site)
    events = [*history, *(Event("publish", release.id) for release in new)]
    after = shown_after(site, events, expected=new)
    if after is None:
        return {"added": [], "moved": [], "rewritten": False, "defaults": []}, {}
    before, then = _names(shown_after(site, history)), _names(after)
    defaults: list[dict[str, Any]] = []
    for name, release in after.chosen.partitions.items():
        had = _serving(site, name)
        serves = not release.partitions or name in release.partitions
        # Where nothing can be built for a partition, what the others have is not for it.
        if had or serves or name not in stacked:
            row = {"partition": name, "before": _release(had), "after": _release(release)}
            defaults.append({**row, "changes": had is None or had.id != release.id})
    changes = {
        "added": [name for name in then if name not in before],
        "moved": [name for name, one in then.items() if before.get(name, one) != one],
        "rewritten": not new and current_id(site) is not None and _differ(site, after),
        "defaults": defaults,
    }
    return changes, {row["partition"]: row for row in defaults if row["changes"]}


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


def _jobs(
    site: Site, modules: Mapping[str, Any], after: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Active jobs: pinned to their release, affected by name, or of unknown scripts.

    `away` says why Slurm was not asked.
    """
    try:
        jobs, away = uses(site), None
    except MissingPrerequisite as lack:
        jobs, away = (), lack.message
    rows = [(use, _row(use), _gets(use, modules["moved"], after)) for use in jobs]
    return {
        "away": away,
        "pinned": [row for use, row, _ in rows if use.releases],
        "affected": [{**row, "gets": gets} for use, row, gets in rows if gets and not use.releases],
        "unknown": [row for use, row, _ in rows if not use.known],
    }


def _row(use: Use) -> dict[str, Any]:
    job = use.job
    row = {"job": job.id, "name": job.name, "partition": job.partition, "state": job.state}
    return {**row, "releases": list(use.releases), "loads": list(use.loads)}


def _gets(use: Use, moved: Collection[str], after: Mapping[str, Mapping[str, Any]]) -> str:
    """Describe what a job that loads by name gets instead after the publish; '' if nothing."""
    for name in use.loads:
        default = after.get(use.job.partition)
        if "/" not in name and default is not None:
            was = default["before"]["module"] if default["before"] else "nothing"
            return f"{default['after']['module']} instead of {was}"
        if name in moved:
            return f"another build of {name}"
    return ""


def _stale(site: Site, after: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """References of a partition that would not be of its release any more."""
    rows = load_references(site, list(after)).values() if after else ()
    releases = Counter((row.partition, row.release) for row in rows if row.release)
    for part in site.by_groups(list(after)) if after else ():
        for (label, release), count in releases.items():
            if label == part.label and release != after[part.name]:
                row = {"partition": label, "reference_set": part.reference_set, "count": count}
                yield {**row, "measured_with": release}


# ---- as text ----


def as_text(plan: Mapping[str, Any]) -> str:
    """The plan as a page."""
    parts = ["\n".join(_stack_lines(one)) for one in plan["stacks"]]
    for title, lines in (
        ("modules", _module_lines(plan["modules"])),
        ("jobs", _job_lines(plan["jobs"])),
        ("references", map(_stale_line, plan["references"])),
    ):
        indented = [f"  {line}" for line in lines]
        if indented:
            parts.append("\n".join([paint(title, "bold"), *indented]))
    return "\n\n".join([*parts, _next(plan)])


def _stack_lines(row: Mapping[str, Any]) -> Iterator[str]:
    names, after = ", ".join(row["partitions"]), row["after"]
    stack = f"stack {row['stack']}, {row['backend']}, for" if row["stack"] else "no stack for"
    yield paint(f"{stack} {names}", "bold")
    if row["blocked"]:
        yield f"  cannot be built here: {row['blocked']}"
    if after and not row["publishes"] and not row["blocked"]:
        yield f"  nothing to do: {after['id']} is published ({after['proof']})"
        return
    if after:
        was = row["before"]["id"] if row["before"] else "nothing"
        known = after["id"] if row["final"] else f"{after['id']}-..."
        yield f"  release {was} -> {known}; evidence: {after['proof']}"
        steps = row["steps"] or [f"nothing to build: {after['id']} is built"]
        yield from (f"  {step}" for step in steps)
    yield from (f"  note: {note}" for note in row["notes"])
    if row["versions"]:
        yield table(
            [
                [f"  {one['component']}", f"{one['before'] or '-'} -> {one['after'] or '-'}"]
                for one in row["versions"]
            ]
        )


def _module_lines(modules: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"new: {name}" for name in modules["added"])
    yield from (f"{name} would lead to another build" for name in modules["moved"])
    groups: dict[tuple[str, str], list[str]] = {}
    for one in modules["defaults"]:
        if one["changes"]:
            was = one["before"]["module"] if one["before"] else "nothing"
            groups.setdefault((was, one["after"]["module"]), []).append(one["partition"])
    for (before, after), names in groups.items():
        then = "another build of it" if before == after else after
        yield f"a plain load on {', '.join(names)}: {before} -> {then}"
    if modules["rewritten"]:
        yield "the modulefiles would be written again"


def _job_lines(jobs: Mapping[str, Any]) -> Iterator[str]:
    if jobs["away"]:
        yield f"jobs are unknown: {jobs['away']}"
    if jobs["pinned"]:
        count = len(jobs["pinned"])
        yield f"{count} waiting or running, with their release in the script: unaffected"
    for row in jobs["affected"][:_SHOWN]:
        job = f"{row['job']} ({row['name']}, {row['partition']}, {row['state'].lower()})"
        yield f"{job} loads by name, and would get {row['gets']} if it loads it later"
    if len(jobs["affected"]) > _SHOWN:
        yield f"... and {len(jobs['affected']) - _SHOWN} more"
    if jobs["unknown"]:
        yield f"{len(jobs['unknown'])} whose script only root or a Slurm operator can read"


def _stale_line(row: Mapping[str, Any]) -> str:
    many = "reference" if row["count"] == 1 else "references"
    return (
        f"{row['partition']}: {row['count']} {many} of set '{row['reference_set']}', measured with "
        f"{row['measured_with']}, would be STALE: "
        f"hpcdl check references measure --partition {row['partition']}"
    )


def _next(plan: Mapping[str, Any]) -> str:
    if not plan["changes"]:
        return "something is in the way" if plan["blocked"] else "nothing would change"
    stuck = {one["stack"] for one in plan["stacks"] if one["blocked"]}
    builds, publishes = [], []
    for row in plan["stacks"]:
        if not row["publishes"]:
            continue
        if not row["built"]:
            only = f" --partition {row['partitions'][0]}" if row["stack"] in stuck else ""
            builds.append(f"hpcdl stack build --name {row['stack']}{only}")
        publishes.append(f"hpcdl stack publish {row['after']['id'] if row['final'] else 'ID'}")
    lines = [*builds, *publishes] or ["hpcdl stack publish"]
    return "\n".join(["next:", *(f"  {line}" for line in dict.fromkeys(lines))])
