"""Studies on the real Slurm: interrupted and taken up again, with a job that fails."""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hpcdl.workflows.study.declared import load_study, shipped
from tests.integration.conftest import HPCDL
from tests.integration.test_launchers import python_with
from tests.make.sites import embedded_file
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.stack]

TINY = """\
from hpcdl.api import study

def judge(results):
    results.judge_runs("a rank per GPU")

SCALE = study.Scale(
    shows="that jobs run", minutes=5, single_node=True, cpus_per_rank=1, judge=judge,
    jobs=[study.Jobs(
        "training", "model=nobodys-model,mlp gpus=1,2", "--steps=30 --batch-per-rank=32",
        ["model=nobodys-model gpus=2"], predict=[4],
    )],
)
STUDY = study.Study(
    title="A tiny study", question="Does a study survive?", origin="this test",
    found="that it does", series=["model"], small=SCALE, full=SCALE,
    report=lambda results: [study.rate(results), study.phases(results)],
)
"""


@pytest.fixture
def site(release, stack_site, tmp_path):
    prefix = ("$HPCDL_HOME/embedded/prefix", stack_site.paths.prefix)
    return embedded_file(tmp_path, prefix, ("$HPCDL_HOME/embedded/work", tmp_path / "work"))


def test_an_interrupted_study_goes_on_and_a_failed_job_is_a_hole(slurm, site, tmp_path):
    study = tmp_path / "tiny.py"
    study.write_text(TINY)
    words = [HPCDL, "study", "run", str(study), "--site", str(site)]
    manifest = tmp_path / "work" / "studies" / "tiny-small" / "sweep.json"
    blocker = slurm.take("p100", 2)

    first = subprocess.Popen(
        words,
        env=dict(slurm.env),
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_for(lambda: first.stdout and "3 queued" in first.stdout.readline(), 180)
    queued = jobs_in(manifest)
    assert all(job for job, _ in queued)
    assert len(set(queued)) == 3, "no two cells have one job"
    first.send_signal(signal.SIGINT)
    said = first.communicate(timeout=60)[1]
    assert first.returncode == 5, said
    assert "resumes" in said
    assert "can run jobs now" not in said, "nodes that are taken are not down"

    # While the blocker holds all nodes no cell can have failed, and so none may be queued again.
    slurm(*words, "--no-wait", timeout=280, check=False)
    assert jobs_in(manifest) == queued, "what is queued is not queued again"
    slurm("scancel", blocker)
    again = slurm(*words, "--json", timeout=280, check=False)
    assert again.returncode == 6, again.stderr
    report = json.loads(again.stdout)
    assert {one["ranks"] for one in report["measured"]} == {1, 2}
    assert "nobody watched" not in report["machine"]["busy"]
    (missing,) = report["missing"]
    assert missing["values"]["model"] == "nobodys-model"
    assert "unknown model 'nobodys-model'" in missing["reason"]
    # What is missing makes no yes: that one is not known to have had a rank per GPU.
    assert [one["ok"] for one in report["acceptance"]] == [False, None]
    assert {one["gpus"] for one in report["predicted"]} == {4}
    page = Path(report["files"]["report.md"]).read_text()
    assert "Missing results" in page
    assert "nobodys-model" in page


def test_a_study_on_nodes_that_are_down_says_so_at_once_with_slurm_s_reason(slurm, site, tmp_path):
    """Its jobs wait, and run when a node returns."""
    study = tmp_path / "down.py"
    sound = TINY.replace("nobodys-model,", "").replace('["model=nobodys-model gpus=2"]', "[]")
    study.write_text(sound)
    words = [HPCDL, "study", "run", str(study), "--site", str(site)]
    nodes = slurm("sinfo", "-h", "-p", "p100", "-o", "%N").stdout.strip()
    # Of nodes that are down this Slurm makes idle ones as soon as they answer.
    slurm("scontrol", "update", f"NodeName={nodes}", "State=DRAIN", "Reason=a fan failed")
    try:
        begun = slurm(*words, "--no-wait", timeout=280)
        assert "note: no node of 'p100' can run jobs now (2 nodes: a fan failed [" in begun.stderr
        assert "2 points: 2 queued" in begun.stdout
    finally:
        slurm("scontrol", "update", f"NodeName={nodes}", "State=RESUME")
    ended = slurm(*words, "--json", timeout=280)
    assert json.loads(ended.stdout)["answer"] == "yes"
    # A shell without the cluster's environment says what is there.
    away = slurm("env", "-u", "SLURM_CONF", HPCDL, *words[1:], "--no-wait", check=False, timeout=60)
    assert away.returncode == 3


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", shipped())
def test_a_shipped_study_runs_whole_on_the_embedded_cluster(slurm, site, name):
    """Every cell measured, every rule judged; whether they hold, a busy machine may change."""
    begun = time.monotonic()
    words = [HPCDL, "study", "run", name, "--site", site, "--json"]
    frameworks = {jobs.named.get("framework") for jobs in load_study(name).small.jobs}
    modules = {"torch": "torch", "jax": "jax", "mxnet": "mxnet", "mxnet-horovod": "horovod.mxnet"}
    for one in frameworks & modules.keys():
        words += ["--python", f"{one}={python_with(modules[one], one)}"]
    done = slurm(*words, timeout=7000, check=False)
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    report = json.loads(done.stdout)
    print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
    assert not report["missing"]
    by_rule = {one["rule"]: one["ok"] for one in report["acceptance"]}
    assert by_rule["complete"] is True
    assert by_rule.get("one-rank-per-gpu", True) is True
    for path in report["files"].values():
        assert Path(path).stat().st_size > 1000
    if name == "tsubame-io":
        waits = {
            one["values"]["storage"]: one["seconds"]["input"] / sum(one["seconds"].values())
            for one in report["measured"]
            if one["values"]["model"] == "alexnet" and one["values"]["data"] == "whole"
        }
        assert waits["slow"] > waits["own"], "the slowed storage is told apart"


def jobs_in(manifest):
    """The job of each cell, and its task: cells of one shape share an array."""
    return [(one["job_id"], one["task"]) for one in json.loads(manifest.read_text())["points"]]


# The main job, whole: site file, published module, script, real Slurm, training, result.


def trained(epochs):
    """The options of a training of digits, which come before their data."""
    return f"--model mlp --epochs {epochs} --global-batch 128 --seed 3".split()


class Jobs:
    def __init__(self, shell, site):
        self.shell, self.site = shell, ("--site", str(site))

    def submit(self, *words, epochs=1, more=(), program=()):
        shared = (*self.site, "--json", "--time", "20", "--job-dir", f"job-{time.time_ns()}")
        argv = ("job", "submit", *shared, *words, "--", *(program or trained(epochs)), *more)
        return json.loads(self.shell.hpcdl(*argv).stdout)

    def watch(self, answer, timeout=150):
        return self.shell.json("job", "watch", *self.site, str(answer["job_id"]), timeout=timeout)

    def result(self, answer):
        return json.loads(Path(answer["result"]).read_text())


@pytest.fixture
def jobs(slurm, release, stack_site, tmp_path):
    prefix = ("$HPCDL_HOME/embedded/prefix", stack_site.paths.prefix)
    site = embedded_file(tmp_path, prefix, ("$HPCDL_HOME/embedded/work", tmp_path / "work"))
    return Jobs(slurm, site)


def test_a_node_lost_in_training_costs_a_requeue_and_no_result(jobs, digits):
    """p100 has two nodes and the job needs both: it waits for the lost one, then goes on.

    The node is back before Slurm missed it.
    """
    # Long enough for the node to be lost in it on a fast machine too, by waiting.
    more = ("--checkpoint-every", "200", "--delay-ms", "5", "--data", str(digits))
    answer = jobs.submit("--nodes", "2", "--gpus-per-node", "2", epochs=150, more=more)
    progress = Path(answer["directory"]) / "progress.json"
    wait_for(lambda: progress.exists() and json.loads(progress.read_text())["step"] > 250, 300)
    jobs.shell.hpcdl("cluster", "node", "kill", "p100-02")
    up = ("cluster", "node", "up", "p100-02")
    mend = threading.Timer(3, jobs.shell.hpcdl, up, {"check": False})
    mend.start()
    try:
        ended = jobs.watch(answer, timeout=240)
    finally:
        mend.join()
    log = Path(answer["log"]).read_text()
    assert (ended["state"], ended["restarts"]) == ("COMPLETED", 1), log[-3000:]
    assert jobs.result(answer)["samples"]["first_step"] > 0, "it went on, not anew"


def test_a_run_sets_what_the_next_one_like_it_is_expected_to_reach(jobs, digits):
    data = ("--data", str(digits))
    first = jobs.submit("--gpus", "1", epochs=20, more=data)
    assert first["expectation"] is None, "nobody has run this network here yet"
    jobs.watch(first)
    measured = jobs.result(first)["summary"]

    second = jobs.submit("--gpus", "1", epochs=20, more=data)
    expected = second["expectation"]
    assert expected["proof"] == "run"
    assert f"job {first['job_id']}" in expected["source"]
    # One rank's own work: waiting for input is left out, which a busy machine makes long.
    own = sum(measured["phases"].get(name, 0) for name in ("compute", "update", "other"))
    assert 0 < own <= 1.001
    assert expected["images_per_second"] == pytest.approx(measured["images_per_second"] / own)
    jobs.watch(second)
    report = jobs.shell.json("job", "report", *jobs.site, str(second["job_id"]))
    assert report["expectation"] == expected
    ratio = jobs.result(second)["summary"]["images_per_second"] / expected["images_per_second"]
    assert report["comparison"]["ratio"] == pytest.approx(ratio)


def test_a_job_of_another_release_is_stopped_before_it_trains(jobs, digits):
    answer = jobs.submit("--gpus", "1", epochs=1, more=("--data", str(digits)))
    jobs.watch(answer)
    folder = Path(answer["directory"])
    script = (folder / "job.sh").read_text()
    wrong = folder / "wrong.sh"
    wrong.write_text(script.replace("--release=", "--release=x"))
    done = jobs.shell("sbatch", "--parsable", "--wait", wrong, check=False, timeout=90)
    assert done.returncode == 20
    assert "preflight: rank 0 on" in (folder / "job.log").read_text()
