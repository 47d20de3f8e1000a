"""Makes the tree of a release: one maker at a time, wheels put in offline, fit for everybody.

A tree is made at its final place, because virtual environments do not move, and is no release
until release.json is in it. Where the work on it fails it is removed; what a killed build leaves
is told by its name and by what it lacks.

uv copies files from its cache (which shares their blocks where the file system can: XFS, Btrfs);
without uv, pip runs out of its own wheel. Nothing is hard-linked: a `chown` or `chmod` of one tree
would reach every other tree, and the cache. Bytecode is compiled once per set of wheels and copied
into later trees: readers of a release cannot write it, and without it TensorFlow takes twice as
long to import. It is marked as never to be checked against the sources, for these never change.
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
from hpcdl.stack.release import releases_folder
from hpcdl.system.errors import MissingPrerequisite
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
_WRITE_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_FREE = ("`hpcdl stack gc` removes releases that nothing uses; HPCDL_CACHE says where wheels are "
         "kept")  # fmt: skip
_SPARE_BYTES = 400_000_000


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
    """The lock of whoever makes trees below this prefix."""
    return releases_folder(site) / ".build.lock"


def unfinished(site: Site) -> list[Path]:
    """Trees that were killed while they were made or removed; ask while no build is at work.

    What has no name of ours, such as `lost+found` or somebody's copy, is left alone.
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
    argv: list[str | Path] = [python, pip_wheel / "pip", "--disable-pip-version-check", "install",
                              "--no-compile", "--no-cache-dir"]  # fmt: skip
    if uv is not None:
        argv = [uv, "pip", "install", "--offline", "--no-progress", "--link-mode", "copy",
                "--python", python]  # fmt: skip
    env = {"UV_CACHE_DIR": str(cache("uv")), "UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never",
           "NO_COLOR": "1"}  # fmt: skip
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
    """What jobs source, and the directory for PYTHONPATH that shows the stack to users' Pythons.

    Every Python that starts reads it, also other versions run by root, which would write bytecode
    there: a file in the place of `__pycache__` keeps all of them from it.
    """
    target = stack / "share" / "hpcdl" / "python"
    shutil.copytree(folder("modulefiles") / "python", target, dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip
    (target / "__pycache__").touch()
    for functions in (folder("templates") / "sbatch").glob("*.sh"):
        shutil.copyfile(functions, target.parent / functions.name)


def open_to_readers(root: Path) -> None:
    """Everybody may read the tree and enter its directories, nobody but the owner may write."""
    for where, _, files in os.walk(root):
        for path in (where, *(f"{where}/{name}" for name in files)):
            mode = os.lstat(path).st_mode
            enter = _ENTER if stat.S_ISDIR(mode) or mode & stat.S_IXUSR else 0
            wanted = (stat.S_IMODE(mode) | _READ | enter) & ~_WRITE_OTHERS
            if not stat.S_ISLNK(mode) and wanted != stat.S_IMODE(mode):
                os.chmod(path, wanted)  # noqa: PTH101 - thirty thousand of them


def require_space(needs: Mapping[Path, float], *, only_look: bool = False) -> None:
    """MissingPrerequisite, before anything is fetched or written, where it will not fit.

    `needs` are GB by directory; what lies in one file system is added up. With `only_look` no
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
                f"{free:.1f} GB are free", hint=_FREE,
            )  # fmt: skip
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
