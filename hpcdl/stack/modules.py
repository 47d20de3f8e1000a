"""How users get a release: which one each partition gets, and its modulefiles.

PREFIX/history.json has what was current and when. An event is written before its switch, so that a
killed publish can be told from one that happened. A damaged file is an error: to count it as empty
would take every way back, and let `gc` remove what a rollback may want. A partition gets the newest
release that was published, not rolled back, serves it and is of its stack, else the newest that
serves it, else the newest of all. Versions of older releases stay visible: a script that names one
still runs.

A modulefile is a small data table in front of static, tested Lua. A kernel for Jupyter is started
through Lmod, as a job is, so what the module brings along and what its guard says hold there too.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

from hpcdl.site import Gpu, Site
from hpcdl.stack.release import DISPATCH_FILE, MODULE, Release, current_id, digest
from hpcdl.system.errors import CheckFailed
from hpcdl.system.files import (
    clear_leftovers,
    explain_os_errors,
    switch_link,
    write_atomic,
    write_json,
)
from hpcdl.system.frozen import dataclass
from hpcdl.system.resources import folder, templates
from hpcdl.system.text import utc_now

SITE_FILE = "site.yaml"
"""In PREFIX/etc: the site as it was at the last publish."""
_KERNEL = "kernels/hpcdl-tensorflow/kernel.json"


def lua(value: object, indent: str = "") -> str:
    """A value as a Lua expression: text, numbers, booleans, lists and mappings of them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        # Everything but printable ASCII becomes decimal escapes.
        plain = (
            c
            if " " <= c <= "~" and c not in '"\\'
            else "".join(f"\\{byte:03d}" for byte in c.encode())
            for c in value
        )
        return f'"{"".join(plain)}"'
    inner = indent + "  "
    if isinstance(value, Mapping):
        rows = [f"[{lua(key)}] = {lua(item, inner)}" for key, item in value.items()]
    elif isinstance(value, list | tuple):
        rows = [lua(item, inner) for item in value]
    else:
        raise TypeError(f"no Lua for {type(value).__name__}")
    return "{\n" + "".join(f"{inner}{row},\n" for row in rows) + indent + "}" if rows else "{}"


def _module_data(release: Release) -> dict[str, object]:
    """Return the values of this release's modulefile, with a line for `module whatis`."""
    versions = release.versions
    titles = {
        "TensorFlow": "tensorflow",
        "Horovod": "horovod",
        "CUDA": "cuda",
        "cuDNN": "cudnn",
        "NCCL": "nccl",
        "Python": "python",
    }
    inside = [f"{title} {versions[name]}" for title, name in titles.items() if name in versions]
    inside += [versions["mpi"]] if "mpi" in versions else []
    return {
        "id": release.id,
        "version": release.module_version,
        "stack": str(release.prefix),
        "summary": ", ".join(inside),
        "needs": dict(release.needs),
        "environment": dict(release.environment),
        "proc": "/proc",
    }


def _dispatch_data(site: Site, chosen: Dispatch) -> dict[str, object]:
    """The table of modulerc.lua: versions by partition, by GPU, and the default.

    A partition of several GPU models has a list of its own, `models`: the GPU found decides.
    """
    versions = {name: release.module_version for name, release in chosen.partitions.items()}
    models = {
        name: {
            group.gpu.driver_name: by_model[group.gpu.model].module_version
            for group in site.partitions[name].node_groups
            if group.gpu
        }
        for name, by_model in chosen.models.items()
    }
    gpus = {
        partition.gpu.driver_name: versions[name]
        for name, partition in site.partitions.items()
        if partition.gpu is not None and name in versions
    }
    for by_model in models.values():
        gpus |= by_model

    def rows(versions: Mapping[str, str]) -> list[dict[str, str]]:
        return [{"model": model, "version": version} for model, version in versions.items()]

    return {
        "default": chosen.default.module_version,
        "partitions": versions,
        "models": {name: rows(by_model) for name, by_model in models.items()},
        "gpus": rows(gpus),
        "proc": "/proc",
    }


def render_modules(site: Site, shown: Sequence[Release], chosen: Dispatch) -> dict[str, str]:
    """Every file of a `modules` directory, by its path there.

    A later one of the `shown` releases takes a version's name; `chosen` is what a plain `module
    load tensorflow` gives where.
    """
    return {
        **{
            f"{one.module}.lua": _file("release", _module_data(one), "tensorflow.lua")
            for one in shown
        },
        f"{MODULE}/.modulerc.lua": _file("dispatch", _dispatch_data(site, chosen), "modulerc.lua"),
        DISPATCH_FILE: json.dumps(chosen.as_data(), indent=2) + "\n",
    }


def _file(name: str, data: Mapping[str, object], code: str) -> str:
    parts = [(folder("modulefiles") / part).read_text("utf-8") for part in ("gpu.lua", code)]
    return "\n".join([f"local {name} = {lua(data)}\n", *parts])


def write_modules(root: Path, files: Mapping[str, str]) -> None:
    """Put modulefiles in place as `root`/modules.

    `modules` is a link to a directory named by its content, so that new modulefiles replace others
    by one rename and a job that loads them meets the old set or the new one.
    """
    target = root / f".modules-{digest(files)}"
    if not target.is_dir():
        aside = target.with_name(f".modules.{os.getpid()}")
        with explain_os_errors(target):
            shutil.rmtree(aside, ignore_errors=True)
            for name, text in files.items():
                write_atomic(aside / name, text)
            for made in (aside, *(path for path in aside.rglob("*") if path.is_dir())):
                made.chmod(0o755)
            aside.rename(target)
    link = root / "modules"
    before = link.readlink().name if link.is_symlink() else ""
    switch_link(link, target.name)
    for old in root.glob(".modules*"):
        # The set before this one stays: a load may be between its listing and its file.
        if old.name not in {target.name, before}:
            shutil.rmtree(old, ignore_errors=True)


def users_path(site: Site) -> Path:
    """The MODULEPATH of people: it leads to whatever is published."""
    return site.paths.prefix / "current" / "modules"


def write_site_files(site: Site) -> None:
    """Write PREFIX/etc: profiles, a kernel for Jupyter, the site file for the module's hpcdl."""
    etc = site.paths.prefix / "etc"
    kernel = templates("profile").get_template("kernel.json.j2")
    files = {
        **{f"profile.{shell}": profile(shell, users_path(site)) for shell in ("sh", "csh", "fish")},
        _KERNEL: kernel.render(
            modules=users_path(site), lmod_init=site.paths.lmod_init, site=site.name
        ),
        SITE_FILE: site.source.read_text(encoding="utf-8"),
    }
    for name, text in files.items():
        path = etc / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_atomic(path, text)


def profile(shell: str, modules: Path) -> str:
    """A profile for `sh`, `csh` or `fish`: puts the directory behind MODULEPATH, once."""
    template = templates("profile").get_template(f"profile.{shell}.j2")
    return template.render(modules=shlex.quote(str(modules)))


_KEPT = 1000


@dataclass(frozen=True)
class Event:
    """One switch of `current`: what was done, to which release, when (UTC).

    A `rollback` undoes the last switch; `rollback-to` makes a release current that was named.
    """

    action: str
    release: str
    at: str = ""


def read_history(site: Site) -> list[Event]:
    """Return the publishes, oldest first; without a file the current release.

    The last event of a killed command may not have come to pass: where `current` is not what it
    says, it is left out.

    Raises CheckFailed: the file is damaged; says how to continue.
    """
    path, current = _path(site), current_id(site)
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["events"]
        events = [Event(row["action"], row["release"], row["at"]) for row in rows]
    except (FileNotFoundError, NotADirectoryError):  # a file may be in the prefix's place
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
            del published[_last(published, event.release) + 1 :]
        elif not published or published[-1] != event.release:
            published.append(event.release)
    return published


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
    site: Site, events: Sequence[Event], releases: Mapping[str, Release], partition: str, first: int
) -> set[str]:
    """The releases that a plain load gave on a partition after the `first` events, and since."""
    ends = range(first, len(events) + 1)
    found = (
        [releases[name] for name in publish_history(events[:end]) if name in releases]
        for end in ends
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
    stack = site.stack_for(partition)
    of_stack = [release for release in coded if stack and release.stack == stack.name]
    return [*of_stack, *coded, *serving, *newest_first][0]


def has_code_for(release: Release, gpu: Gpu) -> bool:
    """Return whether a release runs on a GPU model; one without models is for CPUs."""
    models = release.needs.get("gpus")
    return models is None or gpu.driver_name in models


def _serves(release: Release, partition: str) -> bool:
    return not release.partitions or partition in release.partitions
