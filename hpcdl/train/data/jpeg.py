"""Crops JPEG images with libjpeg-turbo itself, through jpeg.c beside this file.

TensorFlow's operation decodes a crop too, but resizing its result costs half of that again;
here rows are resized while they come (jpeg.c). The C code is compiled into the cache, once per type
of machine. Where there is no compiler or no libjpeg-turbo, `load` gives None, and TensorFlow does
the work.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcdl.system.errors import HpcdlError, MissingPrerequisite
from hpcdl.system.files import explain_os_errors
from hpcdl.system.resources import cache
from hpcdl.system.run import run
from hpcdl.system.trust import make_private, require_private

SWITCH = "HPCDL_JPEG"
"""Set to `tensorflow`, this library is not used."""

_SOURCE = Path(__file__).with_suffix(".c")
_FOREIGN = 2
_MESSAGE_BYTES = 256
_START = b"\xff\xd8\xff"
Area = NDArray[np.int32]
"""Top, left, height and width, in pixels."""


class Cropper:
    """The compiled library."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        numbers, place = ctypes.c_int, ctypes.c_void_p
        self._library.hpcdl_crop.argtypes = (
            ctypes.c_char_p, ctypes.c_ulong, place, numbers, numbers, place, ctypes.c_char_p,
        )  # fmt: skip

    def crop(self, data: bytes, area: Area, out: NDArray[np.uint8]) -> bool:
        """Decode the crop to `out` (height, width, 3), resized; other threads run meanwhile.

        `data` is the file, of which nothing below the crop is read; arrays are contiguous. False
        where it is no JPEG with red, green and blue. Raises ValueError: the image is damaged.
        """
        if not data.startswith(_START):
            return False
        why = ctypes.create_string_buffer(_MESSAGE_BYTES)
        height, width, _ = out.shape
        found = self._library.hpcdl_crop(
            data, len(data), area.ctypes.data, height, width, out.ctypes.data, why
        )
        if found not in (0, _FOREIGN):
            raise ValueError(why.value.decode(errors="replace"))
        return bool(found == 0)


def load() -> Cropper | None:
    """The library, compiled where it is not yet; None where that cannot be."""
    if os.environ.get(SWITCH) == "tensorflow":
        return None
    kind = " ".join((platform.machine(), *platform.libc_ver()))
    digest = hashlib.sha256(_SOURCE.read_bytes() + kind.encode()).hexdigest()[:12]
    library = cache("jpeg") / f"crop-{digest}.so"
    try:
        if not library.exists():
            _compile(library)
        require_private(library)
        return Cropper(library)
    except (HpcdlError, OSError):
        return None


def _compile(library: Path) -> None:
    """Compile aside and rename: ranks may do so at the same time."""
    aside = library.with_suffix(f".{platform.node()}.{os.getpid()}")
    with explain_os_errors(library):
        make_private(library.parent)
        try:
            compiler = [*shlex.split(os.environ.get("CC", "cc")), "-O3", "-shared", "-fPIC"]
            done = run([*compiler, "-o", aside, _SOURCE, "-ljpeg"], timeout=60, check=False)
            if not done.ok:
                raise MissingPrerequisite("jpeg.c cannot be compiled", details=done.last_lines())
            aside.replace(library)
        finally:
            aside.unlink(missing_ok=True)
