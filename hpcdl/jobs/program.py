"""The files that a program's arguments name, as seen from where the job is asked for.

A job works in a directory of its own: a script named relative to the user's directory would not
be found there. Such arguments are made absolute when the job is asked for.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hpcdl.jobs.spec import JobSpec
from hpcdl.system.errors import BadInput

_PYTHON = re.compile(r"python[0-9.]*\Z")
_SHELLS = frozenset({"bash", "sh"})
# Options that take the next argument, and those after which no script is named.
_OF_PYTHON = (
    re.compile(r"-[A-Za-z]*[WX]\Z|--check-hash-based-pycs\Z"),
    re.compile(r"-([^WX-]*[cm].*)?\Z"),
)
_OF_SHELLS = (
    re.compile(r"[-+][A-Za-z]*[oO]\Z|--(rcfile|init-file)\Z"),
    re.compile(r"-([A-Za-z]*[cs].*)?\Z"),
)
_SCRIPT = (".py", ".sh")


def script_index(program: Sequence[str]) -> int | None:
    """Index of the argument that is the script for an interpreter; None for no script."""
    name = Path(program[0]).name if program else ""
    if not _PYTHON.match(name) and name not in _SHELLS:
        return None
    valued, ending = _OF_SHELLS if name in _SHELLS else _OF_PYTHON
    skip = False
    for index, argument in enumerate(program[1:], start=1):
        if skip:
            skip = False
        elif valued.match(argument):
            skip = True
        elif argument[:1] not in {"-", "+"}:
            return index if argument else None
        elif ending.match(argument):
            return None
    return None


def seen_from(folder: Path, program: Sequence[str]) -> tuple[str, ...]:
    """The program with its own file and its script made absolute, where `folder` holds them.

    A bare name is looked for on PATH first, as a shell does. A script whose name holds a mark
    of a sweep is taken to lie there.
    """
    argv = list(program)
    if argv and _names_file(folder, argv[0]):
        argv[0] = str(folder / argv[0])
    at = script_index(argv)
    if at is not None:
        marked = "{" in argv[at] and argv[at].endswith(_SCRIPT)
        if marked or _is_there(folder / argv[at]):
            argv[at] = str(folder / argv[at])
    return tuple(argv)


def check_script(spec: JobSpec) -> None:
    """Refuse a script that the ranks would not find in the job's directory.

    Raises:
        BadInput: names the script.
    """
    at = script_index(spec.program)
    # An image has files of its own.
    if at is None or spec.container:
        return
    script = Path(spec.program[at])
    if script.is_absolute() or script.suffix not in _SCRIPT:
        return
    if spec.job_dir is None or not _is_there(spec.job_dir / script):
        raise BadInput(
            f"there is no script {script} here",
            hint="jobs work in a directory of their own: name the script by its path from here, "
            "or by its absolute path",
        )


def _names_file(folder: Path, argument: str) -> bool:
    """Whether the program itself is a file of the directory, and not one of PATH."""
    if not _is_there(folder / argument) or (folder / argument).is_dir():
        return False
    return "/" in argument or shutil.which(argument) is None


def _is_there(path: Path) -> bool:
    with suppress(OSError, ValueError):  # a argument may be no possible name at all
        return path.exists()
    return False
