"""Spack environments, rendered from the resolution: one per GPU generation, none of a site's own.

`Environment` is what an environment needs to know, computed from facts alone; `render` makes
its spack.yaml, `render_site` the scope with a site's compilers, externals, target and mirrors,
which the environments include where HPCDL_SPACK_SITE names it. Pure; spack_run acts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpcdl import facts
from hpcdl.site import External, Partition, Site
from hpcdl.stack.resolve import allowed, newest, resolve_one
from hpcdl.stack.resolve_facts import known
from hpcdl.stack.resolve_versions import Range, sort_key
from hpcdl.system.errors import BadInput
from hpcdl.system.resources import folder
from hpcdl.system.text import did_you_mean

COMMAND = "hpcdl stack concretize --render"
_COMPILED = ("c", "cxx", "fortran")


@dataclass(frozen=True)
class Environment:
    """One GPU generation's environment: its versions, and the compilers that fit them all.

    `archs` are Spack's cuda_arch values, `gcc` a range such as `9:11`.
    """

    name: str
    title: str
    serves: tuple[str, ...]
    archs: tuple[str, ...]
    versions: Mapping[str, str]
    gcc: str


def environments() -> tuple[Environment, ...]:
    """All environments, in the facts' order."""
    return tuple(environment(name) for name in facts.load("spack")["environments"])


def environment(name: str) -> Environment:
    """The environment of a GPU generation, such as `p100`.

    Raises:
        BadInput: there is none of that name.
    """
    rows = facts.load("spack")["environments"]
    if name not in rows:
        raise BadInput(f"there is no Spack environment '{name}'", hint=did_you_mean(name, rows))
    row = rows[name]
    compute = facts.load("gpus")["gpus"][row["gpu"]]["compute"]
    return Environment(
        name=name,
        title=row["title"],
        serves=tuple(row["serves"]),
        archs=tuple(row["archs"]),
        versions=newest(compute, "spack"),
        gcc=_majors(compute),
    )


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
    resolution = resolve_one(site, partition, "spack")
    if not resolution.fits:
        raise BadInput(
            f"no set of versions fits partition '{partition}'",
            hint=f"`hpcdl stack resolve --partition {partition} --backend spack` says why",
        )
    _check_pmix(site)
    return Environment(
        name=partition,
        title=f"{site.name}, partition {partition}",
        serves=(part.gpu.model,),
        archs=(part.gpu.compute.replace(".", ""),),
        versions=resolution.versions,
        gcc=resolution.versions["gcc"] if site.spack.compilers else _majors(part.gpu.compute),
    )


def _check_pmix(site: Site) -> None:
    """Slurm's PMIx must be one that Spack can build, or an external.

    Raises:
        BadInput: it is neither.
    """
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
    return _fill(
        "spack.yaml.j2",
        title=wanted.title,
        serves=wanted.serves,
        command=COMMAND,
        folder=f"spack/environments/{wanted.name}",
        archs=wanted.archs,
        requirements=list(_requirements(wanted)),
    )


def render_site(site: Site, partition: Partition) -> str:
    """The scope with this site's settings for a stack that runs on `partition`."""
    settings = site.spack
    return _fill(
        "site.yaml.j2",
        site=site.name,
        target=partition.target,
        packages=_packages(settings.externals, site.slurm.pmix),
        prefix=site.paths.prefix,
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
    for virtual in _COMPILED:
        yield virtual, f"gcc@{wanted.gcc}", ""
    for component in book["fixed"]:
        yield book["packages"][component], f"@{wanted.versions[component]}", ""


def _packages(externals: tuple[External, ...], pmix: str | None) -> list[dict[str, Any]]:
    """What the scope says of packages: externals by name, and Slurm's PMIx as a requirement."""
    found: dict[str, dict[str, Any]] = {}
    if pmix:
        why = "Open MPI speaks to Slurm through PMIx: it has to be the one Slurm was built with."
        found["pmix"] = {"name": "pmix", "why": why, "require": f"@{pmix}", "externals": []}
    for one in externals:
        plain = {"name": one.name, "why": "", "require": "", "externals": []}
        found.setdefault(one.name, plain)["externals"].append(_external(one))
    return list(found.values())


def _external(one: External) -> dict[str, Any]:
    """An external; a gcc names its languages and the programs for them."""
    if one.name != "gcc":
        return {"spec": f"{one.name}@{one.version}", "prefix": one.prefix, "compilers": []}
    programs = {"c": "gcc", "cxx": "g++", "fortran": "gfortran"}
    return {
        "spec": f"gcc@{one.version} languages:='c,c++,fortran'",
        "prefix": one.prefix,
        "compilers": [(lang, one.prefix / "bin" / name) for lang, name in programs.items()],
    }


def _fill(template: str, **values: object) -> str:
    from jinja2 import Environment as Jinja
    from jinja2 import FileSystemLoader, StrictUndefined

    jinja = Jinja(  # noqa: S701 - YAML, not HTML
        loader=FileSystemLoader(folder("templates") / "spack"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    return str(jinja.get_template(template).render(**values))
