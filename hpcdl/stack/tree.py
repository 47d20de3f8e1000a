"""Makes the tree of a release, seals it, and says whether it still is what was sealed.

A tree is made at its final place, because virtual environments do not move, and is no release
until release.json is in it. Nothing in it is hard-linked: a `chown` or `chmod` of one tree would
reach every other, and uv's cache. Bytecode is compiled with the tree, never to be checked against
sources that never change: readers cannot write it, and TensorFlow without it imports half as fast.

Everybody may read a release, and nobody but its owner and root may write it: a file that others
may write is a way into every job that loads the module.

The seal, `content.json`, has every file, link and directory with its mode, by sha256; release.json
holds its digest, so neither can be exchanged alone. What publishes write (modules, evidence, bills
of materials) is outside. A full check reads every byte. A publish asks more cheaply: nothing has
changed where no file's size, inode and times (ctime, which a program cannot set) differ from those
at the last full check, whose digest is in `.content-checked`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from hpcdl.site import Site
from hpcdl.stack.modules import SITE_FILE
from hpcdl.stack.recipe import Say
from hpcdl.stack.release import Release, as_record, releases_folder
from hpcdl.system.errors import CheckFailed, MissingPrerequisite
from hpcdl.system.files import (
    LockBusy,
    explain_os_errors,
    opened,
    shared_lock,
    write_atomic,
    write_json,
)
from hpcdl.system.resources import folder
from hpcdl.system.run import every, module_argv, run

TRASH = ".trash-"
"""What the name of a tree begins with that is being removed."""
_BUILD_SECONDS = 7200
_RELEASE_ID = re.compile(r".+-\d+(\.\d+)+-(cpu|cuda\d[a-z0-9.-]*)-[0-9a-f]{8}")
_READ = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
_ENTER = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH
_FREE = (
    "`hpcdl stack gc` removes releases that nothing uses; HPCDL_CACHE says where wheels are kept"
)
_ROOT = 0
_BELONGS = "belongs to user"
_WRITE_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_SPECIAL = stat.S_ISUID | stat.S_ISGID


@contextmanager
def build_slot(site: Site, say: Callable[[str], None]) -> Iterator[None]:
    """Be the only one who makes trees below this prefix; says so where another one is at it.

    Raises MissingPrerequisite: no permission, or the other one takes hours.
    """
    with ExitStack() as held:
        try:
            held.enter_context(shared_lock(build_lock(site), wait_seconds=0))
        except LockBusy as busy:
            say(f"waiting: {busy.message}")
            held.enter_context(shared_lock(build_lock(site), wait_seconds=_BUILD_SECONDS))
        yield


@contextmanager
def new_tree(root: Path) -> Iterator[Path]:
    """A fresh directory for a release that is removed again where the work on it fails."""
    with explain_os_errors(root):
        if root.exists():
            shutil.rmtree(root)
        root.mkdir(parents=True)
    try:
        with explain_os_errors(root):
            yield root
    except BaseException:
        shutil.rmtree(root, ignore_errors=True)
        raise


def build_lock(site: Site) -> Path:
    """Return the lock that is held while trees below this prefix are made."""
    return releases_folder(site) / ".build.lock"


def unfinished(site: Site) -> list[Path]:
    """Trees that were killed while they were made or removed; ask while no build is at work.

    What has no name of ours, such as `lost+found` or a user's copy, is left alone.
    """
    with suppress(FileNotFoundError):
        trees = sorted(path for path in releases_folder(site).iterdir() if path.is_dir())
        return [
            tree
            for tree in trees
            if tree.name.startswith(TRASH)
            or (_RELEASE_ID.fullmatch(tree.name) and not (tree / "release.json").is_file())
        ]
    return []


def compile_folders(python: Path, folders: Sequence[Path], log: Path, say: Say) -> None:
    """Compile all modules below some directories; what is no valid Python is left."""
    begun = time.time()
    sources = sum(1 for one in folders for _ in one.rglob("*.py"))

    def tell() -> None:
        made = (path for one in folders for path in one.rglob("__pycache__/*.pyc"))
        done = sum(path.stat().st_mtime >= begun for path in made)
        say(f"{done:,} of {sources:,} modules are compiled to bytecode")

    # By force: what a build imported has bytecode already, marked with the times of its sources;
    # beside later copies of these it is stale, and root's Python would write it anew.
    argv = [*module_argv(python, "compileall"), "-q", "-f", "-j", "0"]
    argv += ["--invalidation-mode", "unchecked-hash", *folders]
    run(argv, log=log, check=False, tied=True, watch=every(tell))


def finish(site: Site, root: Path, packages: Path, *compiled: Path, log: Path, say: Say) -> None:
    """Give a tree with hpcdl in its `packages` its site, startup, bytecode and permissions."""
    # The module's hpcdl finds its site by itself: a publish writes the file.
    (packages / "hpcdl" / SITE_FILE).symlink_to(site.paths.prefix / "etc" / SITE_FILE)
    add_startup(root / "stack")
    compile_folders(root / "stack" / "bin" / "python", compiled, log, say)
    open_to_readers(root)


def add_startup(stack: Path) -> None:
    """Add the directory for PYTHONPATH that shows the stack to users' Pythons.

    Every Python that starts reads it, also other versions run by root, which would write bytecode
    there: a file in the place of `__pycache__` keeps all of them from it.
    """
    target = stack / "share" / "hpcdl" / "python"
    shutil.copytree(
        folder("modulefiles") / "python",
        target,
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    (target / "__pycache__").touch()


def open_to_readers(root: Path) -> None:
    """Let all users read the tree and enter its directories; only the owner may write."""
    for where, _, files in os.walk(root):
        for path in (where, *(f"{where}/{name}" for name in files)):
            mode = os.lstat(path).st_mode
            enter = _ENTER if stat.S_ISDIR(mode) or mode & stat.S_IXUSR else 0
            wanted = (stat.S_IMODE(mode) | _READ | enter) & ~_WRITE_OTHERS
            if not stat.S_ISLNK(mode) and wanted != stat.S_IMODE(mode):
                os.chmod(path, wanted)  # noqa: PTH101 - thirty thousand of them


def require_space(needs: Mapping[Path, float]) -> None:
    """MissingPrerequisite, before anything is fetched or written, where it will not fit.

    `needs` are GB by directory; directories of one file system are added up.
    """
    wanted: dict[int, float] = {}
    for place, gigabytes in needs.items():
        with explain_os_errors(place):
            here = next(one for one in (place, *place.parents) if one.exists())
            tempfile.TemporaryFile(dir=here).close()  # whether it can be written, nothing stays
            free, device = shutil.disk_usage(here).free / 1e9, here.stat().st_dev
        wanted[device] = wanted.get(device, 0.0) + gigabytes
        if free < wanted[device]:
            raise MissingPrerequisite(
                f"no space left for the stack in {place}: it needs {wanted[device]:.1f} GB, "
                f"{free:.1f} GB are free",
                hint=_FREE,
            )


def require_safe_modes(release: Release, entries: Mapping[str, Entry]) -> None:
    """CheckFailed where others may write a file of a release, or users cannot read it.

    `entries` are what `look` has seen.
    """
    owner, faults = os.lstat(release.root).st_uid, list[str]()
    sound: set[tuple[int, int]] = set()  # tens of thousands of files have a handful of modes
    beside = [release.root, *release.root.glob("*")]  # records, too, say what modules load
    own = [Entry(str(path), path.lstat()) for path in beside if path.name not in entries]
    for path, status, _ in (*own, *entries.values()):
        kind = (status.st_mode, status.st_uid)
        if kind not in sound and not stat.S_ISLNK(status.st_mode):
            found = list(_fault(path, status, owner))
            faults += found
            sound |= set() if found else {kind}
    if faults:
        strange = sum(_BELONGS in fault for fault in faults)
        cures = [f"chown -R {owner} {release.root}"] if strange else []
        cures += [f"chmod -R u=rwX,go=rX {release.root}"] if strange < len(faults) else []
        raise CheckFailed(
            f"{release.id} has files with wrong permissions and is not published",
            details=shortened(faults),
            hint=" && ".join(cures),
        )


def _fault(path: str, status: os.stat_result, owner: int) -> Iterator[str]:
    mode = status.st_mode
    needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
    if mode & _WRITE_OTHERS:
        yield f"{path}: mode {stat.S_IMODE(mode):04o}, others than its owner may write it"
    if mode & needed != needed:
        yield f"{path}: mode {stat.S_IMODE(mode):04o}, users cannot read it"
    if mode & _SPECIAL and not stat.S_ISDIR(mode):
        yield f"{path}: mode {stat.S_IMODE(mode):04o}, set-user-ID or set-group-ID"
    if status.st_uid not in {owner, _ROOT}:
        yield f"{path}: {_BELONGS} {status.st_uid}, the release to {owner}"


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
    """The result of a check: `faults` are paths relative to the root that differ, and how.

    `files` and `size` (bytes) are what was looked at; without `full` only the file system's
    records were compared. `seconds` is how long it took.
    """

    release: str
    files: int
    size: int
    seconds: float
    full: bool
    faults: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Return whether everything is as it was built."""
        return not self.faults

    def describe(self) -> str:
        """One line for people."""
        if not self.ok:
            return f"{len(self.faults)} of {self.files:,} files differ from what was built"
        how = f"{self.size / 1e9:.1f} GB hashed" if self.full else "unchanged since the last check"
        return f"{self.files:,} files are as they were built ({how})"

    def as_data(self) -> dict[str, Any]:
        """For machines."""
        whole = {**asdict(self), "seconds": round(self.seconds, 2)}
        return {"schema": 1, "ok": self.ok, "bytes": whole.pop("size"), **whole}


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
    require_safe_modes(release, entries)
    content = {"schema": 1, "stores": list(map(str, stores)), "entries": _rows(entries)}
    text = json.dumps(content) + "\n"
    write_atomic(release.root / CONTENT_FILE, text)
    sealed = replace(release, content=hashlib.sha256(text.encode()).hexdigest())
    write_json(release.root / "release.json", as_record(sealed))
    _note_checked(sealed, entries)
    return sealed


def look(release: Release) -> dict[str, Entry]:
    """Return the entries of a release's trees, by path relative to its root; reads no file.

    Raises CheckFailed: it has no seal, or the seal is not the one that release.json names.
    """
    with explain_os_errors(release.root):
        stores = json.loads(_read_content(release))["stores"]
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
        (
            *(f"changed: {name}" for name, row in sealed.items() if present.get(name, row) != row),
            *(f"missing: {name}" for name in sealed if name not in present),
            *(f"added: {name}" for name in present if name not in sealed),
        ),
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
            details=shortened(found.faults),
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
