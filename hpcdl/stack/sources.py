"""hpcdl itself as a wheel: from the checkout it runs from, or from its installed files.

A published module carries the hpcdl it was made with. Both ways give the same files, so both
give the same digest, and a release built from a checkout is the one built from its wheel.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from hpcdl import __version__
from hpcdl.stack.wheelhouse import (
    is_recorded,
    new_log,
    record_digest,
    require_as_built,
    wheels_cache,
)
from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.files import explain_os_errors, shared_lock, write_atomic
from hpcdl.system.resources import scratch_directory
from hpcdl.system.run import module_argv, run

_PACKAGE = Path(__file__).resolve().parent.parent
_FOLDERS = ("examples", "modulefiles", "reframe_checks", "spack", "templates")
# The second line is what Spack makes in a directory of spack/environments: links to gigabytes.
_JUNK = {"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".gitignore",
         ".spack-env", "view", "._view", "concretize.log"}  # fmt: skip
_BUILD_SECONDS = 600
_ATTEMPTS = 5
_T = TypeVar("_T")
_TOP = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE")


def is_checkout() -> bool:
    """Whether hpcdl runs from a checkout, with its build files beside it."""
    return all((_PACKAGE.parent / name).is_file() for name in _TOP)


def own_files() -> Iterator[tuple[str, Path]]:
    """Every file of hpcdl: its path inside a wheel, and where it lies now; sorted."""
    found = {f"hpcdl/{name}": path for name, path in _files(_PACKAGE)}
    if is_checkout():
        for folder in _FOLDERS:
            for name, path in _files(_PACKAGE.parent / folder):
                found[f"hpcdl/{folder}/{name}"] = path
    yield from sorted(found.items())


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for where, folders, names in os.walk(folder):
        folders[:] = set(folders) - _JUNK
        for path in (Path(where, name) for name in set(names) - _JUNK):
            # A link is the site file of an installed prefix: no part of hpcdl.
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(folder).as_posix(), path


def own_digest() -> str:
    """Eight hex digits for the content of all of hpcdl's files."""
    state = hashlib.sha256(__version__.encode())
    for name, path in own_files():
        state.update(f"\0{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return state.hexdigest()[:8]


class SourcesChanged(Exception):
    """Somebody edited hpcdl while it was being packed."""


def with_own(own: str, make: Callable[[str], _T]) -> _T:
    """What is made with hpcdl's own files, given their digest; anew where they change meanwhile."""
    for _ in range(_ATTEMPTS):
        with suppress(SourcesChanged):
            return make(own)
        own = own_digest()
    raise MissingPrerequisite(
        "hpcdl's own files keep changing", hint="build when nobody edits them"
    )


def own_wheel(python: Path, expected: str) -> Path:
    """The wheel of hpcdl in the cache, made now where it is not there.

    `python` needs setuptools and pip, to build from a checkout; `expected` is the digest of the
    files that the wheel must have. SourcesChanged where they are no longer those.
    """
    name = f"hpcdl-{__version__}-py3-none-any.whl"
    target = wheels_cache() / f"hpcdl-{__version__}-{expected}" / name
    with shared_lock(wheels_cache() / ".hpcdl.lock", wait_seconds=_BUILD_SECONDS):
        if not is_recorded(target):
            packed = _built(python, name) if is_checkout() else _packed(name)
            if own_digest() != expected:
                raise SourcesChanged
            write_atomic(target, packed)
            record_digest(target)
        return require_as_built(target)


def _built(python: Path, name: str) -> bytes:
    """The wheel that setup.cfg describes, built from a copy so that the checkout stays clean."""
    checkout = _PACKAGE.parent
    with explain_os_errors(wheels_cache()), scratch_directory() as scratch:
        copy = scratch / "hpcdl"
        copy.mkdir()
        for top in _TOP:
            shutil.copy2(checkout / top, copy)
        for folder in ("hpcdl", *_FOLDERS):
            shutil.copytree(checkout / folder, copy / folder, ignore=shutil.ignore_patterns(*_JUNK))
        run(
            [*module_argv(python, "pip"), "--disable-pip-version-check", "wheel", "--no-deps",
             "--no-build-isolation", "--wheel-dir", scratch, copy],
            env={"TMPDIR": str(scratch)},
            log=new_log("hpcdl"),
            tied=True,
        )  # fmt: skip
        return (scratch / name).read_bytes()


def _packed(name: str) -> bytes:
    """The wheel that these installed files came from: the same files, and a new RECORD."""
    from importlib.metadata import distribution

    installed = distribution("hpcdl")
    info = f"hpcdl-{__version__}.dist-info"
    members = {entry: path.read_bytes() for entry, path in own_files()}
    for entry in installed.files or ():
        if entry.parts[0] == info and entry.name in {"METADATA", "WHEEL", "entry_points.txt",
                                                     "top_level.txt", "LICENSE"}:  # fmt: skip
            members[entry.as_posix()] = Path(str(entry.locate())).read_bytes()
    return pack(members, f"{info}/RECORD")


def pack(members: dict[str, bytes], record: str) -> bytes:
    """A wheel of these members: a zip file whose RECORD lists their digests (PEP 427)."""
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    for name, content in sorted(members.items()):
        checksum = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
        writer.writerow([name, f"sha256={checksum.decode()}", len(content)])
    writer.writerow([record, "", ""])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in [*sorted(members.items()), (record, rows.getvalue().encode())]:
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
    return packed.getvalue()
