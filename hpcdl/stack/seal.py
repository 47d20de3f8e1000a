"""The content seal of a release: every file, link and directory with its mode, by sha256.

The seal is made when the build ends, as `content.json` beside release.json, which holds its digest:
so neither can be exchanged alone. It says whether a release still is what was built and tested; it
does not say who built it. What publishes write (modules, evidence, bills of materials) is outside.
A full check reads every byte. A publish asks more cheaply: nothing has changed where no file's
size, inode and times (ctime, which a program cannot set) differ from those at the last full check,
whose digest is kept in `.content-checked`.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from hpcdl.stack.release import Release, as_record
from hpcdl.system.errors import CheckFailed, MissingPrerequisite
from hpcdl.system.files import explain_os_errors, opened, write_atomic, write_json

CONTENT_FILE = "content.json"
CHECKED_FILE = ".content-checked"
_TREES = ("stack", "spack")
"""What a build makes in a release's root."""
_NOT_SEALED = frozenset({".spack-env"})
"""Spack's own notes in an environment, which its commands write anew."""
_BLOCK = 1 << 20
_BATCH = 256
_SHOWN = 10
_NONE_ABOVE: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True)
class Integrity:
    """The result of a check: paths that changed, are missing or were added, relative to the root.

    `files` and `size` (bytes) are what was looked at; without `full` only the file system's
    records were compared. `seconds` is how long it took.
    """

    release: str
    files: int
    size: int
    seconds: float
    full: bool
    changed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Return whether everything is as it was built."""
        return not (self.changed or self.missing or self.added)

    def faults(self) -> list[str]:
        """One line per path, the first ones and how many more."""
        return shortened(
            [
                f"{kind}: {path}"
                for kind in ("changed", "missing", "added")
                for path in getattr(self, kind)
            ]
        )

    def describe(self) -> str:
        """One line for people."""
        if not self.ok:
            count = len(self.changed) + len(self.missing) + len(self.added)
            return f"{count} of {self.files:,} files differ from what was built"
        how = f"{self.size / 1e9:.1f} GB hashed" if self.full else "unchanged since the last check"
        return f"{self.files:,} files are as they were built ({how})"

    def as_data(self) -> dict[str, Any]:
        """For machines."""
        return {
            "schema": 1,
            "release": self.release,
            "ok": self.ok,
            "files": self.files,
            "bytes": self.size,
            "seconds": round(self.seconds, 2),
            "full": self.full,
            "changed": list(self.changed),
            "missing": list(self.missing),
            "added": list(self.added),
        }


def shortened(lines: Sequence[str]) -> list[str]:
    """The first lines, and how many more there are."""
    more = [f"... and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return [*lines[:_SHOWN], *more]


class Entry(NamedTuple):
    """A path's status: its `lstat`, or for a link into a store that of its target.

    Paths are texts here: there are tens of thousands, and a publish waits for them.
    """

    path: str
    status: os.stat_result
    link: str | None = None

    @property
    def is_file(self) -> bool:
        """Return whether it has content of its own."""
        return stat.S_ISREG(self.status.st_mode)

    def about(self) -> list[object]:
        """Kind and mode; of a link its target."""
        head: list[object] = [] if self.link is None else ["link", self.link]
        if stat.S_ISLNK(self.status.st_mode):
            return head
        kind = "directory" if stat.S_ISDIR(self.status.st_mode) else "file"
        return [*head, kind, f"{stat.S_IMODE(self.status.st_mode):04o}"]


def record_release(release: Release, stores: Sequence[Path] = ()) -> Release:
    """Seal a finished tree and write release.json, which makes it a release.

    Nothing may be written to its `root` afterwards. `stores` are directories outside of it, never
    changed either, whose files its links lead to. What comes back has the digest of its seal.
    """
    entries = dict(_entries(release.root, stores))
    rows = _rows(entries)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    where = json.dumps([str(store) for store in stores])
    # The first line is a document of its own once it is closed: `look` needs no more.
    text = f'{{"schema": 1, "stores": {where}, "entries": {{\n{lines}\n}}}}\n'
    write_atomic(release.root / CONTENT_FILE, text)
    sealed = replace(release, content=hashlib.sha256(text.encode()).hexdigest())
    write_json(release.root / "release.json", as_record(sealed))
    _note_checked(sealed, entries)
    return sealed


def look(release: Release) -> dict[str, Entry]:
    """Return the entries of a release's trees, by path relative to its root; reads no file.

    Raises:
        CheckFailed: it has no seal, or the seal is not the one that release.json names.
    """
    with explain_os_errors(release.root):
        head = _read_content(release).partition(b"\n")[0]
        stores = json.loads(head + b"}}")["stores"]
        return dict(_entries(release.root, [Path(name) for name in stores]))


def check_integrity(
    release: Release, *, full: bool = True, entries: Mapping[str, Entry] | None = None
) -> Integrity:
    """Compare a release with its seal; CheckFailed where the seal itself cannot be trusted.

    Every byte is read if `full`; else only where the file system says that something changed.
    `entries` is what `look` has seen just now.
    """
    start = time.monotonic()
    entries = look(release) if entries is None else entries
    size = sum(entry.status.st_size for entry in entries.values() if entry.is_file)
    if not full:
        with suppress(OSError, ValueError):  # no note of a full check
            noted = (release.root / CHECKED_FILE).read_text(encoding="ascii").strip()
            if noted == _fingerprint(release, entries):
                took = time.monotonic() - start
                return Integrity(release.id, len(entries), size, took, full=False)
    sealed: Mapping[str, object] = json.loads(_read_content(release))["entries"]
    with explain_os_errors(release.root):
        present = _rows(entries)
    result = Integrity(
        release.id,
        len(entries),
        size,
        time.monotonic() - start,
        True,
        changed=tuple(name for name, row in sealed.items() if present.get(name, row) != row),
        missing=tuple(name for name in sealed if name not in present),
        added=tuple(name for name in present if name not in sealed),
    )
    if result.ok:
        _note_checked(release, entries)
    return result


def require_integrity(release: Release, entries: Mapping[str, Entry]) -> None:
    """CheckFailed unless a release is what was built, given what `look` has seen just now."""
    found = check_integrity(release, full=False, entries=entries)
    if not found.ok:
        raise CheckFailed(
            f"{release.id} was changed after the build and is not published",
            details=found.faults(),
            hint=_rebuild(release),
        )


def _rebuild(release: Release) -> str:
    aside = release.root.parents[1] / f"{release.id}.broken"
    return (
        f"releases are never changed: mv {release.root} {aside}, then `hpcdl stack build` makes "
        "the same one again; `packages:` of a stack in site.yaml adds packages"
    )


def _read_content(release: Release) -> bytes:
    path = release.root / CONTENT_FILE
    try:
        data = path.read_bytes()
    except OSError as fault:
        raise CheckFailed(
            f"{release.id} has no seal of its content: {path} cannot be read: {fault.strerror}",
            hint=_rebuild(release),
        ) from fault
    if hashlib.sha256(data).hexdigest() != release.content:
        message = f"{path} was changed after the build: release.json names another seal"
        raise CheckFailed(message, hint=_rebuild(release))
    return data


def _entries(root: Path, stores: Sequence[Path]) -> Iterator[tuple[str, Entry]]:
    """Everything below a release's trees, in a fixed order, by path relative to its root."""
    inside = tuple(f"{store.resolve()}/" for store in stores)
    waiting = [(name, str(root / name), _NONE_ABOVE) for name in _TREES if (root / name).is_dir()]
    for name, path, _ in waiting:
        yield name, Entry(path, os.lstat(path))
    while waiting:
        name, path, above = waiting.pop()
        for own, status in _listed(path):
            below, where = f"{name}/{own}", f"{path}/{own}"
            if stat.S_ISLNK(status.st_mode):
                entry = _linked(where, status, inside)
                status = entry.status
            else:
                entry = Entry(where, status)
            yield below, entry
            # A link in a store may lead back to where it lies.
            if stat.S_ISDIR(status.st_mode):
                this = (status.st_dev, status.st_ino)
                if this not in above:
                    waiting.append((below, entry.path, above | {this}))


def _listed(directory: str) -> list[tuple[str, os.stat_result]]:
    """Return a directory's entries by name; relative look-ups take two thirds of the time."""
    with opened(directory, os.O_RDONLY) as here:
        names = sorted(os.listdir(here))  # noqa: PTH208 - a descriptor, not a path
        return [(name, os.lstat(name, dir_fd=here)) for name in names if name not in _NOT_SEALED]


def _linked(where: str, status: os.stat_result, stores: tuple[str, ...]) -> Entry:
    """Return a link's entry; a link into a store counts as its target."""
    path = Path(where)
    target = str(path.readlink())
    with suppress(OSError):  # one that leads nowhere is a link as any other
        real = path.resolve(strict=True) if stores else path
        if str(real).startswith(stores or ("//",)):
            return Entry(str(real), real.stat(), target)
    return Entry(where, status, target)


def _rows(entries: Mapping[str, Entry]) -> dict[str, list[object]]:
    """The seal's row of each path, files with their digests."""
    rows = {name: entry.about() for name, entry in entries.items()}
    files = [(name, entry.path) for name, entry in entries.items() if entry.is_file]
    # The large ones first, each alone: a batch of them at the end would keep one thread busy.
    files.sort(key=lambda one: -entries[one[0]].status.st_size)
    large = sum(1 for name, _ in files if entries[name].status.st_size > _BLOCK)
    batches = [files[place : place + 1] for place in range(large)]
    batches += [files[place : place + _BATCH] for place in range(large, len(files), _BATCH)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        made = pool.map(lambda batch: [(name, sha256(path)) for name, path in batch], batches)
        for name, digest in (one for batch in made for one in batch):
            rows[name].append(digest)
    return rows


def sha256(path: str | Path) -> str:
    """The digest of a file."""
    state = hashlib.sha256()
    # Not `open`: it costs as much as reading a small file.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while block := os.read(descriptor, _BLOCK):
            state.update(block)
    finally:
        os.close(descriptor)
    return state.hexdigest()


def _fingerprint(release: Release, entries: Mapping[str, Entry]) -> str:
    """A digest of what the file system records of every entry, and of the seal.

    Who changes a file changes its ctime.
    """
    rows = (
        (name, link, one.st_mode, one.st_size, one.st_ino, one.st_mtime_ns, one.st_ctime_ns)
        for name, (_, one, link) in entries.items()
    )
    text = "\n".join([release.content, *map(repr, rows)])
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _note_checked(release: Release, entries: Mapping[str, Entry]) -> None:
    """Note what a full check saw, to spare the next one time; left out where it cannot be."""
    if not os.access(release.root, os.W_OK):
        return
    with suppress(MissingPrerequisite):  # a full disk does not make the release unsound
        write_atomic(release.root / CHECKED_FILE, _fingerprint(release, entries) + "\n")
