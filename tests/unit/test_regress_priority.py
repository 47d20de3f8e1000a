"""Whose processes go first on a machine that plays a cluster."""

from hpcdl.regress.priority import go_first, processes_of


def process(proc, number, **variables):
    folder = proc / str(number)
    folder.mkdir()
    text = "\0".join(f"{key}={value}" for key, value in variables.items())
    (folder / "environ").write_text(text + "\0")


def test_only_the_jobs_own_processes_on_its_own_cluster_are_meant(tmp_path):
    process(tmp_path, 1, SLURM_JOB_ID="7", SLURM_CONF="/a/slurm.conf")
    process(tmp_path, 2, SLURM_JOB_ID="7", SLURM_CONF="/b/slurm.conf")
    process(tmp_path, 3, SLURM_JOB_ID="77", SLURM_CONF="/a/slurm.conf")
    process(tmp_path, 4, HOME="/root")
    (tmp_path / "5").mkdir()
    assert [path.name for path in processes_of(7, "/a/slurm.conf", tmp_path)] == ["1"]


def test_sessions_are_left_alone(tmp_path, monkeypatch):
    """Weighty ones of two nodes that share a CPU hold each other up."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    process(tmp_path, 1, SLURM_JOB_ID="7", SLURM_CONF="/a/slurm.conf")
    (tmp_path / "1" / "autogroup").write_text("/autogroup-3 nice 0")
    assert go_first(7, "/a/slurm.conf", tmp_path) == 1
    assert (tmp_path / "1" / "autogroup").read_text() == "/autogroup-3 nice 0"
