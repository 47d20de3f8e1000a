"""What shared objects load, and which GPUs they have code for; whether a release loads its own.

What a shared object needs is read from the file, without binutils or CUDA. The dynamic section
(System V's ELF-64, little-endian; elf(5)) names the libraries and where they lie. nvcc puts device
code into the section `.nv_fatbin`: containers, each a header and entries of machine code (a cubin
for one SM) or PTX (text that the driver compiles for its SM or newer ones). Only the headers are
read. NVIDIA does not document the format; it is as the Cricket project describes it
(github.com/RWTH-ACS/cricket), and the tests compare it with cuobjdump.

Where a library is found is asked of the loader itself (`ldd`, in the environment of the release's
module, and once more with a hostile LD_LIBRARY_PATH): it must be the release, with one NCCL. From
outside may come what every Linux has, NVIDIA's driver and the site's MPI (facts/wheels.yaml,
`outside`). What TensorFlow opens later, by the module's LD_LIBRARY_PATH or its own RUNPATH, must
lie in the release, too. Of a release made by Spack, the packages that its environment runs with and
what it declares as external are inside.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import struct
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.site.sections import BACKENDS
from hpcdl.stack.release import Release
from hpcdl.stack.resolve_facts import same_generation, serves
from hpcdl.system.resources import scratch_directory
from hpcdl.system.run import CommandResult

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_TAG = struct.Struct("<qQ")
_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRINGS, _SONAME, _RPATH, _RUNPATH = 1, 5, 14, 15, 29
_MAGIC = 0xBA55ED50
_CONTAINER = struct.Struct("<IHHQ")
"""magic, version, size of this header, size of the entries."""
_ENTRY = struct.Struct("<HHIQIIHHIIIQ")
"""kind, version, size of this header, size of the code, four numbers about it, SM, place and
length of a name, flags."""
_SUFFIXES = ((1 << 20, "a"), (1 << 21, "f"))
"""Flags of code for one GPU alone, and of code for a family: compared with what ptxas and
fatbinary of CUDA 13.5 make for sm_90, sm_90a, sm_100, sm_100a, sm_100f, sm_120a and sm_120f."""
_PLAIN_SIZE, _PLAIN_SIZE_AT = struct.Struct("<Q"), 56
"""Where in its header a compressed entry has the size of its plain code; 0 in others."""
_PTX, _MACHINE = 1, 2
_EMPTY = 1280
"""Machine code of fewer bytes holds no kernel: linking leaves such a placeholder, as in cuFFT of
CUDA 12.9, whose kernels lie in data of its own. Measured: without any kernel 616 to 1008 bytes
by nvcc 11.8 and 12.4, 1072 in libcufftw of CUDA 11.8; with the smallest kernel 1568 and more."""
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SECTIONS = (b".nv_fatbin", b"__nv_relfatbin")
_LINE = re.compile(r"^\s+(\S+) => (not found|\S+)")
_TENSORFLOW = ("tensorflow/lib*.so*", "tensorflow/python/_pywrap_tensorflow*.so")
_NCCL = "libnccl.so.2"
_SYSTEM = (Path("/"), Path("/usr"))

Run = Callable[[Sequence[str | Path]], CommandResult]
"""Runs a command in the environment of the module."""
_Inside = Callable[[Path | str], bool]
"""Whether a file, or what a link leads to, belongs to a release."""


@dataclass(frozen=True, order=True)
class DeviceCode:
    """One piece of device code: `sm` is 60 for sm_60; `machine` is False for PTX.

    `suffix` is `a` for code of one GPU alone (sm_90a), `f` for code of a family (sm_100f).
    """

    sm: int
    machine: bool
    suffix: str = ""

    def __str__(self) -> str:
        return f"{'sm' if self.machine else 'compute'}_{self.sm}{self.suffix}"


@dataclass(frozen=True)
class SharedObject:
    """A file and the device code in it."""

    path: Path
    codes: tuple[DeviceCode, ...]


def runs_on(codes: Sequence[DeviceCode], compute: str) -> str:
    """Return whether code runs on a GPU of this compute capability, such as `6.0`.

    `machine`; `ptx`, which the driver must compile; `foreign`, where that is PTX of an older
    generation only: it may run, but the file is no proof of that; or `no`.
    """
    ptx = [str(code) for code in codes if not code.machine]
    if serves([str(code) for code in codes if code.machine], compute):
        return "machine"
    if serves([code for code in ptx if same_generation(code, compute)], compute):
        return "ptx"
    return "foreign" if serves(ptx, compute) else "no"


@dataclass(frozen=True)
class Dynamic:
    """Names of needed libraries, the object's own name, and the directories where it looks."""

    needed: tuple[str, ...] = ()
    soname: str = ""
    folders: tuple[Path, ...] = ()


def read_dynamic(path: Path) -> Dynamic:
    """The dynamic section of a file; an empty one of what is no 64-bit ELF file."""
    with _opened(path) as data, suppress(struct.error):  # cut off in the middle
        if data is not None:
            return _read(data, path)
    return Dynamic()


@contextmanager
def _opened(path: Path, *, writable: bool = False) -> Iterator[mmap.mmap | None]:
    """The bytes of a 64-bit ELF file; None of any other."""
    if path.stat().st_size < _HEADER.size:
        yield None
        return
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    mode = "r+b" if writable else "rb"
    with path.open(mode) as file, mmap.mmap(file.fileno(), 0, access=access) as data:
        yield data if data[:6] == b"\x7fELF\x02\x01" else None


def _segments(data: mmap.mmap) -> list[tuple[int, ...]]:
    header = _HEADER.unpack_from(data)
    table, width, count = header[5], header[9], header[10]
    return [_SEGMENT.unpack_from(data, table + index * width) for index in range(count)]


def _dynamic_tags(data: mmap.mmap) -> Iterator[tuple[int, int, int]]:
    """The tags of the dynamic section: tag, value, and its place in the file."""
    for segment in _segments(data):
        if segment[0] == _DYNAMIC:
            for place in range(segment[2], segment[2] + segment[5], _TAG.size):
                yield (*_TAG.unpack_from(data, place), place)


def _read(data: mmap.mmap, path: Path) -> Dynamic:
    entries = [(tag, value) for tag, value, _ in _dynamic_tags(data)]
    address = next((value for tag, value in entries if tag == _STRINGS), 0)
    loaded = (
        segment
        for segment in _segments(data)
        if segment[0] == _LOAD and segment[3] <= address < segment[3] + segment[5]
    )
    strings = next((address - folder[3] + folder[2] for folder in loaded), 0)

    def texts(*tags: int) -> list[str]:
        starts = [strings + value for tag, value in entries if tag in tags]
        return [data[start : data.find(b"\0", start)].decode() for start in starts]

    origin = str(path.absolute().parent)  # of a link not what it leads to: so does the loader
    folders = (folder for folder in ":".join(texts(_RPATH, _RUNPATH)).split(":") if folder)
    paths = (
        Path(folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)).resolve()
        for folder in folders
    )
    soname = (*texts(_SONAME), "")[0]
    return Dynamic(tuple(texts(_NEEDED)), soname, tuple(dict.fromkeys(paths)))


def survey(*roots: Path) -> list[SharedObject]:
    """Every shared object below the roots that has device code, each file once.

    Links are followed, to directories too: Spack's view of a release has nothing else.
    """
    seen: set[Path] = set()
    paths = (path for root in roots for path in shared_objects(root, seen))
    return [SharedObject(path, codes) for path in paths if (codes := read_device_code(path))]


def shared_objects(root: Path, seen: set[Path]) -> Iterator[Path]:
    """Files called *.so* below a directory, in order; `seen` has what was looked at."""
    for name, folders, files in os.walk(root, followlinks=True):
        here = Path(name)
        folders[:] = [one for one in sorted(folders) if _is_new(here / one, seen)]
        for path in (here / one for one in sorted(files) if ".so" in one):
            if path.is_file() and _is_new(path, seen):
                yield path


def _is_new(path: Path, seen: set[Path]) -> bool:
    """Return whether nothing that leads to the same place was seen; it is from now on."""
    real = path.resolve()
    new = real not in seen
    seen.add(real)
    return new


def read_device_code(path: Path) -> tuple[DeviceCode, ...]:
    """The device code in a file, without doubles; none in what is no 64-bit ELF file."""
    found: set[DeviceCode] = set()
    with _opened(path) as data, suppress(struct.error):  # cut off: what was found still counts
        if data is not None:
            for start, size in _fat_sections(data):
                found |= set(_codes(data, start, start + size))
    return tuple(sorted(found))


def _fat_sections(data: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Place and size of the sections that hold device code."""
    header = _HEADER.unpack_from(data)
    table, width, count, names_index = header[6], header[11], header[12], header[13]
    if table == 0:
        return
    names = _SECTION.unpack_from(data, table + names_index * width)[4]
    for index in range(count):
        section = _SECTION.unpack_from(data, table + index * width)
        start = names + section[0]
        if data[start : data.find(b"\0", start)] in _SECTIONS:
            yield section[4], section[5]


def _codes(data: mmap.mmap, start: int, end: int) -> Iterator[DeviceCode]:
    """The entries of every container between two places."""
    place = start
    magic = struct.pack("<I", _MAGIC)
    while (place := data.find(magic, place, end)) >= 0:
        _, _, header, size = _CONTAINER.unpack_from(data, place)
        entry, stop = place + header, min(place + header + size, end)
        while entry + _ENTRY.size <= stop:
            kind, _, own, length, *_, sm, _, _, flags = _ENTRY.unpack_from(data, entry)
            compressed = own >= _PLAIN_SIZE_AT + _PLAIN_SIZE.size
            plain = _PLAIN_SIZE.unpack_from(data, entry + _PLAIN_SIZE_AT)[0] if compressed else 0
            if kind == _PTX or (kind == _MACHINE and (plain or length) >= _EMPTY):
                suffix = next((text for bit, text in _SUFFIXES if flags & bit), "")
                yield DeviceCode(sm, kind == _MACHINE, suffix)
            if own + length == 0:
                break
            entry += own + length
        place = max(stop, place + 1)


def library_faults(release: Release, run: Run) -> tuple[list[str], int]:
    """Return the faults of a release's libraries, a line each, and how many were checked."""
    packages = next(iter(sorted(release.prefix.glob("lib/python3*/site-packages"))), None)
    if packages is None:
        return [f"{release.prefix} has no Python packages"], 0
    inside = _inside(release)
    opened = dict(_opened_later(release, packages)) if "cuda" in release.versions else {}
    objects = _objects(packages, filter(None, opened.values()))
    listing = run(["ldd", *objects])
    if not listing.stdout:
        return [f"ldd in the module: {' | '.join(listing.last_lines(3))}"], len(objects)
    resolved = _by_loader(objects, listing.stdout)
    faults = [f"ldd printed nothing about {path.name}" for path in objects if path not in resolved]
    loaded = {read_dynamic(path).soname for path in _of_tensorflow(packages)}
    for path in objects:
        faults += _of_object(inside, path, resolved.get(path, {}), loaded)
    for name, place in opened.items():
        if place is None:
            faults.append(f"TensorFlow does not find {name}, by the module or by its RUNPATH")
        elif not inside(place):
            faults.append(f"TensorFlow takes {name} from {place}, not from the release")
    if "nccl" in release.versions and "horovod" in release.versions:
        faults += _other_nccl(packages, opened.get(_NCCL), resolved)
    if BACKENDS[release.backend].own_python and not faults:
        faults += _taken_from_elsewhere(packages, inside, resolved, run)
    return list(dict.fromkeys(faults)), len(objects)


def code_faults(release: Release) -> tuple[list[str], str]:
    """Return the fault of Horovod's machine code (it must be for its GPUs alone), else its kind."""
    folders = release.prefix.glob("lib/python3*/site-packages/horovod")
    codes = {code for found in survey(*folders) for code in found.codes if code.machine}
    have = ", ".join(sorted(map(str, codes))) or "none"
    wanted = ", ".join(sorted(f"sm_{one.replace('.', '')}" for one in release.needs["compute"]))
    faults = [] if have == wanted else [f"it has {have}, and the release is for {wanted}"]
    return faults, f"{have}, as the release is for"


def claims_not_held(release: Release, seen: Mapping[str, Any]) -> Iterator[str]:
    """Return the features that a GPU release claims and its Horovod does not report.

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
    """Its directories, and of one made by Spack the packages, by hash, that it runs with."""
    run = [one for one in release.lock if "run" in one]
    hashes, folders = {one["hash"] for one in run}, [release.prefix.resolve()]
    named = [Path(one["external"]) for one in run if "external" in one]
    # /usr has everything else, too: `outside` says what may come from there.
    folders += [one.resolve() for one in named if one not in _SYSTEM]

    def inside(place: Path | str) -> bool:
        real = Path(place).resolve()
        own = any(real.is_relative_to(folder) for folder in folders)
        return own or any(_package(parent) in hashes for parent in real.parents)

    return inside


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
    found = (
        path for name in ("horovod", "nvidia") for path in shared_objects(packages / name, seen)
    )
    every = (*more, *_of_tensorflow(packages), *found)
    return sorted({path.resolve(): path for path in every}.values())


def _of_tensorflow(packages: Path) -> list[Path]:
    return [path for pattern in _TENSORFLOW for path in packages.glob(pattern)]


def _by_loader(objects: Sequence[Path], listing: str) -> dict[Path, dict[str, str]]:
    """Where ldd finds what each object needs, by name; what it does not find is empty.

    An object without output is left out.
    """
    resolved: dict[Path, dict[str, str]] = {}
    # ldd prints no name for a single object.
    here = resolved.setdefault(objects[0], {}) if len(objects) == 1 and listing else {}
    for line in listing.splitlines():
        match = _LINE.match(line)
        if match:
            here[match.group(1)] = "" if match.group(2) == "not found" else match.group(2)
        elif line.endswith(":") and line.startswith("/"):
            here = resolved.setdefault(Path(line[:-1]), {})
    return resolved


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
        if place and name in needed and not inside(place):
            yield f"{path.name} takes {name} from {place}, not from the release"


def _opened_later(release: Release, packages: Path) -> Iterator[tuple[str, Path | None]]:
    """CUDA's libraries that TensorFlow opens at run time, by name; None where it finds none."""
    module = [Path(one) for one in release.environment.get("LD_LIBRARY_PATH", ())]
    own = [folder for path in _of_tensorflow(packages) for folder in read_dynamic(path).folders]
    for name in facts.load("nvidia_wheels")["opened"]:
        places = (
            path
            for folder in dict.fromkeys([*module, *own])
            for path in sorted(folder.glob(f"{name}*"))
        )
        yield name, next(places, None)


def _taken_from_elsewhere(
    packages: Path, inside: _Inside, found: Mapping[Path, Mapping[str, str]], run: Run
) -> list[str]:
    """Libraries that LD_LIBRARY_PATH of another module would take in place of the release's.

    The loader is asked with empty files of the same names in LD_LIBRARY_PATH: where it opens one,
    it says so. Of NVIDIA's libraries, which are left as they come, the module's guard warns.
    """
    objects = [path for path in found if path.is_relative_to(packages / "horovod")]
    objects += [path.resolve() for path in _of_tensorflow(packages)]
    needed = {path: read_dynamic(path).needed for path in objects}
    with scratch_directory() as decoys:
        for path, names in needed.items():
            for name in names:
                if found.get(path, {}).get(name) and inside(found[path][name]):
                    (decoys / name).touch()
        listing = run(["env", f"LD_LIBRARY_PATH={decoys}", "ldd", *objects])
        text = f"{listing.stdout}\n{listing.stderr}"
        taken = [path.name for path in sorted(decoys.iterdir()) if f"{decoys}/{path.name}" in text]
    return [f"{name} of another module's LD_LIBRARY_PATH would be loaded instead" for name in taken]


def prefer_own_libraries(folder: Path) -> list[Path]:
    """Let the shared objects below a folder look in their own directories before LD_LIBRARY_PATH.

    Linkers write DT_RUNPATH, behind which the loader looks after LD_LIBRARY_PATH; DT_RPATH, the
    same string under its old tag, comes first (ld.so(8)). Returns the files that were changed.
    """
    return [path for path in shared_objects(folder, set()) if _use_rpath(path)]


def _use_rpath(path: Path) -> bool:
    with _opened(path, writable=True) as data:
        tags = {tag: place for tag, _, place in _dynamic_tags(data)} if data else {}
        if data is None or _RUNPATH not in tags or _RPATH in tags:
            return False
        data[tags[_RUNPATH] : tags[_RUNPATH] + 8] = struct.pack("<q", _RPATH)
    return True


def _other_nccl(
    packages: Path, own: Path | None, found: Mapping[Path, Mapping[str, str]]
) -> Iterator[str]:
    """Horovod with another NCCL than TensorFlow opens: two in one process."""
    places = {
        path: libraries[_NCCL]
        for path, libraries in found.items()
        if _NCCL in libraries and path.is_relative_to(packages / "horovod")
    }
    if not places:
        yield f"Horovod does not ask for {_NCCL}"
    for path, place in places.items():
        if own is not None and Path(place).resolve() != own.resolve():
            yield f"{path.name} loads {place or 'no NCCL'}, TensorFlow {own}"
