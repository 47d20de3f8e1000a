"""The facts files as components and rules: read once, checked once, frozen.

`COMPONENTS` is the order of importance: a newer TensorFlow is worth more than a newer CUDA, a
newer CUDA more than a newer cuDNN. A row of `rules` becomes one `Rule` per need. What is
derived here: which GPUs the machine code of a wheel serves, and what a backend can offer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from hpcdl import facts
from hpcdl.stack.resolve_solver import Condition, Rule
from hpcdl.stack.resolve_versions import Range, newest_first

FILES = ("tensorflow", "cuda", "cudnn", "nccl", "horovod", "toolchain")
BACKENDS = ("venv", "spack")
COMPONENTS = ("tensorflow", "horovod", "cuda", "cudnn", "nccl", "python", "keras", "gcc", "bazel",
              "openmpi", "pmix", "ucx")  # fmt: skip
OF_GPUS = frozenset({"cuda", "cudnn", "nccl", "driver", "gpu"})
"""Variables that only a partition with GPUs has."""
_WEIGHTS = {"gpu": 30, "driver": 20}


@dataclass(frozen=True)
class Component:
    """One part of a stack: its title, and its versions by backend (`host` for the driver)."""

    name: str
    title: str
    versions: Mapping[str, tuple[str, ...]]
    proof: Mapping[str, str]
    source: str

    def known(self) -> tuple[str, ...]:
        """Every version of it that the facts name, newest first."""
        return newest_first({v for versions in self.versions.values() for v in versions})


@dataclass(frozen=True)
class ProofRow:
    """A evidence level for some versions; the first row that fits counts."""

    component: str
    when: tuple[Condition, ...]
    proof: str
    source: str
    cpu_only: bool


@dataclass(frozen=True)
class Tried:
    """A whole stack from wheels that was built: `computes` are its GPUs, none for CPUs."""

    when: tuple[Condition, ...]
    computes: frozenset[str]
    proof: str
    source: str

    def holds(self, versions: Mapping[str, str], computes: Collection[str]) -> bool:
        """Whether a stack of these versions, for these GPUs, is this one or a part of it."""
        same_kind = bool(computes) == bool(self.computes)
        return (
            same_kind
            and self.computes.issuperset(computes)
            and all(condition.holds(versions) for condition in self.when)
        )


@dataclass(frozen=True)
class Note:
    """Something to know about a set that fits."""

    when: tuple[Condition, ...]
    text: str
    proof: str
    source: str


@dataclass(frozen=True)
class Facts:
    """All that `resolve` knows."""

    components: Mapping[str, Component]
    rules: tuple[Rule, ...]
    proofs: tuple[ProofRow, ...]
    notes: tuple[Note, ...]
    own_driver: Mapping[str, str]
    tried: tuple[Tried, ...]

    @cached_property
    def of_gpus(self) -> tuple[Rule, ...]:
        """The rules that speak of the GPU or its driver."""
        return tuple(
            rule
            for rule in self.rules
            if {"gpu", "driver"} & {one.variable for one in (*rule.when, rule.need)}
        )


@cache
def known() -> Facts:
    """The facts of this installation."""
    files = [facts.load(name) for name in FILES]
    components = {
        name: _component(name, row, file["sources"])
        for file in files
        for name, row in file["components"].items()
    }
    rules = [rule for file in files for row in file["rules"] for rule in _rules(row, file)]
    wheels = [_wheel_rule(row, file) for file in files for row in file.get("wheels", ())]
    offers = [rule for component in components.values() for rule in _offers(component)]
    own = facts.load("cuda")["own_driver"]
    return Facts(
        components=components,
        rules=(*rules, *wheels, *offers),
        proofs=(*(row for file in files for row in _proof_rows(file)), *_solved_rows()),
        notes=tuple(_note(row, file) for file in files for row in file.get("notes", ())),
        own_driver={name: text for name, text in own.items() if name[0].isdigit()},
        tried=tuple(
            Tried(
                conditions(row["when"]),
                frozenset(row.get("compute", ())),
                row["proof"],
                row["source"],
            )
            for row in facts.load("wheels")["tried"]
        ),
    )


def conditions(row: Mapping[str, str]) -> tuple[Condition, ...]:
    """`{tensorflow: "2.18", backend: venv}` as conditions."""
    return tuple(Condition(name, Range(str(text))) for name, text in row.items())


@cache
def computes() -> tuple[str, ...]:
    """Compute capabilities that GPUs have, such as `6.0`, lowest first: a site may have any."""
    found = {str(compute) for compute in facts.load("gpus")["capabilities"]["known"]}
    return tuple(reversed(newest_first(found)))


def serves(code: list[str], compute: str) -> bool:
    """Whether machine code runs on a GPU: `sm_XY` on X.Z with Z >= Y, `compute_XY` on newer ones.

    Source: CUDA C++ Programming Guide, binary and PTX compatibility.
    """
    major, minor = (int(part) for part in compute.split("."))
    for name in code:
        kind, number = name.split("_")
        of_major, of_minor = int(number[:-1]), int(number[-1])
        if kind == "sm" and of_major == major and of_minor <= minor:
            return True
        if kind == "compute" and (of_major, of_minor) <= (major, minor):
            return True
    return False


def _component(name: str, row: Mapping[str, Any], sources: Mapping[str, str]) -> Component:
    versions = {
        backend: newest_first(set(row[backend]))
        for backend in (*BACKENDS, "host")
        if backend in row
    }
    return Component(name, row["title"], versions, row["proof"], _source(row, sources))


def _rules(row: Mapping[str, Any], file: Mapping[str, Any]) -> Iterator[Rule]:
    when = conditions(row["when"])
    weight = sum(_WEIGHTS.get(condition.variable, 0) for condition in when)
    for need in conditions(row["needs"]):
        yield Rule(
            when, need, row["why"], _source(row, file["sources"]), row["proof"], weight=weight
        )


def _wheel_rule(row: Mapping[str, Any], file: Mapping[str, Any]) -> Rule:
    served = [compute for compute in computes() if serves(row["code"], compute)]
    return Rule(
        conditions({"tensorflow": row["tensorflow"], "backend": "venv"}),
        Condition("gpu", Range(",".join(served))),
        f"machine code in its wheels: {', '.join(row['code'])}",
        _source(row, file["sources"]),
        row["proof"],
        weight=10,
    )


def _offers(component: Component) -> Iterator[Rule]:
    """What a backend can install: its list of versions, as a rule."""
    for backend, versions in component.versions.items():
        if backend in BACKENDS and set(component.known()) != set(versions):
            spack = backend == "spack"
            yield Rule(
                conditions({"backend": backend}),
                Condition(component.name, Range(",".join(versions))),
                f"{'the recipe' if spack else 'PyPI'} does not have it (newest: {versions[0]})",
                component.source if spack else "PyPI, wheels for Linux on x86_64",
                "published",
                origin="offer",
                weight=-1,
            )


def _proof_rows(file: Mapping[str, Any]) -> Iterator[ProofRow]:
    for name, row in file["components"].items():
        for part in row.get("proofs", ()):
            level = part.get("cpu") or part["proof"]
            yield ProofRow(
                name, conditions(part["when"]), level, _source(part, file["sources"]), "cpu" in part
            )


def _solved_rows() -> Iterator[ProofRow]:
    """Versions that Spack has solved for a GPU; nothing was solved for CPUs."""
    book = facts.load("spack")
    source = book["locked_with"]["source"]
    for name, versions in book["solved"].items():
        when = conditions({name: ",".join(versions), "backend": "spack", "gpu": "3:"})
        yield ProofRow(name, when, book["locked_with"]["proof"], source, cpu_only=False)


def _note(row: Mapping[str, Any], file: Mapping[str, Any]) -> Note:
    return Note(conditions(row["when"]), row["note"], row["proof"], _source(row, file["sources"]))


def _source(row: Mapping[str, Any], sources: Mapping[str, str]) -> str:
    """A row's source, where it names one of its file's list in full."""
    return sources.get(row["source"], row["source"])
