"""What other people's scripts pass, with the types that the rest of hpcdl relies on.

The command line gives every field its type; a script may say `program="python x.py"`, of which each
letter would become an argument.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar, cast

from hpcdl.jobs.spec import JobSpec, Memory
from hpcdl.site import Site
from hpcdl.system.errors import BadInput, HpcdlError, of_the_system
from hpcdl.system.text import did_you_mean

_Function = TypeVar("_Function", bound=Callable[..., Any])


def checked(function: _Function) -> _Function:
    """The same function, which raises `Fault` only, also for arguments of other types."""
    kinds = dict(function.__annotations__)

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        asked = signature(function).bind(*given, **named)
        try:
            for name, value in asked.arguments.items():
                if name != "more":
                    asked.arguments[name] = _of(f"{function.__name__}: {name}", kinds[name], value)
            return function(*asked.args, **asked.kwargs)
        except OSError as fault:
            raise of_the_system(fault) from fault
        except HpcdlError as fault:
            if fault.hint and sys.version_info >= (3, 11):
                fault.add_note(f"help: {fault.hint}")
            raise

    return cast("_Function", call)


def fields_of(record: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Values for fields of a dataclass, each of its field's type.

    Raises:
        BadInput: there is no such field, or a value is of another type.
    """
    kinds = {one.name: str(one.type) for one in fields(record)}
    for name in given.keys() - kinds.keys():
        said = f"{record.__name__} has no field {name!r:.60}"
        raise BadInput(said, hint=did_you_mean(name, kinds) or ", ".join(kinds))
    return {name: _of(f"{record.__name__}: {name}", kinds[name], value)
            for name, value in given.items()}  # fmt: skip


def _of(what: str, kind: str, value: Any) -> Any:
    if value is None and kind.endswith(" | None"):
        return None
    plain = kind.removesuffix(" | None")
    try:
        return _KINDS[plain](value) if plain in _KINDS else _same(_EXACT[plain], value)
    except TypeError as fault:
        raise BadInput(f"{what} cannot be {value!r:.60}",
                       hint=f"it is of the type {kind}") from fault  # fmt: skip


def _same(kinds: Sequence[type], value: Any) -> Any:
    if type(value) not in kinds:  # True is an int, but no number of nodes
        raise TypeError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError
    return str(value)


def _several(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise TypeError
    return tuple(map(_text, value))


def _variables(value: Any) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise TypeError
    return {_text(name): _text(text) for name, text in value.items()}


_EXACT: Mapping[str, Sequence[type]] = {
    "Site": (Site,), "int": (int,), "float": (int, float), "bool": (bool,), "Memory": (Memory,),
}  # fmt: skip
_KINDS: Mapping[str, Callable[[Any], Any]] = {
    "JobSpec": lambda job: replace(job, **fields_of(JobSpec, vars(_same((JobSpec,), job)))),
    "str | Path": lambda value: value if isinstance(value, Path) else _text(value),
    "str": _text,
    "Path": lambda value: Path(_text(value)),
    "tuple[str, ...]": _several,
    "tuple[Path | Exchange, ...]": lambda value: tuple(_same((list, tuple), value)),
    "tuple[Path, ...]": lambda value: tuple(map(Path, _several(value))),
    "Mapping[str, str]": _variables,
}
