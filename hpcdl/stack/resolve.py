"""`hpcdl stack resolve`: the newest working set of versions per partition, and why not newer.

A stack, a backend and the partitions of one build become a setting; resolve_solution makes a
`VersionProblem` of the facts (resolve_facts) of it, resolve_solver answers that. One build serves
every GPU generation that one TensorFlow can serve; partitions whose newest TensorFlow differs, or
whose CPUs do, get builds of their own, and so do those without GPUs. `Resolver` groups the
partitions of a site; what a build gets is what each of its partitions resolves to. Pure, but for
the Pythons on PATH.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from hpcdl import facts
from hpcdl.site import Gpu, Partition, Site, StackRequest
from hpcdl.site.sections import BACKENDS, Backend
from hpcdl.stack.release import MODULE
from hpcdl.stack.resolve_facts import COMPONENTS, chain_lines, evidence_of, known
from hpcdl.stack.resolve_solution import Resolution, Setting, driver_notes, make_problem, solve
from hpcdl.stack.resolve_solver import Condition, Range, Rule, Solver, sort_key
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.packages import pythons, that_start
from hpcdl.system.text import did_you_mean

_OTHER_CPUS = re.compile(r"a64fx|aarch64|arm|graviton|neoverse|power\d|ppc|riscv|thunderx")
"""How archspec names targets of other families than x86_64."""
_USUAL = "x86_64"
# A version, or a range as Spack writes it: `2.18`, `2.15:2.18`, `:2.14,2.18`.
_VERSION = re.compile(r"[0-9:](?:[0-9A-Za-z:]|[.,_-](?=[0-9A-Za-z:]))*", re.ASCII)


def find_request(site: Site, name: str | None = None) -> StackRequest:
    """The stack `name` of the site; its only or first one where none is named."""
    stacks = dict(site.stacks) or {MODULE: StackRequest(MODULE, "wheels", (), {})}
    if name is None:
        return next(iter(stacks.values()))
    if name not in stacks:
        raise BadInput(
            f"the site '{site.name}' has no stack '{name}'", hint=did_you_mean(name, stacks)
        )
    return stacks[name]


def why_not(
    site: Site, question: str, partition: str | None = None, backend: str | None = None
) -> tuple[Resolution, ...]:
    """The sets with a version, such as `tensorflow@2.18`: what is in its way is their problem.

    Raises BadInput: no `NAME@VERSION`, or an unknown component or version.
    """
    name, _, version = (part.strip() for part in question.partition("@"))
    name = name.casefold()
    if not name or not _VERSION.fullmatch(version):
        raise BadInput(
            f"'{question}' is no component and version",
            hint="write NAME@VERSION, for example tensorflow@2.18",
        )
    _check_known(name, version, "the question names", (*COMPONENTS, "driver"))
    found = Resolver(site, (name, version)).resolve(partition, backend)
    return tuple(one for one in found if one.wanted or backend)


@dataclass
class _Group:
    """Partitions of one build: all by name, and one of each kind of nodes.

    `identity` is what all must have in common: the newest TensorFlow, the CPUs, GPUs or none.
    """

    identity: tuple[str, str, bool]
    kinds: list[Partition]
    names: list[str] = field(default_factory=list)


class Resolver:
    """Resolves the stacks of one site: each is grouped once, equal settings are solved once.

    `asked` are a component and a version that every set must have, whatever the builds are.
    """

    def __init__(self, site: Site, asked: tuple[str, str] | None = None) -> None:
        self.site = site
        self._asked = asked
        self._evidence = tuple(evidence_of(site))
        self._members: dict[str, tuple[str, ...]] = {}
        self._groups: dict[tuple[str, str], dict[str, _Group]] = {}

    def resolve(
        self, partition: str | None = None, backend: str | None = None
    ) -> tuple[Resolution, ...]:
        """The newest set for every partition and backend, what the site asks for first."""
        site = self.site
        parts = [site.partition(partition)] if partition else list(site.partitions.values())
        return tuple(
            self._of_nodes(nodes, stack, wanted)
            for part in parts
            for stack, wanted in self._ways(part)
            if backend in {None, stack.backend}
            for nodes in _by_model(part)
        )

    def members(self, stack: StackRequest) -> tuple[str, ...]:
        """The partitions that get a stack; where none does, those that it names."""
        if stack.name not in self._members:
            named = stack.partitions or tuple(self.site.partitions)
            homes = {name: self.site.stack_for(name) for name in named}
            mine = (name for name, home in homes.items() if not home or home.name == stack.name)
            self._members[stack.name] = tuple(mine) or named
        return self._members[stack.name]

    def recorded(self, stack: StackRequest, names: Sequence[str]) -> tuple[str, ...]:
        """The partitions `names` as a release of a stack records them: none where they are all."""
        return stack.partitions if set(names) == set(self.site.partitions) else tuple(names)

    def groups(self, stack: StackRequest) -> tuple[tuple[str, ...], ...]:
        """The partitions of a stack, those of one build together."""
        found = {id(group): group for group in self._homes(stack).values()}
        return tuple(tuple(group.names) for group in found.values())

    def build(self, stack: StackRequest, names: Sequence[str]) -> Resolution:
        """The versions of one build: for partitions that `groups` gave."""
        parts = [self.site.partition(name) for name in names]
        first = _by_model(parts[0])[0]
        setting = self._setting([first, *parts], stack)
        resolution = self._resolution(first, stack, setting, wanted=True)
        if resolution.fits:
            return resolution
        models = {model for part in parts for model in part.gpu_models}
        several = " with all its GPU models" if len(models) > 1 and len(names) == 1 else ""
        what = "wheels fit" if BACKENDS[stack.backend].own_python else "set of versions fits"
        raise MissingPrerequisite(
            f"no {what} partition '{resolution.partition}'{several} by {stack.backend}",
            details=[
                line for chain in resolution.problems for line in chain_lines(chain, resolution.gpu)
            ],
            hint="change the stack's pins or the partition's driver in site.yaml, put another "
            "Python on PATH, or name the other partitions in the stack's `partitions`; "
            f"`hpcdl stack resolve --partition {resolution.partition}` says more",
        )

    def _ways(self, part: Partition) -> Iterator[tuple[StackRequest, bool]]:
        """The backends of a partition, the one its stack asks for first.

        Another backend is of the site's stack for it, else of the partition's own stack as
        `stack build --backend` builds it, which nobody asks for.
        """
        chosen = self.site.stack_for(part.name)
        if chosen is None and not self.site.stacks:
            chosen = find_request(self.site)
        if chosen is not None:
            yield chosen, True
        for way, backend in BACKENDS.items():
            if way != backend.versions or (chosen is not None and way == chosen.backend):
                continue  # what another way installs, it is told of that one
            stacks = (one for one in self.site.stacks.values() if one.backend == way)
            other = next((one for one in stacks if part.name in self.members(one)), None)
            alone = chosen or StackRequest("", way, (part.name,), {})
            yield other or replace(alone, backend=way), other is not None or chosen is None

    def _homes(self, stack: StackRequest) -> dict[str, _Group]:
        """The groups of a stack, by the names of their partitions; those without GPUs first.

        A kind of nodes goes into the first group whose newest TensorFlow is its own. A site may
        have thousands of partitions, but it has few kinds of nodes.
        """
        key = (stack.name, stack.backend)
        if key in self._groups:
            return self._groups[key]
        parts = [self.site.partition(name) for name in self.members(stack)]
        groups: list[_Group] = []
        kinds: dict[object, _Group] = {}
        for part in sorted(parts, key=lambda part: _wants_gpus(part, stack)):
            kind = (_cpus(part, stack), *_nodes([part], stack))
            if kind not in kinds:
                kinds[kind] = self._home(stack, groups, part)
            kinds[kind].names.append(part.name)
        self._groups[key] = {name: group for group in groups for name in group.names}
        return self._groups[key]

    def _home(self, stack: StackRequest, groups: list[_Group], part: Partition) -> _Group:
        """The group that one TensorFlow, the newest of each, serves with this partition."""
        alone = _tensorflow(self._setting([part], stack))
        identity = (alone, _cpus(part, stack), _wants_gpus(part, stack))
        for group in groups:
            kinds = [*group.kinds, part]
            same = group.identity == identity
            if same and alone and _tensorflow(self._setting(kinds, stack)) == alone:
                group.kinds = kinds
                return group
        groups.append(_Group(identity, [part]))
        return groups[-1]

    def _of_nodes(self, nodes: Partition, stack: StackRequest, wanted: bool) -> Resolution:
        """The resolution of a partition, or of one group of its nodes."""
        home = self._homes(stack).get(nodes.name) if stack.name else None
        part = self.site.partition(nodes.name)
        # The nodes that are spoken of come first: they may be one group of a mixed partition.
        together = [nodes, part, *(home.kinds if home else ())]
        return self._resolution(nodes, stack, self._setting(together, stack), wanted)

    def _setting(self, parts: Sequence[Partition], stack: StackRequest) -> Setting:
        """Return the setting that decides the versions of partitions that share a build."""
        nodes = _nodes(parts, stack)
        compute, driver = nodes[0] if nodes else (None, None)
        backend = BACKENDS[stack.backend]
        setting = Setting(
            backend=backend.versions,
            compute=compute,
            driver=driver,
            compilers=self.site.spack.compilers if backend.compiles else (),
            pmix=self.site.slurm.pmix if backend.compiles else None,
            own_pmix=any(one.name == "pmix" for one in self.site.spack.externals),
            pins=tuple(sorted(stack.pins.items())),
            stack=stack.name,
            also=tuple(sorted(nodes[1:], key=lambda one: (sort_key(one[0]), one[1] or ""))),
            horovod=stack.horovod,
        )
        return _with_python(setting) if backend.own_python else setting

    def _resolution(
        self, part: Partition, stack: StackRequest, decided: Setting, wanted: bool
    ) -> Resolution:
        for name, version in stack.pins.items() if wanted else ():
            _check_known(name, version, f"stack '{stack.name}' pins")
        if self._asked:
            decided = replace(decided, asked=self._asked)
            if self._asked[0] not in make_problem(decided).domains:
                where = f"partition '{part.name}' with backend '{stack.backend}'"
                raise BadInput(f"{self._asked[0]} is no part of a stack for {where}")
        choices, problems, notes = solve(decided)
        model = part.gpu.model if part.gpu else None
        if wanted:
            _refuse_pins(f"partition '{part.name}'", model, stack, problems)
        wheels = _no_wheels(part.gpu, BACKENDS[stack.backend])
        versions = {one.component: one.version for one in choices}
        values = {**versions, "backend": decided.backend}
        # The build that was tried as a whole, with every GPU that it serves.
        served = [one for one in (decided.compute, *(gpu for gpu, _ in decided.also)) if one]
        rows = (*self._evidence, *known().tried) if not wheels else ()
        return Resolution(
            partition=part.name,
            setting=decided,
            stack=stack.name if stack.name in self.site.stacks else None,
            backend=stack.backend,
            wanted=wanted,
            gpu=model,
            driver=part.driver if decided.compute else None,
            choices=choices,
            problems=(*problems, *wheels),
            notes=(*notes, *driver_notes(part.driver, choices), *_own_notes(part, stack)),
            tried=next((row for row in rows if row.holds(values, served)), None),
        )


def _own_notes(part: Partition, stack: StackRequest) -> Iterator[str]:
    """Yield notes on a stack here: unusual CPUs, and the site's requests."""
    gpu = part.gpu
    if gpu and gpu.figures.machine != _USUAL and BACKENDS[stack.backend].compiles:
        yield f"{facts.load('gpus')['machines'][gpu.figures.machine]['spack']} [doubtful]"
    if not BACKENDS[stack.backend].compiles and _OTHER_CPUS.match(part.target):
        yield (
            f"its target {part.target} is no x86_64: wheels of another machine do not run there; "
            "give it a stack of its own, built on one of its nodes or by `backend: spack`"
        )
    if stack.renamed:
        yield f"the site file says `backend: {stack.renamed}`, the old name of `{stack.backend}`"
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


def _check_known(name: str, version: str, where: str, names: tuple[str, ...] = COMPONENTS) -> None:
    if name not in names:
        raise BadInput(
            f"{where} '{name}', which is no component of a stack", hint=did_you_mean(name, names)
        )
    component = known().components[name]
    versions = component.known()
    if not any(map(Range(version).allows, versions)):
        raise BadInput(
            f"{where} {component.title} {version}, which is not listed in hpcdl's facts",
            hint=did_you_mean(version, versions[:12]),
        )


def _by_model(partition: Partition) -> list[Partition]:
    """A group of nodes for each GPU model of a partition, the oldest GPU first: it limits most."""
    models = {group.gpu and group.gpu.model: group for group in reversed(partition.gpu_groups)}
    return sorted(models.values(), key=lambda one: sort_key(one.gpu.compute if one.gpu else ""))


def _no_wheels(gpu: Gpu | None, backend: Backend) -> tuple[tuple[Rule, ...], ...]:
    """The chain of rules against wheels for a GPU whose CPUs have none; empty as a rule."""
    if gpu is None or gpu.figures.machine == _USUAL or backend.compiles:
        return ()
    row = facts.load("gpus")["machines"][gpu.figures.machine]
    wheel = next(one for one in row["packages"] if one["package"] == "tensorflow")
    why = f"{gpu.model} is in nodes with {gpu.figures.machine} CPUs: {row[backend.versions]}"
    need = Condition("tensorflow", Range(wheel["newest"]))
    return ((Rule((), need, why, wheel["source"], wheel["proof"], origin="offer"),),)


def computes_of(site: Site, stack: StackRequest, names: Sequence[str]) -> tuple[str, ...]:
    """The compute capabilities that a build for these partitions serves; none for CPUs."""
    nodes = _nodes([site.partition(name) for name in names], stack)
    return tuple(sorted({compute for compute, _ in nodes}, key=sort_key))


def _cpus(part: Partition, stack: StackRequest) -> str:
    """Return what a build's CPUs must share: their kind; if Spack compiles, their target too."""
    machine = part.gpu.figures.machine if part.gpu else _USUAL
    return machine if BACKENDS[stack.backend].own_python else f"{machine} {part.target}"


def _nodes(parts: Sequence[Partition], stack: StackRequest) -> list[tuple[str, str | None]]:
    """Compute capability and driver of the nodes with GPUs, those of mixed partitions too."""
    nodes = (one for part in parts if _wants_gpus(part, stack) for one in part.gpu_groups)
    return list(dict.fromkeys((one.gpu.compute, one.driver) for one in nodes if one.gpu))


def _wants_gpus(part: Partition, stack: StackRequest) -> bool:
    return part.gpu is not None and stack.variant != "cpu"


@cache
def _tensorflow(setting: Setting) -> str:
    """The newest TensorFlow that fits; empty where none does. Without the reasons of `solve`."""
    return (Solver(make_problem(setting)).solve() or {}).get("tensorflow", "")


def _with_python(setting: Setting) -> Setting:
    """The running Python, where no other one of the machine brings a newer TensorFlow."""
    here = pythons()
    own, every = replace(setting, pythons=here[:1]), replace(setting, pythons=here)
    if _tensorflow(own) == _tensorflow(every) != "":
        return own
    every = replace(setting, pythons=that_start(here))
    return own if _tensorflow(own) == _tensorflow(every) != "" else every
