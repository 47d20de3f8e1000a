"""Removes what hpcdl has accumulated, by age and size: one row of `KINDS` for each kind.

The site file's `clean` comes before the row's figures.
Only what this user owns and what has a name of ours goes; never what is in use, what a queued or
running job needs, or what was touched within the last hour. Releases are `hpcdl stack gc`'s, and
jobs' own directories their users'.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from hpcdl.cluster.state import all_states
from hpcdl.jobs.submission import index
from hpcdl.regress.run_directory import is_held, is_named_as_run, read_events, runs_directory
from hpcdl.site import Site
from hpcdl.site.model import Limits
from hpcdl.slurm import client
from hpcdl.stack.tree import build_lock
from hpcdl.system.errors import BadInput, HpcdlError
from hpcdl.system.files import locked, opened, size_of
from hpcdl.system.resources import cache, home
from hpcdl.system.text import did_you_mean

_DAY, _RECENT = 86400.0, 3600.0

Removals = Iterator[tuple[Path, str]]
"""Paths, each with the reason why it stays; "" for what may go."""


class CleanedKind(NamedTuple):
    """A kind of files to prune: their place, and how many stay.

    Of what `find` gives, the oldest go until none is older than `days` and all have `gb`.
    """

    name: str
    days: float
    gb: float
    find: Callable[[Site], Removals]


class Item(NamedTuple):
    """One file, directory or link; `age` in days, `size` in bytes, `kept` why it stays.

    `file` says which it is, whatever its path leads to later.
    """

    kind: str
    path: Path
    age: float
    size: int
    kept: str = ""
    file: tuple[int, int] = (0, 0)


def clean(site: Site, names: Sequence[str] = (), *, dry_run: bool = False) -> list[Item]:
    """Remove what is too old or too much, or only list it; `names` are kinds, all by default.

    Returns:
        What goes, and with a reason in `kept` what would go, but is needed.
    """
    limited = {kind.name: _limited(site, kind) for kind in KINDS}
    for name in names:
        if name not in limited:
            hint = "leave it out to clean all" if name == "all" else did_you_mean(name, limited)
            raise BadInput(f"nothing called '{name}' is cleaned", hint=hint)
    answer = []
    for kind in (limited[name] for name in names or limited):
        with ExitStack() as held:
            left = kind.gb * 1e9
            found = _items(site, kind, _hold_locks(site, kind.name, held))
            for item in sorted(found, key=lambda item: item.age):
                left -= item.size
                if item.age <= kind.days and left >= 0:
                    continue
                answer.append(item)
                if not item.kept:
                    left += item.size
                    if not dry_run:
                        _remove(item)
    return answer


def _limited(site: Site, kind: CleanedKind) -> CleanedKind:
    own = site.clean.get(kind.name, Limits())
    days, gb = own.days, own.gb
    days, gb = kind.days if days is None else days, kind.gb if gb is None else gb
    return kind._replace(days=days, gb=gb)


def _hold_locks(site: Site, kind: str, held: ExitStack) -> str:
    """Lock out builds and publishes; return who is at work, if any."""
    wheels = cache("wheels")
    places = (build_lock(site), wheels / ".lock", wheels / ".horovod.lock", wheels / ".cuda.lock")
    try:
        for lock in places if kind == "cache" else ():
            if lock.parent.is_dir():
                held.enter_context(locked(lock, wait_seconds=0))
    except HpcdlError as fault:
        return fault.message
    return ""


def _items(site: Site, kind: CleanedKind, busy: str) -> Iterator[Item]:
    with suppress(FileNotFoundError):
        for path, kept in kind.find(site):
            status = path.lstat()
            if status.st_uid != os.getuid():
                continue
            age = time.time() - status.st_mtime
            size = size_of(path) if stat.S_ISDIR(status.st_mode) else status.st_size
            recent = "it was in use within the last hour" if age < _RECENT else ""
            file = (status.st_dev, status.st_ino)
            yield Item(kind.name, path, max(0.0, age / _DAY), size, kept or busy or recent, file)


def _remove(item: Item) -> None:
    """Remove what was judged: in a group's work directory another user may have moved it since."""
    with suppress(FileNotFoundError), opened(item.path.parent, os.O_RDONLY) as place:
        path = Path(f"/proc/self/fd/{place}", item.path.name)
        status = path.lstat()
        if (status.st_dev, status.st_ino) != item.file:
            return
        if stat.S_ISDIR(status.st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _check_runs(site: Site) -> Removals:
    runs = runs_directory(site)
    latest = os.path.realpath(runs.parent / "latest")  # resolve() fails where it leads to itself
    for path in runs.iterdir():
        if not is_named_as_run(path) or path.is_symlink():
            continue
        open_jobs = [
            event.job for event in read_events(path / "events.jsonl").values() if not event.ended
        ]
        if os.path.realpath(path) == latest:
            yield path, "it is the latest run"
        elif is_held(path / "lock"):
            yield path, "it runs"
        else:
            yield path, f"job {open_jobs[0]} may still run" if open_jobs else ""


def _job_index(site: Site) -> Removals:
    links = {
        path: number
        for path in index(site).iterdir()
        if path.is_symlink() and (number := path.name.partition(".")[0]).isdecimal()
    }
    active, unknown = set[int](), ""
    try:
        active = {job.id for job in client.queue() if job.active} if links else active
    except HpcdlError as fault:
        unknown = f"Slurm does not say whether the job has ended: {fault.message}"
    for path, number in links.items():
        yield path, unknown or ("the job has not ended" if int(number) in active else "")


def _files(*parts: str) -> Callable[[Site], Removals]:
    def find(_: Site) -> Removals:
        yield from ((path, "") for path in home(*parts).rglob("*") if not path.is_dir())

    return find


def _cache(_: Site) -> Removals:
    """Yield the caches that can be made again; releases have their own copies."""
    used = {state.root.parent for state in all_states() if state.root is not None}
    for kind in cache().iterdir():
        if not kind.is_dir() or kind.is_symlink():
            continue
        for path in kind.iterdir():
            if not (path.name.startswith(".") and path.name.endswith("lock")):
                yield path, "a cluster that is up runs in it" if path in used else ""


KINDS = (
    CleanedKind("check-runs", 90, 20, _check_runs),
    CleanedKind("job-index", 365, 1, _job_index),
    CleanedKind("logs", 30, 1, _files("logs")),
    CleanedKind("failures", 30, 1, _files("failures")),
    CleanedKind("cache", 90, 50, _cache),
)
