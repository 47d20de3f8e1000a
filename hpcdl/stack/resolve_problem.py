"""From a setting (a backend, a GPU, what the machine has, pins) to a `Problem` of facts. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
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
    driver: str | None = None
    compilers: tuple[str, ...] = ()
    pmix: str | None = None
    pins: tuple[tuple[str, str], ...] = ()
    stack: str | None = None
    also: tuple[tuple[str, str | None], ...] = ()
    pythons: tuple[str, ...] = ()
    horovod: bool = True


def make_problem(setting: Setting, dropped: Collection[str] = ()) -> Problem:
    """The facts for one setting: domains in order of importance, rules, the site's own rules.

    `dropped` are components of which the site's own rules do not count.
    """
    book = known()
    parts = {name: book.components[name] for name in (*COMPONENTS, "driver")}
    left_out = {*(() if setting.compute else OF_GPUS), *(() if setting.horovod else ("horovod",))}
    ways = {setting.backend, "host"}
    domains = {name: part.known() for name, part in parts.items()
               if ways.intersection(part.versions) and name not in left_out}  # fmt: skip
    if setting.compute is not None:
        domains["gpu"] = (setting.compute,)
    domains["backend"] = (setting.backend,)
    for name, versions in _site_versions(setting, domains).items():
        if name in domains:
            domains[name] = newest_first({*domains[name], *versions})
    others: list[Rule] = []
    for compute, driver in setting.also:
        names = {"gpu": f"{OTHER_GPU}{compute}", "driver": _other_driver(compute, driver)}
        domains[names["gpu"]] = (compute,)
        drivers = {*parts["driver"].known(), *([driver] if driver is not None else [])}
        domains[names["driver"]] = newest_first(drivers)
        others += [_of_other(rule, names) for rule in book.of_gpus]
    own = (rule for rule in _site_rules(setting)
           if rule.origin == "pin" or rule.need.variable not in dropped)  # fmt: skip
    return Problem(domains, (*book.rules, *others, *own))


def _other_driver(compute: str, driver: str | None) -> str:
    return f"{OTHER_DRIVER}{compute}@{driver or ''}"


def _of_other(rule: Rule, names: Mapping[str, str]) -> Rule:
    """A rule about GPUs or drivers, said of other nodes that the build serves."""

    def renamed(condition: Condition) -> Condition:
        return replace(condition, variable=names.get(condition.variable, condition.variable))

    return replace(rule, when=tuple(map(renamed, rule.when)), need=renamed(rule.need))


def _site_versions(
    setting: Setting, domains: Mapping[str, Collection[str]]
) -> dict[str, tuple[str, ...]]:
    """Versions the machine has that the facts need not list."""
    found = {"gcc": setting.compilers, "driver": (setting.driver,) if setting.driver else ()}
    if setting.pmix and not any(map(Range(setting.pmix).allows, domains.get("pmix", ()))):
        found["pmix"] = (setting.pmix,)
    return found


def _site_rules(setting: Setting) -> Iterator[Rule]:
    """What the machine has (its driver, compilers, PMIx of its Slurm), and what the site pins."""
    found = [
        ("driver", setting.driver, "the partition's driver"),
        ("gcc", ",".join(setting.compilers), "the compilers the site offers"),
        ("pmix", setting.pmix, "the PMIx that Slurm was built with"),
        ("python", ",".join(setting.pythons), "the Pythons of this machine"),
        *((_other_driver(compute, driver), driver, "of other nodes that the same build serves")
          for compute, driver in setting.also),
    ]  # fmt: skip
    for name, text, why in found:
        if text:
            yield Rule((), Condition(name, Range(text)), why, "site.yaml", "published", "site",
                       _SITE_WEIGHT[name.partition("@")[0]])  # fmt: skip
    for name, text in setting.pins:
        yield Rule((), Condition(name, Range(text)), f"pinned by stack '{setting.stack}'",
                   "site.yaml", "published", "pin", 2)  # fmt: skip


def fix(name: str, version: str, origin: str, weight: int) -> Rule:
    """The rule that a component has a version, as a question or as a choice of ours."""
    return Rule((), Condition(name, Range(version)), "", "", "published", origin, weight)
