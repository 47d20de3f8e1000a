"""The modulefiles of a release: a small data table in front of static, tested Lua.

Pure but for `write_modules`, which puts them in place by one rename.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from hpcdl.stack.recipe import digest
from hpcdl.stack.release import Release
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
        "version": release.module.partition("/")[2],
        "stack": str(release.prefix),
        "summary": summary(release),
    }


def summary(release: Release) -> str:
    """One line for `module whatis` and `module spider`."""
    versions = release.versions
    return (
        f"TensorFlow {versions['tensorflow']} with Horovod {versions['horovod']} "
        f"({versions['mpi']}), Python {versions['python']}"
    )


def render_modules(release: Release) -> dict[str, str]:
    """Every file of the release's `modules` folder, by its path there."""
    code = (folder("modulefiles") / "tensorflow.lua").read_text(encoding="utf-8")
    return {f"{release.module}.lua": f"local release = {lua(module_data(release))}\n\n{code}"}


def write_modules(release: Release) -> Path:
    """Put the release's modulefiles in place.

    `modules` is a link to a folder named by its content, so that new modulefiles replace
    others by one rename and a job that loads them meets the old set or the new one.
    """
    files = render_modules(release)
    target = release.root / f".modules-{digest(files)}"
    if not target.is_dir():
        aside = target.with_name(f".modules.{os.getpid()}")
        with explain_os_errors(target):
            shutil.rmtree(aside, ignore_errors=True)
            for name, text in files.items():
                write_atomic(aside / name, text)
            for made in (aside, *(path for path in aside.rglob("*") if path.is_dir())):
                made.chmod(0o755)
            aside.rename(target)
    switch_link(release.modules, target.name)
    return release.modules
