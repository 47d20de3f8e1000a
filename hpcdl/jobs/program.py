"""The files that a program's words name, as seen from where the job is asked for.

A job works in a folder of its own: a script named relative to where the user stands would not
be found there. Such words are made absolute when the job is asked for.
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
# Options that take the next word, and those after which no script is named.
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
    """Which word of a program is the script that an interpreter is to run; None for no script."""
    name = Path(program[0]).name if program else ""
    if not _PYTHON.match(name) and name not in _SHELLS:
        return None
    valued, ending = _OF_SHELLS if name in _SHELLS else _OF_PYTHON
    skip = False
    for index, word in enumerate(program[1:], start=1):
        if skip:
            skip = False
        elif valued.match(word):
            skip = True
        elif word[:1] not in {"-", "+"}:
            return index if word else None
        elif ending.match(word):
            return None
    return None


def seen_from(folder: Path, program: Sequence[str]) -> tuple[str, ...]:
    """The program with its own file and its script made absolute, where `folder` holds them.

    A bare name is looked for on PATH first, as a shell does. A script whose name holds a mark
    of a sweep is taken to lie there.
    """
    words = list(program)
    if words and _names_file(folder, words[0]):
        words[0] = str(folder / words[0])
    at = script_index(words)
    if at is not None:
        marked = "{" in words[at] and words[at].endswith(_SCRIPT)
        if marked or _is_there(folder / words[at]):
            words[at] = str(folder / words[at])
    return tuple(words)


def check_script(spec: JobSpec) -> None:
    """Refuse a script that the ranks would not find in the job's folder.

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
            hint="jobs work in a folder of their own: name the script by its path from here, "
            "or by its whole path",
        )


def _names_file(folder: Path, word: str) -> bool:
    """Whether the program itself is a file of the folder, and not one of PATH."""
    if not _is_there(folder / word) or (folder / word).is_dir():
        return False
    return "/" in word or shutil.which(word) is None


def _is_there(path: Path) -> bool:
    with suppress(OSError, ValueError):  # a word may be no possible name at all
        return path.exists()
    return False
