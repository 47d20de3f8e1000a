"""Spack environments, rendered from the resolution and solved by Spack, with a time limit.

`SpackEnvironment` is what an environment needs to know, computed from facts alone: one per GPU
generation, none of a site's own. `render` makes its spack.yaml, `render_site` the scope with a
site's compilers, externals, target and mirrors, which the environments include where
HPCDL_SPACK_SITE names it.

A lock file counts only when the versions in it are those of the resolution: `differences` says
where they are not. A solver that finds nothing often prints nothing, so the end of the time
limit is an answer too.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.site import External, Partition, Site, StackRequest
from hpcdl.stack.release import variant_of
from hpcdl.stack.resolve import Resolver, allowed, computes_of
from hpcdl.stack.resolve_facts import known, serves, wheel_sets
from hpcdl.stack.resolve_solver import Range, sort_key
from hpcdl.stack.spack_backend.tool import Lock, open_spack, read_lock, require_unlocked
from hpcdl.system.errors import BadInput, CheckFailed, Stopped
from hpcdl.system.files import explain_os_errors, write_atomic
from hpcdl.system.resources import folder, scratch_directory, templates
from hpcdl.system.text import duration


@dataclass(frozen=True)
class SpackEnvironment:
    """One GPU generation's environment: its versions, and the compilers that fit them all.

    `archs` are Spack's cuda_arch values, none for CPUs; `gcc` a range such as `9:11`, empty where
    TensorFlow comes from `wheels`. `pinned` are the components that a site fixes, `proof` is the
    evidence level of the resolution.
    """

    name: str
    title: str
    serves: tuple[str, ...]
    archs: tuple[str, ...]
    versions: Mapping[str, str]
    gcc: str
    pinned: tuple[str, ...] = ()
    wheels: bool = False
    proof: str = "solved"

    @property
    def why(self) -> str:
        """Return how TensorFlow is made: `Spack compiles TensorFlow 2.20.0`."""
        kind = "GPUs" if self.archs else "CPUs"
        version = self.versions["tensorflow"]
        if self.wheels:
            return f"Spack installs TensorFlow {version} for {kind} from wheels"
        return f"Spack compiles TensorFlow {version} for {kind}"

    @property
    def variant(self) -> str:
        """`cpu`, or CUDA's release and the GPUs: `cuda12.9-sm60`."""
        return variant_of(self.archs, self.versions.get("cuda", ""))

    @property
    def specs(self) -> tuple[str, ...]:
        """Return the specs for Spack."""
        archs = ",".join(self.archs)
        if self.wheels:
            horovod = facts.load("spack")["wheels"]["horovod"]
            return (f"{horovod} +cuda cuda_arch={archs}" if archs else horovod,)
        return (f"hpcdl-tensorflow cuda_arch={archs}" if archs else "hpcdl-tensorflow ~cuda",)


def environment_of(
    site: Site, request: StackRequest, names: tuple[str, ...], name: str
) -> SpackEnvironment:
    """The environment of one build of a stack: of partitions that share it.

    Raises:
        MissingPrerequisite: no set of versions fits.
        BadInput: Spack cannot build Slurm's PMIx.
    """
    resolution = Resolver(site).build(request, names)
    wheels = request.backend == "spack-wheels"
    if not wheels:
        _check_pmix(site)
    computes = computes_of(site, request, names)
    one_gcc = site.spack.compilers or "gcc" in resolution.pins
    gcc = resolution.versions["gcc"] if one_gcc and not wheels else ""
    models = (model for part in names for model in site.partition(part).gpu_models)
    return SpackEnvironment(
        name=name,
        title=f"{site.name}, stack {request.name}",
        serves=tuple(dict.fromkeys(models)) if computes else ("CPUs",),
        archs=_archs(resolution.versions["tensorflow"], computes, wheels=wheels),
        versions=resolution.versions,
        gcc="" if wheels else gcc or majors_of(computes[0] if computes else None),
        pinned=tuple(resolution.pins),
        wheels=wheels,
        proof=resolution.proof,
    )


def _archs(tensorflow: str, computes: tuple[str, ...], *, wheels: bool) -> tuple[str, ...]:
    """Spack's cuda_arch values for GPUs; of wheels the newest code that runs on each of them."""
    if not wheels or not computes:
        return tuple(sorted({compute.replace(".", "") for compute in computes}))
    listed = wheel_sets("py-tensorflow-cuda-wheels")[tensorflow]["cuda_arch"]
    fits = [[arch for arch in listed if serves([f"sm_{arch}"], compute)] for compute in computes]
    return tuple(sorted({max(one) for one in fits}))


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


def render(wanted: SpackEnvironment) -> str:
    """The environment's spack.yaml."""
    template = templates("spack").get_template("spack.yaml.j2")
    return template.render(
        title=wanted.title,
        serves=wanted.serves,
        command="python -m tools.spack_environments",
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


def majors_of(compute: str | None) -> str:
    """Major releases of gcc that fit the newest set of a GPU (None: a CPU), as a range: `12:13`."""
    majors = sorted({v.split(".")[0] for v in allowed(compute, "spack", "gcc")}, key=sort_key)
    return f"{majors[0]}:{majors[-1]}"


def _requirements(wanted: SpackEnvironment) -> Iterator[tuple[str, str, str]]:
    book = facts.load("spack")
    if wanted.wheels:
        for component, package in book["cuda_wheels" if wanted.archs else "wheels"].items():
            yield package, f"@{wanted.versions[component]}", ""
        yield "python", f"@{wanted.versions['python']}", ""
        return
    for virtual in ("c", "cxx", "fortran"):
        yield virtual, f"gcc@{wanted.gcc}", ""
    fixed = [*book["fixed"], *(name for name in wanted.pinned if name != "gcc")]
    for component in dict.fromkeys(name for name in fixed if name in wanted.versions):
        yield book["packages"][component], f"@{wanted.versions[component]}", ""


def _packages(
    externals: tuple[External, ...], slurm: str, pmix: str | None
) -> list[dict[str, Any]]:
    """Return the scope's packages: externals by name, and Slurm's PMIx as a requirement.

    Slurm is the machine's, in /usr where the site names no other prefix.
    """
    why = "Open MPI speaks to Slurm through PMIx: it has to be the one Slurm was built with."
    packages: dict[str, dict[str, Any]] = {
        "pmix": {"why": why, "require": f"@{pmix}" if pmix else "", "externals": []}
    }
    if not any(external.name == "slurm" for external in externals):
        externals = (*externals, External("slurm", slurm, Path("/usr")))
    for external in externals:
        row: dict[str, Any] = {
            "spec": f"{external.name}@{external.version}",
            "prefix": external.prefix,
            "compilers": [],
        }
        if external.name == "gcc":
            row["spec"] += " languages:='c,c++,fortran'"
            programs = {"c": "gcc", "cxx": "g++", "fortran": "gfortran"}
            row["compilers"] = [(lang, _program(external, name)) for lang, name in programs.items()]
        plain = {"why": "", "require": "", "externals": []}
        packages.setdefault(external.name, plain)["externals"].append(row)
    return [{"name": name, **row} for name, row in packages.items()]


def _program(gcc: External, name: str) -> Path:
    """A compiler by its plain name, or by `g++-13` where the plain one is of another release."""
    plain = gcc.prefix / "bin" / name
    named = plain.with_name(f"{name}-{gcc.version.partition('.')[0]}")
    return named if named.exists() and named.resolve() != plain.resolve() else plain


Say = Callable[[str], None]
_PARTS = ("spack_repo", "defaults")


def files_of(site: Site, wanted: SpackEnvironment, root: Path, partition: str) -> dict[Path, str]:
    """The files of a site's environment below `root`; its partitions are like `partition`."""
    return {
        root / "environments" / wanted.name / "spack.yaml": render(wanted),
        root / "site.yaml": render_site(site, site.partition(partition)),
    }


def write_files(root: Path, files: Mapping[Path, str]) -> None:
    """Write them and the recipes, so that the directory is complete."""
    with explain_os_errors(root):
        for part in _PARTS:
            shutil.rmtree(root / part, ignore_errors=True)
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(folder("spack") / part, root / part, ignore=ignored)
    for path, text in files.items():
        write_atomic(path, text)


def shipped_recipes() -> dict[str, str]:
    """The digests of the files that `write_files` copies: the recipes and the defaults."""
    shipped = folder("spack")
    return {
        str(path.relative_to(shipped)): hashlib.sha256(path.read_bytes()).hexdigest()
        for part in _PARTS
        for path in sorted((shipped / part).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def concretize(
    root: Path, wanted: SpackEnvironment, say: Say, *, time_limit: float | None = None
) -> Lock:
    """Let Spack solve an environment below `root`: the lock beside its spack.yaml.

    Raises:
        MissingPrerequisite: no Spack.
        CheckFailed: there is no solution, or it did not come within the time limit (seconds).
    """
    where = root / "environments" / wanted.name
    log = where / "concretize.log"
    log.unlink(missing_ok=True)
    # The facts' limit is longer where others compute too.
    load = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    limit = time_limit or float(facts.load("spack")["time_limit"]) * load
    with scratch_directory() as scope:
        spack = open_spack(root, scope)
        require_unlocked(where)
        say(f"{wanted.name}: Spack solves it, at most {duration(limit)}")
        solve = ["-e", str(where), "concretize", "--force"]
        try:
            result = spack.run(*solve, timeout=limit, check=False, log=log, tied=True)
        except Stopped as fault:
            raise _no_solution(wanted, log, f"no answer within {duration(limit)}") from fault
    if not result.ok:
        raise _no_solution(wanted, log, "Spack found no solution")
    return read_lock(where)


def differences(wanted: SpackEnvironment, lock: Lock) -> tuple[str, ...]:
    """Where a lock file's versions are not the resolution's: `nccl: 2.29.3, not 2.29.7`."""
    locked = lock.components
    slurms = any("external" in spec for spec in lock.specs.values() if spec["name"] == "pmix")
    if "pmix" not in wanted.pinned and slurms:
        locked.pop("pmix", None)  # Slurm's, whatever it is
    expected = {**wanted.versions, "gcc": wanted.gcc}
    return tuple(
        f"{name}: {locked[name]}, not {expected[name]}"
        for name in locked
        if name in expected and not Range(expected[name]).allows(locked[name])
    )


def _no_solution(wanted: SpackEnvironment, log: Path, what: str) -> CheckFailed:
    text = log.read_text(errors="replace") if log.exists() else ""
    return CheckFailed(
        f"environment '{wanted.name}': {what}",
        details=[*text.strip().splitlines()[-12:], f"log: {log}"],
        hint="Spack often says nothing of a set that is impossible: look for requirements that "
        "contradict each other, and for externals that are missing or not buildable",
    )
