"""`hpcdl stack resolve`: the newest working set of versions per partition, and why not newer.

A partition, a backend and the site's pins become a setting; resolve_solution makes a `Problem` of
the facts (resolve_facts) of it, resolve_solver answers that. A build from wheels serves every GPU
generation that one TensorFlow can serve; partitions whose newest TensorFlow differs, or whose CPUs
do, get builds of their own, and so do those without GPUs. Pure, but for the Pythons on PATH.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hpcdl import facts
from hpcdl.site import Gpu, Partition, Site, StackRequest
from hpcdl.stack.resolve_facts import BACKENDS, COMPONENTS, choose_wheels, known
from hpcdl.stack.resolve_show import chain_lines
from hpcdl.stack.resolve_solution import (
    Answer,
    Resolution,
    Setting,
    driver_notes,
    fix,
    make_problem,
    solve,
)
from hpcdl.stack.resolve_solver import Condition, Range, Rule, Solver, sort_key
from hpcdl.system.errors import BadInput
from hpcdl.system.packages import pythons, that_start
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
    choices = solve(Setting(backend, compute)).choices
    return {choice.component: choice.version for choice in choices}


def allowed(compute: str | None, backend: str, component: str) -> tuple[str, ...]:
    """Versions of one component that fit the newest set of all the others, newest first."""
    solver = Solver(make_problem(Setting(backend, compute)))
    values = solver.solve() or {}
    others = [fix(name, v, "choice", 0) for name, v in values.items() if name != component]
    known_ones = solver.problem.domains[component]
    return tuple(v for v in known_ones if solver.solve([*others, fix(component, v, "question", 0)]))


def resolve_build(site: Site, stack: StackRequest, partitions: tuple[str, ...]) -> Resolution:
    """The versions of one build from wheels: for partitions that `groups` gave.

    Raises BadInput as `resolve` does.
    """
    return _resolve(site, _by_model(site.partition(partitions[0]))[0], stack, "venv", wanted=True)


def why_not(
    site: Site, question: str, partition: str | None = None, backend: str | None = None
) -> tuple[Answer, ...]:
    """Why a version, such as `tensorflow@2.18`, is not the answer: one chain per partition.

    Raises:
        BadInput: no `NAME@VERSION`, or a component or version that nobody knows.
    """
    name, _, version = (part.strip() for part in question.partition("@"))
    name = name.casefold()
    if not name or not _VERSION.fullmatch(version):
        raise BadInput(
            f"'{question}' is no component and version",
            hint="write NAME@VERSION, for example tensorflow@2.18",
        )
    _check_known(name, version, "the question names", (*COMPONENTS, "driver"))
    found = (one for one in resolve(site, partition, backend) if one.wanted or backend)
    return tuple(_answer(site, resolution, name, version) for resolution in found)


def _ways(site: Site, part: Partition) -> Iterator[tuple[StackRequest | None, str, bool]]:
    """The backends of a partition, the one its stack asks for first."""
    chosen = site.stack_for(part.name)
    if chosen is not None:
        yield chosen, chosen.backend, True
    for way in BACKENDS:
        if chosen is None or way != chosen.backend:
            serving = (
                one
                for one in site.stacks.values()
                if one.backend == way and (not one.partitions or part.name in one.partitions)
            )
            other = next(serving, None)
            yield other, way, other is not None or chosen is None


def _resolve(
    site: Site, part: Partition, stack: StackRequest | None, backend: str, wanted: bool
) -> Resolution:
    if stack is not None:
        for name, version in stack.pins.items():
            _check_known(name, version, f"stack '{stack.name}' pins")
    decided = setting(site, part, stack, backend)
    solution = solve(decided)
    model = part.gpu.model if part.gpu else None
    if stack is not None:
        _refuse_pins(f"partition '{part.name}'", model, stack, solution.problems)
    versions = {one.component: one.version for one in solution.choices}
    wheels = _no_wheels(part.gpu, backend)
    # The build from wheels that was tried as a whole, with every GPU that it serves.
    served = [one for one in (decided.compute, *(gpu for gpu, _ in decided.also)) if one]
    rows = known().tried if backend == "venv" and not wheels else ()
    tried = next((row for row in rows if row.holds(versions, served)), None)
    proofs = {one.component: one.proof for one in solution.choices}
    notes = (
        *solution.notes,
        *driver_notes(part.driver, versions.get("cuda", ""), proofs.get("tensorflow", "")),
        *_own_notes(site, part, stack, backend),
    )
    return Resolution(
        partition=part.name,
        stack=stack.name if stack else None,
        backend=backend,
        wanted=wanted,
        gpu=model,
        compute=decided.compute,
        driver=part.driver if decided.compute else None,
        pins=dict(stack.pins) if stack else {},
        choices=solution.choices,
        problems=(*solution.problems, *wheels),
        notes=notes,
        tried=tried,
    )


def _own_notes(
    site: Site, part: Partition, stack: StackRequest | None, backend: str
) -> Iterator[str]:
    """What limits a stack here: other CPUs than usual, and what the site asks for."""
    gpu = part.gpu
    if gpu and gpu.figures.machine != _USUAL and backend != "venv":
        yield f"{facts.load('gpus')['machines'][gpu.figures.machine][backend]} [doubtful]"
    if stack is None:
        return
    if backend == "spack" and gpu is not None:
        choice = choose_wheels(site, stack, [part.name])
        if choice.archs:
            yield f"`hpcdl stack build` with Spack takes {choice.why}; a pin asks for these"
    if stack.variant == "cpu" and gpu is not None:
        yield f"a build for CPUs, as stack '{stack.name}' asks: the {gpu.model} stays idle"
    if not stack.horovod:
        yield f"without Horovod, as stack '{stack.name}' asks: for tf.distribute"


def _refuse_pins(
    where: str, gpu: str | None, stack: StackRequest, problems: Sequence[Sequence[Rule]]
) -> None:
    """Pins that take part in a contradiction are the user's to mend."""
    for chain in problems:
        pinned = [
            f"{rule.need.variable} {rule.need.range.text}" for rule in chain if rule.origin == "pin"
        ]
        if pinned:
            raise BadInput(
                f"the pins of stack '{stack.name}' do not fit {where}: {', '.join(pinned)}",
                details=chain_lines(chain, gpu),
                hint="leave out a pin, or ask `hpcdl stack resolve --why-not NAME@VERSION`",
            )


def _answer(site: Site, resolution: Resolution, name: str, version: str) -> Answer:
    nodes = _by_model(site.partition(resolution.partition))
    part = next(one for one in nodes if (one.gpu and one.gpu.model) == resolution.gpu)
    stack = site.stacks.get(resolution.stack or "")
    solver = Solver(make_problem(setting(site, part, stack, resolution.backend)))
    title = known().components[name].title
    if name not in solver.problem.domains:
        where = f"partition '{part.name}' with backend '{resolution.backend}'"
        raise BadInput(f"{title} is no part of a stack for {where}")
    question = [fix(name, version, "question", -10)]
    never = _no_wheels(part.gpu, resolution.backend)
    values = None if never else solver.solve(question)
    chain = never[0] if never else () if values else solver.explain(question) or ()
    newest = resolution.versions.get(name, "")
    return Answer(
        question=f"{title} {version}",
        partition=part.name,
        backend=resolution.backend,
        gpu=resolution.gpu,
        chain=tuple(rule for rule in chain if rule.origin != "question"),
        versions={key: value for key, value in (values or {}).items() if key in COMPONENTS},
        newest=newest if newest != (values or {}).get(name) else "",
    )


def _check_known(name: str, version: str, where: str, names: tuple[str, ...] = COMPONENTS) -> None:
    if name not in names:
        raise BadInput(
            f"{where} '{name}', which is no component of a stack", hint=did_you_mean(name, names)
        )
    component = known().components[name]
    versions = component.known()
    if not any(map(Range(version).allows, versions)):
        raise BadInput(
            f"{where} {component.title} {version}, which nobody here knows",
            hint=did_you_mean(version, versions[:12]),
        )


def _by_model(partition: Partition) -> list[Partition]:
    """A group of nodes for each GPU model of a partition, the oldest GPU first: it limits most."""
    models = {group.gpu and group.gpu.model: group for group in reversed(partition.gpu_groups)}
    return sorted(models.values(), key=lambda one: sort_key(one.gpu.compute if one.gpu else ""))


def _no_wheels(gpu: Gpu | None, backend: str) -> tuple[tuple[Rule, ...], ...]:
    """The chain of rules against wheels for a GPU whose CPUs have none; empty as a rule."""
    if gpu is None or gpu.figures.machine == _USUAL or backend != "venv":
        return ()
    row = facts.load("gpus")["machines"][gpu.figures.machine]
    wheel = next(one for one in row["wheels"] if one["package"] == "tensorflow")
    why = f"{gpu.model} stands beside {gpu.figures.machine} CPUs: {row['venv']}"
    need = Condition("tensorflow", Range(wheel["newest"]))
    return ((Rule((), need, why, wheel["source"], wheel["proof"], origin="offer"),),)


def members(site: Site, stack: StackRequest) -> tuple[str, ...]:
    """The partitions that get a stack; where none does, those that it names."""
    named = stack.partitions or tuple(site.partitions)
    return tuple(name for name in named if site.stack_for(name) in (None, stack)) or named


def serving(site: Site, stack: StackRequest) -> StackRequest:
    """A stack with the partitions that get it: none named where all do, also beside another one."""
    served = members(site, stack)
    every = set(served) == set(site.partitions)
    return replace(stack, partitions=stack.partitions if every else served)


def groups(site: Site, stack: StackRequest) -> tuple[tuple[str, ...], ...]:
    """The partitions of a stack from wheels, those of one build together."""
    names = members(site, stack)
    with_gpus = [name for name in names if _wants_gpus(site.partition(name), stack)]
    rest = tuple(name for name in names if name not in with_gpus)
    found: list[list[str]] = []
    for name in with_gpus:
        home = next((one for one in found if _share(site, stack, [*one, name])), None)
        if home is None:
            found.append(home := [])
        home.append(name)
    return (*((rest,) if rest else ()), *map(tuple, found))


def computes_of(site: Site, stack: StackRequest, names: Sequence[str]) -> tuple[str, ...]:
    """The compute capabilities that a build for these partitions serves; none for CPUs."""
    nodes = _nodes([site.partition(name) for name in names], stack)
    return tuple(sorted({compute for compute, _ in nodes}, key=sort_key))


def setting(site: Site, part: Partition, stack: StackRequest | None, backend: str) -> Setting:
    """What decides the versions that a partition gets."""
    if backend != "venv":
        return _setting(site, [part], stack, backend)
    together: tuple[str, ...] = (part.name,)
    if stack is not None and stack.backend == "venv":
        together = next((one for one in groups(site, stack) if part.name in one), together)
    others = [site.partition(name) for name in together]
    # The nodes that are spoken of come first: they may be one group of a mixed partition.
    return _with_python(_setting(site, [part, *others], stack, backend))


def _nodes(parts: Sequence[Partition], stack: StackRequest | None) -> list[tuple[str, str | None]]:
    """Compute capability and driver of the nodes with GPUs, those of mixed partitions too."""
    nodes = (one for part in parts if _wants_gpus(part, stack) for one in part.gpu_groups)
    return list(dict.fromkeys((one.gpu.compute, one.driver) for one in nodes if one.gpu))


def _wants_gpus(part: Partition, stack: StackRequest | None) -> bool:
    return part.gpu is not None and (stack is None or stack.variant != "cpu")


def _share(site: Site, stack: StackRequest, names: Sequence[str]) -> bool:
    """Whether one TensorFlow, the newest of each, serves these partitions, of one kind of CPU."""
    parts = [site.partition(name) for name in names]
    if len({part.gpu.figures.machine for part in parts if part.gpu}) > 1:
        return False
    apart = [_with_python(_setting(site, [part], stack, "venv")) for part in parts]
    all_of_them = _with_python(_setting(site, parts, stack, "venv"))
    newest = {_tensorflow(one) for one in (*apart, all_of_them)}
    return len(newest) == 1 and "" not in newest


def _tensorflow(one: Setting) -> str:
    """The newest TensorFlow that fits; empty where none does."""
    found = solve(one)
    named = (choice.version for choice in found.choices if choice.component == "tensorflow")
    return "" if found.problems else next(named, "")


def _with_python(found: Setting) -> Setting:
    """The running Python, where no other one of the machine brings a newer TensorFlow."""
    here = pythons()
    own, every = replace(found, pythons=here[:1]), replace(found, pythons=here)
    if _tensorflow(own) == _tensorflow(every) != "":
        return own
    every = replace(found, pythons=that_start(here))
    return own if _tensorflow(own) == _tensorflow(every) != "" else every


def _setting(
    site: Site, parts: Sequence[Partition], stack: StackRequest | None, backend: str
) -> Setting:
    """The setting of partitions that share a build; the first one's GPU is spoken of."""
    nodes = _nodes(parts, stack)
    compute, driver = nodes[0] if nodes else (None, None)
    spack = backend == "spack"
    return Setting(
        backend=backend,
        compute=compute,
        driver=driver,
        compilers=site.spack.compilers if spack else (),
        pmix=site.slurm.pmix if spack else None,
        pins=tuple(sorted(stack.pins.items())) if stack else (),
        stack=stack.name if stack else None,
        also=tuple(sorted(nodes[1:], key=lambda one: (sort_key(one[0]), one[1] or ""))),
        horovod=stack is None or stack.horovod,
    )
