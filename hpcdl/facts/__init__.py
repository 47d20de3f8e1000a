"""Facts as data: GPUs, Slurm's rules, TensorFlow builds, models, reference throughput.

Each file is YAML with a `schema` number and a source for every row. Code asks here and never
carries a version limit of its own. `proof` is how sure a row is, one of `PROOFS`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

PROOFS = ("run", "compiled", "solved", "published", "doubtful")
"""Evidence levels, surest first: ran on the named hardware; compiled; concretized only; a named
source says so; doubtful."""


def path(name: str) -> Path:
    """The facts file `name` (without its suffix)."""
    return Path(__file__).parent / f"{name}.yaml"


@cache
def load(name: str) -> Any:
    """The content of the facts file `name` (without its suffix), as plain values."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with path(name).open(encoding="utf-8") as file:
        return yaml.load(file, Loader=loader)  # noqa: S506 - a safe loader, our own file
