"""A cluster's state: its directory, `cluster.json`, and what a shell needs to use the cluster.

`cluster.json` says what runs below its directory; it is written atomically, checked on reading.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpcdl.cluster import identity
from hpcdl.cluster.identity import MARK
from hpcdl.cluster.shape import ClusterState, Node, ProcessId
from hpcdl.system.errors import BadInput, HpcdlError
from hpcdl.system.files import clear_leftovers, write_atomic, write_json
from hpcdl.system.resources import home
from hpcdl.system.trust import require_no_stranger, require_private

_FILE = "cluster.json"
_MARKED = "An embedded cluster's state; see `hpcdl cluster`.\n"
_FRONT = """\
case ":${{{name}:-}}:" in
  *:{first}:*) ;;
  *) export {name}={first}"${{{name}:+:${name}}}" ;;
esac
"""
_LMOD = """\
if ! command -v module > /dev/null 2>&1; then
  if [ -n "${{ZSH_VERSION:-}}" ]; then hpcdl_lmod={init}/zsh
  elif [ -n "${{BASH_VERSION:-}}" ]; then hpcdl_lmod={init}/bash
  else hpcdl_lmod={init}/sh; fi
  # Lmod reads variables that are not set.
  case $- in *u*) hpcdl_strict=-u; set +u ;; *) hpcdl_strict=+u ;; esac
  if [ -r "$hpcdl_lmod" ]; then . "$hpcdl_lmod"; fi
  set "$hpcdl_strict"
  unset hpcdl_lmod hpcdl_strict
fi
"""


def state_directory(site: str) -> Path:
    """The directory of a site's cluster: HPCDL_CLUSTER_DIR, else home()/cluster/NAME."""
    return chosen_directory() or home("cluster") / site


def chosen_directory() -> Path | None:
    """HPCDL_CLUSTER_DIR as an absolute path without links, where it is set."""
    chosen = os.environ.get("HPCDL_CLUSTER_DIR")
    return require_no_stranger(Path(chosen).expanduser()).resolve() if chosen else None


def claim(directory: Path) -> str:
    """Mark a directory as a cluster's, under its lock: only in such a one is anything removed.

    Returns the random part of the cluster's name, which the mark keeps.
    """
    clear_leftovers(directory / MARK)
    token = identity.token_of(directory) or secrets.token_hex(6)
    write_atomic(directory / MARK, f"{_MARKED}identity: {token}\n")
    return token


def is_ours(directory: Path) -> bool:
    """Whether a directory was made by `hpcdl cluster up`."""
    return (directory / MARK).is_file() or (directory / _FILE).is_file()


def is_ours_or_empty(directory: Path) -> bool:
    """Whether `up` may use a directory: a cluster's, an empty one, or none yet.

    Another `up` may claim it meanwhile: what is there is listed before it is asked whose it is.
    One that was killed while it claimed the directory leaves the mark under its temporary name.
    """
    try:
        names = [entry.name for entry in directory.iterdir()]
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return False
    begun = all(name == "lock" or name.startswith((MARK, f".{MARK}.")) for name in names)
    return begun or is_ours(directory)


def write_state(state: ClusterState) -> ClusterState:
    """Write `cluster.json` and give the state back."""
    data = {
        key: str(value) if isinstance(value, Path) else value
        for key, value in asdict(state).items()
    }
    write_json(state.directory / _FILE, {"schema": 1, **data})
    return state


def read_state(directory: Path) -> ClusterState | None:
    """The state below `directory`; None where no cluster is recorded."""
    current = recorded(directory)
    if current is not None and not _from_a_node(current):
        identity.require_here(current.place, current.site, directory)
    return current


def recorded(directory: Path) -> ClusterState | None:
    """Return the content of `cluster.json`, of whatever host."""
    path = directory / _FILE
    if not path.exists():
        return None
    # What it names is executed, by root as well: `etc/`, Slurm's commands, the root file system.
    require_private(directory)
    require_private(path)
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if data.pop("schema") != 1:
            raise ValueError("another version")
        nodes = tuple(Node(**node) for node in data["nodes"])
        running = {name: ProcessId(**one) for name, one in data["processes"].items()}
        paths = {key: Path(data[key]) for key in ("directory", "site_file", "prefix", "lmod_init")}
        data |= {**paths, "nodes": nodes, "processes": running}
        data |= {key: tuple(data[key]) for key in ("killed", "cut")}
        data["root"] = Path(data["root"]) if data.get("root") else None
        return ClusterState(**data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        why = "it is nested too deep" if isinstance(fault, RecursionError) else fault
        hint = "`hpcdl cluster down` stops what is left and removes it"
        raise BadInput(f"{path} is not a cluster's state ({why})", hint=hint) from fault


def _from_a_node(current: ClusterState) -> bool:
    """Whether this is a job of that cluster: its node has namespaces of its own."""
    own = os.environ.get("SLURM_CONF") == str(current.configuration)
    return own and "SLURMD_NODENAME" in os.environ


def all_states() -> list[ClusterState]:
    """The clusters below home(), of whatever host; damaged ones are left out."""
    states = []
    for path in sorted((home() / "cluster").glob(f"*/{_FILE}")):
        try:
            state = recorded(path.parent)
        except HpcdlError:
            continue
        states += [state] if state else []
    return states


def forget(directory: Path) -> None:
    """Remove the record of a cluster."""
    (directory / _FILE).unlink(missing_ok=True)


def variables(current: ClusterState) -> dict[str, str]:
    """Return the variables that select the cluster and the site."""
    found = {"SLURM_CONF": str(current.configuration), "HPCDL_SITE": str(current.site_file)}
    if chosen_directory() is not None:
        found["HPCDL_CLUSTER_DIR"] = str(current.directory)
    return found


def modules(current: ClusterState) -> Path:
    """The directory that `module avail` shows: the current release's."""
    return current.prefix / "current/modules"


def _fronts(current: ClusterState) -> dict[str, str]:
    """Return what to prepend to path variables: the cluster's own commands, and the modules."""
    own = {"PATH": str(current.directory / "bin")} if current.root else {}
    return {**own, "MODULEPATH": str(modules(current))}


def environment(current: ClusterState, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """A whole environment for programs that use the cluster.

    `base` is what to build on, this process's environment by default.
    """
    merged = {**(os.environ if base is None else base), **variables(current)}
    for name, first in _fronts(current).items():
        before = merged.get(name, os.defpath if name == "PATH" else "").split(":")
        merged[name] = ":".join([first, *(part for part in before if part and part != first)])
    return merged


def shell_exports(current: ClusterState) -> str:
    """Lines for `eval` in bash, zsh or sh; a second eval changes nothing."""
    exports = [
        f"export {name}={shlex.quote(value)}\n" for name, value in variables(current).items()
    ]
    fronts = [
        _FRONT.format(name=name, first=shlex.quote(first))
        for name, first in _fronts(current).items()
    ]
    lmod = _LMOD.format(init=shlex.quote(str(current.lmod_init.parent)))
    return "".join([*exports, *fronts, lmod])
