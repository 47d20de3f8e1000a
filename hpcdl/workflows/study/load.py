"""Loads a study: a Python file, shipped or a user's own, that makes `STUDY = study.Study(...)`.

Running a file is as much trust as running the programs that it names, so its owner and mode are
checked as those of a site file. A fault in it is one error with the file's own line.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from hpcdl.system.errors import BadInput, HpcdlError, MissingPrerequisite
from hpcdl.system.files import read_regular
from hpcdl.system.resources import folder
from hpcdl.system.text import did_you_mean
from hpcdl.system.trust import require_known_owner
from hpcdl.workflows.study.declared import Study

_SUFFIX = ".py"
_HINT = "docs/studies.md has an example; pydoc hpcdl.api.study says what a study is made of"


def shipped() -> tuple[str, ...]:
    """The names of the shipped studies."""
    names = (path.stem for path in _folder().glob(f"[a-z]*{_SUFFIX}"))
    return tuple(sorted(name.replace("_", "-") for name in names))


def load_study(which: str) -> Study:
    """The study of a name, or of a file's path."""
    if "/" in which or which.endswith(_SUFFIX):
        return read_study(Path(which))
    if which not in shipped():
        hint = did_you_mean(which, shipped())
        raise BadInput(f"unknown study '{which}'", hint=f"{hint}; or name a file of your own")
    return read_study(_folder() / f"{which.replace('-', '_')}{_SUFFIX}")


def read_study(path: Path) -> Study:
    """The study of a file, named after it."""
    if not __debug__:
        raise MissingPrerequisite(
            "Python leaves out asserts, which are a study's rules",
            hint="run it without -O and PYTHONOPTIMIZE",
        )
    text = read_regular(path, kind="study file", require=require_known_owner)
    if b"\0" in text:  # about which each Python says something else
        raise BadInput(f"{path} is no Python file: it has a zero byte")
    module = ModuleType(f"hpcdl_study_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where dataclasses look for the names of annotations
    with line_of(path):
        exec(compile(text, str(path), "exec"), vars(module))  # noqa: S102 - see above  # nosec B102
    study = vars(module).get("STUDY")
    if not isinstance(study, Study):
        raise BadInput(f"{path} makes no study", hint="end it with `STUDY = study.Study(...)`")
    return replace(study, name=path.stem.replace("_", "-"), path=path)


@contextmanager
def line_of(path: Path) -> Iterator[None]:
    """Turn a fault of a study's code into a BadInput at the last of its own lines."""
    try:
        yield
    except (Exception, SystemExit) as fault:
        frames = [
            frame
            for frame in traceback.extract_tb(fault.__traceback__)
            if frame.filename == str(path)
        ]
        if isinstance(fault, SyntaxError) and fault.filename == str(path):
            line, source = fault.lineno, fault.text or ""
        elif frames:
            line, source = frames[-1].lineno, frames[-1].line or ""
        else:
            raise
        known = isinstance(fault, HpcdlError)
        kind = "" if known else f"{type(fault).__name__}: "
        raise BadInput(
            f"{path}:{line}: {kind}{getattr(fault, 'msg', fault)}",
            details=[source.strip()] if source else [],
            hint=fault.hint if isinstance(fault, HpcdlError) else _HINT,
        ) from fault


def _folder() -> Path:
    return folder("examples") / "studies"
