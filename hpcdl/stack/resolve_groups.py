"""Which partitions of a stack share one build, and the setting that decides its versions.

A build from wheels serves every GPU generation that one TensorFlow can serve; partitions whose
newest TensorFlow differs, or whose CPUs do, get builds of their own, and so do those without GPUs.
Pure, but for the Pythons on PATH.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hpcdl.site import Partition, Site, StackRequest
from hpcdl.stack.pythons import pythons, that_start
from hpcdl.stack.resolve_solution import Setting, solve
from hpcdl.stack.resolve_versions import sort_key


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
