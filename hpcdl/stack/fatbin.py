"""Reads shared objects without binutils or CUDA: what they load, and which GPUs they have code for.

The dynamic section (System V's ELF-64, little-endian; elf(5)) names the libraries and where they
lie. nvcc puts device code into the section `.nv_fatbin`: containers, each a header and entries of
machine code (a cubin for one SM) or PTX (text that the driver compiles for its SM or newer
ones). Only the headers are read. NVIDIA does not document the format; it is as the Cricket project
describes it (github.com/RWTH-ACS/cricket), and the tests compare it with cuobjdump.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hpcdl.stack.resolve_facts import serves

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_TAG = struct.Struct("<qQ")
_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRINGS, _SONAME, _RPATH, _RUNPATH = 1, 5, 14, 15, 29
_MAGIC = 0xBA55ED50
_CONTAINER = struct.Struct("<IHHQ")
"""magic, version, size of this header, size of the entries."""
_ENTRY = struct.Struct("<HHIQIIHHI")
"""kind, flags, size of this header, size of the code, three numbers about it, SM."""
_PLAIN_SIZE, _PLAIN_SIZE_AT = struct.Struct("<Q"), 56
"""Where in its header a compressed entry has the size of its plain code; 0 in others."""
_PTX, _MACHINE = 1, 2
_EMPTY = 1280
"""Machine code of fewer bytes holds no kernel: linking leaves such a placeholder, as in cuFFT of
CUDA 12.9, whose kernels lie in data of its own. Measured: without any kernel 616 to 1008 bytes
by nvcc 11.8 and 12.4, 1072 in libcufftw of CUDA 11.8; with the smallest kernel 1568 and more."""
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SECTIONS = (b".nv_fatbin", b"__nv_relfatbin")


@dataclass(frozen=True, order=True)
class DeviceCode:
    """One piece of device code: `sm` is 60 for sm_60; `machine` is False for PTX."""

    sm: int
    machine: bool

    def __str__(self) -> str:
        return f"{'sm' if self.machine else 'compute'}_{self.sm}"


@dataclass(frozen=True)
class SharedObject:
    """A file and the device code in it."""

    path: Path
    codes: tuple[DeviceCode, ...]


def runs_on(codes: Sequence[DeviceCode], compute: str) -> str:
    """Whether code runs on a GPU: `machine`, `ptx` (the driver must compile it) or `no`.

    `compute` is the GPU's compute capability, such as `6.0`.
    """
    if serves([str(code) for code in codes if code.machine], compute):
        return "machine"
    return "ptx" if serves([str(code) for code in codes if not code.machine], compute) else "no"


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
def _opened(path: Path) -> Iterator[mmap.mmap | None]:
    """The bytes of a 64-bit ELF file; None of any other."""
    if path.stat().st_size < _HEADER.size:
        yield None
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield data if data[:6] == b"\x7fELF\x02\x01" else None


def _read(data: mmap.mmap, path: Path) -> Dynamic:
    header = _HEADER.unpack_from(data)
    table, width, count = header[5], header[9], header[10]
    segments = [_SEGMENT.unpack_from(data, table + index * width) for index in range(count)]
    sections = (data[one[2] : one[2] + one[5]] for one in segments if one[0] == _DYNAMIC)
    entries = [entry for section in sections for entry in _TAG.iter_unpack(section)]
    address = next((value for tag, value in entries if tag == _STRINGS), 0)
    loaded = (one for one in segments if one[0] == _LOAD and one[3] <= address < one[3] + one[5])
    strings = next((address - one[3] + one[2] for one in loaded), 0)

    def texts(*tags: int) -> list[str]:
        starts = [strings + value for tag, value in entries if tag in tags]
        return [data[start : data.find(b"\0", start)].decode() for start in starts]

    origin = str(path.absolute().parent)  # of a link not what it leads to: so does the loader
    folders = (one for one in ":".join(texts(_RPATH, _RUNPATH)).split(":") if one)
    found = (Path(one.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)).resolve()
             for one in folders)  # fmt: skip
    soname = (*texts(_SONAME), "")[0]
    return Dynamic(tuple(texts(_NEEDED)), soname, tuple(dict.fromkeys(found)))


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
    """Whether nothing that leads to the same place was seen; it is from now on."""
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
            kind, _, own, length, *_, sm = _ENTRY.unpack_from(data, entry)
            compressed = own >= _PLAIN_SIZE_AT + _PLAIN_SIZE.size
            plain = _PLAIN_SIZE.unpack_from(data, entry + _PLAIN_SIZE_AT)[0] if compressed else 0
            if kind == _PTX or (kind == _MACHINE and (plain or length) >= _EMPTY):
                yield DeviceCode(sm, kind == _MACHINE)
            if own + length == 0:
                break
            entry += own + length
        place = max(stop, place + 1)
