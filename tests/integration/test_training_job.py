"""The main job, whole: site file, published module, script, real Slurm, training, result."""

import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.conftest import Shell, site_file
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.stack]


@dataclass
class Jobs:
    shell: Shell
    site: tuple[str, str]

    def submit(self, *words, train):
        shared = (*self.site, "--json", "--time", "20", "--job-dir", f"job-{time.time_ns()}")
        return json.loads(self.shell.hpcdl("job", "submit", *shared, *words, "--", *train).stdout)

    def watch(self, answer, timeout=150):
        return self.shell.json("job", "watch", *self.site, str(answer["job_id"]), timeout=timeout)

    def result(self, answer):
        return json.loads(Path(answer["result"]).read_text())


@pytest.fixture
def jobs(slurm, release, stack_site, tmp_path):
    prefix = ("$HPCDL_HOME/embedded/prefix", stack_site.paths.prefix)
    site = site_file(tmp_path, prefix, ("$HPCDL_HOME/embedded/work", tmp_path / "work"))
    return Jobs(slurm, ("--site", str(site)))


def options(digits, epochs):
    return [
        "--model",
        "mlp",
        "--data",
        str(digits),
        "--epochs",
        str(epochs),
        "--global-batch",
        "128",
        "--seed",
        "3",
    ]


def test_two_nodes_of_two_ranks_learn_what_one_rank_learns(jobs, digits, release):
    four = jobs.submit("--nodes", "2", "--gpus-per-node", "2", train=options(digits, 20))
    assert jobs.watch(four)["state"] == "COMPLETED"
    one = jobs.submit("--gpus", "1", train=options(digits, 20))
    assert jobs.watch(one)["state"] == "COMPLETED"
    many, single = jobs.result(four), jobs.result(one)
    assert many["layout"]["ranks"] == 4
    assert many["release"]["id"] == release.id if isinstance(many["release"], dict) else True
    accuracy = many["summary"]["metrics"]["accuracy"]
    assert accuracy >= 0.95
    assert accuracy == pytest.approx(single["summary"]["metrics"]["accuracy"], abs=1 / 357 + 1e-9)
    assert many["summary"]["loss"] == pytest.approx(single["summary"]["loss"], rel=1e-3)


def test_a_node_lost_in_training_costs_a_requeue_and_no_result(jobs, digits):
    """p100 has two nodes and the job needs both: it waits for the lost one, then goes on.

    The node is back before Slurm missed it.
    """
    # Long enough for the node to be lost in it on a fast machine too, by waiting.
    train = [*options(digits, 150), "--checkpoint-every", "200", "--delay-ms", "5"]
    answer = jobs.submit("--nodes", "2", "--gpus-per-node", "2", train=train)
    progress = Path(answer["directory"]) / "progress.json"
    wait_for(lambda: progress.exists() and json.loads(progress.read_text())["step"] > 250)
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
    first = jobs.submit("--gpus", "1", train=options(digits, 20))
    assert first["expectation"] is None, "nobody has run this network here yet"
    jobs.watch(first)
    measured = jobs.result(first)["summary"]

    second = jobs.submit("--gpus", "1", train=options(digits, 20))
    expected = second["expectation"]
    assert expected["proof"] == "run"
    assert f"job {first['job_id']}" in expected["source"]
    # One rank's own work: waiting for input is left out, which a busy machine makes long.
    own = sum(measured["phases"][name] for name in ("compute", "update", "other"))
    assert 0 < own <= 1.001
    assert expected["images_per_second"] == pytest.approx(measured["images_per_second"] / own)
    jobs.watch(second)
    report = jobs.shell.json("job", "report", *jobs.site, str(second["job_id"]))
    assert report["expectation"] == expected
    ratio = jobs.result(second)["summary"]["images_per_second"] / expected["images_per_second"]
    assert report["comparison"]["ratio"] == pytest.approx(ratio)


def test_a_job_of_another_release_is_stopped_before_it_trains(jobs, digits):
    answer = jobs.submit("--gpus", "1", train=options(digits, 1))
    jobs.watch(answer)
    folder = Path(answer["directory"])
    script = (folder / "job.sh").read_text()
    wrong = folder / "wrong.sh"
    wrong.write_text(script.replace("--release=", "--release=x"))
    done = jobs.shell("sbatch", "--parsable", "--wait", wrong, check=False, timeout=90)
    assert done.returncode == 20
    assert "preflight: rank 0 on" in (folder / "job.log").read_text()
