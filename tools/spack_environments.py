"""Writes spack/environments/*/spack.yaml from the facts: `python -m tools.spack_environments`.

Then let Spack solve what changed: `spack -e spack/environments/NAME concretize -f`. A test compares
the lock files with the resolution.
"""

from hpcdl.stack.spack_backend.environment import environments, render
from hpcdl.system.files import write_atomic
from hpcdl.system.resources import folder


def main() -> None:
    """Write the files."""
    for one in environments():
        write_atomic(folder("spack") / "environments" / one.name / "spack.yaml", render(one))


if __name__ == "__main__":
    main()
