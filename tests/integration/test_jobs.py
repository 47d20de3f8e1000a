"""Jobs on the real Slurm: what is asked arrives, byte for byte; a lost node is no lost job."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcdl.cluster import down, environment, up
from hpcdl.cluster.needs import check_packages
from hpcdl.site import find_site_file, load_site
from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.trust import user_of
from tests.integration.conftest import Shell, clean_environment
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster
HPCDL = str(Path(sys.executable).with_name("hpcdl"))


@pytest.fixture
def hpcdl(slurm) -> Callable[..., object]:
    """Runs `hpcdl job submit --no-module --watch --json` and gives what came out."""

    def submit(*words: str, check: bool = True, timeout: float = 120) -> dict[str, object]:
        done = slurm(HPCDL, "job", "submit", "--no-module", "--watch", "--json", *words,
                     check=check, timeout=timeout)  # fmt: skip
        answer = json.loads(done.stdout)
        assert isinstance(answer, dict)
        return answer

    return submit


def log_of(answer: dict[str, object]) -> str:
    return Path(str(answer["log"])).read_text()


# `srun` runs this in every rank; what Slurm promised is checked from inside.
PROBE = (
    'echo "rank=$SLURM_PROCID local=$SLURM_LOCALID world=$SLURM_NTASKS cpus=$SLURM_CPUS_PER_TASK '
    'gpus=${CUDA_VISIBLE_DEVICES:-none} host=$(hostname)"'
)


@pytest.mark.parametrize(
    ("words", "ranks", "gpus", "hosts"),
    [
        (["--partition", "cpu", "--nodes", "2"], 2, "none", 2),
        (["--partition", "p100", "--gpus", "1"], 1, r"\d", 1),
        (["--partition", "p100", "--gpus", "4"], 4, "0,1,2,3", 1),
        (["--partition", "v100", "--gpus", "16"], 16, "0,1,2,3,4,5,6,7", 2),
        (["--partition", "v100", "--nodes", "2", "--gpus-per-node", "6"], 12, r"\d(,\d){5}", 2),
        (["--partition", "k80", "--gpus", "4", "--launcher", "single"], 1, "0,1,2,3", 1),
    ],
)
def test_every_layout_reaches_its_ranks(hpcdl, words, ranks, gpus, hosts):
    lines = log_of(hpcdl(*words, "--", "bash", "-c", PROBE)).splitlines()
    found = [dict(part.split("=", 1) for part in line.split()) for line in lines if "rank=" in line]
    assert sorted(int(one["rank"]) for one in found) == list(range(ranks))
    assert {one["world"] for one in found} == {str(ranks)}
    assert len({one["host"] for one in found}) == hosts
    assert all(re.fullmatch(gpus, one["gpus"]) for one in found), found
    assert len({(one["host"], one["local"]) for one in found}) == ranks


NASTY = ["a b", "$(touch evil)", "`touch evil`", "quo'te\"s", "new\nline", "-e", "ünï", "", "*",
         "back\\slash", ":", "#SBATCH --nodes=9"]  # fmt: skip


def test_any_text_arrives_byte_for_byte_and_nothing_else_is_run(hpcdl, tmp_path):
    program = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['SECRET']]))"
    secret = "x\ty $HOME `id` 'q' \"d\"\n"
    answer = hpcdl(
        "--partition", "cpu", "--env", f"SECRET={secret}", "--job-dir", str(tmp_path / "a b %j"),
        "--", "python3", "-c", program, *NASTY,
    )  # fmt: skip
    line = next(line for line in log_of(answer).splitlines() if line.startswith("[["))
    assert json.loads(line) == [NASTY, secret]
    assert not list(tmp_path.rglob("evil"))
    folder = Path(str(answer["directory"]))
    assert (folder / "environment").stat().st_mode & 0o777 == 0o600
    assert all("`id`" not in (folder / name).read_text() for name in ("job.sh", "job.json"))


def test_workers_of_tf_distribute_have_nodes_of_their_own_and_ports_nobody_guesses(hpcdl):
    words = ("--nodes", "2", "--gpus-per-node", "2", "--launcher", "multiworker")
    answers = [hpcdl(*words, "--", "sh", "-c", 'echo "task $TF_CONFIG"') for _ in range(2)]
    ports = []
    for answer in answers:
        found = [json.loads(one) for one in re.findall(r"task (\{.*\})", log_of(answer))]
        workers = found[0]["cluster"]["worker"]
        assert all(one["cluster"] == {"worker": workers} for one in found)
        assert [one.partition(":")[0] for one in workers] == [
            "p100-01", "p100-01", "p100-02", "p100-02"]  # fmt: skip
        assert sorted(one["task"]["index"] for one in found) == [0, 1, 2, 3]
        ports.append([one.partition(":")[2] for one in workers])
    assert ports[0] != ports[1]


def test_tensorflow_s_server_does_not_start_on_nodes_that_others_may_use(hpcdl, slurm, tmp_path):
    """Slurm says so; a script from which somebody took the option does not go on."""
    words = ("--gpus", "2", "--launcher", "multiworker")
    answer = hpcdl(*words, "--", "true")
    script = Path(str(answer["directory"])) / "job.sh"
    text = script.read_text().replace("#SBATCH --exclusive\n", "").replace(
        str(script.parent), str(tmp_path / "shared"))  # fmt: skip
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared.sh").write_text(text)
    done = slurm("sbatch", "--wait", tmp_path / "shared.sh", check=False)
    assert done.returncode == 3, done.stderr
    assert "others may run on these nodes" in (tmp_path / "shared/job.log").read_text()


@pytest.mark.parametrize("code", [0, 3, 127])
def test_the_program_s_exit_code_is_the_job_s(hpcdl, code):
    answer = hpcdl("--partition", "cpu", "--", "bash", "-c", f"exit {code}", check=False)
    assert answer["exit_code"] == code
    assert (answer["state"] == "COMPLETED") == (code == 0)
    assert (Path(str(answer["directory"])) / "exit_code").read_text() == f"{code}\n"


def test_when_a_rank_dies_its_peers_are_ended(hpcdl):
    start = time.monotonic()
    program = "if (( SLURM_PROCID == 3 )); then sleep 1; kill -9 $$; else sleep 300; fi"
    answer = hpcdl("--nodes", "2", "--gpus-per-node", "2", "--", "bash", "-c", program, check=False)
    assert answer["state"] == "FAILED"
    assert time.monotonic() - start < 60


# On its first run the program waits for USR2, as at the end of its walltime, and leaves with 75.
RESUME = (
    'echo "run ${SLURM_RESTART_COUNT:-0}"; (( ${SLURM_RESTART_COUNT:-0} )) && exit 0; '
    "trap 'exit 75' USR2; touch ready; sleep 120 & wait"
)


def test_the_walltime_signal_leads_to_a_requeue_that_finishes(slurm, tmp_path):
    folder = tmp_path / "job"
    submit = [HPCDL, "job", "submit", "--no-module", "--json", "--partition", "cpu", "--job-dir"]
    job = json.loads(slurm(*submit, folder, "--", "bash", "-c", RESUME).stdout)["job_id"]
    wait_for((folder / "ready").exists)
    slurm("scancel", "--batch", "--signal=USR2", str(job))
    wait_for(lambda: "JobState=PENDING" in slurm("scontrol", "show", "job", str(job)).stdout)
    watched = slurm(HPCDL, "job", "watch", "--json", str(job), timeout=120)
    answer = json.loads(watched.stdout)
    assert (answer["state"], answer["restarts"]) == ("COMPLETED", 1)
    assert (folder / "job.log").read_text().count("run ") == 2


def test_cancelling_never_requeues(slurm, tmp_path):
    folder = tmp_path / "job"
    submit = [HPCDL, "job", "submit", "--no-module", "--json", "--partition", "cpu", "--job-dir"]
    program = ["--", "bash", "-c", "trap 'exit 75' TERM; touch ready; sleep 120 & wait"]
    job = json.loads(slurm(*submit, folder, *program).stdout)["job_id"]
    wait_for((folder / "ready").exists)
    slurm(HPCDL, "job", "cancel", str(job))
    watched = slurm(HPCDL, "job", "watch", "--json", str(job), check=False)
    answer = json.loads(watched.stdout)
    assert (answer["state"], answer["restarts"]) == ("CANCELLED", 0)
    assert answer["description"] == "it was cancelled, by whom is not known", "no accounting"


@pytest.mark.parametrize("follow", [["job", "watch"], ["job", "log", "-f"]], ids=" ".join)
def test_ctrl_c_ends_the_watching_and_not_the_job(slurm, tmp_path, follow):
    submit = [HPCDL, "job", "submit", "--no-module", "--json", "--partition", "cpu", "--job-dir"]
    program = ["--", "bash", "-c", "echo begun; sleep 120"]
    job = str(json.loads(slurm(*submit, tmp_path / "job", *program).stdout)["job_id"])
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    log = tmp_path / "job/job.log"
    wait_for(lambda: log.exists() and "begun" in log.read_text())
    with subprocess.Popen([HPCDL, *follow, job], env=slurm.env, **pipes) as watching:  # type: ignore[call-overload]
        watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        _, told = watching.communicate(timeout=60)
    assert watching.returncode == 5
    assert f"error: stopped watching; job {job} continues\nhelp: `hpcdl job watch {job}`" in told
    assert "RUNNING" in slurm("squeue", "--noheader", "--format=%T", "--job", job).stdout
    slurm(HPCDL, "job", "cancel", job)


def test_a_lost_node_puts_the_job_on_another_one(slurm, tmp_path):
    folder = tmp_path / "job"
    submit = [HPCDL, "job", "submit", "--no-module", "--json", "--partition", "p100", "--gpus", "1"]
    program = ["bash", "-c", "hostname >>hosts; (( ${SLURM_RESTART_COUNT:-0} )) || sleep 300"]
    answer = slurm(*submit, "--job-dir", folder, "--", *program)
    job = json.loads(answer.stdout)["job_id"]
    hosts = folder / "hosts"
    node = wait_for(lambda: hosts.exists() and hosts.read_text().split())[0]
    slurm(HPCDL, "cluster", "node", "kill", node)
    try:
        watched = slurm(HPCDL, "job", "watch", "--json", str(job), timeout=150)
    finally:
        slurm(HPCDL, "cluster", "node", "up", node)
    answer = json.loads(watched.stdout)
    assert (answer["state"], answer["restarts"]) == ("COMPLETED", 1)
    assert hosts.read_text().split()[1] != node


def test_a_chain_goes_on_until_one_finishes_and_the_rest_is_dropped(hpcdl, tmp_path):
    """Where a site has no requeues, a job that asks for more leaves that to the next one."""
    program = "echo x >>runs; (( $(wc -l <runs) == 2 )) || exit 75"
    folder, site = tmp_path / "job", tmp_path / "site.yaml"
    text = Path(find_site_file("embedded")).read_text()
    site.write_text(text.replace("accounting: false", "requeue: false\n  accounting: false"))
    words = ("--site", str(site), "--partition", "cpu", "--chain", "4", "--job-dir", str(folder))
    answer = hpcdl(*words, "--", "bash", "-c", program)
    assert answer["state"] == "COMPLETED"
    assert len(answer["chain"]) == 4  # type: ignore[arg-type]
    time.sleep(2)
    assert (folder / "runs").read_text().count("x") == 2


def test_what_a_cancelled_job_staged_goes_at_once_or_with_the_next_staging(slurm, tmp_path):
    """A cancelled job starts no more steps; what one left is found by its name and its owner."""
    data, scratch = tmp_path / "data", tmp_path / "scratch"
    data.mkdir()
    (data / "shard").write_text("content")
    site = Path(find_site_file("embedded")).read_text().replace("path: /tmp", f"path: {scratch}")
    (tmp_path / "site.yaml").write_text(site)
    path = f"PATH={Path(HPCDL).parent}:{os.environ['PATH']}"
    submit = ["env", path, HPCDL, "job", "submit", "--site", tmp_path / "site.yaml", "--json",
              "--no-module", "--partition", "p100", "--gpus", "1", "--data", data, "--stage-data",
              "--job-dir", tmp_path / "job", "--", "bash", "-c",
              "touch ready; sleep 99"]  # fmt: skip
    job = json.loads(slurm(*submit).stdout)["job_id"]
    wait_for((tmp_path / "job" / "ready").exists)
    (staged,) = scratch.glob(f"hpcdl-*-{job}-*")
    left = staged.with_name(staged.name.replace(f"-{job}-", "-999999-"))
    left.mkdir()
    slurm("scancel", str(job))
    wait_for(lambda: not staged.exists())
    env = ["env", path, HPCDL, "stage", data, str(left).replace("-999999-", "-999998-")]
    assert "removed the files of 1 ended runs" in slurm(*env).stdout
    assert not left.exists()


def test_staged_data_lies_on_every_node_and_goes_with_the_job(slurm, tmp_path):
    """The job finds its copy in HPCDL_DATA; what it staged is gone afterwards, the source not."""
    data = tmp_path / "data set"
    data.mkdir()
    (data / "shard").write_text("content")
    (tmp_path / "site.yaml").write_text(
        Path(find_site_file("embedded"))
        .read_text()
        .replace("path: /tmp", f"path: {tmp_path}/$SLURMD_NODENAME")
    )
    path = f"PATH={Path(HPCDL).parent}:{os.environ['PATH']}"
    words = ["env", path, HPCDL, "job", "submit", "--site", tmp_path / "site.yaml", "--no-module",
             "--watch", "--json", "--nodes", "2", "--gpus-per-node", "1", "--no-preflight",
             "--data", data, "--stage-data", "--job-dir", tmp_path / "job"]  # fmt: skip
    for node in ("p100-01", "p100-02"):
        (tmp_path / node).mkdir()
    program = 'echo "$(hostname) $(cat "$(eval echo "$HPCDL_DATA")/shard")"'
    slurm(*words, "--", "bash", "-c", program, timeout=120)
    lines = (tmp_path / "job" / "job.log").read_text().splitlines()
    assert {"p100-01 content", "p100-02 content"} <= set(lines), lines
    assert not list(tmp_path.glob("p100-0*/hpcdl-*"))
    assert (data / "shard").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--no-module", "--data", "/no/such/set"], "there is no data set /no/such/set"),
        (["--no-module", "--partition", "p10"], "has no partition 'p10'"),
        (["--no-module", "--partition", "v100", "--gpus", "12"], "do not fill whole nodes"),
        (["--no-module", "--time", "99-00"], "beyond the limit of 'p100'"),
        (["--module", "nosuch/1"], "nosuch/1"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_queued(slurm, tmp_path, words, says):
    site = Path(find_site_file("embedded")).read_text()
    (tmp_path / "site.yaml").write_text(site.replace("$HPCDL_HOME/embedded/work", str(tmp_path)))
    submit = [HPCDL, "job", "submit", "--site", tmp_path / "site.yaml", *words, "--", "true"]
    answer = slurm(*submit, check=False)
    assert answer.returncode in {2, 3}
    assert says in answer.stderr or "no published release" in answer.stderr
    assert "\nhelp: " in answer.stderr
    assert not (tmp_path / "jobs").exists()


def test_a_job_or_sweep_that_needs_a_drained_node_waits_for_it(slurm, tmp_path):
    drained = ("scontrol", "update", "nodename=p100-01", "state=drain", "reason=test")
    words = ["--no-module", "--json", "--partition", "p100", "--nodes", "2"]
    sweep = ["--name", f"s{time.time_ns()}", "--over", "n=1"]
    slurm(*drained)
    try:
        submit = [HPCDL, "job", "submit", *words, "--job-dir", str(tmp_path / "job"), "--", "true"]
        jobs = [json.loads(slurm(*submit).stdout)["job_id"]]
        swept = json.loads(slurm(HPCDL, "job", "sweep", *words, *sweep, "--", "true").stdout)
        jobs += [point["job_id"] for point in swept["points"]]
        shown = slurm("squeue", "--noheader", "--format=%T", f"--jobs={jobs[0]},{jobs[1]}").stdout
        assert shown.split() == ["PENDING", "PENDING"]
        slurm("scancel", *map(str, jobs))
    finally:
        slurm("scontrol", "update", "nodename=p100-01", "state=resume")


def test_what_the_partition_can_never_hold_is_refused_in_slurm_s_words(slurm, tmp_path):
    """The site file promises a node too many: only Slurm knows better."""
    text = Path(find_site_file("embedded")).read_text()
    (tmp_path / "site.yaml").write_text(text.replace("nodes: 2", "nodes: 9"))
    submit = [HPCDL, "job", "submit", "--site", tmp_path / "site.yaml", "--no-module"]
    refused = slurm(*submit, "--partition", "p100", "--nodes", "9", "--job-dir", tmp_path / "job",
                    "--", "true", check=False)  # fmt: skip
    assert refused.returncode == 2, refused.stdout
    assert "Slurm did not take this job" in refused.stderr
    assert not (tmp_path / "job").exists()


def test_slurm_s_own_refusal_is_shown_and_nothing_is_left(slurm, tmp_path):
    words = ["job", "submit", "--no-module", "--partition", "cpu", "--account", "a", "--qos", "b"]
    refused = slurm(HPCDL, *words, "--job-dir", tmp_path / "job", check=False)
    if refused.returncode == 0:
        pytest.skip("this Slurm has no accounting, and takes any account")
    assert refused.returncode == 2
    assert not (tmp_path / "job").exists()


def test_slurm_away_is_one_clear_line(slurm, tmp_path):
    (tmp_path / "slurm.conf").write_text("ClusterName=x\nSlurmctldHost=localhost\n"
                                         "SlurmctldPort=1\nNodeName=a\n")  # fmt: skip
    words = ["env", f"SLURM_CONF={tmp_path}/slurm.conf", HPCDL, "job", "submit", "--no-module"]
    answer = slurm(*words, "--partition", "cpu", "--", "true", check=False, timeout=90)
    assert answer.returncode == 3
    assert answer.stderr.startswith("error: Slurm does not answer\n")
    assert "Traceback" not in answer.stderr


def test_a_sweep_submits_only_what_is_missing(slurm, tmp_path):
    marker = tmp_path / "mended"
    program = ["--", "bash", "-c", f"[[ {{n}} != 2 || -e {marker} ]]"]
    sweep = [HPCDL, "job", "sweep", "--no-module", "--json", "--name", f"s{time.time_ns()}",
             "--partition", "cpu", "--over", "n=1,2,3", "--running", "2"]  # fmt: skip

    def states() -> list[str]:
        answer = slurm(*sweep, "--status", *program, check=False)
        return [point["state"] for point in json.loads(answer.stdout)["points"]]

    slurm(*sweep, *program)
    wait_for(lambda: states() == ["done", "failed", "done"])
    shown = slurm(*(one for one in sweep if one != "--json"), "--status", *program, check=False)
    (log,) = re.findall(r"failed: n=2: exit code 1, log (.*)", shown.stderr)
    assert Path(log).exists()
    marker.touch()
    again = json.loads(slurm(*sweep, *program).stdout)
    assert [point["state"] for point in again["points"]] == ["done", "failed", "done"]
    again = json.loads(slurm(*sweep, "--retry-failed", *program).stdout)
    assert [point["state"] for point in again["points"]] == ["done", "queued", "done"]
    wait_for(lambda: states() == ["done", "done", "done"])


def test_a_task_that_asks_to_run_again_leaves_the_finished_ones_alone(slurm, tmp_path):
    """The last task to start has the id of the whole array; one after the other, that is task 2."""
    again = "echo x >>runs; [[ {n} != 3 || ${SLURM_RESTART_COUNT:-0} != 0 ]] || exit 75"
    sweep = [HPCDL, "job", "sweep", "--no-module", "--json", "--name", f"s{time.time_ns()}",
             "--partition", "cpu", "--over", "n=1,2,3", "--running", "1"]  # fmt: skip
    program = ["--", "bash", "-c", again]
    folder = Path(json.loads(slurm(*sweep, *program).stdout)["directory"])

    def states() -> list[str]:
        answer = slurm(*sweep, "--status", *program, check=False)
        return [point["state"] for point in json.loads(answer.stdout)["points"]]

    wait_for(lambda: states() == ["done"] * 3, seconds=150)
    runs = sorted(file.read_text().count("x") for file in folder.glob("points/*/runs"))
    assert runs == [1, 1, 2]


def test_the_site_file_drafted_from_the_cluster_agrees_with_it(slurm, tmp_path):
    slurm(HPCDL, "site", "init", "--output", tmp_path / "site.yaml")
    slurm(HPCDL, "site", "check", "--site", tmp_path / "site.yaml")
    drafted = load_site(tmp_path / "site.yaml").slurm
    assert (drafted.select, drafted.task_plugins) == ("cons_tres", ("none",))
    text = (tmp_path / "site.yaml").read_text()
    (tmp_path / "site.yaml").write_text(text.replace("per_node: 8", "per_node: 7"))
    drift = slurm(HPCDL, "site", "check", "--json", "--site", tmp_path / "site.yaml", check=False)
    assert drift.returncode == 1
    assert json.loads(drift.stdout)["drift"] == [
        {"key": "partitions.v100.gpu.per_node", "file": "7", "cluster": "8"}
    ]


# ---- after Slurm has forgotten a job ----


@pytest.fixture
def accounted(embedded_site, cluster_home, tmp_path) -> Iterator[Shell]:
    """Runs commands against a cluster with accounting that forgets ended jobs after 2 s."""
    try:
        check_packages(accounting=True)
    except MissingPrerequisite as lack:
        pytest.skip(f"{lack.message}; {lack.hint}")
    place = cluster_home / "cluster" / "accounts"
    try:
        state = up(embedded_site, directory=place, accounting=True)
        conf = state.configuration
        conf.write_text(conf.read_text().replace("MinJobAge=3600", "MinJobAge=2"))
        shell = Shell({**environment(state, clean_environment()), "HPCDL_HOME": str(cluster_home),
                       "HPCDL_CLUSTER_DIR": str(place)}, tmp_path)  # fmt: skip
        shell("scontrol", "reconfigure")
        yield shell
    finally:
        down(place, purge=True)


def test_a_job_that_the_controller_has_forgotten_is_told_from_accounting(accounted, tmp_path):
    def submit(folder: str, *program: str) -> str:
        words = [HPCDL, "job", "submit", "--no-module", "--no-preflight", "--json",
                 "--job-dir", tmp_path / folder, "--partition", "p100", "--gpus", "2"]  # fmt: skip
        return str(json.loads(accounted(*words, "--", *program).stdout)["job_id"])

    hold = "x = bytearray(200 << 20); import time; time.sleep(5)"
    again = f'(( ${{SLURM_RESTART_COUNT:-0}} )) || exit 75; python3 -c "{hold}"'
    requeued, failed = submit("a", "bash", "-c", again), submit("b", "bash", "-c", "exit 3")
    cancelled = submit("c", "sleep", "600")
    state = ("squeue", "--noheader", "--jobs", cancelled, "--format=%T")
    wait_for(lambda: accounted(*state).stdout == "RUNNING\n")
    accounted("scancel", cancelled)
    accounted(HPCDL, "job", "watch", requeued, timeout=120)
    for job in (requeued, failed, cancelled):
        gone = ("scontrol", "show", "job", job)
        wait_for(lambda gone=gone: accounted(*gone, check=False).returncode != 0)  # type: ignore[misc]

    told = json.loads(accounted(HPCDL, "job", "watch", "--once", "--json", requeued).stdout)
    assert (told["state"], told["exit_code"], told["restarts"]) == ("COMPLETED", 0, 1)
    told = json.loads(accounted(HPCDL, "job", "watch", "--json", failed, check=False).stdout)
    assert (told["state"], told["exit_code"]) == ("FAILED", 3)
    me = f"by {user_of(os.geteuid())}"
    assert me in accounted(HPCDL, "job", "report", cancelled, check=False).stdout
    assert f"CANCELLED {me}" in accounted(HPCDL, "job", "list").stdout
    report = json.loads(accounted(HPCDL, "job", "report", "--json", requeued).stdout)
    assert report["usage"]["allocated"]["gres/gpu:p100"] == "2"
    assert report["usage"]["max_rss_mb"] > 200
    used = json.loads(accounted(HPCDL, "job", "usage", "--by", "partition", "--by", "module",
                                "--json").stdout)["usage"]  # fmt: skip
    assert [one["group"] for one in used] == [{"partition": "p100", "module": ""}]
    assert used[0]["jobs"] == 3
    assert used[0]["gpu_hours"] == pytest.approx(used[0]["cpu_hours"] * 2 / 8)
    assert used[0]["gpu_hours"] > 5 * 2 / 3600
    shown = accounted(HPCDL, "job", "usage").stdout.splitlines()
    assert shown[0].split() == ["month", "jobs", "GPU", "h", "CPU", "h"]
    assert shown[-1].endswith("#" * 40)
    accounted(HPCDL, "job", "cancel", requeued)  # what is forgotten is no error
