"""Whether a release from wheels loads what it should: every library from itself, and one NCCL.

What a shared object needs is read from the file, where it is found is asked of the loader itself
(`ldd`, in the environment of the release's module). From outside may come what every Linux has,
NVIDIA's driver and the site's MPI (facts/wheels.yaml, `outside`). TensorFlow opens CUDA's
libraries later, by its own RUNPATH: that must lead into the release, too. No GPU is needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.stack.elf import read_dynamic
from hpcdl.stack.fatbin import survey
from hpcdl.stack.release import Release
from hpcdl.system.run import CommandResult

_LINE = re.compile(r"^\s+(\S+) => (not found|\S+)")
_TENSORFLOW = ("tensorflow/lib*.so*", "tensorflow/python/_pywrap_tensorflow*.so")
_NCCL = "libnccl.so.2"

Run = Callable[[Sequence[str | Path]], CommandResult]
"""Runs a command in the environment of the module."""


def library_faults(release: Release, run: Run) -> tuple[list[str], int]:
    """What is wrong with the libraries of a release, a line each, and how many were looked at."""
    packages = next(iter(sorted(release.prefix.glob("lib/python3*/site-packages"))), None)
    if packages is None:
        return [f"{release.prefix} has no Python packages"], 0
    objects = sorted(_objects(packages))
    found = _by_loader(objects, run)
    faults = [f"the loader said nothing of {path.name}" for path in objects if path not in found]
    faults += [line for path in objects for line in _of_object(release, path, found.get(path, {}))]
    if "cuda" in release.versions:
        faults += _not_opened(packages)
    if "nccl" in release.versions and "horovod" in release.versions:
        faults += _other_nccl(packages, found)
    return list(dict.fromkeys(faults)), len(objects)


def code_faults(release: Release) -> tuple[list[str], str]:
    """What is wrong with the machine code of Horovod, which is for the release's GPUs exactly."""
    folders = release.prefix.glob("lib/python3*/site-packages/horovod")
    codes = {code for found in survey(*folders) for code in found.codes if code.machine}
    have = ", ".join(sorted(map(str, codes))) or "none"
    wanted = ", ".join(sorted(f"sm_{one.replace('.', '')}" for one in release.needs["compute"]))
    faults = [] if have == wanted else [f"it has {have}, and the release is for {wanted}"]
    return faults, f"{have}, as the release is for"


def claims_not_held(release: Release, seen: Mapping[str, Any]) -> Iterator[str]:
    """What a release for GPUs claims of Horovod and Horovod does not say itself.

    Args:
        release: what was loaded.
        seen: `horovod`, `horovod_cuda` and `nccl` as the gate's program saw them.
    """
    claimed = release.versions.get("nccl")
    if claimed is None or not seen["horovod"]:
        return
    if not seen.get("horovod_cuda"):
        yield "Horovod is built without CUDA"
    have = nccl_release(int(seen["nccl"]))
    if claimed.partition("-")[0] != have:  # Spack's versions end in the build: 2.29.7-1
        yield f"Horovod is built with {f'NCCL {have}' if have else 'no NCCL'}, not {claimed}"


def nccl_release(code: int) -> str:
    """NCCL's release from its number, as nccl.h makes it: 22703 is 2.27.3; empty for none."""
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}" if code > 1 else ""


def _objects(packages: Path) -> Iterator[Path]:
    """The shared objects of TensorFlow, Horovod and NVIDIA."""
    for pattern in _TENSORFLOW:
        yield from packages.glob(pattern)
    for folder in ("horovod", "nvidia"):
        for path in (packages / folder).rglob("*.so*"):
            if path.is_file() and not path.is_symlink():
                yield path


def _by_loader(objects: Sequence[Path], run: Run) -> dict[Path, dict[str, str]]:
    """Where the loader finds what each object needs, by name; what it does not find is empty.

    An object that it said nothing of is not there.
    """
    found: dict[Path, dict[str, str]] = {}
    lines = run(["ldd", *objects]).stdout.splitlines()
    # A single object is told without its name.
    here = found.setdefault(objects[0], {}) if len(objects) == 1 and lines else {}
    for line in lines:
        match = _LINE.match(line)
        if match:
            here[match.group(1)] = "" if match.group(2) == "not found" else match.group(2)
        elif line.endswith(":") and line.startswith("/"):
            here = found.setdefault(Path(line[:-1]), {})
    return found


def _of_object(release: Release, path: Path, found: Mapping[str, str]) -> Iterator[str]:
    """A line for each library that is missing, or comes from where it must not."""
    needed = read_dynamic(path).needed
    for name, place in found.items():
        if not place and not _may_be_outside(name):
            yield f"{path.name} does not find {name}"
        own = not place or name not in needed or _is_inside(release, place)
        if not own and not _may_be_outside(name):
            yield f"{path.name} takes {name} from {place}, not from the release"


def _is_inside(release: Release, place: str) -> bool:
    return Path(place).resolve().is_relative_to(release.prefix.resolve())


def _may_be_outside(name: str) -> bool:
    rows = facts.load("wheels")["outside"]
    return any(fnmatchcase(name, pattern) for row in rows for pattern in row["names"])


def _not_opened(packages: Path) -> Iterator[str]:
    """CUDA's library directories that are empty or not on TensorFlow's RUNPATH."""
    libraries = (path for pattern in _TENSORFLOW for path in packages.glob(pattern))
    known = {folder for path in libraries for folder in read_dynamic(path).folders}
    for name in facts.load("nvidia_wheels")["opened"]:
        folder = (packages / "nvidia" / name / "lib").resolve()
        if not any(folder.glob("lib*.so*")):
            yield f"there are no libraries in {folder}"
        elif folder not in known:
            yield f"TensorFlow does not look into {folder}"


def _other_nccl(packages: Path, found: Mapping[Path, Mapping[str, str]]) -> Iterator[str]:
    """Horovod with another NCCL than TensorFlow opens: two in one process."""
    own = (packages / "nvidia" / "nccl" / "lib" / _NCCL).resolve()
    places = {path: libraries[_NCCL] for path, libraries in found.items()
              if _NCCL in libraries and path.is_relative_to(packages / "horovod")}  # fmt: skip
    if not places:
        yield f"Horovod does not ask for {_NCCL}"
    for path, place in places.items():
        if Path(place).resolve() != own:
            yield f"{path.name} loads {place or 'no NCCL'}, TensorFlow {own}"
