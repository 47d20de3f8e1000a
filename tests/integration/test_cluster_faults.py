"""What a machine lacks is said in one clear line, before or instead of half a cluster."""

import os
import re
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from hpcdl.cluster import NAMESPACES, daemons, lifecycle, processes
from hpcdl.cluster.shape import Ports
from hpcdl.cluster.teardown import down
from hpcdl.site import load_site
from hpcdl.system.errors import BadInput, HpcdlError, MissingPrerequisite
from hpcdl.system.resources import folder
from tests.integration.conftest import Shell, clean_environment, need_packages, shell_of, small_disk
from tests.make.sites import CPU, site_file, up

pytestmark = pytest.mark.cluster


@pytest.fixture
def place(cluster_home):
    directory = cluster_home / "cluster" / "faulty"
    yield directory
    down(directory, purge=True)


@pytest.fixture(autouse=True)
def _packages():
    need_packages()


def test_folder_of_somebody_else_is_left_alone(embedded_site, cluster_home):
    precious = cluster_home / "mine" / "etc" / "precious"
    precious.parent.mkdir(parents=True)
    precious.write_text("mine")
    with pytest.raises(BadInput, match="holds other files"):
        up(embedded_site, directory=cluster_home / "mine")
    assert not down(cluster_home / "mine", purge=True)
    assert precious.read_text() == "mine"


def test_the_mask_of_whoever_starts_a_cluster_or_a_node_plays_no_part(embedded_site, place):
    """Under 000 `etc/` was everybody's, under 077 a restarted node's directories were closed."""
    seen = {}
    for mask in (0o000, 0o027, 0o077):
        before = os.umask(mask)
        try:
            state = up(embedded_site, directory=place, max_nodes=1)
            for action in ("kill", "up"):
                lifecycle.change(state, state.nodes[0].name, action)
            assert os.umask(mask) == mask, "given back"
        finally:
            os.umask(before)
        made = [path for path in (place, *place.rglob("*")) if path.is_file() or path.is_dir()]
        for path in made:
            with suppress(FileNotFoundError):  # Slurm renames its own
                seen.setdefault(path, set()).add(path.stat().st_mode & 0o777)
        down(place, purge=True)
    assert len(seen) > 40
    assert {path: modes for path, modes in seen.items() if len(modes) > 1} == {}
    assert [path for path, modes in seen.items() if max(modes) & 0o022] == []


def test_full_disk_is_one_line(embedded_site, cluster_home):
    disk, said = cluster_home / "disk", "not enough disk space"
    with small_disk(disk, "size=8m"), pytest.raises(MissingPrerequisite, match=said):
        up(embedded_site, directory=disk / "c")


@pytest.mark.parametrize("name", ["slurmctld", "slurmd"])
def test_daemon_that_dies_shows_its_last_words(embedded_site, place, tmp_path, monkeypatch, name):
    broken = tmp_path / name
    broken.write_text(
        '#!/bin/sh\n[ "$1" != -V ] || { echo slurm 22.05.8; exit; }\n'
        "echo 'fatal: no luck today'\nexit 1\n"
    )
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(HpcdlError, match="ended at its start") as caught:
        up(embedded_site, directory=place)
    assert "| fatal: no luck today" in caught.value.details
    if name == "slurmctld":
        assert f"log: {place}/log/slurmctld.log" in caught.value.details
    assert processes.of_cluster(place) == []


def test_too_many_nodes_says_how_to_ask_for_fewer(place, slurm):
    del place
    words = ["cluster", "up", "--site", "pi", "--dry-run"]
    ask = Shell({**clean_environment(), "HPCDL_HOME": slurm.env["HPCDL_HOME"]}, slurm.directory)
    done = ask(sys.executable, "-m", "hpcdl", *words, "--mode", "auto", check=False)
    if done.returncode == 0:
        pytest.skip("without root the mode is loopback, which holds all 419 nodes")
    assert done.returncode == 3
    cap = done.stderr.split("--max-nodes-per-partition ")[1].split()[0].strip(",")
    ask(sys.executable, "-m", "hpcdl", *words, "--max-nodes-per-partition", cap)


def test_shipped_sites_come_up_small(place):
    for path in sorted((folder("templates") / "sites").glob("*.yaml")):
        site = load_site(path)
        ask = shell_of(up(site, max_nodes=2, directory=place), place)
        for name, partition in site.partitions.items():
            words = ["-p", name, f"-N{min(2, partition.nodes)}"]
            if gpu := partition.gpu:
                words.append(f"--gres=gpu:{gpu.gres_type}:{gpu.per_node}")
            ask("sbatch", "--test-only", *words, "--wrap=true")
        down(place)


def test_accounting_outlives_the_cluster(embedded_site, place):
    need_packages(accounting=True)
    state = up(embedded_site, directory=place, accounting=True)
    if state.mode == NAMESPACES:
        everywhere = f" 00000000:{Ports(state.port_base).database:04X} "
        assert everywhere not in Path("/proc/net/tcp").read_text(), "slurmdbd listens on the bridge"
    ask = shell_of(state, place)
    left = ask("sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 100").stdout.strip()
    down(place)
    up(embedded_site, directory=place, accounting=True)
    assert "CANCELLED" in ask("sacct", "-n", "-X", "-o", "State", "-j", left).stdout
    assert daemons.database_socket(state).is_socket()


def memory_mb(state):
    """Proportional set size of all processes whose command line names the cluster, in MB."""
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(state.directory).encode() in (process / "cmdline").read_bytes():
                rollup = (process / "smaps_rollup").read_text()
                total += int(re.search(r"^Pss: +(\d+)", rollup, re.M)[1])
    return total / 1000


def test_128_loopback_nodes_take_20_seconds_and_500_megabytes(place, tmp_path):
    site = load_site(site_file(tmp_path, CPU.replace("nodes: 2", "nodes: 128")))
    state = up(site, mode="loopback", directory=place)
    assert state.seconds <= 20
    assert memory_mb(state) <= 500
