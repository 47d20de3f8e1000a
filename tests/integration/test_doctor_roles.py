"""`hpcdl doctor ROLE` on the embedded cluster: on a login node."""

import json

import pytest

from tests.integration.conftest import HPCDL
from tests.make.sites import embedded_file

pytestmark = pytest.mark.cluster


@pytest.fixture
def ask(slurm, tmp_path):
    """What a role lacks, by name, and all that was said; the site has a prefix of the test's."""
    (tmp_path / "prefix").mkdir()
    (tmp_path / "prefix" / "current").symlink_to(tmp_path)

    def lacking(role, change=("", "")):
        site = embedded_file(tmp_path, ("$HPCDL_HOME/embedded/", f"{tmp_path}/"), change)
        words = (HPCDL, "doctor", role, "--site", site, "--json")
        done = slurm(*words, check=False)
        data = json.loads(done.stdout)
        assert (done.returncode == 3) is not data["complete"]
        lacks = [one for one in data["findings"] if one["found"] is None]
        return {one["name"]: one["remedy"] for one in lacks}, done

    return lacking


def test_a_role_asks_slurm_site_and_prefix_and_finds_all_but_a_release(ask):
    lacks, done = ask("login")
    assert lacks.keys() <= {"accounting", "release", "tree-sitter-bash", "ReFrame-HPC"}, lacks
    assert "stack rollback" in lacks["release"], "current leads to no release"
    for known in ("answers: embedded", '"prefix"'):
        assert known in done.stdout
    assert "slurmctld" not in done.stdout


def test_a_site_file_that_names_a_plug_in_that_slurm_lacks_differs(ask):
    lacks, done = ask("login", change=("mpi: pmix", "mpi: pmix_v9"))
    assert done.returncode == 3
    assert "slurm.mpi" in lacks["site file"]


def test_an_admin_s_prefix_that_cannot_be_made_is_named(ask, tmp_path):
    lacks, done = ask("admin", change=(f"{tmp_path}/prefix", f"{tmp_path}/site.yaml/here"))
    assert done.returncode == 3
    assert "cannot be written" in lacks["prefix"]
