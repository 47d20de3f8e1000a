"""Makes a release of what Spack has built: one view, one module, whatever the number of packages.

The release's `stack` is a view of Spack: links into the install tree PREFIX/spack/store, which
all releases share and which Spack names by content. Beside it lie the environment and its lock.
The module sets what Spack itself sets when that environment is activated with its view. hpcdl
goes in as files of its own, so that a release always has the one it was made with.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdl.stack.install import add_startup, compile_folders, install, mode_faults, open_to_readers
from hpcdl.stack.resolve_facts import wheel_sets
from hpcdl.stack.spack_backend.tool import Lock, Spack
from hpcdl.system.errors import CheckFailed, MissingPrerequisite
from hpcdl.system.files import write_atomic
from hpcdl.system.resources import folder
from hpcdl.system.run import run

_SHOWN = 10
_EXPORT = re.compile(r"^export (\w+)=(.*?);?$", re.MULTILINE)
# The module says these itself, or they are for building and not for running.
_NOT_OURS = {
    "PATH",
    "PYTHONPATH",
    "MANPATH",
    "CMAKE_PREFIX_PATH",
    "PKG_CONFIG_PATH",
    "ACLOCAL_PATH",
    "XDG_DATA_DIRS",
    "PROMPT",
    "PS1",
    "HOME",
    "INFOPATH",
}
_IMPORTS = {"jinja2": "py-jinja2", "yaml": "py-pyyaml", "shtab": "py-shtab", "numpy": "py-numpy"}


@dataclass(frozen=True)
class Built:
    """One package of an environment, as Spack describes it (spack/inventory.py)."""

    name: str
    version: str
    hash: str
    prefix: Path
    external: bool
    installed: bool
    licence: str | None
    files: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Inventory:
    """A solved environment: its packages, and where Spack keeps them.

    `store` is the install tree, `padded` the length that its paths are padded to, `repos` the
    directories of the package repositories by namespace.
    """

    packages: tuple[Built, ...]
    store: Path
    padded: int
    repos: Mapping[str, Path]


def inventory(spack: Spack, environment: Path) -> Inventory:
    """Return Spack's inventory of a solved environment, or raise `CommandFailed`."""
    output = spack.run("-e", environment, "python", folder("spack") / "inventory.py").stdout
    data = json.loads(output.strip().splitlines()[-1])
    packages = tuple(
        Built(**{**row, "prefix": Path(row["prefix"]), "files": tuple(row["files"])})
        for row in sorted(data["packages"], key=lambda row: (row["name"], row["hash"]))
    )
    repos = {name: Path(path) for name, path in data["repos"].items()}
    return Inventory(packages, Path(data["store"]), data["padded"], repos)


def environment_text(lock: Lock, found: Inventory) -> str:
    """The release's own spack.yaml: the same roots, its view, and all directories."""
    specs = "\n".join(f"  - {json.dumps(root['spec'])}" for root in lock.roots)
    repos = "\n".join(f"    {name}: $env/{place}" for name, place in _copied(lock, found).items())
    padding = f", padded_length: {found.padded}" if found.padded else ""
    return (
        "# The environment of this release, as it was built; do not edit it.\n"
        "spack:\n" + (f"  repos:\n{repos}\n" if repos else "") + f"  specs:\n{specs}\n"
        "  concretizer: {unify: true}\n"
        f"  config: {{install_tree: {{root: {found.store}{padding}}}}}\n"
        "  view: {default: {root: ../stack, link: run}}\n"
    )


def make_view(spack: Spack, root: Path, lock: Lock, found: Inventory) -> None:
    """The release's environment in ROOT/spack and its view in ROOT/stack.

    `spack` has a scope of its own; `found` are the packages of the same environment.
    """
    own = root / "spack"
    write_atomic(own / "spack.yaml", environment_text(lock, found))
    shutil.copyfile(lock.environment / "spack.lock", own / "spack.lock")
    for name, place in _copied(lock, found).items():
        ignored = shutil.ignore_patterns("__pycache__", ".git")
        shutil.copytree(found.repos[name], own / place, ignore=ignored)
    spack.run("-e", own, "env", "view", "regenerate")


def _copied(lock: Lock, found: Inventory) -> dict[str, Path]:
    """Package repositories that go into the release, all but Spack's own, and their places."""
    names = sorted((lock.namespaces & set(found.repos)) - {"builtin"})
    return {name: Path("spack_repo", *name.split(".")) for name in names}


def add_hpcdl(root: Path, wheel: Path, pip: Path, log: Path) -> Path:
    """Put hpcdl into the view as files of its own; returns its site-packages.

    `pip` is a directory or wheel with pip in it.
    """
    stack = root / "stack"
    python = stack / "bin" / "python"
    (found,) = stack.glob("lib/python3*/site-packages")
    packages = own_folder(stack, found.relative_to(stack))
    scripts = own_folder(stack, Path("bin"))
    for left in (packages / "hpcdl", *packages.glob("hpcdl-*.dist-info"), scripts / "hpcdl"):
        if left.is_symlink() or left.is_file():
            left.unlink()
        elif left.is_dir():
            shutil.rmtree(left)
    install(python, [wheel], pip, log)
    compile_folders(python, [packages / "hpcdl"], log)
    own_folder(stack, Path("share") / "hpcdl")
    add_startup(stack)
    open_to_readers(root)
    return packages


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
        if name in _NOT_OURS or name.startswith(("SPACK", "HPCDL")) or not value:
            continue
        parts = [part for part in value.split(":") if part]
        folders = all(part.startswith("/") for part in parts)
        yield name, parts if folders and name.endswith(("PATH", "DIRS")) else value


def require_readable(packages: Iterable[Built]) -> None:
    """CheckFailed unless what the view links to is as in releases: readable, not writable."""
    prefixes = [one.prefix for one in packages if not one.external and one.installed]
    faults = [fault for prefix in prefixes for fault in mode_faults(prefix)]
    if faults:
        raise CheckFailed(
            f"{len(faults)} installed files have wrong permissions",
            details=faults[:_SHOWN],
            hint="let Spack install with umask 022 and `permissions: {read: world, write: user}`",
        )


def lock_entries(
    packages: Iterable[Built], run: Collection[str], *, cuda: bool = False
) -> Iterator[Mapping[str, str]]:
    """The lock of a release: every package, and the wheels that some recipes install.

    `run` are the hashes of the packages that it needs to run; their entries say so.
    """
    for package in packages:
        entry = {"name": package.name, "version": package.version, "hash": package.hash}
        # The first file is the package's own archive, the others are patches and resources.
        own = package.files[0] if package.files else {}
        entry |= {key: str(own[key]) for key in ("url", "sha256", "commit") if own.get(key)}
        if package.licence:
            entry["licence"] = package.licence
        if package.external:
            entry["external"] = str(package.prefix)
        if package.hash in run:
            entry["run"] = "yes"
        yield entry
        try:
            wheels = wheel_sets(package.name, cuda=cuda)[package.version].get("others", {})
        except (OSError, KeyError):
            continue
        for name, wheel in wheels.items():
            yield {
                "name": name,
                "version": wheel["version"],
                "sha256": wheel["sha256"],
                "file": wheel["url"].rpartition("/")[2],
            }
