"""The rules of the house that a machine can hold (docs/architecture.md)."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "hpcdl"

# A room may import what stands in its row, and itself. Everything else would go up or sideways.
MAY_IMPORT = {
    "facts": set(),
    "system": set(),
    "slurm": {"facts", "system"},
    "site": {"facts", "system", "slurm"},
    "stack": {"facts", "system", "slurm", "site"},
    "jobs": {"facts", "system", "slurm", "site"},
    "predict": {"facts", "system", "slurm", "site"},
    "cluster": {"facts", "system", "slurm", "site"},
    "train": {"facts", "system"},
    "regress": {"facts", "system", "slurm", "site", "stack", "jobs", "predict", "cluster"},
    "workflows": {"facts", "system", "slurm", "site", "stack", "jobs", "predict", "cluster",
                  "regress"},
    "cli": {"facts", "system", "slurm", "site", "stack", "jobs", "predict", "cluster", "regress",
            "workflows", "train"},
}  # fmt: skip
FILES = sorted(PACKAGE.rglob("*.py"))


def rooms_imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
            if node.module == "hpcdl":
                names = [f"hpcdl.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("hpcdl.")}
    return found & set(MAY_IMPORT)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0]
    if room not in MAY_IMPORT:
        return
    assert rooms_imported(path) - {room} <= MAY_IMPORT[room]


def test_every_room_has_a_floor() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms <= set(MAY_IMPORT)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_module_says_its_design(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), "a module starts with its docstring"


def test_no_template_compares_versions() -> None:
    templates = (PACKAGE.parent / "templates").rglob("*.j2")
    for path in templates:
        for tag in re.findall(r"{%-?\s*(?:if|elif)\s.*?%}", path.read_text()):
            assert not re.search(r"(version|release)[^%]*[<>]", tag), f"{path.name}: {tag}"
