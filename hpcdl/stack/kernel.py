"""A Jupyter kernel of a release: it loads the module itself, so nobody has to do that before.

The kernel is started through Lmod, as a job is, so what the module brings along (MPI, XLA_FLAGS)
and what its guard says hold for notebooks too. Without a named release it follows what is
published; kernels that run keep what they have.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdl.site import Site
from hpcdl.stack.modules import users_path
from hpcdl.stack.recipe import MODULE
from hpcdl.stack.release import Release
from hpcdl.system.errors import BadInput
from hpcdl.system.files import explain_os_errors, write_json

_START = (
    'unset PYTHONHOME; export MODULEPATH="$1" && . "$2" && module load "$3" && shift 3 && '
    'exec python -m ipykernel_launcher "$@"'
)


@dataclass(frozen=True)
class Kernel:
    """A kernel spec: its `name` for Jupyter, the `directory` it lies in, its `content`."""

    name: str
    directory: Path
    content: Mapping[str, Any]

    def as_data(self) -> dict[str, Any]:
        """For machines."""
        return {"schema": 1, "name": self.name, "file": str(self.file), "spec": dict(self.content)}

    @property
    def file(self) -> Path:
        """Its kernel.json."""
        return self.directory / "kernel.json"


def plan_kernel(site: Site, release: Release, *, follow: bool, prefix: Path | None) -> Kernel:
    """The kernel spec of a release; BadInput where that has no ipykernel.

    `follow` says whether later publishes change what it starts; `prefix` is where Jupyter is
    installed for all its users, else it is for this user.
    """
    if not list(release.prefix.glob("lib/python3*/site-packages/ipykernel")):
        raise BadInput(
            f"{release.id} has no ipykernel, which a Jupyter kernel needs",
            hint="add `packages: [ipykernel]` (or jupyterlab) to its stack in site.yaml, then "
            "build and publish it again",
        )
    name = f"hpcdl-{MODULE if follow else release.id}".lower()
    modules, module = (users_path(site), MODULE) if follow else (release.modules, release.module)
    argv = ["/bin/bash", "--noprofile", "--norc", "-c", _START, "kernel", str(modules),
            str(site.paths.lmod_init), module, "-f", "{connection_file}"]  # fmt: skip
    title = "TensorFlow" if follow else release.module.replace("/", " ")
    content = {"argv": argv, "display_name": f"{title} ({site.name})", "language": "python",
               "metadata": {"debugger": True}}  # fmt: skip
    # Where Jupyter looks for the user's own kernels (jupyter_core.paths).
    shared = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    own = os.environ.get("JUPYTER_DATA_DIR") or Path(shared).expanduser() / "jupyter"
    data = prefix / "share" / "jupyter" if prefix else Path(own)
    return Kernel(name, data / "kernels" / name, content)


def install_kernel(kernel: Kernel) -> None:
    """Write the kernel spec; the directories are for everybody where the prefix is."""
    with explain_os_errors(kernel.file):
        kernel.directory.mkdir(parents=True, exist_ok=True)
        kernel.directory.chmod(0o755)
    write_json(kernel.file, kernel.content)
