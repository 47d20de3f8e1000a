"""The gate through real jobs, and gc with a real queue: on the embedded cluster."""

import dataclasses
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdl.slurm import client
from hpcdl.stack.gc import collect
from hpcdl.stack.publish import publish, verify
from hpcdl.stack.release import current_id, release_ids
from hpcdl.stack.verify import PROBE, read_proof
from hpcdl.system.errors import CheckFailed
from hpcdl.workflows.gate import JobGate
from hpcdl.workflows.releases import pinned_by_jobs
from hpcdl.workflows.site_plan import plan
from tests.make.releases import make_current, make_release, silent
from tests.make.sites import small_site

pytestmark = pytest.mark.cluster
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _on_the_cluster(cluster_env, monkeypatch):
    for name in ("PATH", "SLURM_CONF", "HPCDL_HOME", "HPCDL_CLUSTER_DIR"):
        if name in cluster_env:
            monkeypatch.setenv(name, cluster_env[name])


@pytest.fixture
def site(tmp_path, _on_the_cluster):
    """A site of the cluster whose published release has no TensorFlow."""
    site = small_site(tmp_path / "prefix", lmod=True)
    if not site.paths.lmod_init.is_file():
        pytest.skip("Lmod is not installed")
    make_current(site, "old", version="2.19.1")
    return site


@pytest.mark.stack
@pytest.mark.timeout(900)
def test_a_release_is_proven_in_a_job_on_its_partition(stack_site, release, tmp_path, monkeypatch):
    """The release itself is shared by tests: its proof by the login node's gate is put back."""
    (tmp_path / "sitecustomize.py").write_text("import os; os._exit(7)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # the admin's own is not the job's
    before = (release.root / "proof.json").read_bytes()
    paths = dataclasses.replace(stack_site.paths, work=tmp_path / "work")
    site = dataclasses.replace(stack_site, paths=paths)
    try:
        proof = verify(site, release.id, JobGate(silent, ("p100",)))
        stored = read_proof(release)
    finally:
        (release.root / "proof.json").write_bytes(before)
    assert [check.describe() for check in proof.checks if not check.ok] == []
    assert stored == proof
    assert (proof.gate, proof.level, proof.partitions) == ("job", "run", {"p100"})
    one = proof.runs[0]
    record = client.job(one.job or 0)
    assert (record.partition, record.nodes, record.state) == ("p100", one.nodes, "COMPLETED")
    assert one.samples["losses"][-1] < 0.1 * one.samples["losses"][0]
    names = {check.name for check in proof.checks if check.partition == "p100"}
    assert {"import", "device kernel", "all-reduce of 2 ranks", "training of 2 ranks"} <= names


def test_a_failing_job_leaves_the_old_release_and_says_why(site):
    """Its Python has no TensorFlow, as of a build that went wrong."""
    new = make_release(site, "new", version="2.21.0")
    with pytest.raises(CheckFailed, match="did not pass the gate") as caught:
        publish(site, "new", JobGate(silent, ("cpu",)), say=silent)
    (said,) = [one for one in caught.value.details if one.startswith("cpu: job: job ")]
    assert "No module named 'tensorflow'" in said
    assert f"{site.paths.work}/jobs/gate-cpu" in said
    assert current_id(site) == "old"
    assert not read_proof(new).passed


def test_a_job_that_gets_no_node_is_cancelled_and_told(site, slurm):
    make_release(site, "new", version="2.21.0")
    busy = slurm.take("k80")
    try:
        proof = verify(site, "new", JobGate(silent, ("k80",), wait_seconds=0))
    finally:
        slurm("scancel", busy)
    failed = next(check for check in proof.checks if check.name == "job")
    assert "got no node in time and was cancelled" in failed.detail
    assert slurm("squeue", "-h", "--name=gate-k80").stdout == ""


def test_a_partition_that_slurm_does_not_know_fails_by_name(site):
    make_release(site, "new", version="2.21.0")
    new = dataclasses.replace(site.partitions["cpu"], name="newer")
    site = dataclasses.replace(site, partitions={**site.partitions, "newer": new})
    proof = verify(site, "new", JobGate(silent, ("newer",)))
    (failed,) = [check.describe() for check in proof.checks if check.name == "job"]
    assert re.search("newer: job: .*partition", failed)


def test_what_jobs_of_any_kind_will_load_is_kept_until_they_are_gone(site, slurm, tmp_path):
    """hpcdl submitted none of these, so only their scripts can tell."""
    for name in ("pinned", "array", "free", "last"):
        make_current(site, name, version=f"2.{len(name)}.0")
    ids = []
    for name, options in (("pinned", []), ("array", ["--array=0-3"])):
        modules = site.paths.prefix / "releases" / name / "modules"
        script = tmp_path / f"{name}.sh"
        script.write_text(f"#!/bin/bash\nmodule use {modules}\nmodule load tensorflow\n")
        done = slurm(
            "sbatch", "--parsable", "--hold", "-p", "cpu", "-o", "/dev/null", *options, script
        )
        ids.append(done.stdout.strip())
    try:
        assert set(pinned_by_jobs(site)) == {"pinned", "array"}
        found = collect(site, lambda: pinned_by_jobs(site), keep=1)
        assert set(found.removed) == {"old", "free"}
        assert found.kept["pinned"] == f"job {ids[0]} will load it"
        assert plan(site)["jobs"]["affected"] == []
    finally:
        slurm("scancel", *ids)
    collect(site, lambda: pinned_by_jobs(site), keep=1)
    assert release_ids(site) == ["last"]


def test_the_gate_s_program_is_of_any_python_and_of_no_hpcdl():
    """It runs with a release's Python, in which hpcdl may be missing."""
    assert not re.search("(import|from) hpcdl", PROBE.read_text())


def test_gc_keeps_what_an_interactive_job_may_have_loaded(site, slurm):
    make_release(site, "loose")
    said = slurm("salloc", "--no-shell", "--mem=10", "-p", "cpu").stderr
    (job,) = re.findall(r"Granted job allocation (\d+)", said)
    try:
        kept = pinned_by_jobs(site)
        assert set(kept) == {"old", "loose"}
        assert "interactive" in kept["loose"]
        assert job in kept["loose"]
    finally:
        slurm("scancel", job)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda one: one.name)
def test_a_stopped_publish_cancels_its_jobs(site, slurm, cluster_env, tmp_path, number):
    """Its jobs wait for nodes that others have; nobody would wait for them any more."""
    make_release(site, "new", version="2.21.0")
    program = (
        "import sys; from pathlib import Path; "
        "from tests.make.releases import silent; from tests.make.sites import small_site;"
        "from hpcdl.stack.publish import publish; from hpcdl.workflows.gate import JobGate;"
        "from hpcdl.system.errors import Stopped\n"
        "try: publish(small_site(Path(sys.argv[1]), lmod=True), 'new',"
        " JobGate(lambda text: print(text, flush=True), ('k80', 'cpu')), say=silent)\n"
        "except Stopped as stopped: print(stopped.message); sys.exit(stopped.exit_code)\n"
    )
    busy = [slurm.take(name, site.partition(name).nodes) for name in ("k80", "cpu")]
    try:
        words = [sys.executable, "-c", program, site.paths.prefix]
        process = subprocess.Popen(
            words, env=cluster_env, cwd=REPOSITORY, text=True, stdout=subprocess.PIPE
        )
        jobs = [process.stdout.readline().split()[1] for _ in range(2)]
        process.send_signal(number)
        said = process.communicate(timeout=120)[0]
    finally:
        slurm("scancel", *busy)
    assert process.returncode == 5
    assert said.strip() == f"stopped; the gate's jobs {', '.join(jobs)} are cancelled"
    states = slurm("squeue", "-h", "-t", "all", "-j", ",".join(jobs), "-o", "%T").stdout.split()
    assert set(states) <= {"CANCELLED"}
    assert current_id(site) == "old"
