"""`hpcdl stack resolve`: the newest working set of versions per partition, and why not newer.

A partition, a backend and the site's pins become a `Problem` of facts (resolve_facts), which
resolve_solver answers; each component's limit is the explanation why its next newer version
does not fit. Everything is pure: from a `Site` to frozen `Resolution`s. Words are in
resolve_show.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from hpcdl import facts
from hpcdl.site import Partition, Site, StackRequest
from hpcdl.stack.resolve_facts import BACKENDS, COMPONENTS, OF_GPUS, known
from hpcdl.stack.resolve_solver import Condition, Problem, Rule, Solver
from hpcdl.stack.resolve_versions import Range, newest_first
from hpcdl.system.errors import BadInput
from hpcdl.system.text import did_you_mean

_SITE_WEIGHT = {"driver": 15, "gcc": 4, "pmix": 4}


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
class Resolution:
    """The newest working set for one partition and one backend.

    `choices` is empty where nothing fits. `problems` are contradictions with what the site has
    (a driver that is too old or too new): each a chain of rules; `choices` then holds what
    would fit without that. `wanted` says whether the site's stacks ask for this backend here.
    """

    partition: str
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

    @property
    def versions(self) -> dict[str, str]:
        """Chosen versions by component; empty where nothing fits."""
        return {choice.component: choice.version for choice in self.choices}

    @property
    def fits(self) -> bool:
        """Whether a set fits what the site has, its driver included."""
        return bool(self.choices) and not self.problems

    @property
    def proof(self) -> str:
        """The weakest proof level of the set."""
        levels = [choice.proof for choice in self.choices] or ["doubtful"]
        return max(levels, key=facts.PROOFS.index)


@dataclass(frozen=True)
class Answer:
    """The answer to `--why-not`: the chain of limits, or the set that results."""

    question: str
    partition: str
    backend: str
    gpu: str | None
    chain: tuple[Rule, ...]
    versions: Mapping[str, str]
    newest: str

    @property
    def fits(self) -> bool:
        """Whether the version works here after all."""
        return bool(self.versions)


@dataclass(frozen=True)
class _Setting:
    """What decides a resolution: equal settings have equal answers."""

    backend: str
    compute: str | None
    driver: str | None
    compilers: tuple[str, ...]
    pmix: str | None
    pins: tuple[tuple[str, str], ...]
    stack: str | None


@dataclass(frozen=True)
class _Solution:
    choices: tuple[Choice, ...]
    problems: tuple[tuple[Rule, ...], ...]
    notes: tuple[str, ...]


def resolve(
    site: Site, partition: str | None = None, backend: str | None = None
) -> tuple[Resolution, ...]:
    """The newest working set for every partition and backend, what the site asks for first.

    Args:
        site: the site.
        partition: this one only.
        backend: `venv` or `spack` only.

    Raises:
        BadInput: an unknown partition, an unknown component or version in a pin, or pins that
            contradict each other or the facts.
    """
    parts = [site.partition(partition)] if partition else list(site.partitions.values())
    return tuple(
        _resolve(site, part, stack, way, wanted)
        for part in parts
        for stack, way, wanted in _ways(site, part)
        if backend in {None, way}
    )


def resolve_one(site: Site, partition: str, backend: str | None = None) -> Resolution:
    """The resolution of the stack that `partition` gets, or of one backend there."""
    return resolve(site, partition, backend)[0]


def newest(compute: str | None, backend: str) -> dict[str, str]:
    """The newest set for a GPU of a compute capability (None: a CPU), without any site."""
    solution = _solve(_plain(compute, backend))
    return {choice.component: choice.version for choice in solution.choices}


def allowed(compute: str | None, backend: str, component: str) -> tuple[str, ...]:
    """Versions of one component that fit the newest set of all the others, newest first."""
    problem = _problem(_plain(compute, backend))
    solver = Solver(problem)
    values = solver.solve() or {}
    others = [_fix(name, v, "choice", 0) for name, v in values.items() if name != component]
    return tuple(
        version
        for version in problem.domains[component]
        if solver.solve([*others, _fix(component, version, "question", 0)])
    )


def _plain(compute: str | None, backend: str) -> _Setting:
    return _Setting(backend, compute, None, (), None, (), None)


def why_not(
    site: Site, question: str, partition: str | None = None, backend: str | None = None
) -> tuple[Answer, ...]:
    """Why a version, such as `tensorflow@2.18`, is not the answer: one chain per partition.

    Raises:
        BadInput: no `NAME@VERSION`, or a component or version that nobody knows.
    """
    name, version = _parse(question)
    _check_known(name, version, "the question names")
    return tuple(
        _answer(site, resolution, name, version)
        for resolution in resolve(site, partition, backend)
        if resolution.wanted or backend
    )


def _ways(site: Site, part: Partition) -> list[tuple[StackRequest | None, str, bool]]:
    """The backends of a partition, the one its stack asks for first."""
    serving = [
        stack
        for stack in site.stacks.values()
        if not stack.partitions or part.name in stack.partitions
    ]
    chosen = site.stacks.get(part.stack or "") or next(iter(serving), None)
    rest = [way for way in BACKENDS if chosen is None or way != chosen.backend]
    ways: list[tuple[StackRequest | None, str, bool]] = []
    if chosen is not None:
        ways.append((chosen, chosen.backend, True))
    for way in rest:
        other = next((stack for stack in serving if stack.backend == way), None)
        ways.append((other, way, other is not None or chosen is None))
    return ways


def _resolve(
    site: Site, part: Partition, stack: StackRequest | None, backend: str, wanted: bool
) -> Resolution:
    pins = dict(stack.pins) if stack else {}
    for name, version in pins.items():
        assert stack is not None
        _check_known(name, version, f"stack '{stack.name}' pins")
    solution = _solve(_setting(site, part, stack, backend))
    if stack is not None:
        _refuse_pins(part, stack, solution)
    return Resolution(
        partition=part.name,
        stack=stack.name if stack else None,
        backend=backend,
        wanted=wanted,
        gpu=part.gpu.model if part.gpu else None,
        compute=part.gpu.compute if part.gpu else None,
        driver=part.driver if part.gpu else None,
        pins=pins,
        choices=solution.choices,
        problems=solution.problems,
        notes=solution.notes,
    )


def _setting(site: Site, part: Partition, stack: StackRequest | None, backend: str) -> _Setting:
    return _Setting(
        backend=backend,
        compute=part.gpu.compute if part.gpu else None,
        driver=part.driver if part.gpu else None,
        compilers=site.spack.compilers if backend == "spack" else (),
        pmix=site.slurm.pmix if backend == "spack" else None,
        pins=tuple(sorted(stack.pins.items())) if stack else (),
        stack=stack.name if stack else None,
    )


@lru_cache(maxsize=256)
def _solve(setting: _Setting) -> _Solution:
    """Solve; where the site's driver, compilers or PMIx contradict everything, say so and go on."""
    problems: list[tuple[Rule, ...]] = []
    dropped: set[str] = set()
    while True:
        solver = Solver(_problem(setting, dropped))
        values = solver.solve()
        if values is not None:
            return _Solution(
                _choices(setting, solver, values), tuple(problems), _notes(setting, values)
            )
        chain = solver.explain() or ()
        problems.append(chain)
        blamed = next((r.need.variable for r in chain if r.origin == "site"), None)
        if blamed is None or any(rule.origin == "pin" for rule in chain):
            return _Solution((), tuple(problems), ())
        dropped.add(blamed)


def _problem(setting: _Setting, dropped: set[str] | None = None) -> Problem:
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
    domains["backend"] = (setting.backend,)
    for name, versions in _site_versions(setting, domains).items():
        if name in domains:
            domains[name] = newest_first({*domains[name], *versions})
    return Problem(domains, (*book.rules, *site_rules, *_pin_rules(setting)))


def _site_versions(
    setting: _Setting, domains: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Versions the machine has that the facts need not list."""
    found = {"gcc": setting.compilers}
    if setting.driver:
        found["driver"] = (setting.driver,)
    if setting.pmix:
        listed = any(Range(setting.pmix).allows(v) for v in domains.get("pmix", ()))
        found["pmix"] = () if listed else (setting.pmix,)
    return found


def _site_rules(setting: _Setting) -> list[Rule]:
    """What the machine has: its driver, its compilers, the PMIx of its Slurm."""
    found = []
    if setting.driver:
        found.append(("driver", setting.driver, "the partition's driver"))
    if setting.compilers:
        found.append(("gcc", ",".join(setting.compilers), "the compilers the site offers"))
    if setting.pmix:
        found.append(("pmix", setting.pmix, "the PMIx that Slurm was built with"))
    return [
        Rule((), Condition(name, Range(text)), why, "site.yaml", "published", "site",
             _SITE_WEIGHT[name])
        for name, text, why in found
    ]  # fmt: skip


def _pin_rules(setting: _Setting) -> list[Rule]:
    return [
        Rule((), Condition(name, Range(version)), f"pinned by stack '{setting.stack}'",
             "site.yaml", "published", "pin", 2)
        for name, version in setting.pins
    ]  # fmt: skip


def _refuse_pins(part: Partition, stack: StackRequest, solution: _Solution) -> None:
    """Pins that take part in a contradiction are the user's to mend.

    Raises:
        BadInput: the pins, and the chain of rules that they break.
    """
    for chain in solution.problems:
        pinned = [rule for rule in chain if rule.origin == "pin"]
        if pinned:
            from hpcdl.stack.resolve_show import chain_lines

            names = ", ".join(f"{rule.need.variable} {rule.need.range.text}" for rule in pinned)
            raise BadInput(
                f"the pins of stack '{stack.name}' do not fit partition '{part.name}': {names}",
                details=chain_lines(chain, part.gpu.model if part.gpu else None),
                hint="leave out a pin, or ask `hpcdl stack resolve --why-not NAME@VERSION`",
            )


def _choices(setting: _Setting, solver: Solver, values: Mapping[str, str]) -> tuple[Choice, ...]:
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
    question = _fix(name, newer, "question", -10)
    choices = [_fix(other, values[other], "choice", -5) for other in names[: names.index(name)]]
    alone = solver.explain([question])
    beside = solver.explain([question, *choices]) if choices else None
    chains = [chain for chain in (alone, beside) if chain is not None]
    best = min(chains, key=_cost)
    return Limit(newer, tuple(rule for rule in best if rule.origin != "question"))


def _cost(chain: tuple[Rule, ...]) -> int:
    """Shorter explanations are better; a choice of ours explains less than a fact."""
    return sum(2 if rule.origin == "choice" else 3 for rule in chain)


def _fix(name: str, version: str, origin: str, weight: int) -> Rule:
    return Rule((), Condition(name, Range(version)), "", "", "published", origin, weight)


def _proof(name: str, setting: _Setting, values: Mapping[str, str]) -> tuple[str, str]:
    book = known()
    cpu = setting.compute is None
    for row in book.proofs:
        fits = all(condition.holds(values) for condition in row.when)
        if row.component == name and fits and (cpu or not row.cpu_only):
            return row.proof, row.source
    component = book.components[name]
    keys = (f"{setting.backend}-cpu" if cpu else "", setting.backend, "host")
    return next(component.proof[key] for key in keys if key in component.proof), component.source


def _notes(setting: _Setting, values: Mapping[str, str]) -> tuple[str, ...]:
    texts = [
        f"{note.text} [{note.proof}]"
        for note in known().notes
        if all(condition.holds(values) for condition in note.when)
    ]
    own = _own_driver(values.get("cuda", ""))
    if setting.driver and own and not Range(f"{own}:").allows(setting.driver):
        texts.append(
            f"driver {setting.driver} is older than CUDA {values['cuda']}'s own ({own}): machine "
            f"code for this GPU runs, PTX of CUDA {values['cuda']} is not translated"
        )
    return tuple(texts)


def _own_driver(cuda: str) -> str | None:
    return known().own_driver.get(".".join(cuda.split(".")[:2]))


def _answer(site: Site, resolution: Resolution, name: str, version: str) -> Answer:
    part = site.partition(resolution.partition)
    stack = site.stacks.get(resolution.stack or "")
    setting = _setting(site, part, stack, resolution.backend)
    problem = _problem(setting)
    if name not in problem.domains:
        raise BadInput(
            f"{known().components[name].title} is no part of a stack for partition "
            f"'{part.name}' with backend '{resolution.backend}'"
        )
    solver = Solver(problem)
    question = _fix(name, version, "question", -10)
    values = solver.solve([question])
    chain = () if values else solver.explain([question]) or ()
    return Answer(
        question=f"{known().components[name].title} {version}",
        partition=part.name,
        backend=resolution.backend,
        gpu=resolution.gpu,
        chain=tuple(rule for rule in chain if rule.origin != "question"),
        versions={key: value for key, value in (values or {}).items() if key in COMPONENTS},
        newest=resolution.versions.get(name, ""),
    )


def _parse(question: str) -> tuple[str, str]:
    name, _, version = question.partition("@")
    if not name or not version:
        raise BadInput(
            f"'{question}' is no component and version",
            hint="write NAME@VERSION, for example tensorflow@2.18",
        )
    return name, version


def _check_known(name: str, version: str, where: str) -> None:
    book = known()
    if name not in COMPONENTS:
        raise BadInput(
            f"{where} '{name}', which is no component of a stack",
            hint=did_you_mean(name, COMPONENTS),
        )
    versions = book.components[name].known()
    if not any(Range(version).allows(known_version) for known_version in versions):
        raise BadInput(
            f"{where} {book.components[name].title} {version}, which nobody here knows",
            hint=did_you_mean(version, versions[:12]),
        )
