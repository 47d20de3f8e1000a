"""The modulefiles of a release: a small data table in front of static, tested Lua.

Pure but for `write_modules`, which puts them in place by one rename.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hpcdl.site import Site
from hpcdl.stack.dispatch import Dispatch
from hpcdl.stack.recipe import MODULE, digest
from hpcdl.stack.release import DISPATCH_FILE, Release
from hpcdl.system.files import explain_os_errors, switch_link, write_atomic
from hpcdl.system.resources import folder


def lua(value: object, indent: str = "") -> str:
    """A value as a Lua expression: text, numbers, booleans, lists and mappings of them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _lua_text(value)
    inner = indent + "  "
    if isinstance(value, Mapping):
        rows = [f"[{lua(key)}] = {lua(item, inner)}" for key, item in value.items()]
    elif isinstance(value, list | tuple):
        rows = [lua(item, inner) for item in value]
    else:
        raise TypeError(f"no Lua for {type(value).__name__}")
    return "{\n" + "".join(f"{inner}{row},\n" for row in rows) + indent + "}" if rows else "{}"


def _lua_text(text: str) -> str:
    """A quoted Lua string; everything but printable ASCII becomes decimal escapes."""
    escaped = "".join(
        character if " " <= character <= "~" and character not in '"\\'
        else "".join(f"\\{byte:03d}" for byte in character.encode())
        for character in text
    )  # fmt: skip
    return f'"{escaped}"'


def module_data(release: Release) -> dict[str, object]:
    """What the modulefile of this release differs in."""
    return {
        "id": release.id,
        "version": release.module_version,
        "stack": str(release.prefix),
        "summary": summary(release),
        "needs": dict(release.needs),
        "environment": dict(release.environment),
        "proc": "/proc",
    }


def dispatch_data(site: Site, chosen: Dispatch) -> dict[str, object]:
    """The table of modulerc.lua: versions by partition, by GPU, and the default.

    A partition of several GPU models has a list of its own, `models`: the GPU found decides.
    """
    versions = {name: release.module_version for name, release in chosen.partitions.items()}
    models = {
        name: {
            group.gpu.driver_name: by_model[group.gpu.model].module_version
            for group in site.partitions[name].node_groups
            if group.gpu
        }
        for name, by_model in chosen.models.items()
    }
    gpus = {
        partition.gpu.driver_name: versions[name]
        for name, partition in site.partitions.items()
        if partition.gpu is not None and name in versions
    }
    for by_model in models.values():
        gpus |= by_model
    return {
        "default": chosen.default.module_version,
        "partitions": versions,
        "models": {name: _rows(by_model) for name, by_model in models.items()},
        "gpus": _rows(gpus),
        "proc": "/proc",
    }


def _rows(versions: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"model": model, "version": version} for model, version in versions.items()]


def summary(release: Release) -> str:
    """One line for `module whatis` and `module spider`."""
    versions = release.versions
    parts = {"Horovod": "horovod", "CUDA": "cuda", "cuDNN": "cudnn", "NCCL": "nccl",
             "Python": "python"}  # fmt: skip
    rest = [f"{title} {versions[name]}" for title, name in parts.items() if name in versions]
    mpi = [versions["mpi"]] if "mpi" in versions else []
    return ", ".join([f"TensorFlow {versions['tensorflow']}", *rest, *mpi])


def render_modules(site: Site, shown: Sequence[Release], chosen: Dispatch) -> dict[str, str]:
    """Every file of a `modules` directory, by its path there.

    A later one of the `shown` releases takes a version's name; `chosen` is what a plain `module
    load tensorflow` gives where.
    """
    files = {
        f"{release.module}.lua": _file("release", module_data(release), "tensorflow.lua")
        for release in shown
    }
    choose = _file("dispatch", dispatch_data(site, chosen), "modulerc.lua")
    files[f"{MODULE}/.modulerc.lua"] = choose
    files[DISPATCH_FILE] = json.dumps(chosen.as_data(), indent=2) + "\n"
    return files


def _file(name: str, data: Mapping[str, object], code: str) -> str:
    """A data table in front of static code."""
    parts = [(folder("modulefiles") / part).read_text("utf-8") for part in ("gpu.lua", code)]
    return "\n".join([f"local {name} = {lua(data)}\n", *parts])


def write_modules(
    root: Path, files: Mapping[str, str], complete: Callable[[Path], None] | None = None
) -> None:
    """Put modulefiles in place as `root`/modules.

    `modules` is a link to a directory named by its content, so that new modulefiles replace others
    by one rename and a job that loads them meets the old set or the new one. `complete` adds to a
    new set, given its directory, before it is in place.
    """
    target = root / f".modules-{digest(files)}"
    if not target.is_dir():
        aside = target.with_name(f".modules.{os.getpid()}")
        with explain_os_errors(target):
            shutil.rmtree(aside, ignore_errors=True)
            for name, text in files.items():
                write_atomic(aside / name, text)
            if complete is not None:
                complete(aside)
            for made in (aside, *(path for path in aside.rglob("*") if path.is_dir())):
                made.chmod(0o755)
            aside.rename(target)
    link = root / "modules"
    before = link.readlink().name if link.is_symlink() else ""
    switch_link(link, target.name)
    for old in root.glob(".modules*"):
        # The set before this one stays: a load may be between its listing and its file.
        if old.name not in {target.name, before}:
            shutil.rmtree(old, ignore_errors=True)
