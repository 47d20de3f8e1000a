"""Plans the builds of a stack, one per group of partitions, and builds a release from wheels.

Every way of building has a plan of its own with the same methods, a `ReleasePlan`; what the command
line, `stack plan` and the documents show comes from it. Its versions are those that `stack resolve`
shows for each of its partitions: both are answers of one `Resolver`.

`plan_wheels` thinks: versions, identity, steps. `build` acts: an immutable tree, and nothing half
done. What a killed build leaves is removed by the next, which finds the fetched and built wheels in
the cache. The same inputs give the same id, and then there is nothing to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hpcdl import __version__, facts
from hpcdl.site import Site, StackRequest
from hpcdl.site.sections import BACKENDS
from hpcdl.stack import horovod
from hpcdl.stack import recipe as recipes
from hpcdl.stack.linked import prefer_own_libraries
from hpcdl.stack.recipe import INDEX, Interpreter, Recipe, Say, install, new_log
from hpcdl.stack.release import SCHEMA, Release, ReleasePlan, digest, read_release, releases_folder
from hpcdl.stack.resolve import Resolver, find_request
from hpcdl.stack.resolve_facts import conditions
from hpcdl.stack.tree import build_slot, finish, new_tree, record_release, require_space, sha256
from hpcdl.system.errors import BadInput, HpcdlError, MissingPrerequisite
from hpcdl.system.files import size_of
from hpcdl.system.resources import cache
from hpcdl.system.run import every, module_argv, run
from hpcdl.system.text import utc_now


@dataclass(frozen=True)
class BuildPlan(ReleasePlan):
    """The plan of a build. `release_id` is None until wheels and compilers are known.

    `mpi` is empty without Horovod; `compilers` are None where the machine has none that fit, or
    none are needed.
    """

    recipe: Recipe
    python: Interpreter
    mpi: str
    own: str
    lock: Path | None
    compilers: horovod.Toolchain | None = None
    modules: tuple[Mapping[str, str], ...] = ()
    """Loaded modules that the MPI comes from: the release's module loads them too."""
    folder: Path | None = None
    """Where Horovod's wheel is in the cache, or is to be."""

    @property
    def release_id(self) -> str | None:
        """Content-addressed, such as `tensorflow-2.21.0-cpu-1f0c9a3e`."""
        if self.lock is None or (self.recipe.horovod is not None and self.folder is None):
            return None
        key = digest(
            SCHEMA,
            recipes.read_wheels(self.lock),
            self.folder.name if self.folder else "",
            self.python.version,
            self.own,
            self.partitions,
            self.modules,
        )
        return f"{self.request.name}-{self.recipe.tensorflow}-{self.recipe.variant}-{key}"

    @property
    def horovod_wheel(self) -> Path | None:
        """Return Horovod's cached wheel by this machine's compilers; None if there is none."""
        return horovod.built_wheel(self.folder)

    @property
    def needs_compilers(self) -> bool:
        """Return whether Horovod has to be compiled."""
        return self.recipe.horovod is not None and self.horovod_wheel is None

    def toolchain(self) -> horovod.Toolchain:
        """The compilers of this machine for it; see `horovod.find_toolchain`."""
        return self.compilers or horovod.find_toolchain(self.site, self.request, self.recipe)

    def remaining(self) -> list[str]:
        """Return the steps of a release that does not exist yet."""
        recipe, steps = self.recipe, []
        if self.lock is None:
            steps = [
                f"fetch {recipe.package} {recipe.tensorflow} and what it needs (about "
                f"{recipe.fetch_gb:.1f} GB)"
            ]
        if recipe.horovod is None:
            steps.append("leave Horovod out: the stack is for tf.distribute")
        elif self.needs_compilers:
            gpus = ", ".join(f"sm_{one.replace('.', '')}" for one in recipe.horovod["computes"])
            what = f"build Horovod {recipe.horovod['version']} with {self.mpi}"
            what += f", NCCL {recipe.versions['nccl']}, for {gpus}" if gpus else ""
            steps.append(f"{what}, by {self.compilers}" if self.compilers else what)
        what = "TensorFlow, Horovod" if recipe.horovod else "TensorFlow"
        own = f"hpcdl {__version__} in {self.root}/stack (Python {self.python.version})"
        return [*steps, f"install {what} and {own}"]

    def require_tools(self) -> None:
        """Look for compilers and space, before gigabytes are fetched for nothing."""
        if self.needs_compilers:
            self.toolchain()
        needs = {releases_folder(self.site): self.recipe.tree_gb}
        if self.lock is None:  # uv keeps what it unpacks
            needs = {cache("uv"): self.recipe.tree_gb, **needs}
        require_space(needs)

    def make(self, say: Say) -> Release:
        """Build it: see `build`."""
        return build(self, say)

    def as_data(self) -> dict[str, Any]:
        """For machines, with the values that only a plan from wheels has."""
        built = self.recipe.horovod
        return {
            **super().as_data(),
            "source": self.recipe.source,
            "requirements": list(self.recipe.requirements),
            "edits": {edit["name"]: edit["why"] for edit in built["edits"]} if built else {},
            "modules": [dict(module) for module in self.modules],
        }

    def expected(self) -> Release:
        """The release as it will be recorded; its lock lacks Horovod, its id may be unknown."""
        # Without a digest, it still differs from those of the stack's other builds.
        recipe = self.recipe
        name = self.release_id or f"{self.request.name}-{recipe.tensorflow}-{recipe.variant}"
        root = releases_folder(self.site) / name
        packages = root / "stack" / "lib" / f"python{self.python.minor}" / "site-packages"
        return Release(
            id=name,
            stack=self.request.name,
            backend=self.request.backend,
            root=root,
            module=recipe.module,
            versions=self.versions(),
            partitions=self.partitions,
            proof=recipe.proof,
            created="",
            hpcdl=f"{__version__}+{self.own}",
            needs={**recipe.needs, **({"modules": list(self.modules)} if self.modules else {})},
            lock=tuple(recipes.read_wheels(self.lock)) if self.lock else (),
            environment={
                key: text.format(packages=packages) for key, text in recipe.environment.items()
            },
        )

    def versions(self) -> Mapping[str, str]:
        """The components a person asks for, by name."""
        versions = {
            "python": self.python.version,
            "tensorflow": self.recipe.tensorflow,
            **self.recipe.versions,
            **({"mpi": self.mpi} if self.mpi else {}),
            "hpcdl": __version__,
        }
        for wheel in recipes.read_wheels(self.lock) if self.lock else ():
            if wheel["name"] in {"keras", "numpy", "scikit-learn"}:
                versions[wheel["name"]] = wheel["version"]
        return MappingProxyType(versions)


def plan_wheels(
    site: Site, request: StackRequest, names: tuple[str, ...], served: tuple[str, ...], **_: bool
) -> BuildPlan:
    """The plan of one build from wheels: for the partitions `names`, recorded as for `served`."""
    recipe = recipes.recipe_of(site, request, names)
    python = recipes.interpreter(recipe.python)
    mpi = horovod.mpi_version() if request.horovod else ""
    behind = tuple(horovod.modules_behind("mpirun")) if request.horovod else ()
    own, compilers, folder = recipes.own_digest(), None, None
    lock = recipes.found_lock(recipe, python)
    if recipe.horovod is not None:
        with suppress(MissingPrerequisite, BadInput):  # `require_ready` says what is missing
            compilers = horovod.find_toolchain(site, request, recipe)
        folder = horovod.horovod_folder(recipe, python, mpi, compilers)
    return BuildPlan(
        site, request, served, recipe, python, mpi, own, lock, compilers, behind, folder
    )


def build(plan: BuildPlan, say: Say) -> Release:
    """Build the planned release, or return it where it exists; a failure leaves nothing."""
    plan.require_ready()
    lock = plan.lock or recipes.lock_wheels(plan.recipe, plan.python, say)
    own, wheel = recipes.own_wheel()
    plan = replace(plan, lock=lock, own=own)
    if plan.exists:
        return read_release(plan.site, plan.expected().id)
    with build_slot(plan.site, say):
        if not plan.exists:
            with new_tree(plan.root) as root:
                made = _fill(plan, root, wheel, say)
                expected = plan.expected()
                rows = [*expected.lock]
                if made is not None:
                    row = {"name": "horovod", "version": plan.recipe.versions["horovod"]}
                    row |= {"file": made.name, "sha256": sha256(made), "built": made.parent.name}
                    compilers = (made.parent / horovod.COMPILERS).read_text().strip()
                    rows.append({**row, "compilers": compilers})
                record_release(replace(expected, created=utc_now(), lock=tuple(rows)))
    return read_release(plan.site, plan.expected().id)


def _fill(plan: BuildPlan, root: Path, own: Path, say: Say) -> Path | None:
    """Make the tree of a release with hpcdl's `own` wheel; returns Horovod's, None without it."""
    recipe, lock = plan.recipe, plan.lock
    assert lock is not None
    stack, log = root / "stack", new_log(root.name)
    count = len(recipes.read_wheels(lock))
    say(f"installing {count} wheels in {stack}; uv fetches what its cache lacks")
    run([*module_argv(plan.python.path, "venv"), "--without-pip", stack], log=log, tied=True)
    python = stack / "bin" / "python"
    watch = every(lambda: say(f"{size_of(stack) / 1e9:.1f} GB are installed"))
    install(python, log, "--require-hashes", "--requirement", lock, hint=INDEX, watch=watch)
    if plan.folder is not None and plan.needs_compilers:
        tools = plan.toolchain()
        horovod.build_horovod(recipe, plan.python, plan.folder, stack, tools, say)
    made = plan.horovod_wheel
    added = [*([made] if made else ()), own]
    say("installing Horovod and hpcdl" if recipe.horovod else "installing hpcdl, without Horovod")
    install(python, log, *added)
    for name in recipe.horovod["leave_out"] if recipe.horovod else ():
        (stack / name).unlink()
    packages = stack / "lib" / f"python{plan.python.minor}" / "site-packages"
    for row in facts.load("nvidia_wheels")["links"]:
        versions = {**recipe.versions, "tensorflow": recipe.tensorflow}
        if all(condition.holds(versions) for condition in conditions(row["when"])):
            (packages / "nvidia" / row["link"]).symlink_to(row["to"])
    for name in ("tensorflow", "horovod"):
        prefer_own_libraries(packages / name)
    say("compiling bytecode, setting permissions")
    finish(plan.site, root, packages, packages, log=log, say=say)
    return made


@dataclass(frozen=True)
class Blocked:
    """Partitions of a stack that get no build on this machine, and why."""

    partitions: tuple[str, ...]
    fault: HpcdlError

    def __str__(self) -> str:
        return f"{', '.join(self.partitions)}: {self.fault.in_one_line()}"


def plan_stack(
    site: Site, name: str | None = None, *, partition: str | None = None, backend: str | None = None
) -> tuple[tuple[ReleasePlan, ...], tuple[Blocked, ...]]:
    """The builds of a stack, one per TensorFlow that its GPUs need, and what gets none.

    `partition` asks for its build only; `backend` builds it another way than the site file says.
    """
    request = find_request(site, name)
    request = replace(request, backend=backend or request.backend)
    site = replace(site, stacks={**site.stacks, request.name: request})
    resolver = Resolver(site)
    groups = resolver.groups(request)
    wanted = [
        group for group in groups if partition is None or site.partition(partition).name in group
    ]
    if not wanted:
        raise BadInput(f"stack '{request.name}' does not serve partition '{partition}'")
    module, _, function = BACKENDS[request.backend].planner.partition(":")
    plan = getattr(import_module(f"hpcdl.stack.{module}"), function)
    plans: list[ReleasePlan] = []
    blocked = []
    for names in wanted:
        served = resolver.recorded(request, names)
        try:
            plans.append(plan(site, request, names, served, alone=len(groups) == 1))
        except (MissingPrerequisite, BadInput) as fault:
            blocked.append(Blocked(names, fault))
    return tuple(plans), tuple(blocked)
