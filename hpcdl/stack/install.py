"""Makes the tree of a release: one maker at a time, wheels put in offline, fit for everybody.

A tree is made at its final place, because virtual environments do not move, and is no release
until release.json is in it. Where the work on it fails it is removed; what a killed build leaves
is told by its name and by what it lacks.

uv copies files from its cache (which shares their blocks where the file system can: XFS, Btrfs);
without uv, pip runs out of its own wheel. Nothing is hard-linked: a `chown` or `chmod` of one tree
would reach every other tree, and the cache. Bytecode is compiled once per set of wheels and copied
into later trees: readers of a release cannot write it, and without it TensorFlow takes twice as
long to import. It is marked as never to be checked against the sources, for these never change.

Everybody may read a release, and nobody but its owner and root may write it: a file that others
may write is a way into every job that loads the module; one that users cannot read fails in theirs
and not in the admin's. Both stop a publish.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from hpcdl.site import Site
from hpcdl.stack.release import Release, releases_folder
from hpcdl.stack.seal import shortened
from hpcdl.system.errors import CheckFailed, MissingPrerequisite
from hpcdl.system.files import LockBusy, explain_os_errors, shared_lock
from hpcdl.system.resources import cache, folder
from hpcdl.system.run import module_argv, run
from hpcdl.system.trust import require_private

TRASH = ".trash-"
"""What the name of a tree begins with that is being removed."""
_BUILD_SECONDS = 7200
_RELEASE_ID = re.compile(r".+-\d+(\.\d+)+-(cpu|cuda\d[a-z0-9.-]*)-[0-9a-f]{8}")
_READ = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
_ENTER = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH
_FREE = (
    "`hpcdl stack gc` removes releases that nothing uses; HPCDL_CACHE says where wheels are kept"
)
_SPARE_BYTES = 400_000_000
_ROOT = 0
_BELONGS = "belongs to user"
_WRITE_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_SPECIAL = stat.S_ISUID | stat.S_ISGID


@contextmanager
def build_slot(site: Site, say: Callable[[str], None]) -> Iterator[None]:
    """Be the only one who makes trees below this prefix; says so where another one is at it.

    Raises:
        MissingPrerequisite: no permission, or the other one takes hours.
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


def find_uv() -> str | None:
    """Where uv is: installed beside hpcdl, or on PATH; None without it."""
    with suppress(ImportError, FileNotFoundError):
        from uv import find_uv_bin

        return str(find_uv_bin())
    return shutil.which("uv")


def install(python: Path, wheels: Sequence[Path], pip_wheel: Path, log: Path) -> None:
    """Install exactly these wheels into the environment of `python`; nothing is fetched."""
    uv = find_uv()
    if uv is not None:
        words = "pip install --offline --no-progress --link-mode copy --python"
        argv: list[str | Path] = [uv, *words.split(), python]
    else:
        words = "--disable-pip-version-check install --no-compile --no-cache-dir"
        argv = [python, pip_wheel / "pip", *words.split()]
    env = {
        "UV_CACHE_DIR": str(cache("uv")),
        "UV_NO_CONFIG": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "NO_COLOR": "1",
    }
    run([*argv, "--no-index", "--no-deps", *wheels], env=env, log=log, tied=True)


def compile_bytecode(python: Path, site_packages: Path, store: Path, log: Path) -> None:
    """Compile every module below `site_packages`, taking what `store` has from earlier.

    `store` is named for the set of wheels, and filled where it is absent. A file of tests that is
    no valid Python is no failure.
    """
    if store.is_dir():
        require_private(store)  # it is run instead of the sources
        os.utime(store)
        _copy_bytecode(store, site_packages)
    else:
        compile_folders(python, [site_packages], log)
        aside = store.with_name(f"{store.name}.{os.getpid()}")
        with explain_os_errors(aside):
            _copy_bytecode(site_packages, aside)
        with suppress(OSError):
            aside.rename(store)
        shutil.rmtree(aside, ignore_errors=True)
    compile_folders(python, [site_packages / "hpcdl"], log)


def compile_folders(python: Path, folders: Sequence[Path], log: Path) -> None:
    """Compile all modules below some directories; what is no valid Python is left."""
    # By force: what a build imported has bytecode already, marked with the times of its sources;
    # beside later copies of these it is stale, and root's Python would write it anew.
    argv = [*module_argv(python, "compileall"), "-q", "-f", "-j", "0"]
    run([*argv, "--invalidation-mode", "unchecked-hash", *folders], log=log, check=False, tied=True)


def _copy_bytecode(source: Path, target: Path) -> None:
    """Copy every __pycache__ of one tree into another, hpcdl's own left out."""
    for where, directories, files in os.walk(source):
        relative = Path(where).relative_to(source)
        if relative.parts[:1] == ("hpcdl",):
            directories.clear()
        if Path(where).name == "__pycache__":
            (target / relative).mkdir(parents=True, exist_ok=True)
            for name in files:
                shutil.copyfile(Path(where, name), target / relative / name)


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


def require_space(needs: Mapping[Path, float], *, only_look: bool = False) -> None:
    """MissingPrerequisite, before anything is fetched or written, where it will not fit.

    `needs` are GB by directory; directories of one file system are added up. With `only_look` no
    directory is made, to see whether that can be done.
    """
    wanted: dict[int, float] = {}
    for place, gigabytes in needs.items():
        with explain_os_errors(place):
            here = next(one for one in (place, *place.parents) if one.exists())
            free, device = shutil.disk_usage(here).free / 1e9, here.stat().st_dev
        wanted[device] = wanted.get(device, 0.0) + gigabytes
        if free < wanted[device]:
            raise MissingPrerequisite(
                f"no space left for the stack in {place}: it needs {wanted[device]:.1f} GB, "
                f"{free:.1f} GB are free",
                hint=_FREE,
            )
    for place in () if only_look else needs:
        with explain_os_errors(place):
            place.mkdir(parents=True, exist_ok=True)


def unpacked_gb(wheels: Sequence[Path]) -> float:
    """How large a tree of these wheels gets, in GB."""
    size = _SPARE_BYTES
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            size += sum(member.file_size for member in archive.infolist())
    return size / 1e9


def require_safe_modes(release: Release, seen: Mapping[str, os.stat_result]) -> None:
    """CheckFailed where a file of a release breaks the rule; `seen` as for `mode_faults`."""
    faults = list(mode_faults(release.root, seen))
    if faults:
        strange = sum(_BELONGS in fault for fault in faults)
        cures = [f"chown -R {os.lstat(release.root).st_uid} {release.root}"] if strange else []
        cures += [f"chmod -R u=rwX,go=rX {release.root}"] if strange < len(faults) else []
        raise CheckFailed(
            f"{release.id} has files with wrong permissions and is not published",
            details=shortened(faults),
            hint=" && ".join(cures),
        )


def require_readers(site: Site, release: Release, say: Callable[[str], None]) -> None:
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


def mode_faults(root: Path, seen: Mapping[str, os.stat_result] | None = None) -> Iterator[str]:
    """Yield the faults of the tree's owners and permissions, one line each.

    `seen` is `lstat` of everything below some of its directories, by path relative to it, where
    that is known: those are not read again.
    """
    owner, seen = os.lstat(root).st_uid, seen or {}
    sound: set[tuple[int, int]] = set()  # tens of thousands of files have a handful of modes
    for name, status in seen.items():
        kind = (status.st_mode, status.st_uid)
        if kind not in sound and not stat.S_ISLNK(status.st_mode):
            found = list(_fault(f"{root}/{name}", status, owner))
            yield from found
            sound |= set() if found else {kind}
    closed: list[OSError] = []
    for where, folders, files in os.walk(root, onerror=closed.append):
        if where == str(root):
            folders[:] = [name for name in folders if name not in seen]
        for path in (where, *(f"{where}/{name}" for name in files)):
            status = os.lstat(path)
            if not stat.S_ISLNK(status.st_mode):
                yield from _fault(path, status, owner)
    yield from (f"{one.filename}: cannot be read: {one.strerror}" for one in closed)


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


def closed_above(path: Path) -> list[Path]:
    """The directories above `path` that users cannot enter, outermost first."""
    parents = [parent for parent in reversed(path.absolute().parents) if parent.is_dir()]
    return [parent for parent in parents if not parent.stat().st_mode & stat.S_IXOTH]
