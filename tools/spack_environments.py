"""Writes spack/environments/*/spack.yaml from the facts: `python -m tools.spack_environments`.

Then let Spack solve what changed: `spack -e spack/environments/NAME concretize -f`. A test compares
the lock files with the resolution.
"""

from __future__ import annotations

from hpcdl import facts
from hpcdl.stack.resolve_facts import wheel_sets
from hpcdl.stack.resolve_solution import Setting, solve
from hpcdl.stack.spack_backend.environment import SpackEnvironment, render, up_to
from hpcdl.system.files import write_atomic
from hpcdl.system.resources import folder


def environments() -> tuple[SpackEnvironment, ...]:
    """All environments, in the facts' order."""
    return tuple(map(environment, facts.load("spack")["environments"]))


def environment(name: str) -> SpackEnvironment:
    """The environment of a GPU generation, such as `p100`."""
    row = facts.load("spack")["environments"][name]
    named = (name, row["title"], tuple(row["serves"]), tuple(row["archs"]))
    if "wheels" in row:
        (tensorflow, listed), *_ = wheel_sets("py-tensorflow-cuda-wheels").items()
        horovod, *_ = wheel_sets("py-horovod-wheels", cuda=True)
        versions = {"tensorflow": tensorflow, "horovod": horovod, "python": listed["python"]}
        return SpackEnvironment(*named, {**versions, **listed["versions"]}, gcc="", wheels=True)
    compute = facts.load("gpus")["gpus"][row["gpu"]]["compute"]
    found = {one.component: one.version for one in solve(Setting("spack", compute))[0]}
    return SpackEnvironment(*named, found, up_to(found["gcc"]))


def main() -> None:
    """Write the files."""
    for one in environments():
        write_atomic(folder("spack") / "environments" / one.name / "spack.yaml", render(one))


if __name__ == "__main__":
    main()
