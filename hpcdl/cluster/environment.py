"""What a user's shell, or a program of ours, needs to use a cluster."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from hpcdl.cluster.model import ClusterState
from hpcdl.cluster.state import chosen_directory

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


def variables(current: ClusterState) -> dict[str, str]:
    """The variables that say which cluster and site are meant."""
    found = {"SLURM_CONF": str(current.configuration), "HPCDL_SITE": str(current.site_file)}
    if chosen_directory() is not None:
        found["HPCDL_CLUSTER_DIR"] = str(current.directory)
    return found


def modules(current: ClusterState) -> Path:
    """The directory that `module avail` shows: the current release's."""
    return current.prefix / "current/modules"


def _fronts(current: ClusterState) -> dict[str, str]:
    """What goes in front: a cluster's own sbatch, srun and so on, and the modules."""
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
    fronts = [_FRONT.format(name=name, first=shlex.quote(first))
              for name, first in _fronts(current).items()]  # fmt: skip
    lmod = _LMOD.format(init=shlex.quote(str(current.lmod_init.parent)))
    return "".join([*exports, *fronts, lmod])
