"""The files to lint: read as text, refused where they are no scripts, found below directories."""

from __future__ import annotations

import codecs
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcdl.system.errors import BadInput
from hpcdl.system.safe_read import unreadable

MAX_BYTES = 4 * 1024**2
"""Slurm's own limit, max_script_size in slurm.conf's SchedulerParameters."""
_DIRECTIVE = re.compile(r"^[ \t]*#SBATCH", re.M)
_URL = re.compile(r"https?:/")
_BEGINS = ("#!", "\ufeff#!", "#SBATCH")
_WHAT = "a batch script begins with #! or has #SBATCH lines"


def scripts(paths: Sequence[Path]) -> Iterator[tuple[Path, str | BadInput]]:
    """Each file with its text, or with why it is refused.

    Of a directory these are the batch scripts below it, hidden directories left out.
    """
    for path in paths:
        if str(path) == "-" or not path.is_dir():
            yield path, _attempt(path)
            continue
        found: list[tuple[Path, str | BadInput]]
        found = [(one, text) for one in _below(path) if isinstance(text := _attempt(one), str)
                 and text.startswith(_BEGINS) and _DIRECTIVE.search(text)]  # fmt: skip
        yield from found or [(path, BadInput(f"no batch script below {path}", hint=_WHAT))]


def _below(directory: Path) -> Iterator[Path]:
    for parent, directories, names in os.walk(directory):
        directories[:] = sorted(name for name in directories if not name.startswith("."))
        files = (Path(parent, name) for name in sorted(names))
        # A pipe in a directory may have no writer, ever; one that is named is <(...) of a shell.
        yield from (path for path in files if path.is_file())


def _attempt(path: Path) -> str | BadInput:
    try:
        return read_script(path)
    except BadInput as fault:
        return fault


def read_script(path: Path) -> str:
    """The text of a script, line ends kept; bytes that are no UTF-8 are read as Latin-1.

    Raises:
        BadInput: it cannot be read, is larger than any batch script, or is none.
    """
    if _URL.match(str(path)):
        raise BadInput(f"{path} is no file here", hint="fetch it first: `curl -O URL`")
    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        elif not path.is_file() and path.exists() and not path.is_fifo():
            raise BadInput(f"{path} is no file", hint=_WHAT)
        else:
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as fault:
        raise unreadable(path, fault) from fault
    if len(data) > MAX_BYTES:
        raise BadInput(f"{path} is larger than {MAX_BYTES // 1024**2} MB, and sbatch takes no more",
                       hint="keep data in a file of its own")  # fmt: skip
    if not data.strip():
        raise BadInput(f"{path} is empty", hint=_WHAT)
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise BadInput(f"{path} is UTF-16, which sbatch does not read", hint="save it as UTF-8")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return require_script(text, str(path))


def require_script(text: str, name: str, hint: str = _WHAT) -> str:
    """The text itself; BadInput for one that has no sign of a batch script."""
    if not text.startswith(_BEGINS) and not _DIRECTIVE.search(text):
        raise BadInput(f"{name} is no script", hint=hint)
    return text
