"""Which release serves which partition: pure rules over what was published.

The publish history is what was published and not rolled back, newest last. A partition gets the
newest of it that serves it and is of its stack, else the newest that serves it, else the newest of
all. Versions of older releases stay visible: a shell that loaded one can still unload it, and a
script that names one still runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hpcdl.site import Gpu, Site
from hpcdl.stack.release import Release


@dataclass(frozen=True)
class Event:
    """One switch of `current`: what was done, to which release, when (UTC).

    `off` are the releases that a rollback took off the history.
    """

    action: str
    release: str
    at: str
    off: tuple[str, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """For the history file."""
        return asdict(self)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Event:
        """From the history file."""
        return cls(**{**data, "off": tuple(data["off"])})


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
        served = {name: release.id for name, release in self.partitions.items()}
        by_model = {
            name: {model: release.id for model, release in models.items()}
            for name, models in self.models.items()
        }
        return {"schema": 1, "default": self.default.id, "partitions": served, "models": by_model}


def publish_history(events: Iterable[Event]) -> list[str]:
    """What was published and not rolled back, the current one last."""
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
    """What a rollback to `target` takes off: later releases for the same partitions.

    `published` is what counts, newest last. `undone` goes in any case: the current one, where
    nobody named a target.
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
    """What was published before `current`, among those that still exist.

    Rolling back twice goes back twice. Where somebody moved `current` by hand to what was never
    published, the publish history's top is what was current before.
    """
    published = publish_history(events)
    if current in published:
        del published[_last(published, str(current)) :]
    candidates = [name for name in published if name in existing and name != current]
    return candidates[-1] if candidates else None


def given_since(
    site: Site, events: Sequence[Event], known: Mapping[str, Release], partition: str, first: int
) -> set[str]:
    """The releases that a plain load gave on a partition after the first events, and ever since.

    `first` is the number of events before the load.
    """
    given: set[str] = set()
    for end in range(first, len(events) + 1):
        published = [known[name] for name in publish_history(events[:end]) if name in known]
        if published:
            given |= choose(site, published).given(partition)
    return given


def _last(published: list[str], name: str) -> int:
    return len(published) - 1 - published[::-1].index(name)


def choose(site: Site, published: Sequence[Release]) -> Dispatch:
    """The release of every partition of the site.

    `published` is what counts: at least one release, newest last.
    """
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
    """Whether a release runs on a GPU model: what names no models is a build for CPUs."""
    models = release.needs.get("gpus")
    return models is None or gpu.driver_name in models


def _serves(release: Release, partition: str) -> bool:
    return not release.partitions or partition in release.partitions


def _wanted(site: Site, partition: str) -> str | None:
    """The stack that a partition names, or whose list of partitions has it."""
    named = [stack.name for stack in site.stacks.values() if partition in stack.partitions]
    return site.partitions[partition].stack or (named[0] if named else None)
