"""Which wheels make a stack: chosen from hpcdl/facts/wheels.yaml, never from code.

Pure: from a stack's pins and a Python version to a `Recipe`, with the reason where none fits.
Digests of a recipe name what is cached, so a changed fact never meets a stale file.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.site import Site, StackRequest
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.text import did_you_mean, one_of

MODULE = "tensorflow"
_PACKAGES = frozenset({"keras"})
"""Components that are wheels of their own beside TensorFlow and Horovod."""


@dataclass(frozen=True)
class Edit:
    """One line taken out of a source file, and why."""

    name: str
    file: str
    remove: str
    why: str


@dataclass(frozen=True)
class HorovodRecipe:
    """How Horovod is built from its sdist.

    `environment` is set while it builds, `commands` must be on PATH, `leave_out` are files of
    the installation that are removed again.
    """

    version: str
    sdist: str
    sha256: str
    environment: Mapping[str, str]
    commands: tuple[str, ...]
    leave_out: tuple[str, ...]
    edits: tuple[Edit, ...]


@dataclass(frozen=True)
class Recipe:
    """A set of wheels that belongs together, with the proof level of the row it comes from."""

    tensorflow: str
    package: str
    variant: str
    requirements: tuple[str, ...]
    horovod: HorovodRecipe
    proof: str
    source: str
    needs: Mapping[str, Any]

    @property
    def module(self) -> str:
        """Name and version of the modulefile, such as `tensorflow/2.21.0-cpu`."""
        return f"{MODULE}/{self.tensorflow}-{self.variant}"


@dataclass(frozen=True)
class Interpreter:
    """The Python that a stack is built on: the one below the running one's virtual environment."""

    path: Path
    version: str

    @property
    def minor(self) -> str:
        """`3.11`."""
        return ".".join(self.version.split(".")[:2])

    @property
    def tag(self) -> str:
        """Python and machine, as part of a file name: `py311-x86_64`."""
        return f"py{self.minor.replace('.', '')}-{platform.machine()}"


def gpu_variant(cuda: str, compute: str) -> str:
    """How a module's version names a build for GPUs: `cuda12.9-sm60` of CUDA 12.9.1 and 6.0."""
    return f"cuda{'.'.join(cuda.split('.')[:2])}-sm{compute.replace('.', '')}"


def running_interpreter() -> Interpreter:
    """The base of the Python that runs now."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    return Interpreter(Path(base).resolve(), platform.python_version())


def find_request(site: Site, name: str | None = None) -> StackRequest:
    """The stack `name` of the site; its only or first one where none is named.

    Raises:
        BadInput: there is no such stack.
    """
    stacks = dict(site.stacks) or {MODULE: StackRequest(MODULE, "venv", (), {})}
    if name is None:
        return next(iter(stacks.values()))
    if name not in stacks:
        raise BadInput(
            f"the site '{site.name}' has no stack '{name}'", hint=did_you_mean(name, stacks)
        )
    return stacks[name]


def choose(request: StackRequest, python: Interpreter) -> Recipe:
    """The newest row that fits the Python and the site's pins.

    Raises:
        MissingPrerequisite: no row fits; the details say for each why not.
    """
    table = facts.load("wheels")
    reasons: list[str] = []
    for row in table["tensorflow"]:
        against = list(_against(row, table["horovod"], request.pins, python))
        if not against:
            found = _recipe(row, table, request.pins)
            return replace(found, requirements=(*found.requirements, *request.packages))
        reasons.append(f"TensorFlow {row['version']}: {'; '.join(against)}")
    pythons = sorted({minor for row in table["tensorflow"] for minor in row["python"]},
                     key=lambda minor: int(minor.split(".")[1]))  # fmt: skip
    raise MissingPrerequisite(
        f"no TensorFlow wheel of the table fits stack '{request.name}'",
        details=reasons,
        hint=f"run hpcdl with Python {one_of(pythons)}, or change the stack's pins in site.yaml",
    )


def _against(
    row: Mapping[str, Any], horovod: Mapping[str, Any], pins: Mapping[str, str], python: Interpreter
) -> Iterator[str]:
    """What speaks against a row."""
    if python.minor not in row["python"]:
        yield f"has no wheel for Python {python.minor} ({one_of(row['python'])})"
    wanted = {"tensorflow": row["version"], "horovod": horovod["version"], "python": python.version}
    for name, have in wanted.items():
        pin = pins.get(name)
        if pin is not None and not (have == pin or have.startswith(f"{pin}.")):
            yield f"the site pins {name} to {pin}, this is {have}"


def _recipe(row: Mapping[str, Any], table: Mapping[str, Any], pins: Mapping[str, str]) -> Recipe:
    built = table["horovod"]
    others = [f"{name}=={pin}.*" for name, pin in sorted(pins.items()) if name in _PACKAGES]
    return Recipe(
        tensorflow=row["version"],
        package=row["package"],
        variant=row["variant"],
        requirements=(f"{row['package']}=={row['version']}", *table["requirements"], *others),
        horovod=HorovodRecipe(
            version=built["version"],
            sdist=built["sdist"],
            sha256=built["sha256"],
            environment=built["environment"],
            commands=tuple(built["commands"]),
            leave_out=tuple(built["leave_out"]),
            edits=tuple(_edit(name, built["edits"][name]) for name in row["edits"]),
        ),
        proof=row["proof"],
        source=row["source"],
        needs={"cpu_flags": list(table["needs"][row["variant"]]["cpu_flags"])},
    )


def _edit(name: str, row: Mapping[str, str]) -> Edit:
    return Edit(name, row["file"], row["remove"], " ".join(row["why"].split()))


def digest(*parts: object) -> str:
    """Eight hex digits that stand for values; the same values always give the same digits."""
    text = json.dumps(parts, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    return getattr(value, "__dict__", str(value))
