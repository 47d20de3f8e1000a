"""Whatever is killed, `down` leaves nothing behind and `up` brings the cluster back."""

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.cluster import LOOPBACK, NAMESPACES, network, processes
from hpcdl.cluster.lifecycle import change
from hpcdl.cluster.needs import choose_mode
from hpcdl.cluster.shape import ProcessId
from hpcdl.cluster.state import environment, write_state
from hpcdl.cluster.status import of_nodes
from hpcdl.cluster.teardown import down
from hpcdl.site import load_site
from tests.integration.conftest import clean_environment, need_packages
from tests.integration.conftest import shell_of as shell
from tests.make.sites import CPU, P100, site_file, up
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).resolve().parents[2]
# A program of this process only: others may run the same tests on this machine.
OWN = "sleep 7776.{}"


@pytest.fixture(scope="module")
def small_site(cluster_home):
    need_packages()
    return load_site(site_file(cluster_home, P100, CPU.replace("cpu", "spare")))


@pytest.fixture
def place(cluster_home):
    directory = cluster_home / "cluster" / "small"
    yield directory
    down(directory, purge=True)


def nothing_is_left(place):
    assert processes.of_cluster(place) == []
    assert network.bridges(place) == []


def test_down_leaves_nothing_and_twice_is_fine(small_site, place, mode):
    state = up(small_site, mode=mode, directory=place)
    shell(state, place)("sbatch", "-N2", "--output=/dev/null", "--wrap=srun sleep 100")
    shell(state, place)("sbatch", "-p", "spare", "--output=/dev/null", "--wrap=setsid sleep 100 &")
    program = OWN.format(os.getpid())
    shell(state, place)("sbatch", "-p", "spare", "--output=/dev/null", f"--wrap=env -i {program}")
    count = f"pgrep -fc '^{program}$'"
    wait_for(lambda: subprocess.getoutput(count) == "1")
    time.sleep(1)
    assert down(place)
    assert subprocess.getoutput(count) == "0"
    nothing_is_left(place)
    assert str(place) not in Path("/proc/self/mounts").read_text()
    assert {path.name for path in place.iterdir()} <= {
        ".hpcdl-cluster",
        "lock",
        "log",
        "jobs",
        "site.yaml",
    }
    assert not down(place)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to take /etc/hosts away")
def test_a_machine_without_hosts_file_has_loopback(small_site, place):
    # Locks in /etc come and go while others add users.
    copied = "{ cp -a /etc/. /mnt || cp -a /etc/. /mnt; }"
    bare = f"mount -t tmpfs m /mnt && {copied} && rm /mnt/hosts && mount --bind /mnt /etc"
    hpcdl = f"{sys.executable} -m hpcdl cluster"
    env = clean_environment()
    env |= {"HPCDL_CLUSTER_DIR": str(place), "HPCDL_SITE": str(small_site.source)}
    said = {}
    for words in ("up --slurm 24.11", "up --mode namespaces", "up"):
        command = f"{bare} && {hpcdl} {words} && {hpcdl} down"
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", command],
            env=env,
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        said[words] = (done.returncode, done.stdout + done.stderr)
    assert said["up --slurm 24.11"][0] == said["up --mode namespaces"][0] == 3, said
    assert "touch /etc/hosts" in said["up --slurm 24.11"][1]
    assert "there is no /etc/hosts" in said["up --mode namespaces"][1]
    assert said["up"][0] == 0, said
    assert "4 nodes ready in mode loopback" in said["up"][1]


def test_make_down_needs_no_environment(small_site, place, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    env = clean_environment() | {"HPCDL_HOME": str(place.parent.parent)}
    env |= {"HPCDL_CACHE": str(tmp_path), "HPCDL_SITE": str(small_site.source)}
    words = ["make", "down", f"VENV={tmp_path}/none", f"PYTHON={tmp_path}/bare/bin/python"]
    up(small_site, directory=place)
    for expected in ("stopped\n", "nothing was running\n"):
        done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, expected), done.stderr
    assert processes.of_cluster(place) == []
    assert not (tmp_path / "none").exists()


def test_job_numbers_never_come_twice(small_site, place):
    numbers = []
    for _ in range(2):
        state = up(small_site, directory=place)
        done = shell(state, place)("sbatch", "--parsable", "--output=/dev/null", "--wrap=true")
        numbers.append(int(done.stdout))
        down(place)
    assert numbers[0] < numbers[1]


def test_up_restarts_what_was_killed(small_site, place):
    victims = ["munged", "slurmctld", "p100-01", "spare-01"]
    state = up(small_site, directory=place)
    ask = shell(state, place)
    words = ("-p", "spare", "-w", "spare-02", "--output=/dev/null", "--wrap=sleep 60")
    job = ask("sbatch", "--parsable", *words).stdout.strip()
    wait_for(lambda: ask("squeue", "-h", "-j", job, "-o", "%T").stdout == "RUNNING\n")
    begun = time.time()  # slurmctld saves its jobs every 5 s, where something has changed
    ask("scontrol", "update", f"jobid={job}", "comment=saved")
    wait_for(lambda: (place / "state/job_state").stat().st_mtime > begun)
    for victim in victims:
        processes.end([state.processes[victim]])
    again = up(small_site, directory=place)
    changed = {name for name, one in again.processes.items() if state.processes[name] != one}
    assert changed == set(victims)
    assert ask("squeue", "-h", "-j", job, "-o", "%T").stdout.strip() == "RUNNING"
    ask("srun", "-p", "p100", "-N2", "true")


def test_everything_killed_is_brought_back(small_site, place, mode):
    up(small_site, mode=mode, directory=place)
    for process in processes.of_cluster(place):
        processes.send(process, signal.SIGKILL)
    wait_for(lambda: not processes.of_cluster(place))  # on a busy machine they take a while to die
    shell(up(small_site, mode=mode, directory=place), place)("srun", "-p", "p100", "-N2", "true")


def test_up_killed_at_any_moment_can_be_stopped_and_repeated(small_site, place, mode):
    words = [
        sys.executable,
        "-m",
        "hpcdl",
        "cluster",
        "up",
        "--mode",
        mode,
        "--site",
        small_site.source,
    ]
    env = {**clean_environment(), "HPCDL_CLUSTER_DIR": str(place)}
    for step in range(8):
        starting = subprocess.Popen(words, env=env, stderr=subprocess.DEVNULL)
        time.sleep(0.08 + 0.05 * step)
        starting.kill()
        starting.wait()
        if step % 2:
            down(place)
            nothing_is_left(place)
    shell(up(small_site, mode=mode, directory=place), place)("srun", "-p", "p100", "-N2", "true")


@pytest.mark.parametrize("damage", ["removed", "torn"])
def test_down_needs_no_whole_record(small_site, place, mode, damage):
    up(small_site, mode=mode, directory=place)
    if damage == "removed":
        shutil.rmtree(place)
    else:
        (place / "cluster.json").write_text('{"schema": 1, "nodes"')
    assert down(place)
    nothing_is_left(place)


def test_whoever_is_none_of_the_cluster_s_is_spared(small_site, place):
    """A process with the number of a dead slurmd, and a person's shell with its environment."""
    state = up(small_site, mode=LOOPBACK, directory=place)
    processes.end([state.processes["spare-01"]])
    others = [subprocess.Popen(["sleep", "60"], env=env) for env in (None, environment(state))]
    try:
        # As if the kernel had given the dead slurmd's number to somebody else's process.
        recycled = ProcessId(others[0].pid, state.processes["spare-01"].start)
        write_state(replace(state, processes={**state.processes, "spare-01": recycled}))
        down(place)
        assert [one.poll() for one in others] == [None, None]
    finally:
        for one in others:
            one.kill()
            one.wait()


LOSSES = {
    NAMESPACES: {"p100-02": ("kill", "up"), "spare-02": ("cut", "heal")},
    LOOPBACK: {"p100-02": ("kill", "up")},
}


def test_lost_nodes_are_noticed_and_their_jobs_run_again_elsewhere(small_site, place, mode):
    state = up(small_site, mode=mode, directory=place)
    slurm = shell(state, place)
    jobs = {name: submit_to(slurm, name) for name in LOSSES[mode]}
    for name, job in jobs.items():
        wait_for(lambda job=job: started(place, job, 0))
        change(state, name, LOSSES[mode][name][0])
    for name, job in jobs.items():
        wait_for(lambda name=name: of_nodes(state, "%T")[name].startswith("down"))
        slurm("scontrol", "update", f"jobid={job}", "ReqNodeList=")
    for job in jobs.values():
        show = ("scontrol", "show", "job", job)
        wait_for(lambda show=show: "JobState=COMPLETED" in slurm(*show).stdout)
        assert started(place, job, 1)
    for name in jobs:
        change(state, name, LOSSES[mode][name][1])
        wait_for(lambda name=name: of_nodes(state, "%T")[name] == "idle")


def submit_to(slurm, node):
    """A job on this node that sleeps at its first start and ends well at its second."""
    script = slurm.directory / "log" / "job.sh"
    script.write_text(
        "#!/bin/bash\necho restart ${SLURM_RESTART_COUNT:-0}\n"
        '[ "${SLURM_RESTART_COUNT:-0}" = 1 ] || srun sleep 300\n'
    )
    return slurm(
        "sbatch",
        "--parsable",
        "-p",
        node.split("-")[0],
        "-w",
        node,
        "--requeue",
        "--open-mode=append",
        f"--output={slurm.directory}/log/%j.txt",
        script,
    ).stdout.strip()


def started(place, job, restart):
    log = place / "log" / f"{job}.txt"
    return log.exists() and f"restart {restart}" in log.read_text().split("\n")


def test_killed_node_has_no_process_left(small_site, place, mode):
    state = up(small_site, mode=mode, directory=place)
    # One of them has an environment of its own, that tells nothing of the job.
    program = OWN.format(os.getpid())
    job = ["-p", "spare", "-w", "spare-01", "--output=/dev/null"]
    shell(state, place)("sbatch", *job, f"--wrap=env -i {program} & {program}")
    count = f"pgrep -fc '^{program}$'"
    wait_for(lambda: subprocess.getoutput(count) == "2")
    change(state, "spare-01", "kill")
    assert subprocess.getoutput(count) == "0"
    assert change(state, "spare-01", "kill") == "spare-01 is dead"
    assert up(small_site, mode=mode, directory=place).killed == ("spare-01",)
    assert change(state, "spare-01", "up") == "spare-01 takes jobs"


def test_restarted_node_answers_at_once_those_who_knew_it(small_site, place):
    if choose_mode("auto") != NAMESPACES:
        pytest.skip("mode namespaces needs root and unshare")
    state = up(small_site, mode=NAMESPACES, directory=place)
    slurm = shell(state, place)
    hardware = "cat /sys/class/net/eth0/address"
    reach = "exec 3<>/dev/tcp/spare-02/$(scontrol show node spare-02 | grep -oP 'Port=\\K[0-9]+')"

    def on(node, command):
        words = ("srun", "-p", "spare", "-w", node, "timeout", "5", "bash", "-c", command)
        return slurm(*words).stdout

    on("spare-01", reach)
    before = on("spare-02", hardware)
    change(state, "spare-02", "kill")
    change(state, "spare-02", "up")
    on("spare-01", reach)
    assert on("spare-02", hardware) == before
