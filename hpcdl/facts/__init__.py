"""Facts as data: GPUs, Slurm's rules, TensorFlow builds, models, reference throughput.

Each file is YAML with a `schema` number and a source for every row; measurements are a CSV file
beside it, one a line. Code asks here and never carries a version limit of its own. `proof` is how
sure a row is, one of `PROOFS`.
"""

from __future__ import annotations

import csv
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
    """The content of the facts file `name` (without its suffix), as plain values.

    Where a CSV file lies beside it, its rows are `records`; empty cells are left out.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with path(name).open(encoding="utf-8") as file:
        content = yaml.load(file, Loader=loader)  # noqa: S506 - a safe loader, our own file  # nosec B506
    table = rows_path(name)
    if table.exists():
        numbers = set(content["numbers"])
        with table.open(encoding="utf-8", newline="") as file:
            content["records"] = [
                {k: float(v) if k in numbers else v for k, v in row.items() if v}
                for row in csv.DictReader(file)
            ]
    return content


def rows_path(name: str) -> Path:
    """The measurements of the facts file `name`, where it has some."""
    return path(name).with_suffix(".csv")
