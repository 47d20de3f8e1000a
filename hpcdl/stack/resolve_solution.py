"""From a setting (a backend, a GPU, what the machine has, pins) to the newest set that fits. Pure.

The facts for a setting make a `VersionProblem`; its solution has versions, how sure each is, and
what limits it: the explanation why the next newer version does not fit, by itself or beside what
matters more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from hpcdl import facts
from hpcdl.stack.resolve_facts import (
    COMPONENTS,
    OF_GPUS,
    OTHER_DRIVER,
    OTHER_GPU,
    Tried,
    known,
)
from hpcdl.stack.resolve_solver import Condition, Range, Rule, Solver, VersionProblem, newest_first

_SITE_WEIGHT = {"driver": 15, "gcc": 4, "pmix": 4, "python": 4}


@dataclass(frozen=True)
class Setting:
    """The input of a resolution: equal settings have equal answers.

    `also` are compute capabilities that the same build serves, and the drivers of their nodes;
    `pythons` the Pythons that the machine has, none meaning any; without `horovod` it plays no
    part. `asked` are a component and a version that somebody asks for.
    """

    backend: str
    compute: str | None
    driver: str | None = None
    compilers: tuple[str, ...] = ()
    pmix: str | None = None
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
    if setting.pmix and not any(map(Range(setting.pmix).allows, domains.get("pmix", ()))):
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
    rows = [
        ("driver", setting.driver, "the partition's driver"),
        ("gcc", ",".join(setting.compilers), "the compilers the site offers"),
        ("pmix", setting.pmix, "the PMIx that Slurm was built with"),
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
class Limit:
    """Why a component is not newer: `newer` is the version refused, `chain` the rules behind."""

    newer: str
    chain: tuple[Rule, ...]


@dataclass(frozen=True)
class Choice:
    """One component's version, how sure it is, and what holds it back (None: nothing known)."""

    component: str
    title: str
    version: str
    proof: str
    source: str
    limit: Limit | None


@dataclass(frozen=True)
class Solution:
    """The set that fits a setting, the machine's conflicts with it, and notes."""

    choices: tuple[Choice, ...]
    problems: tuple[tuple[Rule, ...], ...]
    notes: tuple[str, ...]


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
    compute: str | None
    driver: str | None
    pins: Mapping[str, str]
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
def solve(setting: Setting) -> Solution:
    """Solve; say so and continue where the site's driver, compilers or PMIx contradict all."""
    problems: list[tuple[Rule, ...]] = []
    dropped: set[str] = set()
    while True:
        solver = Solver(make_problem(setting, dropped))
        values = solver.solve()
        if values is not None:
            notes = (text for when, text in known().notes if all(one.holds(values) for one in when))
            return Solution(_choices(setting, solver, values), tuple(problems), tuple(notes))
        chain = solver.explain() or ()
        problems.append(chain)
        blamed = next((r.need.variable for r in chain if r.origin == "site"), None)
        if blamed is None or any(rule.origin == "pin" for rule in chain):
            return Solution((), tuple(problems), ())
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
            _limit(solver, values, name, names),
        )
        for name in names
        if name != "driver" or not setting.driver
    )


def _limit(solver: Solver, values: Mapping[str, str], name: str, names: list[str]) -> Limit | None:
    """Why the next newer version is refused: by itself, or beside what matters more."""
    domain = solver.problem.domains[name]
    place = domain.index(values[name])
    if place == 0:
        return None
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
    return Limit(newer, tuple(rule for rule in best if rule.origin != "question"))


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


def driver_notes(driver: str | None, cuda: str, proof: str) -> tuple[str, ...]:
    """Return notes on what a partition's driver cannot do with a CUDA release.

    `proof` is TensorFlow's evidence level: without machine code for the GPU it is doubtful.
    """
    if proof == "doubtful":
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
