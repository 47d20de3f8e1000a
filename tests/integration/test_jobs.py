"""Jobs on the real Slurm: what is asked arrives, byte for byte; a lost node is no lost job."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from hpcdl.cluster.processes import wait_gone
from hpcdl.cluster.state import read_state
from hpcdl.cluster.teardown import down
from hpcdl.system.trust import user_of
from tests.integration.conftest import HPCDL, need_packages, shell_of
from tests.make.sites import embedded_file, up
from tests.make.specs import QUICK
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster
CPU = ("--partition", "cpu")

NASTY = ["quo'te\"s", "-e", "ünï", "*", "back\\slash", ":", "a b"]
NASTY += ["$(touch evil)", "`touch evil`", "new\nline", "", "#SBATCH --nodes=9"]


def test_any_text_arrives_byte_for_byte_and_nothing_else_is_run(slurm, tmp_path):
    program = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['SECRET']]))"
    secret = "x\ty $HOME `id` 'q' \"d\"\n"
    words = (*CPU, "--env", f"SECRET={secret}", "--job-dir", tmp_path / "a b %j")
    ended = slurm.run(*words, "--", "python3", "-c", program, *NASTY)
    line = next(line for line in ended["text"].splitlines() if line.startswith("[["))
    assert json.loads(line) == [NASTY, secret]
    assert not list(tmp_path.rglob("evil"))
    folder = Path(ended["log"]).parent
    assert (folder / "environment").stat().st_mode & 0o777 == 0o600
    assert all("`id`" not in (folder / name).read_text() for name in ("job.sh", "job.json"))


def test_tensorflow_s_server_does_not_start_on_nodes_that_others_may_use(slurm, tmp_path):
    """Slurm says so; a script from which somebody took the option does not go on."""
    answer = slurm.submit("--gpus", "2", "--launcher", "multiworker", "--", "true")
    script = Path(answer["directory"]) / "job.sh"
    text = (
        script.read_text()
        .replace("#SBATCH --exclusive\n", "")
        .replace(str(script.parent), str(tmp_path / "shared"))
    )
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared.sh").write_text(text)
    done = slurm("sbatch", "--wait", tmp_path / "shared.sh", check=False)
    assert done.returncode == 3, done.stderr
    assert "others may run on these nodes" in (tmp_path / "shared/job.log").read_text()


def test_cancelling_never_requeues(slurm, tmp_path):
    program = "trap 'exit 75' TERM; touch ready; sleep 120 & wait"
    words = (*CPU, "--job-dir", tmp_path / "job", "--", "bash", "-c", program)
    job = str(slurm.submit(*words)["job_id"])
    wait_for((tmp_path / "job/ready").exists)
    slurm.hpcdl("job", "cancel", job)
    answer = slurm.ended(job)
    assert (answer["state"], answer["restarts"]) == ("CANCELLED", 0)
    said = "it was cancelled; by whom, only accounting (slurmdbd) and slurmctld's log say"
    assert answer["description"] == said


@pytest.mark.parametrize("follow", [["job", "watch"], ["job", "log", "-f"]], ids=" ".join)
def test_ctrl_c_ends_the_watching_and_not_the_job(slurm, tmp_path, follow):
    program = ("--", "bash", "-c", "echo begun; sleep 120")
    job = str(slurm.submit(*CPU, "--job-dir", tmp_path / "job", *program)["job_id"])
    log = tmp_path / "job/job.log"
    wait_for(lambda: log.exists() and "begun" in log.read_text())
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([HPCDL, *follow, job], env=slurm.env, **pipes) as watching:
        watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        _, told = watching.communicate(timeout=60)
    assert watching.returncode == 5
    assert f"error: stopped watching; job {job} continues\nhelp: `hpcdl job watch {job}`" in told
    assert "RUNNING" in slurm("squeue", "--noheader", "--format=%T", "--job", job).stdout
    slurm.hpcdl("job", "cancel", job)


def with_scratch(slurm, folder, scratch):
    """What submits a job that stages a small data set, as `data`, below a scratch directory."""
    slurm.env = {**slurm.env, "PATH": f"{HPCDL.parent}:{os.environ['PATH']}"}
    (folder / "data").mkdir()
    (folder / "data/shard").write_text("content")
    site = embedded_file(folder, ("path: /tmp", f"path: {scratch}"))
    file = folder / "job.yaml"
    file.write_text("schema: 1\npreflight: false\nstage_data: true\n")
    return ["--site", site, "--data", folder / "data", "--file", file, "--job-dir", folder / "job"]


def test_what_a_cancelled_job_staged_goes_at_once_or_with_the_next_staging(slurm, tmp_path):
    """A cancelled job starts no more steps; what one left is found by its name and its owner."""
    scratch = tmp_path / "scratch"
    words = with_scratch(slurm, tmp_path, str(scratch))
    job = slurm.submit(*words, "--gpus", "1", "--", "bash", "-c", "touch ready; sleep 99")["job_id"]
    wait_for((tmp_path / "job" / "ready").exists)
    (staged,) = scratch.glob(f"hpcdl-*-{job}-*")
    left = staged.with_name(staged.name.replace(f"-{job}-", "-999999-"))
    left.mkdir()
    slurm("scancel", str(job))
    wait_for(lambda: not staged.exists())
    done = slurm.hpcdl("stage", tmp_path / "data", str(left).replace("-999999-", "-999998-"))
    assert "removed the files of 1 ended runs" in done.stdout
    assert not left.exists()


def test_staged_data_lies_on_every_node_and_goes_with_the_job(slurm, tmp_path):
    words = with_scratch(slurm, tmp_path, f"{tmp_path}/$SLURMD_NODENAME")
    for node in ("p100-01", "p100-02"):
        (tmp_path / node).mkdir()
    program = 'echo "$(hostname) $(cat "$(eval echo "$HPCDL_DATA")/shard")"'
    ranks = ("--nodes", "2", "--gpus-per-node", "1")
    lines = slurm.run(*words, *ranks, "--", "bash", "-c", program)["text"].splitlines()
    assert {"p100-01 content", "p100-02 content"} <= set(lines), lines
    assert not list(tmp_path.glob("p100-0*/hpcdl-*"))
    assert (tmp_path / "data/shard").exists()


def test_a_job_or_sweep_that_needs_a_drained_node_waits_for_it(slurm):
    words = ("--partition", "p100", "--nodes", "2")
    sweep = ("--no-module", *words, "--name", f"s{time.time_ns()}", "--over", "n=1", "--json")
    slurm("scontrol", "update", "nodename=p100-01", "state=drain", "reason=test")
    try:
        jobs = [slurm.submit(*words, "--", "true")["job_id"]]
        swept = json.loads(slurm.hpcdl("job", "sweep", *sweep, "--", "true").stdout)
        jobs += [point["job_id"] for point in swept["points"]]
        shown = slurm("squeue", "--noheader", "--format=%T", f"--jobs={jobs[0]},{jobs[1]}").stdout
        assert shown.split() == ["PENDING", "PENDING"]
        slurm("scancel", *map(str, jobs))
    finally:
        slurm("scontrol", "update", "nodename=p100-01", "state=resume")


def test_what_the_partition_can_never_hold_is_refused_in_slurm_s_words(slurm, tmp_path):
    """The site file promises a node too many: only Slurm knows better."""
    site = ("--site", embedded_file(tmp_path, ("nodes: 2", "nodes: 9")))
    words = ("--no-module", "--nodes", "9", "--job-dir", tmp_path / "job", "--", "true")
    assert "Slurm did not take this job" in slurm.refused(2, "job", "submit", *site, *words)
    assert not (tmp_path / "job").exists()


def test_slurm_away_is_one_clear_line(slurm, tmp_path):
    (tmp_path / "slurm.conf").write_text(
        "ClusterName=x\nSlurmctldHost=localhost\nSlurmctldPort=1\nNodeName=a\n"
    )
    slurm.env = {**slurm.env, "SLURM_CONF": f"{tmp_path}/slurm.conf"}
    words = ("job", "submit", "--no-module", *CPU, "--", "true")
    said = slurm.refused(3, *words, timeout=90)
    errors = [line for line in said.splitlines() if line.startswith("error:")]
    assert errors == ["error: Slurm does not answer"]
    assert "Traceback" not in said


class Sweep:
    """A sweep over n = 1, 2, 3 of one shell program."""

    def __init__(self, slurm, program, running):
        self.slurm, self.program = slurm, ("--", "bash", "-c", program)
        own = ("--name", f"s{time.time_ns()}", "--over", "n=1,2,3", "--running", str(running))
        self.words = ("job", "sweep", "--no-module", *CPU, *own)

    def __call__(self, *options):
        """Run the command; the states of its points."""
        done = self.slurm.hpcdl(*self.words, "--json", *options, *self.program, check=False)
        self.told = json.loads(done.stdout)
        return [point["state"] for point in self.told["points"]]


def test_a_sweep_submits_only_what_is_missing(slurm, tmp_path):
    marker = tmp_path / "mended"
    sweep = Sweep(slurm, f"[[ {{n}} != 2 || -e {marker} ]]", 2)
    sweep()
    wait_for(lambda: sweep("--status") == ["done", "failed", "done"])
    shown = slurm.hpcdl(*sweep.words, "--status", *sweep.program, check=False)
    (log,) = re.findall(r"failed: n=2: exit code 1, log (.*)", shown.stderr)
    assert Path(log).exists()
    marker.touch()
    assert sweep() == ["done", "failed", "done"]
    assert sweep("--retry-failed") == ["done", "queued", "done"]
    wait_for(lambda: sweep("--status") == ["done", "done", "done"])


def test_a_task_that_asks_to_run_again_leaves_the_finished_ones_alone(slurm):
    """The last task to start has the id of the whole array; one after the other, that is task 2."""
    again = "echo x >>runs; [[ {n} != 3 || ${SLURM_RESTART_COUNT:-0} != 0 ]] || exit 75"
    sweep = Sweep(slurm, again, 1)
    sweep()
    folder = Path(sweep.told["directory"])
    wait_for(lambda: sweep("--status") == ["done"] * 3, seconds=150)
    assert sorted(file.read_text().count("x") for file in folder.glob("points/*/runs")) == [1, 1, 2]


def test_the_site_file_drafted_from_the_cluster_agrees_with_it(slurm, tmp_path):
    file = tmp_path / "site.yaml"
    slurm.hpcdl("site", "init", "--output", file)
    slurm.hpcdl("site", "check", "--site", file)
    file.write_text(file.read_text().replace("per_node: 8", "per_node: 7"))
    (drift,) = slurm.json("site", "check", "--site", file)["drift"]
    assert drift == {"key": "partitions.v100.gpu.per_node", "file": "7", "cluster": "8"}


@pytest.fixture
def accounted(embedded_site, cluster_home, tmp_path):
    """Runs commands against a cluster with accounting that forgets ended jobs after 2 s."""
    need_packages(accounting=True)
    place = cluster_home / "cluster" / "accounts"
    try:
        state = up(embedded_site, directory=place, accounting=True)
        conf = state.configuration
        conf.write_text(conf.read_text().replace("MinJobAge=3600", "MinJobAge=2"))
        env = {"HPCDL_HOME": str(cluster_home), "HPCDL_CLUSTER_DIR": str(place)}
        shell = shell_of(state, tmp_path, **env)
        shell("scontrol", "reconfigure")
        yield shell
    finally:
        down(place, purge=True)


def test_a_job_that_the_controller_has_forgotten_is_told_from_accounting(accounted, tmp_path):
    def submit(folder, *program):
        words = ("--job-dir", tmp_path / folder, "--partition", "p100", "--gpus", "2")
        return str(accounted.submit(*words, "--", *program)["job_id"])

    hold = "x = bytearray(200 << 20); import time; time.sleep(5)"
    again = f'(( ${{SLURM_RESTART_COUNT:-0}} )) || exit 75; python3 -c "{hold}"'
    requeued, failed = submit("a", "bash", "-c", again), submit("b", "bash", "-c", "exit 3")
    cancelled = submit("c", "sleep", "600")
    state = ("squeue", "--noheader", "--jobs", cancelled, "--format=%T")
    wait_for(lambda: accounted(*state).stdout == "RUNNING\n")
    accounted("scancel", cancelled)
    accounted.hpcdl("job", "watch", requeued, timeout=120)
    for job in (requeued, failed, cancelled):
        gone = ("scontrol", "show", "job", job)
        wait_for(lambda gone=gone: accounted(*gone, check=False).returncode != 0)

    told = accounted.json("job", "watch", requeued)
    assert (told["state"], told["exit_code"], told["restarts"]) == ("COMPLETED", 0, 1)
    told = accounted.json("job", "watch", failed)
    assert (told["state"], told["exit_code"]) == ("FAILED", 3)
    me = f"by {user_of(os.geteuid())}"
    assert me in accounted.hpcdl("job", "report", cancelled, check=False).stdout
    assert f"CANCELLED {me}" in accounted.hpcdl("job", "list").stdout
    accounted.hpcdl("job", "cancel", requeued)  # what is forgotten is no error


def test_a_sweep_is_split_by_slurms_limits_and_a_rerun_continues(accounted, tmp_path):
    """MaxArraySize, MaxJobCount, and limits of an association and of a QOS nobody named."""
    conf = Path(accounted.env["SLURM_CONF"])
    place, me = conf.parents[1], user_of(os.geteuid())

    def allow(jobs):
        kept = re.sub(r"\nMax(ArraySize|JobCount)=\d+", "", conf.read_text().rstrip())
        conf.write_text(f"{kept}\nMaxArraySize=4\nMaxJobCount={jobs}\n")
        accounted("scontrol", "reconfigure")

    def limit(*what):
        accounted("sacctmgr", "-i", "modify", *what)

    go = tmp_path / "go"

    def sweep(queued, done, *why):
        """No job ends before all that can be queued is: Slurm counts those that are there."""
        wait_for(lambda: not accounted("squeue", "-h").stdout)
        go.unlink(missing_ok=True)
        over = ",".join(map(str, range(1, 20)))
        words = ("--cpus-per-task", "1", "--launcher", "single", "--name", "limits", "--over")
        shared = ("job", "sweep", "--no-module", "--file", QUICK, "--partition", "cpu")
        line = f"echo {{x}} >>runs; until [ -e {go} ]; do sleep 0.2; done"
        told = accounted.hpcdl(*shared, *words, f"x={over}", "--", "sh", "-c", line, check=False)
        go.touch()
        parts = {f"{done} done": done, f"{queued} queued": queued, "missing": queued + done < 19}
        assert told.returncode == (6 if why else 0), told.stdout + told.stderr
        assert all(part in told.stdout for part, count in parts.items() if count), told.stdout
        assert all(part in told.stderr for part in why), told.stderr

    conf.write_text(f"{conf.read_text().rstrip()}\nAccountingStorageEnforce=limits,qos\n")
    # It reads this as it starts.
    old = read_state(place).processes["slurmctld"]
    os.kill(old.pid, signal.SIGTERM)
    assert wait_gone([old], 60) == []
    accounted.hpcdl("cluster", "up", "--accounting")
    allow(6)
    sweep(5, 0, "(MaxJobCount=6)")
    wait_for(lambda: not accounted("squeue", "-h").stdout)
    allow(1000)
    limit("user", me, "set", "MaxSubmitJobs=7")
    sweep(7, 5, "AssocMaxSubmitJobLimit")
    limit("user", me, "set", "MaxSubmitJobs=-1")
    limit("qos", "normal", "set", "MaxSubmitJobsPerUser=6")
    sweep(6, 12, "QOSMaxSubmitJobPerUserLimit", "1 not queued yet")
    sweep(1, 18)
    wait_for(lambda: not accounted("squeue", "-h").stdout)
    runs = sorted(Path(accounted.env["HPCDL_HOME"]).glob("*/work/sweeps/limits/points/*/runs"))
    assert [path.read_text().count("\n") for path in runs] == [1] * 19
