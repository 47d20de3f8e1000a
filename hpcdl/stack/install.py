"""Puts wheels into a virtual environment, offline, and makes the tree fit for everybody.

uv links files from its cache where pip copies them; without uv, pip runs out of its own wheel.
Bytecode is compiled once per set of wheels and linked into later trees: readers of an
immutable release cannot write it themselves, and TensorFlow without it takes twice as long
to import. It is marked as never to be checked against the sources, for these never change.
"""

from __future__ import annotations

import os
import shutil
import stat
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.files import explain_os_errors
from hpcdl.system.resources import cache
from hpcdl.system.run import run

_READ = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
_ENTER = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH
_WRITE_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_SPARE_BYTES = 400_000_000


def find_uv() -> str | None:
    """Where uv is: installed beside hpcdl, or on PATH; None without it."""
    with suppress(ImportError, FileNotFoundError):
        from uv import find_uv_bin

        return str(find_uv_bin())
    return shutil.which("uv")


def install(python: Path, wheels: Sequence[Path], pip_wheel: Path, log: Path) -> None:
    """Install exactly these wheels into the environment of `python`; nothing is fetched.

    Raises:
        CommandFailed: uv or pip failed; the log is named.
    """
    uv = find_uv()
    if uv is not None:
        run(
            [uv, "pip", "install", "--offline", "--no-index", "--no-deps", "--no-progress",
             "--link-mode", "hardlink", "--python", python, *wheels],
            env={"UV_CACHE_DIR": str(cache() / "uv"), "UV_NO_CONFIG": "1",
                 "UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1"},
            log=log,
            tied=True,
        )  # fmt: skip
        return
    run(
        [python, pip_wheel / "pip", "--disable-pip-version-check", "install", "--no-index",
         "--no-deps", "--no-compile", "--no-cache-dir", *wheels],
        log=log,
        tied=True,
    )  # fmt: skip


def compile_bytecode(python: Path, site_packages: Path, store: Path, log: Path) -> None:
    """Compile every module below `site_packages`, taking what `store` has from earlier.

    Args:
        python: the environment's interpreter.
        site_packages: where its modules lie.
        store: a folder named for the set of wheels; filled where it is absent.
        log: what the compiler says; a file of tests that is no valid Python is no failure.
    """
    if store.is_dir():
        _link_bytecode(store, site_packages)
    else:
        _compile(python, [site_packages], log)
        aside = store.with_name(f"{store.name}.{os.getpid()}")
        with explain_os_errors(aside):
            _link_bytecode(site_packages, aside)
        with suppress(OSError):
            aside.rename(store)
        shutil.rmtree(aside, ignore_errors=True)
    _compile(python, [site_packages / "hpcdl"], log)


def _compile(python: Path, folders: Sequence[Path], log: Path) -> None:
    run(
        [python, "-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash",
         *folders],
        log=log,
        check=False,
        tied=True,
    )  # fmt: skip


def _link_bytecode(source: Path, target: Path) -> None:
    """Link every __pycache__ of one tree into another, hpcdl's own left out."""
    for folder, folders, files in os.walk(source):
        relative = Path(folder).relative_to(source)
        if relative.parts[:1] == ("hpcdl",):
            folders.clear()
        if Path(folder).name == "__pycache__":
            (target / relative).mkdir(parents=True, exist_ok=True)
            for name in files:
                _link(Path(folder, name), target / relative / name)


def _link(source: Path, target: Path) -> None:
    """A hard link, or a copy where the file system wants one."""
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except OSError:
        shutil.copy2(source, target)


def open_to_readers(root: Path) -> None:
    """Everybody may read the tree and enter its folders, nobody but the owner may write."""
    for folder, _, files in os.walk(root):
        _allow(folder, _READ | _ENTER)
        for name in files:
            _allow(os.path.join(folder, name), _READ)  # noqa: PTH118 - thirty thousand of them


def _allow(path: str, bits: int) -> None:
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        return
    wanted = (stat.S_IMODE(mode) | bits) & ~_WRITE_OTHERS
    if mode & stat.S_IXUSR:
        wanted |= _ENTER
    if wanted != stat.S_IMODE(mode):
        os.chmod(path, wanted)  # noqa: PTH101 - see above


def require_space(folder: Path, wheels: Sequence[Path]) -> None:
    """Refuse before anything is written where the tree will not fit.

    Raises:
        MissingPrerequisite: says how much is needed and how much is there, in GB.
    """
    with explain_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    needed = _SPARE_BYTES + (0 if _linked(folder) else sum(map(_unpacked, wheels)))
    if free < needed:
        raise MissingPrerequisite(
            f"no space left for the stack in {folder}: it needs {needed / 1e9:.1f} GB, "
            f"{free / 1e9:.1f} GB are free",
            hint="`hpcdl stack gc` removes releases that nothing uses",
        )


def _linked(folder: Path) -> bool:
    """Whether installed files will be links into uv's cache, already filled, not copies."""
    uv = cache() / "uv"
    return find_uv() is not None and uv.is_dir() and uv.stat().st_dev == folder.stat().st_dev


def _unpacked(wheel: Path) -> int:
    with zipfile.ZipFile(wheel) as archive:
        return sum(member.file_size for member in archive.infolist())
