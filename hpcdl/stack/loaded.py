"""Which loaded modules a build stands on: those that bring the MPI it is built with.

A release must bring them along, for jobs start from no modules at all: its own module depends on
them, from the directories where they were found, which users need not have in their MODULEPATH.
Without Lmod in the environment, or with the system's own MPI, there are none.
"""

from __future__ import annotations

import os
from pathlib import Path

from hpcdl.stack.recipe import MODULE
from hpcdl.system.packages import find_program
from hpcdl.system.run import run

_SYSTEM = frozenset({Path("/"), Path("/usr"), Path("/usr/local")})


def modules_behind(program: str) -> list[dict[str, str]]:
    """The loaded modules that name the installation of a program, in the order of loading.

    Returns:
        `name`, such as `openmpi/4.1.5`, and `directory`, the entry of MODULEPATH it came from.
    """
    found, lmod = find_program(program), os.environ.get("LMOD_CMD")
    if found is None or not lmod:
        return []
    prefixes = {path.parent.parent for path in (found, found.resolve())} - _SYSTEM
    names, files = (os.environ.get(key, "").split(":") for key in ("LOADEDMODULES", "_LMFILES_"))
    return [
        {"name": name, "directory": str(_folder(Path(file), name))}
        for name, file in zip(names, files, strict=False)
        if name and name.partition("/")[0] != MODULE and _names(lmod, name, prefixes)
    ]


def _folder(file: Path, name: str) -> Path:
    """The entry of MODULEPATH: a modulefile lies as deep below it as its name has parts."""
    return file.parents[name.count("/")]


def _names(lmod: str, name: str, prefixes: set[Path]) -> bool:
    """Whether a module sets something to a place below one of these directories."""
    shown = run([lmod, "bash", "show", name], check=False, timeout=30)
    return any(f"{prefix}/" in shown.stderr for prefix in prefixes)
