"""From a setting (a backend, a GPU, what the machine has, pins) to the newest set that fits. Pure.

The facts for a setting make a `VersionProblem`; its solution has versions, how sure each is, and
what limits it: the explanation why the next newer version does not fit, by itself or beside what
matters more. Resolutions are shown as a page or as data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from hpcdl import facts
from hpcdl.site.sections import BACKENDS
from hpcdl.stack.resolve_facts import (
    COMPONENTS,
    OF_GPUS,
    OTHER_DRIVER,
    OTHER_GPU,
    Sources,
    Tried,
    chain_lines,
    known,
    sentence,
    title_of,
)
from hpcdl.stack.resolve_solver import Condition, Range, Rule, Solver, VersionProblem, newest_first
from hpcdl.system.frozen import dataclass
from hpcdl.system.text import paint

_SITE_WEIGHT = {"driver": 15, "gcc": 4, "pmix": 4, "python": 4}


@dataclass(frozen=True)
class Setting:
    """The input of a resolution: equal settings have equal answers.

    `also` are compute capabilities that the same build serves, and the drivers of their nodes;
    `pythons` the Pythons that the machine has, none meaning any; `own_pmix` says that Spack takes
    the machine's PMIx as it is; without `horovod` it plays no
    part. `asked` are a component and a version that somebody asks for.
    """

    backend: str
    compute: str | None
    driver: str | None = None
    compilers: tuple[str, ...] = ()
    pmix: str | None = None
    own_pmix: bool = False
    pins: tuple[tuple[str, str], ...] = ()
    stack: str | None = None
    also: tuple[tuple[str, str | None], ...] = ()
    pythons: tuple[str, ...] = ()
    horovod: bool = True
    asked: tuple[str, str] | None = None


def make_problem(setting: Setting, dropped: Collection[str] = ()) -> VersionProblem:
    """The facts for one setting: domains in order of importance, rules, the site's own rules.

    `dropped` are components of which the site's own rules do not count.
    """
    book = known()
    parts = {name: book.components[name] for name in (*COMPONENTS, "driver")}
    left_out = {*(() if setting.compute else OF_GPUS), *(() if setting.horovod else ("horovod",))}
    ways = {setting.backend, "host"}
    domains = {
        name: part.known()
        for name, part in parts.items()
        if ways.intersection(part.versions) and name not in left_out
    }
    if setting.compute is not None:
        domains["gpu"] = (setting.compute,)
    domains["variant"] = ("cuda" if setting.compute else "cpu",)
    domains["backend"] = (setting.backend,)
    # The machine has versions that the facts need not list.
    more = {"gcc": setting.compilers, "driver": (setting.driver,) if setting.driver else ()}
    if setting.pmix and setting.own_pmix:
        more["pmix"] = (setting.pmix,)
    for name in more.keys() & domains.keys():
        domains[name] = newest_first({*domains[name], *more[name]})
    others: list[Rule] = []
    for compute, driver in setting.also:
        names = {"gpu": f"{OTHER_GPU}{compute}", "driver": _other_driver(compute, driver)}
        domains[names["gpu"]] = (compute,)
        drivers = {*parts["driver"].known(), *([driver] if driver is not None else [])}
        domains[names["driver"]] = newest_first(drivers)
        others += [_of_other(rule, names) for rule in book.of_gpus]
    own = (
        rule
        for rule in _site_rules(setting)
        if rule.origin != "site" or rule.need.variable not in dropped
    )
    return VersionProblem(domains, (*book.rules, *others, *own))


def _other_driver(compute: str, driver: str | None) -> str:
    return f"{OTHER_DRIVER}{compute}@{driver or ''}"


def _of_other(rule: Rule, names: Mapping[str, str]) -> Rule:
    """Return a rule about GPUs or drivers for other nodes that the build serves."""

    def renamed(condition: Condition) -> Condition:
        return replace(condition, variable=names.get(condition.variable, condition.variable))

    return replace(rule, when=tuple(map(renamed, rule.when)), need=renamed(rule.need))


def _site_rules(setting: Setting) -> Iterator[Rule]:
    """Yield rules of the machine (driver, compilers, Slurm's PMIx) and of the site's pins."""
    others = "of other nodes that the same build serves"
    pmix, recipes = "the PMIx that Slurm was built with", known().components["pmix"].known()
    if setting.pmix and not setting.own_pmix and not any(map(Range(setting.pmix).allows, recipes)):
        pmix += f"; Spack builds {recipes[-1]} and newer: spack.externals may name Slurm's own"
    rows = [
        ("driver", setting.driver, "the partition's driver"),
        ("gcc", ",".join(setting.compilers), "the compilers the site offers"),
        ("pmix", setting.pmix, pmix),
        ("python", ",".join(setting.pythons), "the Pythons of this machine"),
        *((_other_driver(compute, driver), driver, others) for compute, driver in setting.also),
    ]
    for name, text, why in rows:
        if text:
            yield _of_site(name, text, why, "site", _SITE_WEIGHT[name.partition("@")[0]])
    if setting.asked:
        yield replace(fix(*setting.asked, "asked", -10), why="asked for")
    for name, text in setting.pins:
        yield _of_site(name, text, f"pinned by stack '{setting.stack}'", "pin", 2)


def _of_site(name: str, text: str, why: str, origin: str, weight: int) -> Rule:
    need = Condition(name, Range(text))
    return Rule((), need, why, "site.yaml", "published", origin, weight)


def fix(name: str, version: str, origin: str, weight: int) -> Rule:
    """The rule that a component has a version, as a question or as a choice of ours."""
    return Rule((), Condition(name, Range(version)), "", "", "published", origin, weight)


@dataclass(frozen=True)
class Choice:
    """One component's version, how sure it is, and why none is newer.

    `newer` is the version refused, empty where none is known; `chain` are the rules behind that.
    """

    component: str
    title: str
    version: str
    proof: str
    source: str
    newer: str
    chain: tuple[Rule, ...]


@dataclass(frozen=True)
class Resolution:
    """The newest working set for one partition and one backend.

    `choices` is empty where nothing fits. `problems` are contradictions with what the site has
    (a driver that is too old or too new): each a chain of rules; `choices` then holds what
    would fit without that. `wanted` says whether the site's stacks ask for this backend here.
    `tried` is the build of these versions for these GPUs that was made and loaded, if one was.
    """

    partition: str
    setting: Setting
    stack: str | None
    backend: str
    wanted: bool
    gpu: str | None
    driver: str | None
    choices: tuple[Choice, ...]
    problems: tuple[tuple[Rule, ...], ...]
    notes: tuple[str, ...]
    tried: Tried | None = None

    @property
    def versions(self) -> dict[str, str]:
        """Chosen versions by component; empty where nothing fits."""
        return {choice.component: choice.version for choice in self.choices}

    @property
    def fits(self) -> bool:
        """Return whether a set fits what the site has, its driver included."""
        return bool(self.choices) and not self.problems

    @property
    def proof(self) -> str:
        """How sure the set is: as it was tried as a whole, else its weakest version."""
        if self.tried is not None:
            return self.tried.proof
        levels = [choice.proof for choice in self.choices] or ["doubtful"]
        return max(levels, key=facts.PROOFS.index)


@lru_cache(maxsize=4096)
def solve(
    setting: Setting,
) -> tuple[tuple[Choice, ...], tuple[tuple[Rule, ...], ...], tuple[str, ...]]:
    """The set that fits, the machine's conflicts with it (driver, compilers, PMIx), and notes."""
    problems: list[tuple[Rule, ...]] = []
    dropped: set[str] = set()
    while True:
        solver = Solver(make_problem(setting, dropped))
        values = solver.solve()
        if values is not None:
            notes = (text for when, text in known().notes if all(one.holds(values) for one in when))
            return _choices(setting, solver, values), tuple(problems), tuple(notes)
        chain = solver.explain() or ()
        problems.append(chain)
        blamed = next((r.need.variable for r in chain if r.origin == "site"), None)
        if blamed is None or any(rule.origin == "pin" for rule in chain):
            return (), tuple(problems), ()
        dropped.add(blamed)


def _choices(setting: Setting, solver: Solver, values: Mapping[str, str]) -> tuple[Choice, ...]:
    book = known()
    names = [name for name in (*COMPONENTS, "driver") if name in values]
    return tuple(
        Choice(
            name,
            book.components[name].title,
            values[name],
            *_proof(name, setting, values),
            *_limit(solver, values, name, names),
        )
        for name in names
        if name != "driver" or not setting.driver
    )


def _limit(
    solver: Solver, values: Mapping[str, str], name: str, names: list[str]
) -> tuple[str, tuple[Rule, ...]]:
    """Why the next newer version is refused: by itself, or beside what matters more."""
    domain = solver.problem.domains[name]
    place = domain.index(values[name])
    if place == 0:
        return "", ()
    newer = domain[place - 1]
    question = fix(name, newer, "question", -10)
    choices = [fix(other, values[other], "choice", -5) for other in names[: names.index(name)]]
    chains = (
        solver.explain([question, *beside]) for beside in (([], choices) if choices else ([],))
    )
    # Shorter explanations are better; a choice of ours explains less than a fact.
    best = min(
        filter(None, chains),
        key=lambda chain: sum(2 if rule.origin == "choice" else 3 for rule in chain),
    )
    return newer, tuple(rule for rule in best if rule.origin != "question")


def _proof(name: str, setting: Setting, values: Mapping[str, str]) -> tuple[str, str]:
    """The evidence level of a version, and its source."""
    cpu = setting.compute is None
    for row in known().proofs:
        fits = all(condition.holds(values) for condition in row.when)
        if row.component == name and fits and (cpu or not row.cpu_only):
            return row.proof, row.source
    component = known().components[name]
    keys = (f"{setting.backend}-cpu" if cpu else "", setting.backend, "host")
    return next(component.proof[key] for key in keys if key in component.proof), component.source


def driver_notes(driver: str | None, choices: Sequence[Choice]) -> tuple[str, ...]:
    """Return notes on what a partition's driver cannot do with a CUDA release."""
    found = {one.component: one for one in choices}
    if "cuda" not in found:
        return ()
    cuda = found["cuda"].version
    if found["tensorflow"].proof == "doubtful":  # it has no machine code for the GPU
        return (
            "TensorFlow has no machine code for this GPU, only PTX of an older generation, which "
            "the driver must translate: nothing proves that it runs",
        )
    own = known().own_driver.get(".".join(cuda.split(".")[:2]))
    if not driver or not own or Range(f"{own}:").allows(driver):
        return ()
    return (
        f"driver {driver} is older than CUDA {cuda}'s own ({own}): machine code for this GPU runs, "
        f"PTX of CUDA {cuda} is not translated",
    )


_WIDTH = 116


def as_text(resolutions: Sequence[Resolution]) -> str:
    """All resolutions as a page: the wanted ones in full, the other backend in one line."""
    sources, blocks = Sources(), []
    for names, resolution in _grouped(resolutions):
        full = resolution.wanted or len(resolutions) == 1
        lines = _full(names, resolution, sources) if full else [_brief(names, resolution)]
        blocks.append("\n".join(lines))
    return sources.page("\n\n".join(blocks))


def as_data(resolutions: Sequence[Resolution]) -> dict[str, Any]:
    """All resolutions for machines."""
    return {"schema": 1, "resolutions": [_data(resolution) for resolution in resolutions]}


def _grouped(resolutions: Sequence[Resolution]) -> list[tuple[str, Resolution]]:
    """Partitions with one and the same answer share a block; their names are joined."""
    groups: dict[tuple[object, ...], list[Resolution]] = {}
    for one in resolutions:
        same = (one.stack, one.backend, one.gpu, one.driver, one.choices, one.problems, one.tried)
        groups.setdefault((*same, one.notes), []).append(one)
    return [(", ".join(one.partition for one in group), group[0]) for group in groups.values()]


def _full(names: str, resolution: Resolution, sources: Sources) -> list[str]:
    lines = [paint(_head(names, resolution), "bold")]
    if resolution.tried is not None:
        lines += _wrapped("  tried as a whole: ", [resolution.tried.source])
    elif resolution.choices and not BACKENDS[resolution.backend].compiles:
        lines.append("  resolved only: no build of these versions for these GPUs was tried")
    for chain in resolution.problems:
        lines += [f"  does not fit: {line}" for line in chain_lines(chain, resolution.gpu, sources)]
    if resolution.problems and resolution.choices:
        lines.append("  without that:")
    if not resolution.choices:
        lines.append("  no set of versions fits")
    rows = [(choice.title, choice.version, choice.proof) for choice in resolution.choices]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for choice, row in zip(resolution.choices, rows, strict=True):
        left = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines += _wrapped(f"  {left}  ", _why(choice, resolution, sources))
    for note in resolution.notes:
        lines += _wrapped("  note: ", [note])
    return lines


def _why(choice: Choice, resolution: Resolution, sources: Sources) -> list[str]:
    """Return the reasons for a choice, a sentence each."""
    pinned = ["pinned"] if choice.component in dict(resolution.setting.pins) else []
    if not choice.newer:
        return [*pinned, "the newest known"]
    first, *rest = chain_lines(choice.chain, resolution.gpu, sources)
    return [*pinned, f"not {choice.newer}: {first}", *rest]


def _wrapped(left: str, entries: Iterable[str]) -> list[str]:
    """Entries beside a left column, each on its own lines."""
    from textwrap import wrap

    lines = [part for entry in entries for part in wrap(entry, max(40, _WIDTH - len(left)))]
    indent = " " * len(left)
    return [(indent if number else left) + line for number, line in enumerate(lines)]


def _brief(names: str, resolution: Resolution) -> str:
    versions = resolution.versions
    shown = [name for name in ("tensorflow", "cuda", "cudnn", "nccl", "python") if name in versions]
    text = ", ".join(f"{title_of(name)} {versions[name]}" for name in shown)
    against = "; ".join(chain[-1].why for chain in resolution.problems)
    names += f" ({resolution.gpu})" if resolution.gpu else ""
    return f"{names} by {BACKENDS[resolution.backend].words} instead: {against or text}"


def _head(names: str, resolution: Resolution) -> str:
    gpu = "CPU"
    if resolution.gpu and (compute := resolution.setting.compute):
        gpu = f"{resolution.gpu} (sm_{compute.replace('.', '')})"
        gpu += f", driver {resolution.driver}" if resolution.driver else ", driver not given"
    stack = f"stack {resolution.stack}, " if resolution.stack else ""
    return f"{names}: {gpu}; {stack}{resolution.backend}; evidence: {resolution.proof}"


def _data(resolution: Resolution) -> dict[str, Any]:
    fields = ("partition", "stack", "backend", "wanted", "gpu", "driver", "proof")
    gpu, rows = resolution.gpu, []
    for choice in resolution.choices:
        row = {name: getattr(choice, name) for name in ("component", "version", "proof", "source")}
        if choice.newer:
            rules = [_rule_data(one, gpu) for one in choice.chain if one.origin != "choice"]
            row["limit"] = {"not": choice.newer, "because": rules}
        rows.append({"limit": None, **row})
    return {
        **{name: getattr(resolution, name) for name in fields},
        "tried": resolution.tried.source if resolution.tried else None,
        "compute": resolution.setting.compute,
        "pins": dict(resolution.setting.pins),
        "versions": resolution.versions,
        "components": rows,
        "problems": [[_rule_data(rule, gpu) for rule in chain] for chain in resolution.problems],
        "notes": list(resolution.notes),
    }


def _rule_data(rule: Rule, gpu: str | None) -> dict[str, Any]:
    return {
        "text": sentence(rule, gpu),
        "component": rule.need.variable,
        "allowed": rule.need.range.text,
        "source": rule.source,
        "proof": rule.proof,
        "origin": rule.origin,
    }
