"""The embedded cluster serves real jobs, as the site file describes it."""

import json
import re
import sys
from pathlib import Path

import pytest

from hpcdl.cluster import NAMESPACES
from hpcdl.cluster.lifecycle import prepare
from hpcdl.cluster.needs import slurm_version
from hpcdl.cluster.teardown import down
from hpcdl.site import find_site_file, load_site
from hpcdl.workflows.embedded import request
from tests.integration.conftest import Shell, need_packages, shell_of
from tests.make.sites import embedded_file, up
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster


def test_slurm_has_the_nodes_and_the_hardware_of_the_site(slurm, embedded_site):
    lines = slurm("sinfo", "-h", "-N", "-o", "%P %T").stdout.split("\n")
    idle = [line.split()[0].rstrip("*") for line in lines if line.endswith(" idle")]
    for name, partition in embedded_site.partitions.items():
        assert idle.count(name) == partition.nodes
        shown = slurm("sinfo", "-h", "-p", name, "-o", "%X|%Y|%Z|%m|%G").stdout.strip().split("|")
        assert [int(word) for word in shown[:4]] == [
            partition.sockets,
            partition.cores_per_socket,
            partition.threads_per_core,
            partition.memory_gb * 1024,
        ]
        gpu = partition.gpu
        gres = f"gpu:{gpu.gres_type}:{gpu.per_node}" if gpu else "(null)"
        assert re.sub(r"\(S:[^)]*\)", "", shown[4]) == gres


def test_the_site_of_the_shell_says_what_runs_whatever_the_file_said(cluster_home, mode, tmp_path):
    """Debian 13 runs 24.11; the shipped site was written for 22.05. PMIx may be missing."""
    need_packages()
    runs = slurm_version()
    (said,) = re.findall(r'version: "?([\d.]+)', find_site_file("embedded").read_text())
    changes = [
        (said, "20.11.9"),
        ("\n  mpi: pmix", "\n  mpi: pmix_v9"),
        ("name: embedded", "name: o"),
    ]
    original = embedded_file(tmp_path, *changes)
    place = cluster_home / "cluster" / "other-release"
    state = up(load_site(original), mode=mode, directory=place, max_nodes=1)
    try:
        shell = shell_of(state, tmp_path, HPCDL_CLUSTER_DIR=str(place))
        site = load_site(Path(shell.env["HPCDL_SITE"]))
        assert (site.slurm.version, site.slurm.mpi) == (runs, "none")
        drift = [one["key"] for one in shell.json("site", "check")["drift"]]
        assert not [key for key in drift if key.startswith("slurm.")]
        shell.hpcdl("cluster", "up", "--max-nodes-per-partition", "1")
        assert shell.hpcdl("cluster", "down", "--site", original).stdout == "stopped\n"
    finally:
        down(place, purge=True)


def test_two_jobs_share_a_node(slurm):
    for _ in range(2):
        slurm("sbatch", "-p", "k80", "--gres=gpu:k80:2", "--output=/dev/null", "--wrap=sleep 200")
    try:
        running = ("squeue", "-h", "-p", "k80", "-t", "R")
        wait_for(lambda: len(slurm(*running).stdout.splitlines()) == 2)
    finally:
        slurm("scancel", "--partition=k80")


def test_nodes_are_worlds_of_their_own(slurm, cluster):
    if cluster.mode != NAMESPACES:
        pytest.skip("mode namespaces needs root")
    show = "hostname; hostname -I; ls /dev/shm | wc -l; ls -d /proc/[0-9]* | wc -l; >/dev/shm/x"
    lines = slurm("srun", "-p", "cpu", "-N2", "-l", "bash", "-c", show).stdout.split("\n")
    by_task = [[line[3:].strip() for line in lines if line.startswith(f"{i}:")] for i in (0, 1)]
    assert [task[0] for task in by_task] == ["cpu-01", "cpu-02"]
    assert by_task[0][1] != by_task[1][1]
    for task in by_task:
        assert task[2] == "0"
        assert int(task[3]) < 20


def test_shell_finds_slurm_and_modules_after_eval(slurm, cluster, tmp_path):
    bare = {"PATH": slurm.env["PATH"], "HOME": str(tmp_path), "MODULEPATH": "/opt/other modules"}
    bare |= {key: slurm.env[key] for key in ("HPCDL_HOME", "HPCDL_CLUSTER_DIR")}
    command = f'eval "$({sys.executable} -m hpcdl cluster env)"'
    twice = f"{command}; {command}; squeue -h; sinfo -h -o %R; echo $MODULEPATH; type -t module"
    done = Shell(bare, tmp_path)("bash", "-euc", twice)
    assert "p100" in done.stdout.splitlines()
    modules = f"{cluster.prefix}/current/modules"
    path = next(line for line in done.stdout.splitlines() if "current/modules" in line)
    assert (path.split(":")[0], path.count(modules)) == (modules, 1)
    assert "/opt/other modules" in path.split(":")
    if cluster.lmod_init.exists():
        assert done.stdout.splitlines()[-1] == "function"


def test_status_tells_machines_and_people_that_all_is_well(slurm):
    data = json.loads(slurm.hpcdl("cluster", "status", "--json").stdout)
    assert data["phase"] == "ready"
    assert all(row["alive"] for row in (*data["daemons"], *data["nodes"]))
    assert "slurmctld" in slurm.hpcdl("cluster", "status").stdout


def test_up_again_changes_nothing(slurm, cluster):
    slurm.hpcdl("cluster", "up")  # other tests may have killed nodes
    before = (cluster.directory / "cluster.json").read_bytes()
    slurm.hpcdl("cluster", "up")
    assert (cluster.directory / "cluster.json").read_bytes() == before


def test_up_in_another_shape_says_what_to_do(slurm, cluster):
    other = "loopback" if cluster.mode == NAMESPACES else "namespaces"
    shapes = [["--max-nodes-per-partition", "1"]]
    shapes += [["--mode", other]] if other == "loopback" else []
    for shape in shapes:
        assert "hpcdl cluster down" in slurm.refused(1, "cluster", "up", *shape)


def test_preparing_is_not_starting(embedded_site, cluster_home):
    directory = cluster_home / "cluster" / "never"
    asked, where = prepare(request(embedded_site), directory)
    assert where == directory
    assert len(asked.node_names) == 7
    assert not directory.exists()


def test_the_daemons_listen_where_the_nodes_are_and_nowhere_else(cluster):
    """Whoever reaches another address of this machine does not reach slurmctld."""
    text = cluster.configuration.read_text()
    if cluster.mode != NAMESPACES and "CommunicationParameters=" not in text:
        pytest.skip("this machine's name does not mean the nodes' network")
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    listening = {row[1] for row in rows if row[3] == "0A"}
    port = f"{cluster.port_base:04X}"
    assert f"00000000:{port}" not in listening
    assert any(one.endswith(f":{port}") for one in listening)
