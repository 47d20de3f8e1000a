"""The search behind `stack resolve`: best first, deterministic, and able to explain itself."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdl.stack.resolve_facts import COMPONENTS, conditions, known
from hpcdl.stack.resolve_solver import Condition, Range, Rule, Solver, VersionProblem, newest_first

VALUES = ("4", "3", "2", "1")
NAMES = ("a", "b", "c", "d")
PINNED = st.sampled_from(["tensorflow", "cuda", "cudnn", "python", "gcc"])


def rule(when, name, wanted):
    return Rule(conditions(when), Condition(name, Range(wanted)), "why", "source", "published")


def satisfies(values, rules):
    return all(
        one.need.holds(values)
        for one in rules
        if one.need.variable in values and all(condition.holds(values) for condition in one.when)
    )


def brute_force(problem):
    for values in product(*problem.domains.values()):
        candidate = dict(zip(problem.domains, values, strict=True))
        if satisfies(candidate, problem.rules):
            return candidate
    return None


ranges = st.sampled_from(["1", "2", "3", "4", ":2", "2:", "3:", "2:3", "1,4", "1,3"])
names = st.sampled_from(NAMES)
rules = st.builds(rule, st.dictionaries(names, ranges, max_size=2), names, ranges)
problems = st.lists(rules, max_size=12).map(
    lambda found: VersionProblem(dict.fromkeys(NAMES, VALUES), tuple(found))
)


@settings(max_examples=300, deadline=None)
@given(problems)
def test_the_answer_is_the_best_of_all_sets_that_satisfy_every_rule(problem):
    assert Solver(problem).solve() == brute_force(problem)


@settings(max_examples=200, deadline=None)
@given(problems, rules)
def test_one_more_rule_never_makes_the_answer_newer(problem, extra):
    before, after = Solver(problem).solve(), Solver(problem).solve([extra])
    if before is None:
        assert after is None
    elif after is not None:
        assert list(after.values()) <= list(before.values())


@settings(max_examples=300, deadline=None)
@given(problems)
def test_an_explanation_is_given_exactly_when_nothing_fits_and_is_minimal(problem):
    core = Solver(problem).explain()
    if brute_force(problem) is not None:
        assert core is None
        return
    assert brute_force(VersionProblem(problem.domains, core)) is None
    for left_out in range(len(core)):
        rest = (*core[:left_out], *core[left_out + 1 :])
        assert brute_force(VersionProblem(problem.domains, rest)) is not None


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["3.5", "3.7", "6.0", "6.1", "7.0", "7.5", "8.0", "9.0"]),
    st.sampled_from(["wheels", "spack"]),
    st.dictionaries(PINNED, st.integers(0, 20), max_size=2),
)
def test_every_set_satisfies_every_fact(compute, backend, pins):
    book = known()
    domains = {
        name: book.components[name].known()
        for name in (*COMPONENTS, "driver")
        if {backend, "host"} & set(book.components[name].versions)
    }
    fixed = [rule({}, name, domains[name][at % len(domains[name])]) for name, at in pins.items()]
    problem = VersionProblem(
        {**domains, "gpu": (compute,), "backend": (backend,)}, (*book.rules, *fixed)
    )
    values = Solver(problem).solve()
    assert Solver(problem).explain() if values is None else satisfies(values, problem.rules)


def test_a_rule_about_a_variable_the_problem_lacks_does_not_apply():
    problem = VersionProblem(
        {"a": VALUES}, (rule({"gpu": "9"}, "a", "1"), rule({"a": "4"}, "gpu", "9"))
    )
    assert Solver(problem).solve() == {"a": "4"}


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("2.18", ["2.18", "2.18.1"], ["2.1", "2.180", "2.19"]),
        (":11.8", ["11.8.0", "11.7", "9.2"], ["11.9", "12.0.1"]),
        ("12.5:12", ["12.5.0", "12.9.1"], ["12.4.1", "13.0.2"]),
        ("4.2.4:", ["4.2.9", "5.0"], ["4.2.2", "4.2"]),
        (":2.14,2.16", ["2.14.1", "2.16.2"], ["2.15.0", "2.17"]),
        (":470", ["470.256.02"], ["535.104"]),
    ],
)
def test_ranges_read_as_spack_reads_them(text, inside, outside):
    assert all(Range(text).allows(version) for version in inside)
    assert not any(Range(text).allows(version) for version in outside)


def test_versions_sort_by_number():
    assert newest_first({"2.9.1", "2.18", "2.18.1", "11.8"}) == ("11.8", "2.18.1", "2.18", "2.9.1")


def test_ranges_are_words_for_people():
    words = {"12.5:12": "12.5 to 12.x", ":11.8": "<= 11.8", "12:": ">= 12"}
    assert {text: Range(text).describe() for text in words} == words
