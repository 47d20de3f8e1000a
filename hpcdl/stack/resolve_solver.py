"""A small constraint search: the newest versions that satisfy all rules, and why not newer ones.

A version compares by its numbers (`2.9 < 2.18`). A range has Spack's form: `12.5:12` is from
12.5 to the last 12.x, `:11.8` everything up to 11.8 with its patches, `2.18` every 2.18.x, and
commas join ranges. Both are plain text outside and tuples of numbers inside.

A rule says: when all its conditions hold, one variable is in a range. Rules become clauses
over bit masks (a bit per value of a variable); unit propagation narrows the masks, and a
depth-first search takes values best first, in the order of the variables, so the answer is
deterministic and lexicographically best. An impossible question is explained by a minimal set
of rules that already contradict each other. Pure, and knows nothing of TensorFlow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

# A word with dashes is one: the backend `spack` is no prefix of `spack-wheels`.
_PART = re.compile(r"\d+|[a-z]+(?:-[a-z]+)*", re.IGNORECASE)
Masks = list[int]
_TRUE, _OPEN, _FALSE = -1, -2, -3


@lru_cache(maxsize=4096)
def sort_key(version: str) -> tuple[tuple[bool, int | str], ...]:
    """What any version compares by: 2, 18, 1 for `2.18.1`; words come before all numbers."""
    return tuple((p.isdigit(), int(p) if p.isdigit() else p) for p in _PART.findall(version))


def newest_first(versions: set[str]) -> tuple[str, ...]:
    """Versions in the order in which they are tried."""
    return tuple(sorted(versions, key=sort_key, reverse=True))


@dataclass(frozen=True)
class Range:
    """A set of versions, written as Spack writes it."""

    text: str

    def allows(self, version: str) -> bool:
        """Return whether `version` is in the range."""
        return any(_within(part, version) for part in self.text.split(","))

    def describe(self) -> str:
        """The range for people: `>= 12.5`, `<= 11.8`, `12.5 to 12.x`, `2.18`."""
        return " or ".join(_words(part) for part in self.text.split(","))


@lru_cache(maxsize=65536)
def _within(part: str, version: str) -> bool:
    low, colon, high = part.partition(":")
    value, bottom, top = sort_key(version), sort_key(low), sort_key(high)
    if not colon:
        return value[: len(bottom)] == bottom
    return value >= bottom and (not high or value[: len(top)] <= top)


def _words(part: str) -> str:
    low, colon, high = part.partition(":")
    top = f"{high}.x" if high.isdigit() else high
    if not low:
        return f"<= {top}"
    return f"{low} to {top}" if high else f">= {low}" if colon else low


@dataclass(frozen=True)
class Condition:
    """A variable is in a range."""

    variable: str
    range: Range

    def holds(self, values: Mapping[str, str]) -> bool:
        """Return whether it holds for chosen values; False where the variable has none."""
        return self.variable in values and self.range.allows(values[self.variable])


@dataclass(frozen=True)
class Rule:
    """When all of `when` hold, `need` holds; `why`, `source` and `proof` say who says so.

    `origin` is `fact`, `offer`, `site`, `pin`, `asked`, `question` or `choice`. `weight` orders
    explanations: heavier rules stay where either of two would explain.
    """

    when: tuple[Condition, ...]
    need: Condition
    why: str
    source: str
    proof: str
    origin: str = "fact"
    weight: int = 0


@dataclass(frozen=True)
class VersionProblem:
    """Variables in order of importance, their values best first, and the rules.

    A rule that names a variable the problem lacks does not apply.
    """

    domains: Mapping[str, tuple[str, ...]]
    rules: tuple[Rule, ...]


@dataclass(frozen=True)
class _Clause:
    """At least one literal (variable, allowed mask) must hold."""

    rule: int
    literals: tuple[tuple[int, int], ...]


class Solver:
    """A problem made ready for many questions."""

    def __init__(self, problem: VersionProblem) -> None:
        self.problem = problem
        self.names = tuple(problem.domains)
        self._index = {name: index for index, name in enumerate(self.names)}
        self._full = [(1 << len(problem.domains[name])) - 1 for name in self.names]
        self._clauses = self._compile(problem.rules)

    def solve(self, extra: Sequence[Rule] = ()) -> dict[str, str] | None:
        """The best values for all variables, or None where no values satisfy all rules."""
        clauses = [*self._clauses, *self._compile(extra, len(self.problem.rules))]
        masks = _search(clauses, list(self._full))
        if masks is None:
            return None
        return {
            name: self.problem.domains[name][mask.bit_length() - 1]
            for name, mask in zip(self.names, (mask & -mask for mask in masks), strict=True)
        }

    def explain(self, extra: Sequence[Rule] = ()) -> tuple[Rule, ...] | None:
        """A minimal set of rules that contradict each other, or None where a solution exists.

        The rules come in the order in which the reasoning goes: the heaviest first, then as they
        were written.
        """
        rules = [*self.problem.rules, *extra]
        clauses = [*self._clauses, *self._compile(extra, len(self.problem.rules))]
        core = _trace(clauses, list(self._full))
        if core is None:
            if _search(clauses, list(self._full)) is not None:
                return None
            core = {clause.rule for clause in clauses}
        # Drop every rule whose absence leaves the contradiction; light ones first.
        for number in sorted(core, key=lambda one: (rules[one].weight, -one)):
            kept = [one for one in clauses if one.rule in core and one.rule != number]
            if _search(kept, list(self._full)) is None:
                core.remove(number)
        return tuple(rules[one] for one in sorted(core, key=lambda one: (-rules[one].weight, one)))

    def _compile(self, rules: Sequence[Rule], first: int = 0) -> list[_Clause]:
        """Clauses of the rules whose variables the problem has, numbered from `first`."""
        return [
            _Clause(
                number,
                (
                    *(self._literal(one, negated=True) for one in rule.when),
                    self._literal(rule.need),
                ),
            )
            for number, rule in enumerate(rules, first)
            if all(one.variable in self._index for one in (*rule.when, rule.need))
        ]

    def _literal(self, condition: Condition, *, negated: bool = False) -> tuple[int, int]:
        index = self._index[condition.variable]
        mask = _mask(self.problem.domains[condition.variable], condition.range)
        return index, (self._full[index] & ~mask) if negated else mask


@lru_cache(maxsize=8192)
def _mask(domain: tuple[str, ...], allowed: Range) -> int:
    """The values of a domain that a range allows, as bits."""
    return sum(1 << bit for bit, value in enumerate(domain) if allowed.allows(value))


def _search(clauses: list[_Clause], masks: Masks) -> Masks | None:
    """Depth first, best value first; the masks of a solution have the chosen bit lowest."""
    if _propagate(clauses, masks) is not None:
        return None
    for index, mask in enumerate(masks):
        if mask & (mask - 1) == 0:
            continue
        while mask:
            best = mask & -mask
            found = _search(clauses, [*masks[:index], best, *masks[index + 1 :]])
            if found is not None:
                return found
            mask &= ~best
        return None
    return masks


def _propagate(
    clauses: Iterable[_Clause], masks: Masks, causes: dict[int, list[_Clause]] | None = None
) -> _Clause | None:
    """Narrow the masks until nothing changes; the clause that cannot hold, if one cannot.

    `causes` gets the clauses that narrowed each variable.
    """
    waiting, changed = list(clauses), True
    while changed:
        changed, still_open = False, []
        for clause in waiting:
            state = _step(clause, masks)
            if state == _FALSE:
                return clause
            if state == _OPEN:
                still_open.append(clause)
            if state >= 0:
                changed = True
                if causes is not None:
                    causes.setdefault(state, []).append(clause)
        waiting = still_open
    return None


def _step(clause: _Clause, masks: Masks) -> int:
    """The variable that a unit clause narrowed, or `_TRUE`, `_OPEN` or `_FALSE`."""
    only: tuple[int, int] | None = None
    for index, allowed in clause.literals:
        mask = masks[index]
        if not mask & ~allowed:
            return _TRUE
        if mask & allowed:
            if only is not None:
                return _OPEN
            only = (index, allowed)
    if only is None:
        return _FALSE
    masks[only[0]] &= only[1]
    return only[0]


def _trace(clauses: Sequence[_Clause], masks: Masks) -> set[int] | None:
    """The rules behind a contradiction that propagation alone finds, or None."""
    causes: dict[int, list[_Clause]] = {}
    failed = _propagate(clauses, masks, causes)
    if failed is None:
        return None
    rules: set[int] = set()
    waiting = [failed]
    while waiting:
        clause = waiting.pop()
        if clause.rule not in rules:
            rules.add(clause.rule)
            waiting += [cause for index, _ in clause.literals for cause in causes.get(index, ())]
    return rules
