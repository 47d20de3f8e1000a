"""A plan as text and as data: stacks, modules, jobs, references, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from hpcdl.stack.release import Release
from hpcdl.system.text import paint, table
from hpcdl.workflows.releases import Use
from hpcdl.workflows.site_plan import JobsPlan, Plan, StackPlan

_SHOWN = 10


def as_text(plan: Plan) -> str:
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


def _stack(one: StackPlan) -> Iterator[str]:
    target, after = one.target, one.target.release
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
    if not one.publishes and not target.blocked:
        yield f"  nothing to do: {after.id} is published ({after.proof})"
        return
    was = one.before.id if one.before else "nothing"
    known = after.id if target.built or after.lock else f"{after.id}-..."
    yield f"  release {was} -> {known}; evidence: {after.proof}"
    yield from (f"  {step}" for step in target.steps or [f"nothing to build: {after.id} is built"])
    yield from (f"  note: {note}" for note in target.notes)
    rows = [
        [f"  {row.component}", f"{row.before or '-'} -> {row.after or '-'}"] for row in one.versions
    ]
    if rows:
        yield table(rows)


def _modules(plan: Plan) -> Iterator[str]:
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


def _references(plan: Plan) -> Iterator[str]:
    for row in plan.references:
        many = "reference" if row.count == 1 else "references"
        yield (
            f"{row.partition}: {row.count} {many} of set '{row.reference_set}', measured with "
            f"{row.measured_with}, would be STALE: "
            f"hpcdl check references measure --partition {row.partition}"
        )


def _next(plan: Plan) -> str:
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


def as_data(plan: Plan) -> dict[str, Any]:
    """The plan as JSON values."""
    return {
        "schema": 1,
        "site": plan.site_name,
        "changes": plan.changes,
        "blocked": plan.blocked,
        "stacks": [_stack_data(one) for one in plan.stacks],
        "modules": {
            "added": list(plan.modules.added),
            "moved": list(plan.modules.moved),
            "rewritten": plan.modules.rewritten,
            "defaults": [
                {
                    "partition": one.partition,
                    "before": _release_data(one.before),
                    "after": _release_data(one.after),
                    "changes": one.changes,
                }
                for one in plan.modules.defaults
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


def _stack_data(one: StackPlan) -> dict[str, Any]:
    target = one.target
    return {
        "stack": target.stack or None,
        "backend": target.backend or None,
        "partitions": list(target.partitions),
        "before": _release_data(one.before),
        "after": _release_data(target.release),
        "built": target.built,
        "publishes": one.publishes,
        "blocked": target.blocked or None,
        "steps": list(target.steps),
        "notes": list(target.notes),
        "versions": [asdict(change) for change in one.versions],
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
