"""`hpcdl stack resolve`: the newest working set of versions per partition, and why not newer.

A partition, a backend and the site's pins become a setting; resolve_problem makes a `Problem` of
the facts (resolve_facts) of it, resolve_solver answers that, and resolve_solution says what limits
each version. Everything is pure: from a `Site` to the frozen values of resolve_answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpcdl import facts
from hpcdl.site import Gpu, Partition, Site, StackRequest
from hpcdl.stack.resolve_answer import Answer, Resolution
from hpcdl.stack.resolve_facts import BACKENDS, COMPONENTS, Tried, known
from hpcdl.stack.resolve_groups import setting
from hpcdl.stack.resolve_problem import Setting, fix, make_problem
from hpcdl.stack.resolve_show import chain_lines
from hpcdl.stack.resolve_solution import Solution, driver_notes, solve
from hpcdl.stack.resolve_solver import Condition, Rule, Solver
from hpcdl.stack.resolve_versions import Range, sort_key
from hpcdl.stack.spack_backend.from_wheels import choose
from hpcdl.system.errors import BadInput
from hpcdl.system.text import did_you_mean

_USUAL = "x86_64"
# A version, or a range as Spack writes it: `2.18`, `2.15:2.18`, `:2.14,2.18`.
_VERSION = re.compile(r"[0-9:](?:[0-9A-Za-z:]|[.,_-](?=[0-9A-Za-z:]))*", re.ASCII)


def resolve(
    site: Site, partition: str | None = None, backend: str | None = None
) -> tuple[Resolution, ...]:
    """The newest working set for every partition and backend, what the site asks for first.

    Raises:
        BadInput: an unknown partition, an unknown component or version in a pin, or pins that
            contradict each other or the facts.
    """
    parts = [site.partition(partition)] if partition else list(site.partitions.values())
    return tuple(
        _resolve(site, nodes, stack, way, wanted)
        for part in parts
        for stack, way, wanted in _ways(site, part)
        if backend in {None, way}
        for nodes in _by_model(part)
    )


def newest(compute: str | None, backend: str) -> dict[str, str]:
    """The newest set for a GPU of a compute capability (None: a CPU), without any site."""
    solution = solve(_plain(compute, backend))
    return {choice.component: choice.version for choice in solution.choices}


def allowed(compute: str | None, backend: str, component: str) -> tuple[str, ...]:
    """Versions of one component that fit the newest set of all the others, newest first."""
    problem = make_problem(_plain(compute, backend))
    solver = Solver(problem)
    values = solver.solve() or {}
    others = [fix(name, v, "choice", 0) for name, v in values.items() if name != component]
    return tuple(
        version
        for version in problem.domains[component]
        if solver.solve([*others, fix(component, version, "question", 0)])
    )


def resolve_build(site: Site, stack: StackRequest, partitions: tuple[str, ...]) -> Resolution:
    """The versions of one build from wheels: for partitions that `resolve_groups.groups` gave.

    Raises:
        BadInput: an unknown component or version in a pin, or pins that contradict each other
            or the facts.
    """
    part = _by_model(site.partition(partitions[0]))[0]
    return _resolve(site, part, stack, "venv", wanted=True)


def _plain(compute: str | None, backend: str) -> Setting:
    return Setting(backend, compute, None, (), None, (), None)


def why_not(
    site: Site, question: str, partition: str | None = None, backend: str | None = None
) -> tuple[Answer, ...]:
    """Why a version, such as `tensorflow@2.18`, is not the answer: one chain per partition.

    Raises:
        BadInput: no `NAME@VERSION`, or a component or version that nobody knows.
    """
    name, version = _parse(question)
    _check_known(name, version, "the question names", (*COMPONENTS, "driver"))
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
    chosen = site.stack_for(part.name)
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
    if stack is not None:
        _check_pins_known(stack)
    decided = setting(site, part, stack, backend)
    solution = solve(decided)
    if stack is not None:
        model = part.gpu.model if part.gpu else None
        _refuse_pins(f"partition '{part.name}'", model, stack, solution)
    wheels, more = (
        (_no_wheels(part.gpu, backend), _gpu_notes(part.gpu, backend)) if part.gpu else ((), ())
    )
    cuda = next((one.version for one in solution.choices if one.component == "cuda"), "")
    old = driver_notes(part.driver, cuda)
    return Resolution(
        partition=part.name,
        stack=stack.name if stack else None,
        backend=backend,
        wanted=wanted,
        gpu=part.gpu.model if part.gpu else None,
        compute=decided.compute,
        driver=part.driver if decided.compute else None,
        pins=dict(stack.pins) if stack else {},
        choices=solution.choices,
        problems=(*solution.problems, *wheels),
        notes=(*solution.notes, *old, *more, *_own_notes(site, part, stack, backend)),
        tried=None if wheels else _tried(decided, solution),
    )


def _tried(decided: Setting, solution: Solution) -> Tried | None:
    """The row of facts on this build from wheels as a whole, with every GPU that it serves."""
    versions = {choice.component: choice.version for choice in solution.choices}
    also = (compute for compute, _ in decided.also)
    computes = [one for one in (decided.compute, *also) if one is not None]
    rows = known().tried if decided.backend == "venv" else ()
    return next((row for row in rows if row.holds(versions, computes)), None)


def _own_notes(
    site: Site, part: Partition, stack: StackRequest | None, backend: str
) -> Iterator[str]:
    """What the site asked for that limits a stack, and what Spack builds in its place."""
    if stack is not None and backend == "spack" and part.gpu is not None:
        choice = choose(site, stack, [part.name])
        if choice.archs:
            yield f"`hpcdl stack build` with Spack takes {choice.why}; a pin asks for these"
    if stack is not None and stack.variant == "cpu" and part.gpu is not None:
        yield f"a build for CPUs, as stack '{stack.name}' asks: the {part.gpu.model} stays idle"
    if stack is not None and not stack.horovod:
        yield f"without Horovod, as stack '{stack.name}' asks: for tf.distribute"


def _check_pins_known(stack: StackRequest) -> None:
    for name, version in stack.pins.items():
        _check_known(name, version, f"stack '{stack.name}' pins")


def _refuse_pins(where: str, gpu: str | None, stack: StackRequest, solution: Solution) -> None:
    """Pins that take part in a contradiction are the user's to mend.

    Raises:
        BadInput: the pins, and the chain of rules that they break.
    """
    for chain in solution.problems:
        pinned = [rule for rule in chain if rule.origin == "pin"]
        if pinned:
            names = ", ".join(f"{rule.need.variable} {rule.need.range.text}" for rule in pinned)
            raise BadInput(
                f"the pins of stack '{stack.name}' do not fit {where}: {names}",
                details=chain_lines(chain, gpu),
                hint="leave out a pin, or ask `hpcdl stack resolve --why-not NAME@VERSION`",
            )


def _answer(site: Site, resolution: Resolution, name: str, version: str) -> Answer:
    nodes = _by_model(site.partition(resolution.partition))
    part = next(one for one in nodes if (one.gpu and one.gpu.model) == resolution.gpu)
    stack = site.stacks.get(resolution.stack or "")
    problem = make_problem(setting(site, part, stack, resolution.backend))
    if name not in problem.domains:
        raise BadInput(
            f"{known().components[name].title} is no part of a stack for partition "
            f"'{part.name}' with backend '{resolution.backend}'"
        )
    solver = Solver(problem)
    question = fix(name, version, "question", -10)
    never = _no_wheels(part.gpu, resolution.backend) if part.gpu else ()
    values = None if never else solver.solve([question])
    chain = never[0] if never else () if values else solver.explain([question]) or ()
    newest = resolution.versions.get(name, "")
    return Answer(
        question=f"{known().components[name].title} {version}",
        partition=part.name,
        backend=resolution.backend,
        gpu=resolution.gpu,
        chain=tuple(rule for rule in chain if rule.origin != "question"),
        versions={key: value for key, value in (values or {}).items() if key in COMPONENTS},
        newest=newest if newest != (values or {}).get(name) else "",
    )


def _parse(question: str) -> tuple[str, str]:
    name, _, version = (part.strip() for part in question.partition("@"))
    if not name or not _VERSION.fullmatch(version):
        raise BadInput(
            f"'{question}' is no component and version",
            hint="write NAME@VERSION, for example tensorflow@2.18",
        )
    return name.casefold(), version


def _check_known(name: str, version: str, where: str, names: tuple[str, ...] = COMPONENTS) -> None:
    book = known()
    if name not in names:
        raise BadInput(
            f"{where} '{name}', which is no component of a stack", hint=did_you_mean(name, names)
        )
    versions = book.components[name].known()
    if not any(Range(version).allows(known_version) for known_version in versions):
        raise BadInput(
            f"{where} {book.components[name].title} {version}, which nobody here knows",
            hint=did_you_mean(version, versions[:12]),
        )


def _by_model(partition: Partition) -> tuple[Partition, ...]:
    """A group of nodes for each GPU model of a partition, the oldest GPU first: it limits most."""
    models = {group.gpu and group.gpu.model: group for group in reversed(partition.gpu_groups)}
    return tuple(
        sorted(models.values(), key=lambda one: sort_key(one.gpu.compute if one.gpu else ""))
    )


def _no_wheels(gpu: Gpu, backend: str) -> tuple[tuple[Rule, ...], ...]:
    """The chain of rules against wheels for a GPU whose CPUs have none; empty as a rule."""
    if gpu.figures.machine == _USUAL or backend != "venv":
        return ()
    row = facts.load("gpus")["machines"][gpu.figures.machine]
    wheel = next(one for one in row["wheels"] if one["package"] == "tensorflow")
    why = f"{gpu.model} stands beside {gpu.figures.machine} CPUs: {row['venv']}"
    need = Condition("tensorflow", Range(wheel["newest"]))
    return ((Rule((), need, why, wheel["source"], wheel["proof"], origin="offer"),),)


def _gpu_notes(gpu: Gpu, backend: str) -> tuple[str, ...]:
    """What to know of a stack for a GPU beside other CPUs than usual."""
    if gpu.figures.machine == _USUAL or backend == "venv":
        return ()
    return (f"{facts.load('gpus')['machines'][gpu.figures.machine][backend]} [doubtful]",)
