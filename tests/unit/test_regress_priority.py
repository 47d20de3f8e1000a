"""Whose processes go first on a machine that plays a cluster."""

from pathlib import Path

import pytest

from hpcdl.regress.priority import NICENESS, go_first, processes_of


def process(proc: Path, number: int, **variables: str) -> None:
    folder = proc / str(number)
    folder.mkdir()
    text = "\0".join(f"{key}={value}" for key, value in variables.items())
    (folder / "environ").write_text(text + "\0")


def test_only_the_jobs_own_processes_on_its_own_cluster_are_meant(tmp_path: Path) -> None:
    process(tmp_path, 1, SLURM_JOB_ID="7", SLURM_CONF="/a/slurm.conf")
    process(tmp_path, 2, SLURM_JOB_ID="7", SLURM_CONF="/b/slurm.conf")
    process(tmp_path, 3, SLURM_JOB_ID="77", SLURM_CONF="/a/slurm.conf")
    process(tmp_path, 4, HOME="/root")
    (tmp_path / "5").mkdir()
    found = [path.name for path in processes_of(7, "/a/slurm.conf", tmp_path)]
    assert found == ["1"]


def test_a_jobs_sessions_go_first_too_where_the_kernel_groups_by_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that a nice value weighs nothing against programs of other sessions."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    process(tmp_path, 1, SLURM_JOB_ID="7", SLURM_CONF="/a/slurm.conf")
    process(tmp_path, 2, SLURM_JOB_ID="8", SLURM_CONF="/a/slurm.conf")
    for number in (1, 2):
        (tmp_path / str(number) / "autogroup").write_text("")
    assert go_first(7, "/a/slurm.conf", tmp_path) == 1
    assert (tmp_path / "1" / "autogroup").read_text() == str(NICENESS)
    assert (tmp_path / "2" / "autogroup").read_text() == ""


def test_a_kernel_without_groups_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    process(tmp_path, 1, SLURM_JOB_ID="7", SLURM_CONF="/a/slurm.conf")
    assert go_first(7, "/a/slurm.conf", tmp_path) == 1
    assert not (tmp_path / "1" / "autogroup").exists()
