"""What a user's shell, or a program of ours, needs to use a cluster."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from hpcdl.cluster.model import ClusterState
from hpcdl.cluster.state import chosen_directory

_TEMPLATE = """\
{exports}
case ":${{MODULEPATH:-}}:" in
  *:{modules}:*) ;;
  *) export MODULEPATH={modules}"${{MODULEPATH:+:$MODULEPATH}}" ;;
esac
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

_ON_PATH = """\
case ":$PATH:" in
  *:{own}:*) ;;
  *) export PATH={own}:"$PATH" ;;
esac"""


def variables(current: ClusterState) -> dict[str, str]:
    """The variables that say which cluster and site are meant."""
    found = {"SLURM_CONF": str(current.configuration), "HPCDL_SITE": str(current.site_file)}
    if chosen_directory() is not None:
        found["HPCDL_CLUSTER_DIR"] = str(current.directory)
    return found


def commands(current: ClusterState) -> Path | None:
    """The directory of a cluster's own sbatch, srun and so on; None for the machine's."""
    return current.directory / "bin" if current.root else None


def modules(current: ClusterState) -> Path:
    """The directory that `module avail` shows: the current release's."""
    return current.prefix / "current/modules"


def environment(current: ClusterState, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """A whole environment for programs that use the cluster.

    `base` is what to build on, this process's environment by default.
    """
    merged = {**(os.environ if base is None else base), **variables(current)}
    if (own := commands(current)) is not None:
        merged["PATH"] = f"{own}:{merged.get('PATH', os.defpath)}"
    front = str(modules(current))
    rest = [part for part in merged.get("MODULEPATH", "").split(":") if part and part != front]
    merged["MODULEPATH"] = ":".join([front, *rest])
    return merged


def shell_exports(current: ClusterState) -> str:
    """Lines for `eval` in bash, zsh or sh; a second eval changes nothing."""
    exports = "\n".join(
        f"export {name}={shlex.quote(value)}" for name, value in variables(current).items()
    )
    if (own := commands(current)) is not None:
        exports += "\n" + _ON_PATH.format(own=shlex.quote(str(own)))
    return _TEMPLATE.format(
        exports=exports,
        modules=shlex.quote(str(modules(current))),
        init=shlex.quote(str(current.lmod_init.parent)),
    )
