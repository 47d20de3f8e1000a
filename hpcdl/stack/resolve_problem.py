"""From a setting (a backend, a GPU, what the machine has, pins) to a `Problem` of facts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hpcdl.stack.resolve_facts import COMPONENTS, OF_GPUS, known
from hpcdl.stack.resolve_solver import Condition, Problem, Rule
from hpcdl.stack.resolve_versions import Range, newest_first

_SITE_WEIGHT = {"driver": 15, "gcc": 4, "pmix": 4, "python": 4}
OTHER_GPU = "gpu@"
"""What the variables begin with that stand for further GPUs of a build; `gpu@7.0`."""
OTHER_DRIVER = "driver@"
"""The same for the drivers of their nodes; `driver@7.0@535.104.05`."""


@dataclass(frozen=True)
class Setting:
    """What decides a resolution: equal settings have equal answers.

    `also` are compute capabilities that the same build serves, and the drivers of their nodes;
    `pythons` the Pythons that the machine has, none meaning any; without `horovod` it plays no
    part.
    """

    backend: str
    compute: str | None
    driver: str | None
    compilers: tuple[str, ...]
    pmix: str | None
    pins: tuple[tuple[str, str], ...]
    stack: str | None
    also: tuple[tuple[str, str | None], ...] = ()
    pythons: tuple[str, ...] = ()
    horovod: bool = True


def make_problem(setting: Setting, dropped: set[str] | None = None) -> Problem:
    """The facts for one setting: domains in order of importance, rules, the site's own rules."""
    book = known()
    site_rules = [
        rule for rule in _site_rules(setting) if rule.need.variable not in (dropped or ())
    ]
    domains = {
        name: book.components[name].known()
        for name in (*COMPONENTS, "driver")
        if setting.backend in book.components[name].versions
        or "host" in book.components[name].versions
    }
    if setting.compute is None:
        domains = {name: values for name, values in domains.items() if name not in OF_GPUS}
    else:
        domains["gpu"] = (setting.compute,)
    if not setting.horovod:
        del domains["horovod"]
    domains["backend"] = (setting.backend,)
    for name, versions in _site_versions(setting, domains).items():
        if name in domains:
            domains[name] = newest_first({*domains[name], *versions})
    others = []
    for compute, driver in setting.also:
        names = {"gpu": f"{OTHER_GPU}{compute}", "driver": _other_driver(compute, driver)}
        own = () if driver is None else (driver,)
        domains[names["gpu"]] = (compute,)
        domains[names["driver"]] = newest_first({*book.components["driver"].known(), *own})
        others += [_of_other(rule, names) for rule in book.of_gpus]
    return Problem(domains, (*book.rules, *others, *site_rules, *_pin_rules(setting)))


def _other_driver(compute: str, driver: str | None) -> str:
    return f"{OTHER_DRIVER}{compute}@{driver or ''}"


def _of_other(rule: Rule, names: Mapping[str, str]) -> Rule:
    """A rule about GPUs or drivers, said of other nodes that the build serves."""

    def renamed(condition: Condition) -> Condition:
        return replace(condition, variable=names.get(condition.variable, condition.variable))

    return replace(rule, when=tuple(map(renamed, rule.when)), need=renamed(rule.need))


def _site_versions(
    setting: Setting, domains: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Versions the machine has that the facts need not list."""
    found = {"gcc": setting.compilers}
    if setting.driver:
        found["driver"] = (setting.driver,)
    if setting.pmix:
        listed = any(Range(setting.pmix).allows(v) for v in domains.get("pmix", ()))
        found["pmix"] = () if listed else (setting.pmix,)
    return found


def _site_rules(setting: Setting) -> list[Rule]:
    """What the machine has: its driver, its compilers, the PMIx of its Slurm."""
    found = []
    if setting.driver:
        found.append(("driver", setting.driver, "the partition's driver"))
    if setting.compilers:
        found.append(("gcc", ",".join(setting.compilers), "the compilers the site offers"))
    if setting.pmix:
        found.append(("pmix", setting.pmix, "the PMIx that Slurm was built with"))
    if setting.pythons:
        found.append(("python", ",".join(setting.pythons), "the Pythons of this machine"))
    found += [
        (_other_driver(compute, driver), driver, "of other nodes that the same build serves")
        for compute, driver in setting.also
        if driver
    ]
    return [
        Rule((), Condition(name, Range(text)), why, "site.yaml", "published", "site",
             _SITE_WEIGHT[name.partition("@")[0]])
        for name, text, why in found
    ]  # fmt: skip


def _pin_rules(setting: Setting) -> list[Rule]:
    return [
        Rule((), Condition(name, Range(version)), f"pinned by stack '{setting.stack}'",
             "site.yaml", "published", "pin", 2)
        for name, version in setting.pins
    ]  # fmt: skip


def fix(name: str, version: str, origin: str, weight: int) -> Rule:
    """The rule that a component has a version, as a question or as a choice of ours."""
    return Rule((), Condition(name, Range(version)), "", "", "published", origin, weight)
