"""What Debian and Ubuntu package is enough for the demo, and for a GPU where it is said so."""

import re
from pathlib import Path

import pytest

from hpcdl import facts
from hpcdl.slurm.rules import SlurmRelease, known_release, known_releases
from hpcdl.stack.horovod import broken_rules
from hpcdl.stack.recipe import recipe_of
from tests.make.sites import small_site

ROOT = Path(__file__).resolve().parents[2]
ROWS = facts.load("distributions")["distributions"]
each = pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])


@each
def test_its_python_mpi_and_slurm_are_among_those_of_the_facts(row, monkeypatch):
    minor = row["python"].rpartition(".")[0]
    monkeypatch.setattr("hpcdl.stack.resolve.pythons", lambda: (minor,))
    site = small_site(Path("/nowhere"))
    recipe = recipe_of(site, site.stacks["tensorflow"], ("cpu",))
    assert (recipe.python, recipe.tensorflow) == (minor, "2.21.0")
    assert recipe.horovod is not None
    base = {
        "horovod": recipe.horovod["version"],
        "tensorflow": recipe.tensorflow,
        "backend": "wheels",
    }
    assert broken_rules({**base, "gcc": row["gccs"][0]}, "gcc") == []
    assert broken_rules({**base, "openmpi": row["openmpi"]}, "openmpi") == []
    known = [SlurmRelease.parse(one) for one in known_releases()]
    assert min(known) < known_release(row["slurm"]) < max(known)


def test_a_distribution_that_is_too_old_or_too_new_would_be_refused():
    base = {"horovod": "0.28.1", "tensorflow": "2.21.0", "backend": "wheels"}
    assert broken_rules({**base, "gcc": "15.1.0"}, "gcc")
    assert broken_rules({**base, "openmpi": "3.1.3"}, "openmpi")


@each
def test_the_page_says_what_it_has_and_how_sure_that_is(row):
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    line = next(one for one in page.splitlines() if one.startswith(f"| {row['name']} |"))
    shown = [row["python"], row["gccs"][0], row["openmpi"], row["slurm"], row["lmod"], row["proof"]]
    assert [cell.strip() for cell in line.split("|")[2:8]] == shown


def test_readme_names_the_same_distributions():
    said = re.search(r"run on a fresh (.*?) They print", (ROOT / "README.md").read_text(), re.S)
    assert set(re.findall(r"(?:Debian|Ubuntu) [\d.]+", said[1])) == {row["name"] for row in ROWS}
