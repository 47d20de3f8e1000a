"""Which GPUs shared objects have code for; whether a release loads its own libraries.

nvcc puts device code into the section `.nv_fatbin`: containers, each a header and entries of
machine code (a cubin for one SM) or PTX (text that the driver compiles for its SM or newer ones).
Only the headers are read, without binutils or CUDA. The format is as the Cricket project describes
it (github.com/RWTH-ACS/cricket), and the tests compare it with cuobjdump.

What is loaded says the process that has loaded it, the gate's program (probe): TensorFlow's,
Horovod's and NVIDIA's libraries (facts/wheels.yaml, `own_libraries`) must be the release's, with
one NCCL. The loader itself is asked once more with a hostile LD_LIBRARY_PATH.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.stack.release import Release
from hpcdl.stack.resolve_facts import conditions, same_generation, serves
from hpcdl.stack.resolve_solver import sort_key
from hpcdl.system.resources import scratch_directory
from hpcdl.system.run import CommandResult

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_TAG = struct.Struct("<qQ")
_DYNAMIC = 2
_RPATH, _RUNPATH = 15, 29
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
_NCCL = "libnccl.so"
_SYSTEM = (Path("/"), Path("/usr"))

Run = Callable[[Sequence[str | Path]], CommandResult]
"""Runs a command in the environment of the module."""


def runs_on(codes: Sequence[str], compute: str) -> str:
    """Return whether code runs on a GPU of this compute capability, such as `6.0`.

    `machine`; `ptx`, which the driver must compile; `foreign`, where that is PTX of an older
    generation only: it may run, but the file is no proof of that; or `no`.
    """
    ptx = [code for code in codes if not is_machine(code)]
    if serves(filter(is_machine, codes), compute):
        return "machine"
    if serves([code for code in ptx if same_generation(code, compute)], compute):
        return "ptx"
    return "foreign" if serves(ptx, compute) else "no"


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


def _dynamic_tags(data: mmap.mmap) -> Iterator[tuple[int, int]]:
    """The tags of the dynamic section, each with its place in the file."""
    header = _HEADER.unpack_from(data)
    table, width, count = header[5], header[9], header[10]
    for index in range(count):
        segment = _SEGMENT.unpack_from(data, table + index * width)
        if segment[0] == _DYNAMIC:
            for place in range(segment[2], segment[2] + segment[5], _TAG.size):
                yield _TAG.unpack_from(data, place)[0], place


def survey(*roots: Path) -> dict[Path, tuple[str, ...]]:
    """The code of every shared object below the roots that has some, each file once.

    Links are followed, to directories too: Spack's view of a release has nothing else.
    """
    seen: set[Path] = set()
    paths = (path for path in shared_objects(*roots) if _is_new(path, seen))
    return {path: codes for path in paths if (codes := read_device_code(path))}


def shared_objects(*roots: Path) -> Iterator[Path]:
    """Files and links called *.so* below directories, each of which is entered once, in order."""
    seen: set[Path] = set()
    for name, folders, files in (
        place for root in roots for place in os.walk(root, followlinks=True)
    ):
        here = Path(name)
        folders[:] = [one for one in sorted(folders) if _is_new(here / one, seen)]
        yield from (here / one for one in sorted(files) if ".so" in one and (here / one).is_file())


def _is_new(path: Path, seen: set[Path]) -> bool:
    """Return whether nothing that leads to the same place was seen; it is from now on."""
    real = path.resolve()
    new = real not in seen
    seen.add(real)
    return new


def is_machine(code: str) -> bool:
    """Whether code such as `sm_60` or `sm_90a` is machine code; `compute_60` is PTX."""
    return code.startswith("sm_")


def read_device_code(path: Path) -> tuple[str, ...]:
    """The device code in a file, without doubles; none in what is no 64-bit ELF file."""
    found: set[str] = set()
    with _opened(path) as data, suppress(struct.error):  # cut off: what was found still counts
        if data is not None:
            for start, size in _fat_sections(data):
                found |= set(_codes(data, start, start + size))
    return tuple(sorted(found, key=sort_key))


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


def _codes(data: mmap.mmap, start: int, end: int) -> Iterator[str]:
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
                yield f"{'sm' if kind == _MACHINE else 'compute'}_{sm}{suffix}"
            if own + length == 0:
                break
            entry += own + length
        place = max(stop, place + 1)


def opened_by_name(release: Release) -> list[str]:
    """The libraries of CUDA that TensorFlow opens at run time, as the release has them."""
    if "cuda" not in release.versions:
        return []
    names = {path.name for path in _objects(release)}
    return [
        min((name for name in names if name.startswith(one)), key=len, default=one)
        for row in facts.load("nvidia_wheels")["opened"]
        if all(condition.holds(release.versions) for condition in conditions(row["when"]))
        for one in row["names"]
    ]


def library_faults(release: Release, loaded: Mapping[str, Any]) -> list[str]:
    """The faults of what the gate's program has `loaded`: files, and names that it did not find."""
    faults = [
        f"TensorFlow does not find {name}: {why}" for name, why in loaded["not_found"].items()
    ]
    own = {path.resolve() for path in _objects(release)}
    outside = (Path(one["external"]) for one in release.lock if {"run", "external"} <= one.keys())
    external = [one.resolve() for one in outside if one not in _SYSTEM]
    mapped = [Path(one) for one in loaded["mapped"] if _is_own(Path(one).name)]
    faults += [
        f"{path.name} comes from {path}, not from the release"
        for path in mapped
        if path.resolve() not in own and not any(path.is_relative_to(one) for one in external)
    ]
    nccl = [str(path) for path in mapped if path.name.startswith(_NCCL)]
    if "nccl" in release.versions and "horovod" in release.versions and len(nccl) != 1:
        faults.append(f"one NCCL is to be loaded, not {len(nccl)}: {', '.join(nccl) or 'none'}")
    return faults


def taken_from_elsewhere(release: Release, run: Run) -> list[str]:
    """Libraries that LD_LIBRARY_PATH of another module would take in place of the release's.

    The loader is asked with empty files of the same names in LD_LIBRARY_PATH: where it opens one,
    it says so. Of what TensorFlow opens by name the module's guard warns.
    """
    own = [path for path in _objects(release) if _is_own(path.name)]
    asked = [one for one in own if "nvidia" not in one.relative_to(release.prefix).parts]
    with scratch_directory() as decoys:
        for path in own:
            (decoys / path.name).touch()
        listing = run(["env", f"LD_LIBRARY_PATH={decoys}", "ldd", *asked])
        text = f"{listing.stdout}\n{listing.stderr}"
        taken = [path.name for path in sorted(decoys.iterdir()) if f"{decoys}/{path.name}" in text]
    if not listing.stdout:
        return [f"ldd in the module: {' | '.join(listing.last_lines(3))}"]
    return [f"{name} of another module's LD_LIBRARY_PATH would be loaded instead" for name in taken]


def _is_own(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in facts.load("wheels")["own_libraries"])


def _objects(release: Release) -> list[Path]:
    return [*shared_objects(release.prefix / "lib", release.prefix / "lib64")]


def code_faults(release: Release) -> tuple[list[str], str]:
    """Return the fault of Horovod's machine code (it must be for its GPUs alone), else its kind."""
    folders = release.prefix.glob("lib/python3*/site-packages/horovod")
    codes = {code for each in survey(*folders).values() for code in each if is_machine(code)}
    have = ", ".join(sorted(codes)) or "none"
    wanted = ", ".join(sorted(f"sm_{one.replace('.', '')}" for one in release.needs["compute"]))
    faults = [] if have == wanted else [f"it has {have}, and the release is for {wanted}"]
    return faults, f"{have}, as the release is for"


def prefer_own_libraries(folder: Path) -> list[Path]:
    """Let the shared objects below a folder look in their own directories before LD_LIBRARY_PATH.

    Linkers write DT_RUNPATH, behind which the loader looks after LD_LIBRARY_PATH; DT_RPATH, the
    same string under its old tag, comes first (ld.so(8)). Returns the files that were changed.
    """
    return [path for path in shared_objects(folder) if _use_rpath(path)]


def _use_rpath(path: Path) -> bool:
    with _opened(path, writable=True) as data:
        tags = dict(_dynamic_tags(data)) if data else {}
        if data is None or _RUNPATH not in tags or _RPATH in tags:
            return False
        data[tags[_RUNPATH] : tags[_RUNPATH] + 8] = struct.pack("<q", _RPATH)
    return True
