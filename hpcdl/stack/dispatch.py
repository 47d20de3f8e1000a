"""The history of publishes, and the release that each partition gets by it.

PREFIX/history.json has what was current and when, for `rollback` and for `gc`. An event is written
before its switch, so that a killed publish can be told from one that happened. A damaged file is an
error: to count it as empty would take every way back, and let `gc` remove what a rollback may want.

The rest are pure rules. The publish history is what was published and not rolled back, newest last.
A partition gets the newest of it that serves it and is of its stack, else the newest that serves
it, else the newest of all. Versions of older releases stay visible: a shell that loaded one can
still unload it, and a script that names one still runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcdl.site import Gpu, Site
from hpcdl.stack.release import Release, current_id
from hpcdl.system.errors import CheckFailed
from hpcdl.system.files import clear_leftovers, write_json
from hpcdl.system.text import utc_now

_KEPT = 1000


@dataclass(frozen=True)
class Event:
    """One switch of `current`: what was done, to which release, when (UTC).

    `off` are the releases that a rollback took off the history.
    """

    action: str
    release: str
    at: str = ""
    off: tuple[str, ...] = ()


def read_history(site: Site) -> list[Event]:
    """Return the publishes, oldest first; without a file the current release.

    The last event of a killed command may not have come to pass: where `current` is not what it
    says, it is left out.

    Raises:
        CheckFailed: the file is damaged; says how to continue.
    """
    path, current = _path(site), current_id(site)
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["events"]
        events = [Event(**{**row, "off": tuple(row["off"])}) for row in rows]
    except FileNotFoundError:
        return [Event("publish", current)] if current else []
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        raise CheckFailed(
            f"{path} is damaged, so the published releases are unknown: {str(fault)[:200]}",
            hint=f"restore it from a backup; without one `mv {path} {path}.broken`: then only "
            f"{current or 'what is published next'} counts as published, and `hpcdl stack rollback "
            "ID` still leads to any release that passed the gate",
        ) from fault
    happened = not events or events[-1].release == current
    return events if happened else events[:-1]


def add_event(site: Site, event: Event) -> None:
    """Note what is going to happen now; under the lock of publishes."""
    events = [*read_history(site), replace(event, at=utc_now())][-_KEPT:]
    clear_leftovers(_path(site))
    write_json(_path(site), {"schema": 1, "events": [asdict(one) for one in events]})


def _path(site: Site) -> Path:
    return site.paths.prefix / "history.json"


@dataclass(frozen=True)
class Dispatch:
    """The release of every partition, and the one where no partition is known.

    `models` are the releases by GPU model of the partitions that have several.
    """

    partitions: Mapping[str, Release]
    default: Release
    models: Mapping[str, Mapping[str, Release]] = field(default_factory=dict)

    def given(self, partition: str) -> set[str]:
        """Ids of what a plain load gives on a partition, whichever of its GPU models is there."""
        by_model = self.models.get(partition, {}).values()
        return {one.id for one in (self.partitions.get(partition, self.default), *by_model)}

    def as_data(self) -> dict[str, Any]:
        """What `release_for` reads: release ids."""
        return {
            "schema": 1,
            "default": self.default.id,
            "partitions": {name: release.id for name, release in self.partitions.items()},
            "models": {
                name: {model: release.id for model, release in models.items()}
                for name, models in self.models.items()
            },
        }


def publish_history(events: Iterable[Event]) -> list[str]:
    """Return what was published and not rolled back, the current release last."""
    published: list[str] = []
    for event in events:
        if event.action == "rollback" and event.release in published:
            above = _last(published, event.release) + 1
            published[above:] = [name for name in published[above:] if name not in event.off]
        elif not published or published[-1] != event.release:
            published.append(event.release)
    return published


def taken_off(
    site: Site,
    published: Sequence[str],
    known: Mapping[str, Release],
    target: str,
    undone: str | None = None,
) -> tuple[str, ...]:
    """Return what a rollback to `target` removes: later releases for the same partitions.

    `undone` goes in any case: the current release, if no target was named.
    """
    if target not in published:
        return ()
    mine = _home(site, known[target])
    above = [name for name in published[_last(list(published), target) + 1 :] if name in known]
    off = (name for name in above if name == undone or mine & _home(site, known[name]))
    return tuple(dict.fromkeys(off))


def _home(site: Site, release: Release) -> set[str]:
    """The partitions that a release is meant for: not those it serves for want of their own."""
    serving = {name for name in site.partitions if _serves(release, name)}
    own = {name for name in serving if _wanted(site, name) in {None, release.stack}}
    return own or serving


def previous(events: Sequence[Event], current: str | None, existing: set[str]) -> str | None:
    """Return what was published before `current` and still exists.

    Rolling back twice goes back twice. Where somebody moved `current` by hand to what was never
    published, the publish history's top is what was current before.
    """
    published = publish_history(events)
    if current in published:
        del published[_last(published, str(current)) :]
    candidates = (name for name in reversed(published) if name in existing and name != current)
    return next(candidates, None)


def given_since(
    site: Site, events: Sequence[Event], known: Mapping[str, Release], partition: str, first: int
) -> set[str]:
    """The releases that a plain load gave on a partition after the `first` events, and since."""
    ends = range(first, len(events) + 1)
    found = (
        [known[name] for name in publish_history(events[:end]) if name in known] for end in ends
    )
    return {
        one for published in found if published for one in choose(site, published).given(partition)
    }


def _last(published: list[str], name: str) -> int:
    return len(published) - 1 - published[::-1].index(name)


def choose(site: Site, published: Sequence[Release]) -> Dispatch:
    """The release of every partition by what counts: at least one release, newest last."""
    chosen = {name: _for_partition(name, site, published) for name in site.partitions}
    models = {
        name: {
            group.gpu.model: _for_partition(name, site, published, group.gpu)
            for group in part.node_groups
            if group.gpu
        }
        for name, part in site.partitions.items()
        if len(part.gpu_models) > 1
    }
    return Dispatch(chosen, chosen[site.default_partition], models)


def _for_partition(
    partition: str, site: Site, published: Sequence[Release], gpu: Gpu | None = None
) -> Release:
    """The newest that serves it, of its stack if there is one; with device code for `gpu`."""
    newest_first = list(reversed(published))
    serving = [release for release in newest_first if _serves(release, partition)]
    coded = [release for release in serving if gpu is None or has_code_for(release, gpu)]
    of_stack = [release for release in coded if release.stack == _wanted(site, partition)]
    return [*of_stack, *coded, *serving, *newest_first][0]


def has_code_for(release: Release, gpu: Gpu) -> bool:
    """Return whether a release runs on a GPU model; one without models is for CPUs."""
    models = release.needs.get("gpus")
    return models is None or gpu.driver_name in models


def _serves(release: Release, partition: str) -> bool:
    return not release.partitions or partition in release.partitions


def _wanted(site: Site, partition: str) -> str | None:
    """The stack that a partition names, or whose list of partitions has it."""
    named = [stack.name for stack in site.stacks.values() if partition in stack.partitions]
    return site.partitions[partition].stack or (named[0] if named else None)
