"""Whether a release loads what it should: every library from itself, and one NCCL.

What a shared object needs is read from the file, where it is found is asked of the loader itself
(`ldd`, in the environment of the release's module). From outside may come what every Linux has,
NVIDIA's driver and the site's MPI (facts/wheels.yaml, `outside`). What TensorFlow opens later, by
the module's LD_LIBRARY_PATH or its own RUNPATH, must lie in the release, too. Of a release made by
Spack, the packages that its environment runs with and what it declares as external are inside.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.stack.fatbin import read_dynamic, shared_objects, survey
from hpcdl.stack.release import Release
from hpcdl.stack.spack_backend.locked import read_lock
from hpcdl.system.run import CommandResult

_LINE = re.compile(r"^\s+(\S+) => (not found|\S+)")
_TENSORFLOW = ("tensorflow/lib*.so*", "tensorflow/python/_pywrap_tensorflow*.so")
_NCCL = "libnccl.so.2"
_SYSTEM = (Path("/"), Path("/usr"))

Run = Callable[[Sequence[str | Path]], CommandResult]
"""Runs a command in the environment of the module."""


@dataclass(frozen=True)
class _Inside:
    """What belongs to a release: its directories, and packages of Spack's by their hashes."""

    folders: tuple[Path, ...]
    hashes: frozenset[str] = frozenset()

    def has(self, place: Path | str) -> bool:
        """Whether a file, or what a link leads to, belongs to the release."""
        real = Path(place).resolve()
        own = any(real.is_relative_to(folder) for folder in self.folders)
        return own or any(_package(parent) in self.hashes for parent in real.parents)


def library_faults(release: Release, run: Run) -> tuple[list[str], int]:
    """What is wrong with the libraries of a release, a line each, and how many were looked at."""
    packages = next(iter(sorted(release.prefix.glob("lib/python3*/site-packages"))), None)
    if packages is None:
        return [f"{release.prefix} has no Python packages"], 0
    inside = _inside(release)
    opened = dict(_opened(release, packages)) if "cuda" in release.versions else {}
    objects = _objects(packages, filter(None, opened.values()))
    told = run(["ldd", *objects])
    if not told.stdout:
        return [f"ldd in the module: {' | '.join(told.last_lines(3))}"], len(objects)
    found = _by_loader(objects, told.stdout)
    faults = [f"the loader said nothing of {path.name}" for path in objects if path not in found]
    loaded = {read_dynamic(path).soname for path in _of_tensorflow(packages)}
    for path in objects:
        faults += _of_object(inside, path, found.get(path, {}), loaded)
    faults += _not_opened(inside, opened)
    if "nccl" in release.versions and "horovod" in release.versions:
        faults += _other_nccl(packages, opened.get(_NCCL), found)
    return list(dict.fromkeys(faults)), len(objects)


def code_faults(release: Release) -> tuple[list[str], str]:
    """What is wrong with Horovod's machine code (for exactly its GPUs), else what it is."""
    folders = release.prefix.glob("lib/python3*/site-packages/horovod")
    codes = {code for found in survey(*folders) for code in found.codes if code.machine}
    have = ", ".join(sorted(map(str, codes))) or "none"
    wanted = ", ".join(sorted(f"sm_{one.replace('.', '')}" for one in release.needs["compute"]))
    faults = [] if have == wanted else [f"it has {have}, and the release is for {wanted}"]
    return faults, f"{have}, as the release is for"


def claims_not_held(release: Release, seen: Mapping[str, Any]) -> Iterator[str]:
    """What a release for GPUs claims of Horovod and Horovod does not say itself.

    `seen` has `horovod`, `horovod_cuda` and `nccl` as the gate's program saw them.
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


def _inside(release: Release) -> _Inside:
    tree = release.prefix.resolve()
    if release.backend != "spack":
        return _Inside((tree,))
    hashes = frozenset(read_lock(release.root / "spack").to_run)
    named = [Path(one["external"]) for one in release.lock
             if "external" in one and one["hash"] in hashes]  # fmt: skip
    # In /usr lies everything else, too: `outside` says what may come from there.
    return _Inside((tree, *(one.resolve() for one in named if one not in _SYSTEM)), hashes)


@cache
def _package(folder: Path) -> str | None:
    """The hash of the package that Spack has installed in a directory; None in any other."""
    try:
        nodes = json.loads((folder / ".spack" / "spec.json").read_bytes())["spec"]["nodes"]
        return str(nodes[0]["hash"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _objects(packages: Path, more: Iterable[Path]) -> list[Path]:
    """The shared objects of TensorFlow, Horovod and NVIDIA, each file once; `more` are others."""
    seen: set[Path] = set()
    found = (path for name in ("horovod", "nvidia")
             for path in shared_objects(packages / name, seen))  # fmt: skip
    every = (*more, *_of_tensorflow(packages), *found)
    return sorted({path.resolve(): path for path in every}.values())


def _of_tensorflow(packages: Path) -> list[Path]:
    return [path for pattern in _TENSORFLOW for path in packages.glob(pattern)]


def _by_loader(objects: Sequence[Path], told: str) -> dict[Path, dict[str, str]]:
    """Where ldd finds what each object needs, by name; what it does not find is empty.

    An object that it said nothing of is not there.
    """
    found: dict[Path, dict[str, str]] = {}
    # A single object is told without its name.
    here = found.setdefault(objects[0], {}) if len(objects) == 1 and told else {}
    for line in told.splitlines():
        match = _LINE.match(line)
        if match:
            here[match.group(1)] = "" if match.group(2) == "not found" else match.group(2)
        elif line.endswith(":") and line.startswith("/"):
            here = found.setdefault(Path(line[:-1]), {})
    return found


def _of_object(
    inside: _Inside, path: Path, found: Mapping[str, str], loaded: Container[str]
) -> Iterator[str]:
    """A line for each library that is missing, or comes from where it must not.

    `loaded` are TensorFlow's own: who needs them imports it first.
    """
    needed = read_dynamic(path).needed
    rows = facts.load("wheels")["outside"]
    outside = [pattern for row in rows for pattern in row["names"]]
    for name, place in found.items():
        if any(fnmatchcase(name, pattern) for pattern in outside):
            continue
        if not place and name not in loaded:
            yield f"{path.name} does not find {name}"
        if place and name in needed and not inside.has(place):
            yield f"{path.name} takes {name} from {place}, not from the release"


def _opened(release: Release, packages: Path) -> Iterator[tuple[str, Path | None]]:
    """CUDA's libraries that TensorFlow opens at run time, by name; None where it finds none."""
    module = [Path(one) for one in release.environment.get("LD_LIBRARY_PATH", ())]
    own = [folder for path in _of_tensorflow(packages) for folder in read_dynamic(path).folders]
    for name in facts.load("nvidia_wheels")["opened"]:
        places = (path for folder in dict.fromkeys([*module, *own])
                  for path in sorted(folder.glob(f"{name}*")))  # fmt: skip
        yield name, next(places, None)


def _not_opened(inside: _Inside, opened: Mapping[str, Path | None]) -> Iterator[str]:
    for name, place in opened.items():
        if place is None:
            yield f"TensorFlow does not find {name}, neither by the module nor by its RUNPATH"
        elif not inside.has(place):
            yield f"TensorFlow takes {name} from {place}, not from the release"


def _other_nccl(
    packages: Path, own: Path | None, found: Mapping[Path, Mapping[str, str]]
) -> Iterator[str]:
    """Horovod with another NCCL than TensorFlow opens: two in one process."""
    places = {path: libraries[_NCCL] for path, libraries in found.items()
              if _NCCL in libraries and path.is_relative_to(packages / "horovod")}  # fmt: skip
    if not places:
        yield f"Horovod does not ask for {_NCCL}"
    for path, place in places.items():
        if own is not None and Path(place).resolve() != own.resolve():
            yield f"{path.name} loads {place or 'no NCCL'}, TensorFlow {own}"
