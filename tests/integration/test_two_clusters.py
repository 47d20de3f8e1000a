"""Two embedded clusters on one machine, of two homes: neither knows of the other."""

import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from hpcdl.cluster import NAMESPACES
from hpcdl.cluster.teardown import down
from hpcdl.site import load_site
from tests.homes import short_home
from tests.integration.conftest import HPCDL, clean_environment, need_packages, shell_of
from tests.make.sites import site_file, up
from tests.strangers import as_root

pytestmark = pytest.mark.cluster

RANK = 'echo "rank $SLURM_PROCID of $SLURM_NTASKS on $SLURM_CLUSTER_NAME"'


@pytest.fixture
def two(tmp_path, mode):
    """Two clusters of one site, and so of one work directory, started at once."""
    need_packages()
    file = site_file(tmp_path, work=tmp_path / "work")
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
    return [line for line in shown.splitlines() if state.bridge and state.bridge in line]


ELSEWHERE = {
    "a container": "unshare --net --pid --fork --mount-proc",
    "another network": "unshare --net",
    "another process namespace": "unshare --pid --fork --mount-proc",
    "another host": "unshare --uts --mount",
}
HOST = "hostname elsewhere; echo 11111111-1111-1111-1111-111111111111 >{boot}; "
HOST += "mount --bind {boot} /proc/sys/kernel/random/boot_id; "


@as_root
def test_a_cluster_of_another_host_or_container_is_refused_and_untouched(two, tmp_path, mode):
    """One home, several hosts and containers: there the cluster looks as if it had crashed."""
    state = two[0]
    slurm = shell(state, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in (state.directory, state.configuration)}
    for name, enter in ELSEWHERE.items():
        prepare = HOST.format(boot=tmp_path / "boot") if name == "another host" else ""
        for words in ("up", "down", "status", "env", "up --dry-run", "node kill cpu-01"):
            script = f"{prepare}exec {HPCDL} cluster {words} --site {state.site_file}"
            done = subprocess.run(
                [*enter.split(), "sh", "-c", script],
                env=clean_environment() | {"HPCDL_HOME": slurm.env["HPCDL_HOME"]},
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            assert done.returncode == 1, (name, words, done.stdout, done.stderr)
            assert f"below {state.directory} belongs to " in done.stderr, (name, words)
            assert "HPCDL_CLUSTER_DIR" in done.stderr
    assert on_two_nodes(slurm)
    assert before == {path: path.stat().st_mtime_ns for path in before}


@as_root
def test_another_file_system_at_the_same_path_has_a_cluster_of_its_own(tmp_path):
    """Same path, network and processes: neither takes the other's bridge, nor ends its daemons."""
    need_packages()
    file = site_file(tmp_path, work=tmp_path / "work")
    with short_home() as home:
        place = home / "cluster/small"
        first = up(load_site(file), mode=NAMESPACES, directory=place)
        script = f"""
            set -e
            mount -t tmpfs -o mode=755 t {home}
            {HPCDL} cluster up --mode namespaces
            export SLURM_CONF={first.configuration}
            timeout 30 srun -N2 hostname
            {HPCDL} cluster down --purge
        """
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", script],
            env=clean_environment() | {"HPCDL_CLUSTER_DIR": str(place), "HPCDL_SITE": str(file)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert {"cpu-01", "cpu-02", "stopped"} <= set(done.stdout.split())
        assert bridges(first)
        assert len(on_two_nodes(shell(first, tmp_path))) == 2
        assert down(place)
