"""Two embedded clusters on one machine, of two homes: neither knows of the other."""

import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from hpcdl.cluster import down, up
from hpcdl.cluster.model import NAMESPACES, bridge_name
from hpcdl.site import load_site
from tests.homes import short_home
from tests.integration.conftest import need_packages, shell_of

pytestmark = pytest.mark.cluster

SITE = """
schema: 1
name: small
slurm: {{version: "22.05.8"}}
paths: {{prefix: {work}/prefix, work: {work}, datasets: {work}}}
partitions:
  cpu: {{nodes: 2, sockets: 1, cores_per_socket: 4, memory_gb: 16}}
"""
RANK = 'echo "rank $SLURM_PROCID of $SLURM_NTASKS on $SLURM_CLUSTER_NAME"'


@pytest.fixture
def two(tmp_path, mode):
    """Two clusters of one site, and so of one work directory, started at once."""
    need_packages()
    file = tmp_path / "small.yaml"
    file.write_text(SITE.format(work=tmp_path / "work"))
    with short_home() as first, short_home() as second, ThreadPoolExecutor() as pool:
        places = [home / "cluster/small" for home in (first, second)]
        yield list(pool.map(lambda place: up(load_site(file), mode=mode, directory=place), places))


def shell(state, place):
    return shell_of(state, place, HPCDL_HOME=str(state.directory.parent.parent))


def on_two_nodes(slurm):
    return set(slurm("srun", "-N2", "bash", "-c", RANK).stdout.splitlines())


def test_one_goes_down_and_the_other_runs_its_jobs(two, tmp_path, mode):
    first, second = two
    assert first.port_base != second.port_base
    if mode == NAMESPACES:
        assert first.network != second.network
    shells = [shell(state, tmp_path) for state in two]
    words = ("--partition", "cpu", "--nodes", "2", "--", "bash", "-c", RANK)
    with ThreadPoolExecutor() as pool:
        begun = list(pool.map(lambda slurm: slurm.run(*words), shells))
    assert begun[0]["job_id"] == begun[1]["job_id"] == 1, "each counts from 1"
    assert begun[0]["directory"] != begun[1]["directory"]
    for slurm, job in zip(shells, begun, strict=True):
        assert [one["folder"] for one in slurm.json("job", "list")] == [job["directory"]]
    said = [on_two_nodes(slurm) for slurm in shells]
    assert [len(lines) for lines in said] == [2, 2]
    assert said[0].isdisjoint(said[1]), "the clusters' names differ"

    assert down(first.directory, purge=True)
    assert not first.directory.exists()
    assert bridges(first) == []
    if mode == NAMESPACES:
        assert bridges(second)
    assert on_two_nodes(shells[1]) == said[1]
    assert not down(first.directory)
    assert on_two_nodes(shells[1]) == said[1]


def bridges(state):
    shown = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    return [line for line in shown.splitlines() if bridge_name(state.directory) in line]
