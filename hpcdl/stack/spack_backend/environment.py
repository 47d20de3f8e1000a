"""Spack and its environments: rendered from the resolution, solved and installed by Spack.

`SpackEnvironment` is what an environment needs to know, from facts alone. `render` makes its
spack.yaml, `render_site` the scope with a site's own settings, which environments include where
HPCDL_SPACK_SITE names it. Nothing of a user's own settings is changed: a `Spack` has a scope of its
own.

A lock file counts only when the versions in it are those of the resolution: `differences` says
where they are not. A solver that finds nothing often prints nothing, so the end of the time limit
is an answer too. A release is named by the hashes of its roots, which cover all that is below them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.site import External, Partition, Site, StackRequest
from hpcdl.stack.release import SCHEMA, digest, variant_of
from hpcdl.stack.resolve import Resolver, computes_of
from hpcdl.stack.resolve_facts import serves, wheel_sets
from hpcdl.stack.resolve_solver import Range, sort_key
from hpcdl.system.errors import (
    BadInput,
    CheckFailed,
    ExitCode,
    HpcdlError,
    MissingPrerequisite,
    Stopped,
)
from hpcdl.system.files import explain_os_errors, last_text, lock_holder, write_atomic
from hpcdl.system.resources import folder, scratch_directory, templates
from hpcdl.system.run import CommandFailed, CommandResult, run
from hpcdl.system.text import duration


@dataclass(frozen=True)
class SpackEnvironment:
    """One GPU generation's environment: its versions, and the compilers that fit them all.

    `archs` are Spack's cuda_arch values, none for CPUs; `gcc` a range such as `:11`, empty where
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
    """The environment of one build of a stack: of partitions that share it."""
    resolution = Resolver(site).build(request, names)
    wheels = request.backend == "spack-wheels"
    computes = computes_of(site, request, names)
    gcc = "" if wheels else resolution.versions["gcc"]
    if gcc and not site.spack.compilers and "gcc" not in request.pins:
        gcc = up_to(gcc)  # the machine's own; what is too old the recipes say
    models = (model for part in names for model in site.partition(part).gpu_models)
    return SpackEnvironment(
        name=name,
        title=f"{site.name}, stack {request.name}",
        serves=tuple(dict.fromkeys(models)) if computes else ("CPUs",),
        archs=_archs(resolution.versions["tensorflow"], computes, wheels=wheels),
        versions=resolution.versions,
        gcc=gcc,
        pinned=tuple(request.pins),
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
        packages=_packages(settings.externals, site.slurm.version),
        pmix=site.slurm.pmix,
        compiler=_program,
        store=settings.store or site.paths.prefix / "spack" / "store",
        padded_length=settings.padded_length,
        build_jobs=settings.build_jobs,
        mirrors=sorted(settings.mirrors.items()),
    )


def up_to(gcc: str) -> str:
    """A range of compilers: those of this major release and older ones."""
    return f":{gcc.partition('.')[0]}"


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


def _packages(externals: tuple[External, ...], slurm: str) -> dict[str, list[External]]:
    """The externals by package; Slurm is the machine's, in /usr where no other prefix is named."""
    packages: dict[str, list[External]] = {"pmix": []}
    if not any(external.name == "slurm" for external in externals):
        externals = (*externals, External("slurm", slurm, Path("/usr")))
    for external in externals:
        packages.setdefault(external.name, []).append(external)
    return packages


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
    """Let Spack solve an environment below `root`: the lock beside its spack.yaml."""
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
    locked = lock.versions
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


# A shell with an active environment: `spack find` would list that one's packages alone.
_ACTIVE = frozenset({"SPACK_ENV", "SPACK_ENV_VIEW"})
_RECIPES = ("packages", "wheels", "cuda_wheels")


@dataclass(frozen=True)
class Spack:
    """How Spack is called: `scope` holds settings of this run, `env` variables on top."""

    program: Path
    version: str
    scope: Path
    env: Mapping[str, str] = field(default_factory=dict)

    def run(self, *words: str | Path, **options: Any) -> CommandResult:
        """Run it outside any environment of the caller's; `options` are those of `run`."""
        base = {name: value for name, value in os.environ.items() if name not in _ACTIVE}
        argv = [self.program, "-C", self.scope, *words]
        return run(argv, env=self.env, base_env=base, **options)

    @property
    def shell(self) -> str:
        """The beginning of every call, for a shell."""
        return shlex.join([str(self.program), "-C", str(self.scope)])


def find_spack() -> Path:
    """The `spack` program: of HPCDL_SPACK_ROOT, SPACK_ROOT, or PATH; else MissingPrerequisite."""
    for name in ("HPCDL_SPACK_ROOT", "SPACK_ROOT"):
        program = Path(os.environ.get(name) or "/nonexistent") / "bin" / "spack"
        if program.is_file():
            return program
    found = shutil.which("spack")
    if found is None:
        raise MissingPrerequisite(
            "Spack is not here", hint="set HPCDL_SPACK_ROOT to its directory, or put it on PATH"
        )
    return Path(found)


def open_spack(root: Path, scope: Path, settings: Mapping[str, str] | None = None) -> Spack:
    """Spack for the environments below `root`, with settings written into `scope`.

    `root` has spack_repo/ and environments/, perhaps a site.yaml; `settings` are further files for
    the scope, such as config.yaml, by name.
    """
    program = find_spack()
    version = _version(program)
    site = root / "site.yaml"
    files = dict(settings or {})
    if builtin := packages_named():
        overlay = (root / "spack_repo" / "hpcdl").absolute()
        # In a list of repositories the first one wins.
        own = f"  hpcdl: {overlay}\n" if overlay.is_dir() else ""
        files["repos.yaml"] = f"repos:\n{own}  builtin: {builtin}\n"
    for name, text in files.items():
        write_atomic(scope / name, text)
    return Spack(program, version, scope, {"HPCDL_SPACK_SITE": str(site)} if site.exists() else {})


def _version(program: Path) -> str:
    output = run([program, "--version"], timeout=120, hint="SPACK_PYTHON names its Python").stdout
    match = re.match(r"\d+(\.\d+)+", output.strip())
    least = str(facts.load("spack")["at_least"]["spack"])
    if match is None or sort_key(match.group()) < sort_key(least):
        raise MissingPrerequisite(
            f"{program} is Spack {output.strip()[:40] or 'of no version'}, "
            "too old for this overlay",
            hint=f"use Spack {least} or newer; set HPCDL_SPACK_ROOT to its directory",
        )
    return output.strip()


def packages_named() -> Path | None:
    """Packages of the checkout in HPCDL_SPACK_PACKAGES, if any; BadInput: none are there."""
    packages = os.environ.get("HPCDL_SPACK_PACKAGES")
    if not packages:
        return None
    builtin = Path(packages).absolute() / "repos" / "spack_repo" / "builtin"
    if not (builtin / "repo.yaml").is_file():
        raise BadInput(
            f"HPCDL_SPACK_PACKAGES is {packages}, where there are no packages of Spack",
            hint="name a checkout of github.com/spack/spack-packages",
        )
    return builtin


def require_unlocked(environment: Path) -> None:
    """MissingPrerequisite where another Spack is at work: ours would wait for it without a word."""
    holder = lock_holder(environment / ".spack-env" / "transaction_lock")
    if holder is not None:
        raise MissingPrerequisite(
            f"another Spack is at work on {environment}: process {holder}",
            hint="wait until it ends, then run the same command again",
        )


@dataclass(frozen=True)
class Lock:
    """A lock file: `environment` is its directory, `specs` are by hash."""

    environment: Path
    roots: tuple[Mapping[str, str], ...]
    specs: Mapping[str, Mapping[str, Any]]

    @property
    def to_run(self) -> set[str]:
        """Hashes of what its roots need to run."""
        hashes: set[str] = set()
        todo = [root["hash"] for root in self.roots]
        while todo:
            one = todo.pop()
            if one not in hashes:
                hashes.add(one)
                todo += [
                    other["hash"]
                    for other in self.specs[one].get("dependencies", ())
                    if {"link", "run"} & set(other["parameters"]["deptypes"])
                ]
        return hashes

    @property
    def proof(self) -> str:
        """The gate will show whether it runs; wheels for CPUs have run elsewhere."""
        return "run" if self.wheels and not self.archs else "compiled"

    @property
    def versions(self) -> dict[str, str]:
        """The versions of the stack's components among its packages."""
        book = facts.load("spack")
        names = {package: name for key in _RECIPES for name, package in book[key].items()}
        specs = self.specs.values()
        versions = {names[spec["name"]]: spec["version"] for spec in specs if spec["name"] in names}
        if not self.archs:
            versions.pop("cuda", None)  # nvcc may be there for something else
        if self.wheels:
            rows = wheel_sets(self.tensorflow["name"]).get(self.tensorflow["version"], {})
            # CUDA's libraries are in the wheels, of another release than the nvcc.
            versions |= rows.get("versions", {}) if self.archs else {}
            versions |= {"keras": rows["others"]["keras"]["version"]} if rows else {}
        return versions

    @property
    def tensorflow(self) -> Mapping[str, Any]:
        """The spec of TensorFlow, or `BadInput` where there is none."""
        names = {facts.load("spack")[key]["tensorflow"] for key in _RECIPES}
        matching = [self.specs[one] for one in self.to_run if self.specs[one]["name"] in names]
        if not matching:
            raise BadInput(
                f"the environment {self.environment} has no TensorFlow",
                hint=f"add one of {', '.join(sorted(names))} to its specs",
            )
        return matching[0]

    @property
    def wheels(self) -> bool:
        """Return whether TensorFlow comes from wheels."""
        return bool(self.tensorflow["name"] != facts.load("spack")["packages"]["tensorflow"])

    @property
    def archs(self) -> tuple[str, ...]:
        """Spack's cuda_arch values of TensorFlow, such as `60`; none for CPUs."""
        found = self.tensorflow["parameters"].get("cuda_arch", ())
        values = [found] if isinstance(found, str) else found
        return tuple(sorted(one for one in values if one != "none"))

    @property
    def target(self) -> str:
        """The microarchitecture it is compiled for."""
        target = self.tensorflow["arch"]["target"]
        return str(target if isinstance(target, str) else target["name"])

    @property
    def variant(self) -> str:
        """`cpu`, or CUDA's release and the GPUs: `cuda12.9-sm60`."""
        return variant_of(self.archs, self.versions.get("cuda", ""))

    def release_id(self, stack: str, partitions: tuple[str, ...], own: str) -> str:
        """Readable and content-addressed, such as `tensorflow-2.20.0-cuda12.9-sm60-1f0c9a3e`."""
        hashes = sorted(root["hash"] for root in self.roots)
        key = digest(SCHEMA, hashes, own, partitions)
        return f"{stack}-{self.tensorflow['version']}-{self.variant}-{key}"


def read_lock(environment: Path) -> Lock:
    """The lock file of an environment; MissingPrerequisite: there is none, or it cannot be read."""
    path = environment / "spack.lock"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        lock = Lock(environment, tuple(data["roots"]), data["concrete_specs"])
        lock.to_run  # noqa: B018 - damaged ones are refused here
        return lock
    except FileNotFoundError as fault:
        raise MissingPrerequisite(
            f"the environment {environment} is not installed: it has no spack.lock",
            hint=f"spack -e {environment} install",
        ) from fault
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        raise MissingPrerequisite(
            f"the lock file {path} cannot be read",
            details=[f"{type(fault).__name__}: {str(fault)[:200]}"],
            hint=f"spack -e {environment} concretize --force",
        ) from fault


def inventory(spack: Spack, environment: Path) -> Mapping[str, Any]:
    """A solved environment as spack/inventory.py tells it; MissingPrerequisite: Spack cannot.

    `packages` have what a release's lock has of them, `prefix` and `installed`; `store` is the
    install tree, `padded` the length that its paths are padded to, `repos` the directories of the
    package repositories by namespace.
    """
    try:
        output = spack.run("-e", environment, "python", folder("spack") / "inventory.py").stdout
    except CommandFailed as fault:
        cure = "name the Spack that installed it in HPCDL_SPACK_ROOT"
        if not packages_named():
            cure += (
                ", and where it cannot download its packages a checkout of them "
                "(github.com/spack/spack-packages) in HPCDL_SPACK_PACKAGES"
            )
        raise MissingPrerequisite(
            f"Spack {spack.version} cannot read the environment {environment}",
            details=fault.result.last_lines(3),
            hint=cure,
        ) from fault
    found: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    found["packages"].sort(key=lambda row: (row["name"], row["hash"]))
    return found


def build_folder(environment: Path) -> Path:
    """What a build leaves: its log, its scope, and `stage`, where what failed stays."""
    return environment.parents[1] / "build"


LOG = "install.log"
_SHOWN_LINES = 12
_END = 100_000  # bytes of a package's log in which the last words are looked for
# What Spack's installer prints of a package: `[x] hash name@version failed: its log`.
_FAILED = re.compile(r"^\[x\] (\w{7}) (\S+) failed(?:: (\S+))?", re.MULTILINE)
_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded")


class PackageFailed(HpcdlError):
    """A package did not build (exit code 4)."""

    exit_code = ExitCode.COMMAND_FAILED


def install(spack: Spack, environment: Path, env: Mapping[str, str]) -> None:
    """Install what the environment's lock holds.

    `spack` has the build's own scope; `env` are variables for the recipes.
    """
    build = build_folder(environment)
    with explain_os_errors(build):
        (build / "stage").mkdir(parents=True, exist_ok=True)
        (build / LOG).unlink(missing_ok=True)
    words = ("-e", environment, "install", "--only-concrete")
    more = replace(spack, env={**spack.env, **env})
    if not more.run(*words, log=build / LOG, check=False, tied=True).ok:
        raise _failure(spack, environment, build / LOG)


def _failure(spack: Spack, environment: Path, whole: Path) -> HpcdlError:
    output = whole.read_text(errors="replace")
    failed = _FAILED.findall(output)
    if not failed:
        return PackageFailed(
            "Spack failed before any package did",
            details=[*output.strip().splitlines()[-_SHOWN_LINES:], f"log: {whole}"],
        )
    (short, title, named), *others = failed
    log = Path(named) if named and Path(named).is_file() else whole
    last = [line for line in last_text(log, _END).splitlines() if line.strip()][-_SHOWN_LINES:]
    if _NO_ROOM.search("\n".join([*last, output])):
        return MissingPrerequisite(
            f"no space left while Spack built {title}",
            details=[f"log: {log}"],
            hint="free some space, then run the same command: what is built stays built",
        )
    settings = shlex.join(["env", *(f"{key}={value}" for key, value in spack.env.items())])
    place = shlex.join(["-e", str(environment), "build-env", f"/{short}", "--"])
    return PackageFailed(
        f"{title} did not build",
        details=[
            f"log:    {log}",
            f"reopen: {settings} {spack.shell} {place} bash",
            *(f"| {line}" for line in last),
            *(f"also failed: {name}" for _, name, _ in others),
        ],
        hint="mend it, then run the same command: what is built stays built",
    )
