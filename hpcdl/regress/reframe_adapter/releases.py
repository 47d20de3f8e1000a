"""Which releases of ReFrame hpcdl works with: those that it was run with (facts/reframe.yaml)."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from hpcdl import facts
from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.resources import to_install


def supported() -> tuple[str, ...]:
    """The releases, oldest first."""
    return tuple(row["version"] for row in facts.load("reframe")["releases"])


def require_reframe(release: str | None = None) -> None:
    """Refuse a ReFrame that is not there, or that hpcdl was not run with.

    `release` is what it calls itself, by default as the installed package says. Raises
    MissingPrerequisite: it is not there, or not in the supported range.
    """
    if find_spec("reframe") is None:
        raise MissingPrerequisite(
            "ReFrame is not installed for this hpcdl", hint=to_install("checks")
        )
    try:
        found = release or version("reframe-hpc")
    except PackageNotFoundError:  # on PYTHONPATH, or as a module of the site's
        import reframe

        found = str(reframe.VERSION)
    known = supported()
    if found not in known:
        raise MissingPrerequisite(
            f"ReFrame {found} is not supported: hpcdl works with {known[0]} to {known[-1]}",
            hint=to_install("checks"),
        )
