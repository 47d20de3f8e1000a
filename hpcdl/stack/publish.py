"""Publishes a release atomically, and goes back in one command.

PREFIX/current is the whole truth: one rename moves it, so a killed publish leaves the old
state or the new one. Before it moves, the release's modulefiles are in place and the gate has
proven it through them. PREFIX/history.json remembers what was current, for `rollback`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hpcdl.site import Site
from hpcdl.stack import modules
from hpcdl.stack.modules import Dispatch, Event, choose, read_history
from hpcdl.stack.release import (
    BrokenRelease,
    Release,
    current_id,
    find_release,
    read_release,
    release_ids,
)
from hpcdl.stack.sbom import AUDIT_FILE, AUDIT_LIST, CYCLONEDX_FILE, refresh_sbom, require_answers
from hpcdl.stack.tree import CHECKED_FILE, look, require_integrity, require_safe_modes
from hpcdl.stack.verify import PROOF_FILE, Gate, Proof, read_proof, store_proof, verify_here
from hpcdl.system.errors import BadInput, CheckFailed, MissingPrerequisite
from hpcdl.system.files import clear_leftovers, shared_lock, switch_link, write_atomic

Say = Callable[[str], None]
_WAIT_SECONDS, SOON_SECONDS = 3600, 10.0
"""How long a publish waits for another one, and a rollback for whoever switches."""
_WRITTEN = (PROOF_FILE, CYCLONEDX_FILE, AUDIT_FILE, AUDIT_LIST, CHECKED_FILE)
"""What publishes and `stack sbom` write into a release; killed ones leave parts of these that only
we may read."""
_RESERVE, _RESERVE_BYTES = ".reserve", 1 << 18
"""A file that a publish leaves in the prefix: its space is what a rollback on a full disk needs for
modulefiles and history."""


@dataclass(frozen=True)
class PublishResult:
    """What a publish or rollback did, or would do: from one current release to another.

    `moves` are the partitions that get another release by it, each with the one it had ("" for
    none) and the one it gets.
    """

    before: str | None
    after: str
    proof: Proof | None
    moves: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def changes(self) -> bool:
        """Return whether `current` moves."""
        return self.before != self.after

    def as_data(self) -> dict[str, Any]:
        """For machines."""
        moves = {
            name: {"before": had or None, "after": gets} for name, (had, gets) in self.moves.items()
        }
        proof = self.proof.as_data() if self.proof else None
        return {"before": self.before, "after": self.after, "proof": proof, "partitions": moves}


def publish(
    site: Site,
    release_id: str,
    gate: Gate = verify_here,
    *,
    say: Say,
    enough: Callable[[Proof], bool] = lambda _: True,
) -> PublishResult:
    """Prove a release and make it current.

    Stored evidence that passed is taken, for releases do not change: where `enough` says that it
    will do. While the gate is at work, which may wait for nodes,
    nothing is locked; while the files are compared with the seal, no rollback waits for that: it
    takes another lock, which is held for seconds only.
    """
    release = read_release(site, release_id)
    require_answers(site, release)
    require_readers(site, release, say)
    _require_gpus_served(site, release)
    proof = read_proof(release)
    if proof is None or not proof.passed or not enough(proof):
        say(f"verifying {release_id} through its module")
        proof = verify(site, release_id, gate)
    if not proof.passed:
        raise CheckFailed(
            f"{release.id} did not pass the gate and is not published",
            details=[check.describe() for check in proof.checks if not check.ok],
            hint=f"all evidence is in {release.root / PROOF_FILE}",
        )
    with shared_lock(publish_lock(site), wait_seconds=_WAIT_SECONDS):
        # Read again: the gate took its time.
        return _publish(site, read_release(site, release_id), proof, say)


def _publish(site: Site, release: Release, proof: Proof, say: Say) -> PublishResult:
    """Make a proven release current, under the lock of publishes."""
    event = Event("publish", release.id)
    for name in _WRITTEN:
        clear_leftovers(release.root / name)
    with switch_lock(site, _WAIT_SECONDS):
        seen = read_history(site)
        show_modules(site, release, event)
    entries = look(release)
    require_safe_modes(release, entries)
    require_integrity(release, entries)
    modules.write_site_files(site)
    refresh_sbom(site, release, say)
    with switch_lock(site, _WAIT_SECONDS):
        if read_history(site) != seen:  # another publish or rollback came between
            show_modules(site, release, event)
        before, moves = current_id(site), _moves(site, event)
        _switch(site, event, before)
        _keep_room(site)
    return PublishResult(before, release.id, proof, moves)


def require_readers(site: Site, release: Release, say: Say) -> None:
    """CheckFailed where users cannot reach a release, or cannot run the Python it is built on.

    Of a private site `say` is told of each fault, and that is all.
    """
    faults = list(dict.fromkeys(_reach_faults(release)))
    if faults and not site.private:
        raise CheckFailed(
            f"users could not use {release.id}, and it is not published",
            details=faults,
            hint="chmod o+x these directories, or choose another prefix or Python; where only its "
            "owner uses the prefix, `private: true` in the site file says so",
        )
    for fault in faults:
        say(f"note: {fault}")


def _reach_faults(release: Release) -> Iterator[str]:
    """Yield each reason why users other than the owner cannot use a release."""
    for directory in closed_above(release.root):
        yield f"users cannot enter {directory}, which contains the release"
    real = release.python.resolve()
    try:
        there = real.is_file()
    except PermissionError:  # this user is one of those who cannot
        yield f"users cannot enter the directories of its Python {real}"
        return
    if not there:
        yield f"its Python {real} is not there"
        return
    version = ".".join(release.versions.get("python", "").split(".")[:2])
    library = real.parents[1] / "lib" / f"python{version}"
    for directory in [*closed_above(real), *closed_above(library / "os.py")]:
        yield f"users cannot enter {directory}, which contains its Python"
    if not real.stat().st_mode & stat.S_IXOTH:
        yield f"users cannot execute its Python {real}"


def closed_above(path: Path) -> list[Path]:
    """The directories above `path` that users cannot enter, outermost first."""
    parents = [parent for parent in reversed(path.absolute().parents) if parent.is_dir()]
    return [parent for parent in parents if not parent.stat().st_mode & stat.S_IXOTH]


def _require_gpus_served(site: Site, release: Release) -> None:
    """A build for CPUs serves GPUs only where the site asks for that."""
    stack = site.stacks.get(release.stack)
    meant = stack is None or stack.variant == "cpu" or "cuda" in release.versions
    names = release.partitions or tuple(site.partitions)
    idle = [name for name in names if name in site.partitions and site.partitions[name].gpu]
    if idle and not meant:
        raise CheckFailed(
            f"{release.id} is for CPUs, and would leave the GPUs of {', '.join(idle)} idle",
            hint="`hpcdl stack build` makes one for GPUs; `variant: cpu` in the stack of the site "
            "file says that this is meant",
        )


def verify(site: Site, release_id: str, gate: Gate = verify_here) -> Proof:
    """Run the gate on a release, through the module that a publish would show; keep the evidence.

    Stored evidence by jobs on more partitions is worth more than another that passed on fewer,
    and stays.
    """
    release = read_release(site, release_id)
    with switch_lock(site, _WAIT_SECONDS):
        show_modules(site, release, Event("publish", release.id))
    proof = gate(site, release)
    with shared_lock(publish_lock(site), wait_seconds=_WAIT_SECONDS):
        known = read_proof(release)
        if known is None or not (proof.passed and known.is_wider(proof)):
            store_proof(release, proof)
    return proof


def serves(site: Site, release: Release) -> tuple[str, ...]:
    """The partitions that a publish of this release would give it to."""
    shown = shown_after(site, [*read_history(site), Event("publish", release.id)])
    given = shown.chosen.partitions.items() if shown else ()
    return tuple(name for name, chosen in given if chosen.id == release.id)


class PublishedState(NamedTuple):
    """The releases that users can load, and the one that each partition gets.

    A later release takes the name of an earlier one with the same version.
    """

    releases: tuple[Release, ...]
    chosen: Dispatch


def shown_after(
    site: Site,
    events: Sequence[Event],
    *,
    without: Collection[str] = (),
    expected: Sequence[Release] = (),
) -> PublishedState | None:
    """Return what users can load after `events`, the whole history.

    `without` are ids of releases that count as gone, `expected` releases that are not built yet.
    None where none of what was published is there and sound.
    """
    known = sound_releases(site, without) | {release.id: release for release in expected}
    published = [known[name] for name in modules.publish_history(events) if name in known]
    # What was rolled back stays visible too, but gives way where it has the same version.
    once = dict.fromkeys(event.release for event in events)
    others = [known[name] for name in once if name in known and known[name] not in published]
    return PublishedState((*others, *published), choose(site, published)) if published else None


def show_modules(
    site: Site, release: Release, event: Event | None = None, without: Collection[str] = ()
) -> None:
    """Write a release's modulefiles as they are to be once `event` has made it current."""
    events = [*read_history(site), *([event] if event else ())]
    shown = shown_after(site, events, without=without)
    shown = shown or PublishedState((release,), choose(site, [release]))
    modules.write_modules(release.root, modules.render_modules(site, *shown))


def sound_releases(site: Site, without: Collection[str] = ()) -> dict[str, Release]:
    """Every release whose record can be read, by id."""
    found: dict[str, Release] = {}
    for name in release_ids(site):
        if name not in without:
            with suppress(BrokenRelease):
                found[name] = read_release(site, name)
    return found


def plan_publish(site: Site, release_id: str) -> PublishResult:
    """Return the switch that `publish` would make, with the stored evidence."""
    release = read_release(site, release_id)
    moves = _moves(site, Event("publish", release.id))
    return PublishResult(current_id(site), release.id, read_proof(release), moves)


def newest(site: Site) -> str:
    """The id of the release that was built last."""
    if sound := sound_releases(site).values():
        return max(sound, key=lambda one: one.created).id
    if broken := overview(site):
        raise CheckFailed(
            f"no release in {site.paths.prefix} can be read",
            details=[row["state"] for row in broken],
            hint="`hpcdl stack build` makes a release again, once the broken one is moved away",
        )
    raise BadInput(
        f"there is no release in {site.paths.prefix}", hint="`hpcdl stack build` makes one"
    )


def overview(site: Site) -> list[dict[str, Any]]:
    """One row per release, oldest first: id, module, created, state, evidence, current."""
    current, rows = current_id(site), []
    for name in dict.fromkeys([*release_ids(site), *filter(None, [current])]):
        row = {"id": name, "module": "", "created": "", "current": name == current, "proof": ""}
        try:
            release = find_release(site, None if name == current else name)
            row |= {"module": release.module, "created": release.created, "state": "built"}
            if (proof := read_proof(release)) is not None:
                state = "proven" if proof.passed else "failed the gate"
                row |= {"state": state, "proof": proof.describe()}
        except BrokenRelease as broken:
            row["state"] = f"broken: {broken.message}"
        rows.append(row)
    return sorted(rows, key=lambda row: (row["created"], row["id"]))


def plan_rollback(site: Site, release_id: str | None = None) -> PublishResult:
    """Return the switch that `rollback` would make."""
    history, current = read_history(site), current_id(site)
    target = release_id or modules.previous(history, current, set(release_ids(site)))
    if target is None:
        hint = "`hpcdl stack list` shows what is there"
        raise BadInput("there is no earlier release to go back to", hint=hint)
    release = read_release(site, target)
    proof = read_proof(release)
    # A later gate that failed, perhaps for want of nodes, is no reason to refuse a way back.
    published = any(event.release == release.id for event in history)
    proven = published or (proof is not None and proof.passed)
    if not proven or not release.modules.is_dir():
        raise CheckFailed(
            f"{release.id} was never published",
            hint=f"`hpcdl stack publish {release.id}` proves it first",
        )
    moves = _moves(site, _event_back(release.id, release_id))
    return PublishResult(current, release.id, proof, moves)


def _event_back(target: str, named: str | None) -> Event:
    return Event("rollback" if named is None else "rollback-to", target)


def _moves(site: Site, event: Event) -> dict[str, tuple[str, str]]:
    """Return the partitions whose release changes: the old release and the new one."""
    history = read_history(site)
    before, after = shown_after(site, history), shown_after(site, [*history, event])
    had = before.chosen.partitions if before else {}
    gets = after.chosen.partitions if after else {}
    both = {name: (had[name].id if name in had else "", now.id) for name, now in gets.items()}
    return {name: pair for name, pair in both.items() if pair[0] != pair[1]}


def rollback(site: Site, release_id: str | None = None) -> PublishResult:
    """Make the release before the current one current again, or the one named.

    Partitions of other stacks keep what they have.
    """
    with switch_lock(site, SOON_SECONDS):
        planned = plan_rollback(site, release_id)
        event = _event_back(planned.after, release_id)
        (site.paths.prefix / _RESERVE).unlink(missing_ok=True)
        show_modules(site, read_release(site, planned.after), event)
        _switch(site, event, planned.before)
        _keep_room(site)
    return planned


def _keep_room(site: Site) -> None:
    reserve = site.paths.prefix / _RESERVE
    with suppress(MissingPrerequisite):  # the disk is full: the next publish does it
        if not reserve.exists():
            # Random bytes: file systems that compress store nothing of zeros.
            write_atomic(reserve, os.urandom(_RESERVE_BYTES))


def _switch(site: Site, event: Event, before: str | None) -> None:
    """Note what is going to happen, then move `current`."""
    if before == event.release:
        return
    modules.add_event(site, event)
    for left in site.paths.prefix.glob(".current.*"):  # of a killed one
        left.unlink(missing_ok=True)
    switch_link(site.paths.prefix / "current", f"releases/{event.release}")


def publish_lock(site: Site) -> Path:
    """Return the lock of a publish in preparation or a removal: held for minutes."""
    return site.paths.prefix / ".publish.lock"


def switch_lock(site: Site, wait_seconds: float = SOON_SECONDS) -> AbstractContextManager[None]:
    """Hold the lock of what users see: modulefiles, `history.json`, `current`. For seconds only.

    Who needs both locks takes that of publishes first.
    """
    return shared_lock(site.paths.prefix / ".switch.lock", wait_seconds=wait_seconds)
