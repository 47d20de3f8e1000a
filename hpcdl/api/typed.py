"""A job as other people's scripts write it, with the types that the rest of hpcdl relies on.

The command line gives every field its type; a script may say `program="python x.py"`, of which each
letter would become an argument.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from hpcdl.jobs.spec import JobSpec, Memory
from hpcdl.system.errors import BadInput


def typed(job: JobSpec) -> JobSpec:
    """The job itself; lists are tuples and paths what its fields have, text or `Path`.

    Raises:
        BadInput: a field is of another type.
    """
    found: dict[str, Any] = {}
    for one in fields(JobSpec):
        value = getattr(job, one.name)
        kind, _, optional = str(one.type).partition(" | ")
        if value is None and optional:
            continue
        try:
            found[one.name] = _KINDS[kind](value)
        except TypeError as fault:
            raise BadInput(f"JobSpec: {one.name} cannot be {value!r:.60}",
                           hint=f"it is of the type {one.type}") from fault  # fmt: skip
    return replace(job, **found)


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


def _only(kind: type) -> Callable[[Any], Any]:
    def checked(value: Any) -> Any:
        if type(value) is not kind:  # True is an int, but no number of nodes
            raise TypeError
        return value

    return checked


_KINDS: Mapping[str, Callable[[Any], Any]] = {
    "int": _only(int),
    "bool": _only(bool),
    "str": _text,
    "Path": lambda value: Path(_text(value)),
    "tuple[str, ...]": _several,
    "tuple[Path, ...]": lambda value: tuple(map(Path, _several(value))),
    "Mapping[str, str]": _variables,
    "Memory": _only(Memory),
}
