"""Makes releases with Spack: builds a stack, or adopts what anybody has installed anywhere.

A build is solved, installed in parallel and then adopted. Everything is made below PREFIX/spack,
which all stacks share: `store` is the install tree, which Spack names by content, STACK/ one
stack's environment and build. An interrupted build continues where it was. A failure names the
package, its log, and the command that reopens the environment it was built in. A build cache is
Spack's own, by its `autopush`.

`adopt` asks Spack what is installed, links it all into one view, and adds hpcdl and the records.
Nothing is compiled, and the environment and its install tree stay as they are: the release's own
lock file names what it needs. Its `stack` is a view of Spack: links into the install tree. The
module sets what Spack itself sets when that environment is activated. hpcdl goes in as files of
its own: a release has its own one.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcdl import __version__, facts
from hpcdl.site import Partition, Site, StackRequest
from hpcdl.stack.recipe import Say, install, new_log, own_digest, own_wheel
from hpcdl.stack.release import MODULE, Release, ReleasePlan, digest, read_release
from hpcdl.stack.resolve import Resolver, find_request
from hpcdl.stack.resolve_facts import gpus_of, needs_of, serves, wheel_sets
from hpcdl.stack.spack_backend import environment as spacks
from hpcdl.stack.spack_backend.environment import Lock, Spack, SpackEnvironment, read_lock
from hpcdl.stack.tree import build_slot, finish, new_tree, record_release, require_space, shortened
from hpcdl.system.errors import BadInput, CheckFailed, MissingPrerequisite
from hpcdl.system.files import shared_lock, write_atomic
from hpcdl.system.resources import scratch_directory
from hpcdl.system.run import run
from hpcdl.system.text import utc_now
from hpcdl.system.trust import require_known_owners

_STAMP = ".solved"


@dataclass(frozen=True)
class SpackPlan(ReleasePlan):
    """The plan of a release by Spack: a build, or the adoption of what is installed in `where`.

    `environment` and `files`, to be written before it is solved, are those of a build; `lock` is
    None until these very files are solved. `own` is the digest of hpcdl's files; `left_out` are
    partitions of the stack that it has no code for.
    """

    where: Path
    own: str
    lock: Lock | None
    environment: SpackEnvironment | None = None
    files: Mapping[Path, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Where a build has its settings, recipes and environment."""
        return self.where.parents[1]

    def solved(self) -> SpackPlan:
        """The plan with the lock that is there, where it is the solution of these very files."""
        lock, stamp = self.where / "spack.lock", self.where / _STAMP
        there = lock.is_file() and stamp.is_file() and stamp.read_text() == self.stamp()
        return replace(self, lock=read_lock(self.where) if there else None)

    def stamp(self) -> str:
        """Return the digest of the lock file and of its inputs, recipes included."""
        texts = {str(path): text for path, text in self.files.items()}
        whole = json.loads((self.where / "spack.lock").read_text())
        # `spack` says which Spack wrote it: an install by another one writes it anew.
        solved = {key: part for key, part in whole.items() if key != "spack"}
        return digest(texts, spacks.shipped_recipes(), solved)

    @property
    def release_id(self) -> str | None:
        """That of the environment's lock."""
        lock = self.lock
        return lock.release_id(self.request.name, self.partitions, self.own) if lock else None

    def remaining(self) -> list[str]:
        """Return the steps of a release that does not exist yet."""
        lock, wanted = self.lock, self.environment
        count = f"{len(lock.specs)} " if lock else ""
        if wanted is None:
            steps = [self.narrowed()] if self.left_out else []
            steps.append(f"look whether all {count}packages of {self.where} are installed")
        else:
            steps = [wanted.why, *(f"write {path}" for path in self.files)]
            steps += [] if lock else [f"solve {wanted.name} with Spack"]
            steps.append(f"install what is missing of its {count}packages in {store(self.site)}")
        return [*steps, f"link them and hpcdl {__version__} together in {self.root}/stack"]

    def narrowed(self) -> str:
        """Which partitions of the stack get it, which do not, and why."""
        assert self.lock is not None
        left_out = ", ".join(_titled(self.site.partition(name)) for name in self.left_out)
        code = _code(self.lock)
        return f"serve {', '.join(self.partitions)}, not {left_out}: its code is for {code}"

    def require_tools(self) -> None:
        """Look for Spack; for a build, for what it starts and for space where the size is known."""
        spacks.find_spack()
        spacks.packages_named()
        wanted, table = self.environment, facts.load("spack")
        if wanted is None:
            return
        missing = [name for name in table["commands"]["needed"] if shutil.which(name) is None]
        if missing:
            names = " ".join(missing)
            raise MissingPrerequisite(
                f"Spack cannot build: there is no {names.replace(' ', ', ')} on PATH",
                hint=f"Debian and Ubuntu: apt install {names}",
            )
        # A later build finds most of its packages in the store.
        if wanted.wheels and not store(self.site).is_dir():
            require_space({store(self.site): table["build_gb"]["cuda" if wanted.archs else "cpu"]})

    def make(self, say: Say) -> Release:
        """Build or adopt it."""
        return adopt_installed(self, say) if self.environment is None else build_spack(self, say)

    def as_data(self) -> dict[str, Any]:
        """For machines, with the values that only a build or an adoption has."""
        wanted = self.environment
        if wanted is None:
            own = {"environment": str(self.where), "left_out": list(self.left_out)}
        else:
            own = {"why": wanted.why, "specs": list(wanted.specs), "directory": str(self.folder)}
        return {**super().as_data(), **own}

    def expected(self, packages: Sequence[PackageRow] = ()) -> Release:
        """The release as it is recorded once its `packages` are known; its id perhaps unknown."""
        lock = self.lock
        source = lock or self.environment
        assert source is not None
        versions = source.versions
        first = self.site.partition((self.partitions or tuple(self.site.partitions))[0])
        mpi = f"Open MPI {versions['openmpi']}" if "openmpi" in versions else "MPI"
        return Release(
            id=self.release_id or f"{self.request.name}-{versions['tensorflow']}",
            stack=self.request.name,
            backend="spack-wheels" if source.wheels else "spack",
            root=self.root,
            module=f"{MODULE}/{versions['tensorflow']}-{source.variant}",
            versions={**versions, "hpcdl": __version__, "mpi": mpi},
            partitions=self.partitions,
            proof=source.proof,
            created=utc_now(),
            hpcdl=f"{__version__}+{self.own}",
            lock=tuple(lock_entries(packages, lock)) if lock else (),
            needs=needs_of(
                source.archs,
                versions.get("cuda", ""),
                lock.target if lock else first.target,
                gpus_of(self.site, self.partitions),
                wheels=source.wheels,
            ),
        )


def shared(site: Site) -> Path:
    """Return the directory that all stacks of a prefix share."""
    return site.paths.prefix / "spack"


def store(site: Site) -> Path:
    """The install tree that all stacks of a prefix share: the site's, where it has one."""
    return site.spack.store or shared(site) / "store"


def plan_spack(
    site: Site,
    request: StackRequest,
    names: tuple[str, ...],
    served: tuple[str, ...],
    *,
    alone: bool = True,
) -> SpackPlan:
    """The plan of one build with Spack: for the partitions `names`, recorded as for `served`.

    Where the stack has others (not `alone`), its environment is named by its variant.

    Raises BadInput: no set of versions fits, or the stack has packages that are wheels.
    """
    if request.packages:
        raise BadInput(
            f"`packages:` of stack '{request.name}' are wheels, and Spack builds it",
            hint="`backend: wheels` takes them; with Spack, add specs to an environment of your "
            "own",
        )
    wanted = spacks.environment_of(site, request, names, request.name)
    if not alone:
        target = site.partition(names[0]).target
        wanted = replace(wanted, name=f"{request.name}-{wanted.variant}-{target}")
    place = shared(site) / wanted.name
    files = spacks.files_of(site, wanted, place, names[0])
    where = place / "environments" / wanted.name
    return SpackPlan(site, request, served, where, own_digest(), None, wanted, files).solved()


def build_spack(plan: SpackPlan, say: Say) -> Release:
    """Build the planned release, or return it where it exists."""
    plan.require_ready()
    wanted = plan.environment
    assert wanted is not None
    with shared_lock(plan.folder / ".lock", wait_seconds=10):
        plan = plan.solved()
        if not plan.exists:
            say(wanted.why)
            spack = open_build(plan)
            spacks.require_unlocked(plan.where)
            plan = plan if plan.lock else _solve(plan, wanted, say)
        if plan.exists:
            return read_release(plan.site, plan.expected().id)
        # hpcdl is a package of the compiled stacks only.
        env = {} if wanted.wheels else {"HPCDL_WHEEL": str(own_wheel()[1])}
        log = spacks.build_folder(plan.where) / spacks.LOG
        say(f"installing with Spack, which says in {log} how far it is")
        spacks.install(spack, plan.where, env)
        return adopt(plan, spack, say)


def open_build(plan: SpackPlan) -> Spack:
    """Spack with the settings of this build, in a directory that a person can use too."""
    build = spacks.build_folder(plan.where)
    config = (
        f"config:\n  build_stage: ['{build / 'stage'}']\n"
        f"  source_cache: '{shared(plan.site) / 'downloads'}'\n"
    )
    spack = spacks.open_spack(plan.folder, build / "scope", {"config.yaml": config})
    site = {"HPCDL_SPACK_SITE": str(plan.folder / "site.yaml")}
    return replace(spack, env={**spack.env, **site})


def _solve(plan: SpackPlan, wanted: SpackEnvironment, say: Say) -> SpackPlan:
    spacks.write_files(plan.folder, plan.files)
    lock = spacks.concretize(plan.folder, wanted, say)
    if differ := spacks.differences(wanted, lock):
        raise CheckFailed(
            f"Spack solved '{wanted.name}' with other versions than the resolution",
            details=differ,
            hint="name what the machine has among spack.externals, or pin the stack's versions",
        )
    write_atomic(plan.where / _STAMP, plan.stamp())
    return replace(plan, lock=lock)


def plan_adoption(site: Site, environment: str, name: str | None = None) -> SpackPlan:
    """Return the plan of an adoption.

    `environment` is its directory or its spack.yaml; `name` is the stack of the site that it is
    for, the first by default.
    """
    request, resolver = find_request(site, name), Resolver(site)
    place = _directory(environment)
    for name in ("spack.yaml", "spack.lock"):  # they name repositories, whose Python Spack runs
        if (place / name).exists():
            require_known_owners(place / name)
    lock = read_lock(place)
    lock.tensorflow  # noqa: B018 - refused here where there is none
    names = resolver.members(request)
    left_out = tuple(name for name in names if not _runs_on(site.partition(name), lock, request))
    if len(left_out) == len(names):
        raise BadInput(
            f"{lock.environment} has code for {_code(lock)}, and stack '{request.name}' serves "
            + ", ".join(_titled(site.partition(name)) for name in names),
            hint="--name names another stack of the site file",
        )
    served = resolver.recorded(request, [one for one in names if one not in left_out])
    return SpackPlan(site, request, served, place, own_digest(), lock, left_out=left_out)


def _runs_on(partition: Partition, lock: Lock, request: StackRequest) -> bool:
    """Whether an environment is for a partition: code for one of its GPUs, or none for none."""
    if not lock.archs:
        return partition.gpu is None or request.variant == "cpu"
    code = [f"sm_{arch}" for arch in lock.archs]
    gpus = (group.gpu for group in partition.gpu_groups)
    return any(serves(code, gpu.compute) for gpu in gpus if gpu)


def _code(lock: Lock) -> str:
    return ", ".join(f"sm_{arch}" for arch in lock.archs) or "CPUs"


def _titled(partition: Partition) -> str:
    return f"{partition.name} ({', '.join(partition.gpu_models) or 'no GPUs'})"


def _directory(named: str) -> Path:
    path = Path(named).absolute()
    place = path.parent if path.name in {"spack.yaml", "spack.lock"} else path
    if (place / "spack.yaml").is_file():
        return place
    raise BadInput(
        f"{named} is no Spack environment: there is no spack.yaml in it",
        hint="name its directory: `spack location --env NAME` says where Spack keeps one by name",
    )


def adopt_installed(plan: SpackPlan, say: Say) -> Release:
    """Make the release of an environment, with the Spack that is found (see `find_spack`)."""
    if plan.exists:
        return read_release(plan.site, plan.expected().id)
    if plan.left_out:
        say(plan.narrowed())
    where = plan.where
    root = where.parents[1] if (where.parents[1] / "spack_repo").is_dir() else where
    with scratch_directory() as scope:
        spack = spacks.open_spack(root, scope)
        spacks.require_unlocked(where)
        return adopt(plan, spack, say)


def adopt(plan: SpackPlan, spack: Spack, say: Say) -> Release:
    """The same with a Spack that is open for the environment."""
    lock = plan.lock
    assert lock is not None
    found = spacks.inventory(spack, plan.where)
    to_run = [row for row in found["packages"] if row["hash"] in lock.to_run]
    _require_installed(lock, spack, found, to_run)
    own, wheel = own_wheel()
    plan = replace(plan, own=own)
    with build_slot(plan.site, say):
        if not plan.exists:
            with new_tree(plan.root) as root:
                say(f"linking {len(to_run)} packages into {root}/stack")
                make_view(spack, root, lock, found)
                add_hpcdl(plan.site, root, wheel, new_log(root.name), say)
                require_imports(root, plan.where)
                variables = module_environment(spack, root)
                made = replace(plan.expected(found["packages"]), environment=variables)
                record_release(made, [Path(found["store"])])
    return read_release(plan.site, plan.expected().id)


def _require_installed(
    lock: Lock, spack: Spack, inventory: Inventory, to_run: Sequence[PackageRow]
) -> None:
    """MissingPrerequisite where a package is not there, or the files are of different specs."""
    where = lock.environment
    install = f"spack -e {where} install"
    if {row["hash"] for row in to_run} != lock.to_run:
        raise MissingPrerequisite(
            f"spack.yaml and spack.lock of {where} are of different specs", hint=install
        )
    missing = [row for row in to_run if not row["installed"] or not Path(row["prefix"]).is_dir()]
    if missing:
        raise MissingPrerequisite(
            f"the environment {where} is not wholly installed in {inventory['store']}: "
            f"{len(missing)} of {len(to_run)} packages are missing",
            details=shortened([f"{row['name']}@{row['version']}" for row in missing]),
            hint=f"{install}; where another Spack than {spack.program} did, name that in "
            "HPCDL_SPACK_ROOT",
        )


_EXPORT = re.compile(r"^export (\w+)=(.*?);?$", re.MULTILINE)
PackageRow = Mapping[str, Any]
Inventory = Mapping[str, Any]
_IMPORTS = {"jinja2": "py-jinja2", "yaml": "py-pyyaml", "shtab": "py-shtab", "numpy": "py-numpy"}


def environment_text(lock: Lock, inventory: Inventory) -> str:
    """The release's own spack.yaml: the same roots, its view, and all directories."""
    specs = "\n".join(f"  - {json.dumps(root['spec'])}" for root in lock.roots)
    repos = "\n".join(
        f"    {name}: $env/{place}" for name, place in _copied(lock, inventory).items()
    )
    padding = f", padded_length: {inventory['padded']}" if inventory["padded"] else ""
    return (
        "# The environment of this release, as it was built; do not edit it.\n"
        "spack:\n" + (f"  repos:\n{repos}\n" if repos else "") + f"  specs:\n{specs}\n"
        "  concretizer: {unify: true}\n"
        f"  config: {{install_tree: {{root: {inventory['store']}{padding}}}}}\n"
        "  view: {default: {root: ../stack, link: run}}\n"
    )


def make_view(spack: Spack, root: Path, lock: Lock, inventory: Inventory) -> None:
    """The release's environment in ROOT/spack and its view in ROOT/stack.

    `spack` has a scope of its own; `inventory` are the packages of the same environment.
    """
    own = root / "spack"
    write_atomic(own / "spack.yaml", environment_text(lock, inventory))
    shutil.copyfile(lock.environment / "spack.lock", own / "spack.lock")
    for name, place in _copied(lock, inventory).items():
        ignored = shutil.ignore_patterns("__pycache__", ".git")
        shutil.copytree(inventory["repos"][name], own / place, ignore=ignored)
    spack.run("-e", own, "env", "view", "regenerate")


def _copied(lock: Lock, found: Inventory) -> dict[str, Path]:
    """Package repositories that go into the release, all but Spack's own, and their places."""
    used = {str(spec["namespace"]) for spec in lock.specs.values()}
    names = sorted((used & found["repos"].keys()) - {"builtin"})
    return {name: Path("spack_repo", *name.split(".")) for name in names}


def add_hpcdl(site: Site, root: Path, wheel: Path, log: Path, say: Say) -> None:
    """Put hpcdl into the view as files of its own."""
    stack = root / "stack"
    (found,) = stack.glob("lib/python3*/site-packages")
    packages = own_folder(stack, found.relative_to(stack))
    scripts = own_folder(stack, Path("bin"))
    for left in (packages / "hpcdl", *packages.glob("hpcdl-*.dist-info"), scripts / "hpcdl"):
        if left.is_symlink() or left.is_file():
            left.unlink()
        elif left.is_dir():
            shutil.rmtree(left)
    install(stack / "bin" / "python", log, wheel)
    own_folder(stack, Path("share") / "hpcdl")
    finish(site, root, packages, packages / "hpcdl", log=log, say=say)


def require_imports(root: Path, environment: Path) -> None:
    """Try that hpcdl finds in the view what it imports; MissingPrerequisite names what it lacks."""
    program = "import importlib.util as u; print(*(n for n in {!r} if u.find_spec(n) is None))"
    argv = [str(root / "stack" / "bin" / "python"), "-c", program.format(tuple(_IMPORTS))]
    missing = [_IMPORTS[name] for name in run(argv, directory=Path("/")).stdout.split()]
    if missing:
        raise MissingPrerequisite(
            f"the environment {environment} lacks packages that hpcdl needs: {', '.join(missing)}",
            hint=f"spack -e {environment} add {' '.join(missing)}, then `spack install`",
        )


def own_folder(stack: Path, inside: Path) -> Path:
    """A directory of a view that may be written to, without writing into the install tree.

    Spack links whole directories where one package alone has something in them: those become
    directories of links.
    """
    path = stack
    for part in inside.parts:
        path /= part
        if path.is_symlink():
            target = path.resolve()
            path.unlink()
            path.mkdir()
            for entry in target.iterdir():
                (path / entry.name).symlink_to(entry)
        else:
            path.mkdir(exist_ok=True)
    return path


def module_environment(spack: Spack, root: Path) -> dict[str, Any]:
    """Return the module's variables: lists of directories to prepend, or a text.

    It is what `spack env activate` sets on top of an empty environment.
    """
    script = f"{spack.shell} env activate --sh --dir {shlex.quote(str(root / 'spack'))}"
    kept = {
        key: value
        for key, value in os.environ.items()
        if key.startswith(("SPACK", "HPCDL_SPACK")) or key in {"HOME", "USER"}
    }
    env = {**kept, **spack.env, "PATH": "/usr/bin:/bin"}
    exports = run(["bash", "--noprofile", "--norc", "-c", script], base_env=env).stdout
    return dict(_settings(exports))


def _settings(exports: str) -> Iterator[tuple[str, Any]]:
    for name, quoted in _EXPORT.findall(exports):
        value = "".join(shlex.split(quoted))
        if (
            name in facts.load("spack")["no_module"]
            or name.startswith(("SPACK", "HPCDL"))
            or not value
        ):
            continue
        parts = [part for part in value.split(":") if part]
        folders = all(part.startswith("/") for part in parts)
        yield name, parts if folders and name.endswith(("PATH", "DIRS")) else value


def lock_entries(packages: Iterable[PackageRow], lock: Lock) -> Iterator[Mapping[str, str]]:
    """The lock of a release: every package, and the wheels that some recipes install.

    The entries of packages that it needs to run say so.
    """
    run, cuda = lock.to_run, bool(lock.archs)
    for package in packages:
        entry = {key: text for key, text in package.items() if key not in {"prefix", "installed"}}
        yield {**entry, "run": "yes"} if package["hash"] in run else entry
        try:
            wheels = wheel_sets(package["name"], cuda=cuda)[package["version"]].get("others", {})
        except (OSError, KeyError):
            continue
        for name, wheel in wheels.items():
            yield {
                "name": name,
                "version": wheel["version"],
                "sha256": wheel["sha256"],
                "file": wheel["url"].rpartition("/")[2],
            }
