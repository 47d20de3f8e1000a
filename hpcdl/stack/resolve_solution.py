"""From a setting to the newest set that fits: versions, how sure each is, and what limits it. Pure.

Each component's limit is the explanation why its next newer version does not fit: by itself, or
beside what matters more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from hpcdl.stack.resolve_facts import COMPONENTS, known
from hpcdl.stack.resolve_problem import Setting, fix, make_problem
from hpcdl.stack.resolve_solver import Rule, Solver
from hpcdl.stack.resolve_versions import Range


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
    """What fits a setting, what the machine has against it, and what is good to know."""

    choices: tuple[Choice, ...]
    problems: tuple[tuple[Rule, ...], ...]
    notes: tuple[str, ...]


@lru_cache(maxsize=256)
def solve(setting: Setting) -> Solution:
    """Solve; say so and continue where the site's driver, compilers or PMIx contradict all."""
    problems: list[tuple[Rule, ...]] = []
    dropped: set[str] = set()
    while True:
        solver = Solver(make_problem(setting, dropped))
        values = solver.solve()
        if values is not None:
            return Solution(_choices(setting, solver, values), tuple(problems), _notes(values))
        chain = solver.explain() or ()
        problems.append(chain)
        blamed = next((r.need.variable for r in chain if r.origin == "site"), None)
        if blamed is None or any(rule.origin == "pin" for rule in chain):
            return Solution((), tuple(problems), ())
        dropped.add(blamed)


def _choices(setting: Setting, solver: Solver, values: Mapping[str, str]) -> tuple[Choice, ...]:
    book = known()
    names = [name for name in (*COMPONENTS, "driver") if name in values]
    choices = []
    for name in names:
        if name == "driver" and setting.driver:
            continue
        component = book.components[name]
        proof, source = _proof(name, setting, values)
        limit = _limit(solver, values, name, names)
        choices.append(Choice(name, component.title, values[name], proof, source, limit))
    return tuple(choices)


def _limit(solver: Solver, values: Mapping[str, str], name: str, names: list[str]) -> Limit | None:
    """Why the next newer version is refused: by itself, or beside what matters more."""
    domain = solver.problem.domains[name]
    place = domain.index(values[name])
    if place == 0:
        return None
    newer = domain[place - 1]
    question = fix(name, newer, "question", -10)
    choices = [fix(other, values[other], "choice", -5) for other in names[: names.index(name)]]
    alone = solver.explain([question])
    beside = solver.explain([question, *choices]) if choices else None
    chains = [chain for chain in (alone, beside) if chain is not None]
    best = min(chains, key=_cost)
    return Limit(newer, tuple(rule for rule in best if rule.origin != "question"))


def _cost(chain: tuple[Rule, ...]) -> int:
    """Shorter explanations are better; a choice of ours explains less than a fact."""
    return sum(2 if rule.origin == "choice" else 3 for rule in chain)


def _proof(name: str, setting: Setting, values: Mapping[str, str]) -> tuple[str, str]:
    book = known()
    cpu = setting.compute is None
    for row in book.proofs:
        fits = all(condition.holds(values) for condition in row.when)
        if row.component == name and fits and (cpu or not row.cpu_only):
            return row.proof, row.source
    component = book.components[name]
    keys = (f"{setting.backend}-cpu" if cpu else "", setting.backend, "host")
    return next(component.proof[key] for key in keys if key in component.proof), component.source


def _notes(values: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(
        f"{note.text} [{note.proof}]"
        for note in known().notes
        if all(condition.holds(values) for condition in note.when)
    )


def driver_notes(driver: str | None, cuda: str) -> tuple[str, ...]:
    """What a partition's own driver does not do with a CUDA: a build may serve older ones, too."""
    own = _own_driver(cuda)
    if not driver or not own or Range(f"{own}:").allows(driver):
        return ()
    return (
        f"driver {driver} is older than CUDA {cuda}'s own ({own}): machine code for this GPU runs, "
        f"PTX of CUDA {cuda} is not translated",
    )


def _own_driver(cuda: str) -> str | None:
    return known().own_driver.get(".".join(cuda.split(".")[:2]))
