"""`hpcdl doctor --role` on the embedded cluster: on a login node and on a compute node."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HPCDL = Path(sys.executable).with_name("hpcdl")
Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def ask(slurm, cluster, tmp_path) -> Ask:
    """What a role lacks, by name, and the exit code; the site has a prefix of the test's own."""
    (tmp_path / "prefix").mkdir()
    (tmp_path / "prefix" / "current").symlink_to(tmp_path)
    text = Path(slurm.env["HPCDL_SITE"]).read_text()
    (tmp_path / "site.yaml").write_text(text.replace("$HPCDL_HOME/embedded/", f"{tmp_path}/"))

    def lacking(role: str, *launch: str) -> dict[str, Any]:
        words = [
            str(HPCDL),
            "doctor",
            "--role",
            role,
            "--site",
            str(tmp_path / "site.yaml"),
            "--json",
        ]
        done = slurm(*launch, *words, check=False)
        data = json.loads(done.stdout)
        lacks = {one["name"]: one["remedy"] for one in data["findings"] if one["found"] is None}
        assert (done.returncode == 3) is not data["complete"]
        return {"lacks": lacks, "code": done.returncode, "said": done.stdout}

    return lacking


@pytest.mark.cluster
@pytest.mark.parametrize("launch", [(), ("srun", "-p", "p100", "-N1")], ids=["login", "compute"])
def test_a_role_asks_slurm_site_and_prefix_and_finds_all_but_a_release(ask, launch):
    found = ask("compute" if launch else "login", *launch)
    required = {name for name in found["lacks"] if name not in ("accounting", "GPU driver")}
    assert required <= {"release", "tree-sitter-bash", "ReFrame-HPC"}, found
    assert "stack rollback" in found["lacks"]["release"], "current leads to no release"
    for known in ("answers: embedded", "MPI plug-in", '"prefix"'):
        assert known in found["said"]
    assert ("scratch" in found["said"]) is bool(launch)
    assert "slurmctld" not in found["said"]


@pytest.mark.cluster
def test_a_site_file_that_differs_and_a_lost_plug_in_are_named(ask, tmp_path):
    file = tmp_path / "site.yaml"
    file.write_text(file.read_text().replace("mpi: pmix", "mpi: pmix_v9"))
    found = ask("login")
    assert found["code"] == 3
    assert "slurm.mpi" in found["lacks"]["site file"]
    assert "pmix_v9" in found["lacks"]["MPI plug-in"]


@pytest.mark.cluster
def test_an_admin_s_prefix_that_cannot_be_made_is_named(ask, tmp_path):
    file = tmp_path / "site.yaml"
    file.write_text(file.read_text().replace(f"prefix: {tmp_path}/prefix", f"prefix: {file}/here"))
    found = ask("admin")
    assert found["code"] == 3
    assert "cannot be written" in found["lacks"]["prefix"]
