"""Spack environments, rendered from the resolution: one per GPU generation, none of a site's own.

`Environment` is what an environment needs to know, computed from facts alone; `render` makes
its spack.yaml, `render_site` the scope with a site's compilers, externals, target and mirrors,
which the environments include where HPCDL_SPACK_SITE names it. Pure; `concretize` acts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.site import External, Partition, Site, StackRequest
from hpcdl.stack.recipe import MODULE, variant_of
from hpcdl.stack.resolve import allowed, newest, resolve
from hpcdl.stack.resolve_facts import choose_wheels, cpu_versions, gpu_wheels, known
from hpcdl.stack.resolve_solver import Range, sort_key
from hpcdl.system.errors import BadInput
from hpcdl.system.resources import templates
from hpcdl.system.text import did_you_mean


@dataclass(frozen=True)
class Environment:
    """One GPU generation's environment: its versions, and the compilers that fit them all.

    `archs` are Spack's cuda_arch values, none for CPUs; `gcc` a range such as `9:11`, empty where
    TensorFlow comes from `wheels`. `pinned` are the components that a site fixes, `why` says why
    it is wheels or not.
    """

    name: str
    title: str
    serves: tuple[str, ...]
    archs: tuple[str, ...]
    versions: Mapping[str, str]
    gcc: str
    pinned: tuple[str, ...] = ()
    wheels: bool = False
    why: str = ""

    @property
    def variant(self) -> str:
        """`cpu`, or CUDA's release and the GPUs: `cuda12.9-sm60`."""
        return variant_of(self.archs, self.versions.get("cuda", ""))

    @property
    def module(self) -> str:
        """The full name of its release's module."""
        return f"{MODULE}/{self.versions['tensorflow']}-{self.variant}"

    @property
    def specs(self) -> tuple[str, ...]:
        """What Spack is asked for."""
        archs = ",".join(self.archs)
        if self.wheels:
            horovod = facts.load("spack")["wheels"]["horovod"]
            return (f"{horovod} +cuda cuda_arch={archs}" if archs else horovod,)
        return (f"hpcdl-tensorflow cuda_arch={archs}",)


def environments() -> tuple[Environment, ...]:
    """All environments, in the facts' order."""
    return tuple(environment(name) for name in facts.load("spack")["environments"])


def environment(name: str) -> Environment:
    """The environment of a GPU generation, such as `p100`; BadInput: there is none of that name."""
    rows = facts.load("spack")["environments"]
    if name not in rows:
        raise BadInput(f"there is no Spack environment '{name}'", hint=did_you_mean(name, rows))
    row = rows[name]
    named = (name, row["title"], tuple(row["serves"]), tuple(row["archs"]))
    if "wheels" in row:
        return Environment(*named, gpu_wheels().versions, gcc="", wheels=True)
    compute = facts.load("gpus")["gpus"][row["gpu"]]["compute"]
    return Environment(*named, newest(compute, "spack"), _majors(compute))


def environment_for(site: Site, partition: str) -> Environment:
    """The environment of one partition of a site: its pins, compilers and PMIx included.

    Raises:
        BadInput: a partition without GPUs, or one that no set of versions fits.
    """
    part = site.partition(partition)
    if part.gpu is None:
        raise BadInput(
            f"partition '{partition}' has no GPUs",
            hint="its stack comes from wheels: set `backend: venv`",
        )
    resolution, *others = resolve(site, partition, "spack")
    if not all(one.fits and one.versions == resolution.versions for one in (resolution, *others)):
        several = " with all its GPU models" if others else ""
        raise BadInput(
            f"no set of versions fits partition '{partition}'{several}",
            hint=f"`hpcdl stack resolve --partition {partition} --backend spack` says why",
        )
    _check_pmix(site)
    one_gcc = site.spack.compilers or "gcc" in resolution.pins
    return Environment(
        name=partition,
        title=f"{site.name}, partition {partition}",
        serves=part.gpu_models,
        archs=tuple(
            sorted({group.gpu.compute.replace(".", "") for group in part.gpu_groups if group.gpu})
        ),
        versions=resolution.versions,
        gcc=resolution.versions["gcc"] if one_gcc else _majors(part.gpu.compute),
        pinned=tuple(resolution.pins),
    )


def environment_for_stack(site: Site, request: StackRequest) -> Environment:
    """The environment of a stack: of all the partitions that it serves.

    Raises:
        BadInput: its partitions cannot share one build, or no set of versions fits.
    """
    names = request.partitions or tuple(site.partitions)
    title = f"{site.name}, stack {request.name}"
    idle = request.variant == "cpu"
    with_gpus = [name for name in names if site.partition(name).gpu is not None and not idle]
    if not with_gpus:
        _require_one_target(site, request, names)
        versions = cpu_versions(request)
        why = f"TensorFlow {versions['tensorflow']} for CPUs, from wheels"
        serves: tuple[str, ...] = ("CPUs, from wheels",)
        return Environment(request.name, title, serves, (), versions, "", wheels=True, why=why)
    models = dict.fromkeys(one for name in with_gpus for one in site.partition(name).gpu_models)
    serves, choice = tuple(models), choose_wheels(site, request, with_gpus)
    if choice.archs and with_gpus == list(names):
        _require_one_target(site, request, names)
        return Environment(
            request.name,
            title,
            serves,
            choice.archs,
            gpu_wheels().versions,
            "",
            wheels=True,
            why=choice.why,
        )
    # As if every partition had this stack, so that its pins count.
    parts = {name: replace(one, stack=request.name) for name, one in site.partitions.items()}
    only = replace(site, stacks={request.name: request}, partitions=parts)
    found = {name: environment_for(only, name) for name in with_gpus}
    first = found[with_gpus[0]]
    others = [name for name, one in found.items() if one.versions != first.versions]
    others += [name for name in names if name not in found]
    if others:
        raise BadInput(
            f"the stack '{request.name}' cannot be one build: {', '.join(others)} "
            f"and {with_gpus[0]} need different ones",
            hint="in site.yaml, make a stack with `backend: spack` per GPU generation and name "
            "its partitions",
        )
    _require_one_target(site, request, names)
    archs = tuple(sorted({arch for one in found.values() for arch in one.archs}))
    why = f"Spack compiles TensorFlow {first.versions['tensorflow']}: {choice.why}"
    return replace(first, name=request.name, title=title, serves=serves, archs=archs, why=why)


def _require_one_target(site: Site, request: StackRequest, names: Sequence[str]) -> None:
    """Code for a newer CPU ends with SIGILL on an older one."""
    groups = [group for name in names for group in site.partition(name).gpu_groups]
    targets = {group.label: group.target for group in groups}
    if len(set(targets.values())) > 1:
        raise BadInput(
            f"the stack '{request.name}' cannot be one build: its partitions have different "
            "targets",
            details=[f"{name}: {target}" for name, target in targets.items()],
            hint="give them the `target` of the oldest CPU among them, such as x86_64_v3, or make "
            "a stack per target",
        )


def _check_pmix(site: Site) -> None:
    """Slurm's PMIx must be one that Spack can build, or an external."""
    wanted = site.slurm.pmix
    if not wanted or any(one.name == "pmix" for one in site.spack.externals):
        return
    offered = known().components["pmix"].versions["spack"]
    if not any(Range(wanted).allows(version) for version in offered):
        raise BadInput(
            f"Slurm has PMIx {wanted}, which Spack has no recipe for (oldest: {offered[-1]})",
            hint=f"name Slurm's own among spack.externals: {{spec: pmix@{wanted}, prefix: /usr}}",
        )


def render(wanted: Environment) -> str:
    """The environment's spack.yaml."""
    template = templates("spack").get_template("spack.yaml.j2")
    return template.render(
        title=wanted.title,
        serves=wanted.serves,
        command="hpcdl stack concretize --render",
        folder=f"spack/environments/{wanted.name}",
        specs=wanted.specs,
        requirements=list(_requirements(wanted)),
    )


def render_site(site: Site, partition: Partition) -> str:
    """The scope with this site's settings for a stack that runs on `partition`."""
    settings = site.spack
    template = templates("spack").get_template("site.yaml.j2")
    return template.render(
        site=site.name,
        target=partition.target,
        packages=_packages(settings.externals, site.slurm.version, site.slurm.pmix),
        store=settings.store or site.paths.prefix / "spack" / "store",
        padded_length=settings.padded_length,
        build_jobs=settings.build_jobs,
        mirrors=sorted(settings.mirrors.items()),
    )


def _majors(compute: str) -> str:
    """Major releases of gcc that fit a GPU's newest set, as a range: `12:13`."""
    majors = sorted({v.split(".")[0] for v in allowed(compute, "spack", "gcc")}, key=sort_key)
    return f"{majors[0]}:{majors[-1]}"


def _requirements(wanted: Environment) -> Iterator[tuple[str, str, str]]:
    book = facts.load("spack")
    if wanted.wheels:
        for component, package in book["cuda_wheels" if wanted.archs else "wheels"].items():
            yield package, f"@{wanted.versions[component]}", ""
        yield "python", f"@{wanted.versions['python']}", ""
        return
    for virtual in ("c", "cxx", "fortran"):
        yield virtual, f"gcc@{wanted.gcc}", ""
    pinned = [name for name in wanted.pinned if name in wanted.versions and name != "gcc"]
    for component in dict.fromkeys([*book["fixed"], *pinned]):
        yield book["packages"][component], f"@{wanted.versions[component]}", ""


def _packages(
    externals: tuple[External, ...], slurm: str, pmix: str | None
) -> list[dict[str, Any]]:
    """What the scope says of packages: externals by name, and Slurm's PMIx as a requirement.

    Slurm is the machine's, in /usr where the site names no other prefix.
    """
    why = "Open MPI speaks to Slurm through PMIx: it has to be the one Slurm was built with."
    found: dict[str, dict[str, Any]] = {
        "pmix": {"why": why, "require": f"@{pmix}" if pmix else "", "externals": []}
    }
    if not any(one.name == "slurm" for one in externals):
        externals = (*externals, External("slurm", slurm, Path("/usr")))
    for one in externals:
        row: dict[str, Any] = {
            "spec": f"{one.name}@{one.version}",
            "prefix": one.prefix,
            "compilers": [],
        }
        if one.name == "gcc":
            row["spec"] += " languages:='c,c++,fortran'"
            programs = {"c": "gcc", "cxx": "g++", "fortran": "gfortran"}
            row["compilers"] = [(lang, _program(one, name)) for lang, name in programs.items()]
        plain = {"why": "", "require": "", "externals": []}
        found.setdefault(one.name, plain)["externals"].append(row)
    return [{"name": name, **row} for name, row in found.items()]


def _program(gcc: External, name: str) -> Path:
    """A compiler by its plain name, or by `g++-13` where the plain one is of another release."""
    plain = gcc.prefix / "bin" / name
    named = plain.with_name(f"{name}-{gcc.version.partition('.')[0]}")
    return named if named.exists() and named.resolve() != plain.resolve() else plain
