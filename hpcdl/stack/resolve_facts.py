"""The facts files as components and rules, read once, checked once, frozen.

`COMPONENTS` is the order of importance: a newer TensorFlow is worth more than a newer CUDA. A row
of `rules` becomes one `Rule` per need. What is derived here: which GPUs the machine code of a wheel
serves, what a backend can offer, what a build asks of a machine, and rules in words: `K80 (sm_37)
needs CUDA <= 11.8: ...`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

from hpcdl import facts
from hpcdl.results.gpus import gpu_named
from hpcdl.site import Gpu, Site
from hpcdl.site.sections import BACKENDS
from hpcdl.stack.release import seal
from hpcdl.stack.resolve_solver import Condition, Range, Rule, newest_first, sort_key
from hpcdl.system.errors import BadInput
from hpcdl.system.files import read_regular
from hpcdl.system.frozen import dataclass
from hpcdl.system.resources import folder
from hpcdl.system.text import inert
from hpcdl.system.trust import require_known_owner

FILES = ("tensorflow", "cuda", "cudnn", "nccl", "horovod", "toolchain")
COMPONENTS = (
    "tensorflow",
    "horovod",
    "cuda",
    "cudnn",
    "nccl",
    "python",
    "keras",
    "gcc",
    "bazel",
    "openmpi",
    "pmix",
    "ucx",
)
OF_GPUS = frozenset({"cuda", "cudnn", "nccl", "driver", "gpu"})
"""Variables that only a partition with GPUs has."""
OTHER_GPU = "gpu@"
"""What the variables begin with that stand for further GPUs of a build; `gpu@7.0`."""
OTHER_DRIVER = "driver@"
"""The same for the drivers of their nodes; `driver@7.0@535.104.05`."""
_VERSION = re.compile(r"[0-9][\w.+]*")
_TRIED = ("tensorflow", "horovod", "cuda", "cudnn", "nccl")
"""What the stack of another site's proof must have in common with the one here."""
_WEIGHTS = {"gpu": 30, "driver": 20}
"""How much the variables that speak of GPUs weigh in an explanation."""


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
    cpu_only: bool = False


@dataclass(frozen=True)
class Tried:
    """A whole stack from wheels that was built: `computes` are its GPUs, none for CPUs."""

    when: tuple[Condition, ...]
    computes: frozenset[str]
    proof: str
    source: str

    def holds(self, versions: Mapping[str, str], computes: Collection[str]) -> bool:
        """Whether a stack of these versions and backend, for these GPUs, is this one or a part."""
        mine = bool(computes) == bool(self.computes) and self.computes.issuperset(computes)
        return mine and all(condition.holds(versions) for condition in self.when)


@dataclass(frozen=True)
class Facts:
    """All that `resolve` knows; `of_gpus` are the rules that speak of the GPU or its driver.

    `notes` are texts about sets that fit; `own_driver` are versions by CUDA release.
    """

    components: Mapping[str, Component]
    rules: tuple[Rule, ...]
    of_gpus: tuple[Rule, ...]
    proofs: tuple[ProofRow, ...]
    notes: tuple[tuple[tuple[Condition, ...], str], ...]
    own_driver: Mapping[str, str]
    tried: tuple[Tried, ...]


def evidence_of(site: Site) -> Iterator[Tried]:
    """The proofs of other sites in PREFIX/evidence: stacks that they have built and tested.

    Raises BadInput: a file is no proof that passed, or not what that site's gate has written.
    """
    for path in sorted((site.paths.prefix / "evidence").glob("*.json")):
        try:
            proof = json.loads(read_regular(path, kind="proof.json", require=require_known_owner))
            if proof["seal"] != seal(proof):
                raise ValueError("its seal is another, so it was changed after the gate wrote it")
            if proof["passed"] is not True:
                raise ValueError("the release did not pass")
            if proof["level"] not in facts.PROOFS:
                raise ValueError(f"it has the level {str(proof['level'])[:40]!r}")
            build = proof["build"]
            made = (f"; {row['name']} by {row['compilers']}" for row in build["compiled"][:3])
            versions = {name: build["versions"].get(name, "") for name in _TRIED}
            when = {name: text.partition("-")[0] for name, text in versions.items() if text}
            if "tensorflow" not in when or not all(map(_VERSION.fullmatch, when.values())):
                raise ValueError("it does not name the versions that were built")
            yield Tried(
                conditions({**when, "backend": build["backend"]}),
                frozenset(build["compute"]),
                proof["level"],
                inert(
                    f"{path.name}: {proof['release']}, {proof['where']}, {proof['at']}"
                    + "".join(made)
                ),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
            what = f"it has no {fault}" if isinstance(fault, KeyError) else str(fault)[:100]
            raise BadInput(
                f"{path} is no evidence: {what}",
                hint="copy proof.json of the other site's release again, or remove the file",
            ) from fault


@cache
def known() -> Facts:
    """The facts of this installation."""
    files = [facts.load(name) for name in FILES]
    components = {
        name: _component(name, row, file)
        for file in files
        for name, row in file["components"].items()
    }
    rules = (
        *chain.from_iterable(map(_rules, files)),
        *chain.from_iterable(map(_offers, components.values())),
    )
    about_gpus = (
        rule for rule in rules if any(one.variable in _WEIGHTS for one in (*rule.when, rule.need))
    )
    notes = [row for file in (*files, facts.load("gpu_kernels")) for row in file.get("notes", ())]
    own, tried = facts.load("cuda")["own_driver"], facts.load("wheels")["tried"]
    return Facts(
        components=components,
        rules=rules,
        of_gpus=tuple(about_gpus),
        proofs=tuple(_proofs(files)),
        notes=tuple((conditions(row["when"]), f"{row['note']} [{row['proof']}]") for row in notes),
        own_driver={name: text for name, text in own.items() if name[0].isdigit()},
        tried=tuple(
            Tried(
                conditions(row["when"]),
                frozenset(row.get("compute", ())),
                row["proof"],
                row["source"],
            )
            for row in tried
        ),
    )


def _component(name: str, row: Mapping[str, Any], file: Mapping[str, Any]) -> Component:
    versions = {way: newest_first(set(row[way])) for way in (*BACKENDS, "host") if way in row}
    return Component(name, row["title"], versions, row["proof"], _source(row, file))


def conditions(row: Mapping[str, str]) -> tuple[Condition, ...]:
    """`{tensorflow: "2.18", backend: wheels}` as conditions."""
    return tuple(Condition(name, Range(str(text))) for name, text in row.items())


@cache
def computes() -> tuple[str, ...]:
    """Compute capabilities that GPUs have, such as `6.0`, lowest first: a site may have any."""
    found = {str(compute) for compute in facts.load("gpus")["capabilities"]["known"]}
    return tuple(reversed(newest_first(found)))


def serves(code: Iterable[str], compute: str) -> bool:
    """Whether machine code runs on a GPU: `sm_XY` on X.Z with Z >= Y, `compute_XY` on newer ones.

    `sm_90a` and `compute_90a` run on 9.0 alone, `sm_100f` and `compute_100f` within their family.
    Source: CUDA C++ Programming Guide, binary and PTX compatibility, family-specific features.
    """
    here = _numbers(compute)
    return any(_runs(*_code(name), here) for name in code)


def same_generation(code: str, compute: str) -> bool:
    """Return whether code was made for the GPU's own major compute capability."""
    return _code(code)[1][0] == _numbers(compute)[0]


def _runs(kind: str, made_for: tuple[int, ...], suffix: str, here: tuple[int, ...]) -> bool:
    if suffix == "a":
        return made_for == here
    within = kind == "sm" or suffix == "f"
    return made_for <= here and (made_for[0] == here[0] or not within)


def _numbers(compute: str) -> tuple[int, ...]:
    return tuple(int(part) for part in compute.split("."))


@cache
def _code(name: str) -> tuple[str, tuple[int, ...], str]:
    """Split the name of an architecture: `sm_90a` is `sm`, (9, 0) and `a`."""
    kind, _, number = name.partition("_")
    digits = number.rstrip("af")
    return kind, (int(digits[:-1]), int(digits[-1])), number[len(digits) :]


def _rules(file: Mapping[str, Any]) -> Iterator[Rule]:
    """The rules of a file, and what the machine code in TensorFlow's wheels serves."""

    def rule(row: Mapping[str, Any], when: Mapping[str, str], need: Condition, why: str) -> Rule:
        found = conditions(when)
        weight = 10 if need.variable == "gpu" else sum(_WEIGHTS.get(c.variable, 0) for c in found)
        return Rule(found, need, why, _source(row, file), row["proof"], weight=weight)

    for row in file["rules"]:
        yield from (rule(row, row["when"], need, row["why"]) for need in conditions(row["needs"]))
    for row in file.get("fails", ()):
        runs = set(computes()) - set(row["gpus"])
        yield rule(row, row["when"], _gpus(sorted(runs, key=sort_key)), row["why"])
    for row in file.get("wheels", ()):
        served = [compute for compute in computes() if serves(row["code"], compute)]
        when = {"tensorflow": row["tensorflow"], "backend": "wheels"}
        why = f"machine code in its wheels: {', '.join(row['code'])}"
        yield rule(row, when, _gpus(served), why)


def _gpus(computes: Iterable[str]) -> Condition:
    return Condition("gpu", Range(",".join(computes)))


def _offers(component: Component) -> Iterator[Rule]:
    """Yield each backend's list of versions of a component, as a rule."""
    for backend, seller in facts.load("spack")["offers"].items():
        versions = component.versions.get(backend)
        if versions and set(component.known()) != set(versions):
            need = Condition(component.name, Range(",".join(versions)))
            why = f"{seller['who']} does not have it (newest: {versions[0]})"
            when, source = conditions({"backend": backend}), seller.get("source", component.source)
            yield Rule(when, need, why, source, "published", "offer", -1)


def _proofs(files: Sequence[Mapping[str, Any]]) -> Iterator[ProofRow]:
    """The rows of all files; PTX of an older generation proves nothing of a GPU."""
    for file in files:
        for row in file.get("wheels", ()):
            own = [code for code in row["code"] if code.startswith("sm_")]
            only_ptx = ",".join(one for one in computes() if not serves(own, one))
            of_wheels = {"tensorflow": row["tensorflow"], "backend": "wheels", "gpu": only_ptx}
            yield ProofRow("tensorflow", conditions(of_wheels), "doubtful", _source(row, file))
    rows = (
        (name, part, file)
        for file in files
        for name, row in file["components"].items()
        for part in row.get("proofs", ())
    )
    for name, part, file in rows:
        level = part.get("cpu") or part["proof"]
        yield ProofRow(name, conditions(part["when"]), level, _source(part, file), "cpu" in part)
    book = facts.load("spack")
    by = book["locked_with"]
    for variant, key in (("cuda", "solved"), ("cpu", "solved_for_cpus")):
        for name, versions in book[key].items():
            when = conditions({name: ",".join(versions), "backend": "spack", "variant": variant})
            yield ProofRow(name, when, by["proof"], by["source"])


def _source(row: Mapping[str, Any], file: Mapping[str, Any]) -> str:
    """A row's source, where it names one of its file's list in full."""
    return str(file["sources"].get(row["source"], row["source"]))


def driver_needs(cuda: str, computes: list[str]) -> dict[str, Any]:
    """The oldest driver for this CUDA, and the last branch that drives any of these GPUs.

    There is no last branch where current drivers still drive one of them.
    """
    oldest: list[str] = []
    last: dict[str, int] = {}
    for row in facts.load("cuda")["rules"]:
        limit = str(row["needs"].get("driver", ""))
        when = row["when"]
        low, _, high = limit.partition(":")
        if low and "cuda" in when and Range(str(when["cuda"])).allows(cuda):
            oldest.append(low)
        if high and "gpu" in when:
            last |= {one: int(high) for one in computes if Range(str(when["gpu"])).allows(one)}
    needs: dict[str, Any] = {"from": max(oldest, key=sort_key)} if oldest else {}
    limited = last and all(one in last for one in computes)
    return {**needs, **({"branch": max(last.values())} if limited else {})}


def gpus_of(site: Site, names: Sequence[str]) -> list[Gpu]:
    """The GPUs of these partitions, of all where none is named."""
    groups = (one for name in names or site.partitions for one in site.partition(name).node_groups)
    return [group.gpu for group in groups if group.gpu]


def models(archs: tuple[str, ...], own: Iterable[Gpu] = ()) -> list[str]:
    """The GPUs, as the driver calls them, that machine code for these runs on.

    `archs` is what was compiled for, such as `60`; `own` GPUs of the site may be none of the
    facts'.
    """
    code = [f"sm_{arch}" for arch in archs]  # 90a is code for 9.0 alone
    listed = (gpu_named(name) for name in facts.load("gpus")["gpus"])
    named = [gpu.driver_name for gpu in (*listed, *own) if serves(code, gpu.compute)]
    return list(dict.fromkeys(named))


def needs_of(
    archs: tuple[str, ...], cuda: str, target: str, gpus: Iterable[Gpu] = (), *, wheels: bool
) -> dict[str, Any]:
    """The guard's table: `cpu_flags`, and for GPUs `driver`, `gpus` and `compute`.

    `archs` are Spack's cuda_arch values, such as `60`, none for CPUs; `target` is the
    microarchitecture that it is compiled for; `gpus` are those of the partitions that it serves.
    """
    # Flags of /proc/cpuinfo that code for this target uses; wheels use AVX whatever it is.
    of_wheels = facts.load("wheels")["needs"]["cpu"]["cpu_flags"] if wheels else ()
    flags = sorted({*of_wheels, *facts.load("spack")["targets"].get(target, ())})
    if not archs:
        return {"cpu_flags": flags}
    digits = [arch.rstrip("af") for arch in archs]
    computes = [f"{one[:-1]}.{one[-1]}" for one in digits]
    return {
        "cpu_flags": flags,
        "driver": driver_needs(cuda, computes),
        "gpus": models(archs, gpus),
        "compute": computes,
    }


def wheel_sets(package: str, *, cuda: bool = False) -> dict[str, Any]:
    """The lists of wheels of a recipe, by version: for CPUs or for GPUs."""
    path = folder("spack") / "spack_repo" / "hpcdl" / "packages" / package.replace("-", "_")
    # A recipe with both has them beside each other.
    name = "wheels-cuda.json" if cuda and (path / "wheels-cuda.json").is_file() else "wheels.json"
    sets: dict[str, Any] = json.loads((path / name).read_text(encoding="utf-8"))
    return sets


class Sources(dict[str, int]):
    """Numbers for sources, in the order in which they are first named."""

    def number(self, source: str) -> str:
        """`[3]` for a source, nothing for none."""
        return f"[{self.setdefault(source, len(self) + 1)}]" if source else ""

    def page(self, text: str) -> str:
        """A text with the list of its sources at the foot."""
        foot = [f"[{number}] {source}" for source, number in self.items()]
        return "\n".join([text, *(["", "sources", *foot] if foot else [])])


def chain_lines(
    chain: Iterable[Rule], gpu: str | None = None, sources: Sources | None = None
) -> list[str]:
    """A chain of rules as sentences, one per line, with the numbers of their sources."""
    rules = [rule for rule in chain if rule.origin != "choice"]
    if sources is None:
        return [sentence(rule, gpu).rstrip() for rule in rules]
    return [f"{sentence(rule, gpu)} {sources.number(rule.source)}".rstrip() for rule in rules]


def sentence(rule: Rule, gpu: str | None = None) -> str:
    """A rule in words: `TensorFlow 2.15 needs CUDA 12.2 to 12.x (built by upstream with 12.2)`.

    `gpu` is the model to name where a rule speaks of GPUs.
    """
    if rule.origin == "offer":
        return rule.why
    doubt = ", doubtful" if rule.proof == "doubtful" else ""
    named = (condition for condition in rule.when if condition.variable != "variant")
    subject = " by ".join(_subject(condition, gpu) for condition in named)
    needs = f"{subject} needs " if subject else ""
    return f"{needs}{title_of(rule.need.variable)} {_range(rule.need)} ({rule.why}{doubt})"


def _subject(condition: Condition, gpu: str | None) -> str:
    if condition.variable == "gpu":
        return gpu or f"sm_{condition.range.text.replace('.', '').replace(':', ' to sm_')}"
    if condition.variable.startswith(OTHER_GPU):
        return f"{title_of(condition.variable)}, which the same build serves,"
    if condition.variable == "backend":
        return BACKENDS[condition.range.text].words
    return f"{title_of(condition.variable)} {_range(condition)}"


def _range(condition: Condition) -> str:
    """The range in words; of compute capabilities `sm_35 or sm_50 to sm_90`."""
    if condition.variable.partition("@")[0] != "gpu":
        return condition.range.describe()
    named = condition.range.text.split(",")
    runs: list[list[str]] = [[]]
    for one in sorted({*computes(), *named}, key=sort_key):
        if one in named:
            runs[-1].append(f"sm_{one.replace('.', '')}")
        else:
            runs.append([])
    return " or ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs if run)


def title_of(name: str) -> str:
    """What a component or another variable is called."""
    if name.startswith(OTHER_GPU):
        return f"sm_{name.removeprefix(OTHER_GPU).replace('.', '')}"
    if name.startswith(OTHER_DRIVER):
        return "driver"
    component = known().components.get(name)
    return component.title if component else {"gpu": "GPU"}.get(name, name)
