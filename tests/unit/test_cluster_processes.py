"""Processes are found by what they are, not by numbers of others; so are ports of clusters."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.cluster import (
    LOOPBACK,
    cpu_throttle,
    daemons,
    lifecycle,
    processes,
    state,
    status,
    teardown,
)
from hpcdl.cluster.network import reserved_ports
from hpcdl.cluster.shape import Node, ProcessId
from hpcdl.system.errors import CheckFailed, HpcdlError
from hpcdl.system.files import locked
from tests.strangers import as_root
from tests.unit.test_cluster_environment import STATE
from tests.waiting import wait_for

NODE = Node("p100-01", "p100", 0, "127.0.0.1", 21000)


def sleeper(**env):
    return shown(subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"], **env}))


def shown(process):
    """Wait: Popen returns a moment before the kernel shows arguments and environment."""
    wait_for(Path(f"/proc/{process.pid}/environ").read_bytes)
    return process


@pytest.fixture
def started():
    found = []
    yield found
    for one in found:
        one.kill()
        one.wait()


def test_a_process_is_its_number_and_its_start_and_dead_as_a_zombie(started):
    started.append(sleeper())
    found = processes.identify(started[0].pid)
    later = ProcessId(found.pid, found.start - 1)  # who got the number later is spared
    assert not processes.alive(later)
    processes.send(later, signal.SIGKILL)
    assert processes.alive(found)
    processes.end([found])
    assert started[0].returncode is None  # not reaped yet
    assert processes.identify(found.pid) is None


def test_a_name_of_any_bytes_hides_no_process_and_stops_no_command(started, tmp_path):
    """Any user of the machine may name a process so (PR_SET_NAME of prctl(2))."""
    program = os.fsencode(tmp_path) + b"/\xff\xfe) Z 0"
    Path(os.fsdecode(program)).symlink_to("/bin/sleep")
    started.append(shown(subprocess.Popen([program, "60"])))
    assert not processes.is_slurm(processes.identify(started[0].pid))
    assert processes.of_cluster(tmp_path) == []
    mine = {processes.MARK: str(tmp_path), "PATH": "/bin"}
    started.append(shown(subprocess.Popen([program, "60"], env=mine)))
    assert [one.pid for one in processes.of_cluster(tmp_path)] == [started[1].pid]
    assert teardown.down(tmp_path), "root's ended with a traceback"
    assert started[1].wait() == -signal.SIGKILL
    assert started[0].poll() is None


def test_grace_lets_a_process_end_by_itself(tmp_path):
    code = "trap 'sleep 0.2; touch bye; exit' TERM; echo; while :; do sleep 0.1; done"
    one = subprocess.Popen(["sh", "-c", code], cwd=tmp_path, stdout=subprocess.PIPE)
    assert one.stdout.readline() == b"\n"
    processes.end([processes.identify(one.pid)], grace=10)
    one.wait()
    assert (tmp_path / "bye").exists()


def test_what_a_cluster_left_is_found_and_nothing_else(started, tmp_path):
    conf = f"{tmp_path}/etc/slurm.conf"
    daemon = sleeper(**{processes.MARK: str(tmp_path)})
    job = sleeper(SLURM_CONF=conf, SLURMD_NODENAME="p100-01")
    person = sleeper(SLURM_CONF=conf, SLURM_JOB_ID="7")
    started += [daemon, job, person, sleeper(**{processes.MARK: f"{tmp_path}2"})]
    assert {one.pid for one in processes.of_cluster(tmp_path)} == {daemon.pid, job.pid}


def test_what_a_job_started_with_an_environment_of_its_own_is_found(started, tmp_path):
    """`env -i program`, and programs that write over their environment."""
    env = {
        "PATH": os.environ["PATH"],
        "SLURM_CONF": f"{tmp_path}/etc/slurm.conf",
        "SLURMD_NODENAME": "p100-01",
    }
    script = "env -i sh -c 'sleep 60 & echo $!; wait' & wait"
    job = subprocess.Popen(["sh", "-c", script], env=env, stdout=subprocess.PIPE)
    started.append(job)
    inner = int(job.stdout.readline())
    of_cluster = processes.of_cluster(tmp_path)
    of_node = processes.of_node(replace(STATE, directory=tmp_path), NODE)
    processes.end(of_cluster)
    for each in (of_cluster, of_node):
        assert {job.pid, inner} <= {process.pid for process in each}
    assert processes.identify(inner) is None


def test_a_job_that_stops_its_own_cluster_is_spared(tmp_path):
    code = "import pathlib, sys; from hpcdl.cluster import processes\n"
    code += "sys.exit(len(processes.of_cluster(pathlib.Path(sys.argv[1]))))"
    env = {**os.environ, processes.MARK: str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", code, tmp_path], env=env).returncode == 0


def test_a_throttle_is_shown_by_its_node(started, tmp_path):
    env = {**os.environ, processes.MARK: str(tmp_path)}
    for words in ([str(tmp_path), "p100-01", "4"], ["/elsewhere", "p100-02", "4"]):
        # Its command line is what counts: this one only sleeps.
        program = ["bash", "-c", "sleep 60; :", "-m", "hpcdl.cluster.cpu_throttle", *words]
        started.append(shown(subprocess.Popen(program, env=env, start_new_session=True)))
    started.append(shown(subprocess.Popen(["sleep", "60"], env=env)))
    assert cpu_throttle.throttled(tmp_path) == {"p100-01"}
    current = replace(STATE, directory=tmp_path, nodes=(NODE,), killed=("p100-01",), phase="ready")
    data = status.as_data(current)
    assert data["nodes"][0]["slow"] is True
    assert "killed, slow" in status.as_text(data)
    assert data["phase"] == "degraded"
    assert status.as_text(data).startswith(f"{current.site}: degraded, mode")
    with pytest.raises(HpcdlError, match="it is dead"):
        lifecycle._set_link(current, NODE, up=True)
    (killed,), count = current.killed, len(current.nodes)
    assert f"{count - 1} of {count} nodes ready" in status.summary(current)
    assert f"{killed} was killed: `hpcdl cluster node up {killed}`" in status.summary(current)
    processes.end(processes.of_cluster(tmp_path))


def test_a_purge_takes_nothing_from_who_waited_for_it(tmp_path, monkeypatch):
    """`up` waits for the lock while `down --purge` works: what it then makes stays."""
    cluster = tmp_path / "cluster"
    (cluster / "log").mkdir(parents=True)
    state.claim(cluster)
    waiting = threading.Event()

    def begin():
        waiting.set()
        with locked(cluster / "lock"):
            (cluster / "log").mkdir()
            time.sleep(0.5)

    other = threading.Thread(target=begin)

    def clear(directory, say):
        other.start()
        waiting.wait()
        time.sleep(0.3)
        return True

    monkeypatch.setattr(teardown, "clear", clear)
    assert teardown.down(cluster, purge=True)
    other.join()
    assert sorted(path.name for path in cluster.iterdir()) == ["lock", "log"]
    assert not state.is_ours(cluster)


def test_a_purge_that_leaves_something_can_be_repeated(tmp_path, monkeypatch):
    """Without the mark, `up` refused what was left, and `down` did not look at it."""
    state.claim(tmp_path)
    (tmp_path / "log").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(teardown.shutil, "rmtree", lambda *_, **__: None)
        teardown.down(tmp_path, purge=True)
    assert state.is_ours_or_empty(tmp_path)
    teardown.down(tmp_path, purge=True)
    assert not tmp_path.exists()


def test_munge_keeps_its_own_checks_where_others_reach_it(shared):
    (shared / "run").mkdir()
    for mode, forced in ((0o755, False), (0o700, True)):
        shared.chmod(mode)
        assert ("--force" in daemons.munged(replace(STATE, directory=shared)).argv) == forced


def test_down_of_a_directory_that_is_no_cluster_ends_nobody_s_steps(tmp_path, started):
    """Slurm's own steps have files open below /var, and /var is no cluster."""
    step = tmp_path / "slurmstepd"
    step.write_bytes(Path("/bin/sleep").read_bytes())
    step.chmod(0o755)
    (tmp_path / "top/other").mkdir(parents=True)
    with (tmp_path / "top/other/log").open("w") as log:
        started.append(shown(subprocess.Popen([step, "60"], env={"A": "b"}, stdout=log)))
    assert not teardown.down(tmp_path / "top")
    assert not teardown.down(tmp_path / "no-utf8-\udcff"), "a directory may have any name"
    assert started[0].poll() is None


def test_a_node_of_a_cluster_that_was_stopped_meanwhile_is_none(tmp_path):
    gone = replace(STATE, directory=tmp_path / "gone")
    (tmp_path / "gone").mkdir()
    with pytest.raises(CheckFailed, match="was stopped meanwhile"):
        lifecycle.change(gone, "n1", "kill")
    assert not (tmp_path / "gone/cluster.json").exists()


def test_a_node_that_a_job_is_planned_for_is_well():
    assert all(map(status.takes_jobs, ("idle", "planned", "mixed-")))
    assert not status.takes_jobs("down")


CHOOSE = """
import os, sys
from hpcdl.cluster.network import reserved_ports
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print("ready", flush=True); sys.stdin.readline()
with reserved_ports("loopback", 3) as ports:
    print(ports.base, flush=True); sys.stdin.readline()
"""


@as_root
def test_many_users_choose_at_once_and_none_gets_anothers_ports():
    choosers = [
        subprocess.Popen(
            [sys.executable, "-c", CHOOSE],
            stdin=subprocess.PIPE,
            text=True,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        for _ in range(8)
    ]
    try:
        assert [one.stdout.readline() for one in choosers] == ["ready\n"] * 8
        for one in choosers:
            one.stdin.write("\n")
            one.stdin.flush()
        said = [one.stdout.readline() for one in choosers]
        assert len(set(said)) == 8, said
    finally:
        for one in choosers:
            one.kill()
            one.communicate()


def test_a_daemon_listens_on_a_reserved_port_and_nobody_else_chooses_it():
    with ExitStack() as held:
        ports = held.enter_context(reserved_ports(LOOPBACK, 2))
        with reserved_ports(LOOPBACK, 2) as others:
            assert others.base != ports.base
        addresses = ("", "127.0.0.1", "127.0.0.2", "")
        for port, address in zip(ports.on_host(LOOPBACK, 2), addresses, strict=True):
            daemon = held.enter_context(socket.socket())
            daemon.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            daemon.bind((address, port))
            daemon.listen()
        held.enter_context(reserved_ports(LOOPBACK, 2))
