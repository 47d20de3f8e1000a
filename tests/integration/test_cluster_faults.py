"""What a machine lacks is said in one clear line, before or instead of half a cluster."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hpcdl.cluster import accounting, daemons, down, nodes, processes, up
from hpcdl.cluster.model import NAMESPACES, Ports
from hpcdl.cluster.needs import check_packages
from hpcdl.site import load_site
from hpcdl.system.errors import BadInput, HpcdlError, MissingPrerequisite
from tests.integration.conftest import Shell, clean_environment

pytestmark = pytest.mark.cluster


@pytest.fixture
def place(cluster_home) -> Iterator[Path]:
    directory = cluster_home / "cluster" / "faulty"
    yield directory
    down(directory, purge=True)


@pytest.fixture(autouse=True)
def packages() -> None:
    try:
        check_packages(accounting=False)
    except MissingPrerequisite as lack:
        pytest.skip(lack.message)


@pytest.mark.parametrize("base", [-1, 0, 80, 65535, 70000])
def test_port_that_is_none_is_one_line(embedded_site, place, base):
    with pytest.raises(BadInput, match="outside 1024 to"):
        up(embedded_site, directory=place, port_base=base)


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
    seen: dict[Path, set[int]] = {}
    for mask in (0o000, 0o027, 0o077):
        before = os.umask(mask)
        try:
            state = up(embedded_site, directory=place, max_nodes=1)
            for action in ("kill", "up"):
                nodes.change(state, state.nodes[0].name, action)
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


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_full_disk_is_one_line(embedded_site, cluster_home):
    disk = cluster_home / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], check=True)
    try:
        with pytest.raises(MissingPrerequisite, match="not enough disk space"):
            up(embedded_site, directory=disk / "c")
    finally:
        subprocess.run(["umount", disk], check=True)


def test_daemon_that_dies_shows_its_last_words(embedded_site, place, tmp_path, monkeypatch):
    broken = tmp_path / "slurmctld"
    broken.write_text(
        '#!/bin/sh\n[ "$1" != -V ] || { echo slurm 22.05.8; exit; }\n'
        "echo 'fatal: no luck today'\nexit 1\n"
    )
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(daemons.DaemonDied, match="slurmctld ended at its start") as caught:
        up(embedded_site, directory=place)
    log = place / "log/slurmctld.log"
    assert f"log: {log}" in caught.value.details
    assert "| fatal: no luck today" in caught.value.details
    assert "no luck" in log.read_text()
    assert processes.of_cluster(place) == []


def test_node_that_dies_shows_its_last_words(embedded_site, place, tmp_path, monkeypatch):
    broken = tmp_path / "slurmd"
    broken.write_text("#!/bin/sh\necho 'fatal: no node today'\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(HpcdlError, match="ended at its start") as caught:
        up(embedded_site, directory=place)
    assert "| fatal: no node today" in caught.value.details
    assert processes.of_cluster(place) == []


def test_too_many_nodes_says_how_to_ask_for_fewer(place, slurm):
    del place
    words = ["cluster", "up", "--site", "pi", "--dry-run"]
    env = {**clean_environment(), "HPCDL_HOME": slurm.env["HPCDL_HOME"]}
    ask = Shell(env, slurm.directory)
    done = ask(sys.executable, "-m", "hpcdl", *words, "--mode", "auto", check=False)
    if done.returncode == 0:
        pytest.skip("this machine holds all 419 nodes")
    assert done.returncode == 3
    cap = done.stderr.split("--max-nodes-per-partition ")[1].split()[0].strip(",")
    ask(sys.executable, "-m", "hpcdl", *words, "--max-nodes-per-partition", cap)


def test_shipped_sites_come_up_small(place):
    from hpcdl.system.resources import folder

    for path in sorted((folder("templates") / "sites").glob("*.yaml")):
        site = load_site(path)
        state = up(site, max_nodes=2, directory=place)
        ask = Shell({**clean_environment(), "SLURM_CONF": str(state.configuration)}, place)
        for name, partition in site.partitions.items():
            gpu = partition.gpu
            want = [f"--gres=gpu:{gpu.gres_type}:{gpu.per_node}"] if gpu else []
            nodes = f"-N{min(2, partition.nodes)}"
            ask("sbatch", "--test-only", "-p", name, nodes, *want, "--wrap=true")
        down(place)


def test_accounting_knows_what_jobs_had_and_used(embedded_site, place):
    try:
        check_packages(accounting=True)
    except MissingPrerequisite as lack:
        pytest.skip(f"{lack.message}; {lack.hint}")
    state = up(embedded_site, directory=place, accounting=True)
    if state.mode == NAMESPACES:
        everywhere = f" 00000000:{Ports(state.port_base).database:04X} "
        assert everywhere not in Path("/proc/net/tcp").read_text(), "slurmdbd listens on the bridge"
    ask = Shell({**clean_environment(), "SLURM_CONF": str(state.configuration)}, place)
    use = "import time; x = bytearray(200 << 20); time.sleep(7)"
    ask("srun", "-J", "used", "-p", "p100", "--gpus-per-node=p100:2", "--mem=1G",
        "python3", "-c", use)  # fmt: skip
    left = ask("sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 100").stdout.strip()
    done = "until sacct -n --name=used | grep -q COMPLETED; do sleep 0.1; done"
    ask("timeout", "10", "bash", "-c", done)
    show = ("sacct", "-n", "-P", "-o", "JobID,State,AllocTRES,MaxRSS")
    whole, step = (line.split("|") for line in ask(*show, "--name=used").stdout.splitlines())
    assert "gres/gpu:p100=2" in whole[2]
    assert step[1] == "COMPLETED"
    assert int(step[3].rstrip("K")) > 200 * 1024
    down(place)
    up(embedded_site, directory=place, accounting=True)
    assert ask(*show, "-X", "-j", left).stdout.split("|")[1].startswith("CANCELLED")
    assert accounting.database_socket(state).is_socket()


def test_four_nodes_are_ready_in_five_seconds(place, cluster_home):
    state = up(load_site(_site(cluster_home, 4)), directory=place)
    assert len(state.nodes) == 4
    assert state.seconds <= 5


def test_128_loopback_nodes_take_20_seconds_and_500_megabytes(place, cluster_home):
    state = up(load_site(_site(cluster_home, 128)), mode="loopback", directory=place)
    assert state.seconds <= 20
    assert sum(map(_pss, processes.of_cluster(place))) <= 500 * 1024
    ask = Shell({**clean_environment(), "SLURM_CONF": str(state.configuration)}, place)
    names = ask("srun", "-N128", "bash", "-c", "echo $SLURMD_NODENAME").stdout.split()
    assert len(set(names)) == 128


def _pss(process: processes.ProcessId) -> int:
    """Proportional set size in KB."""
    text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))


def _site(folder: Path, nodes: int) -> Path:
    path = folder / f"nodes-{nodes}.yaml"
    path.write_text(
        'schema: 1\nname: many\nslurm: {version: "22.05.8"}\n'
        "paths: {prefix: /tmp/hpcdl-none, work: /tmp/hpcdl-none, datasets: /tmp/hpcdl-none}\n"
        f"partitions:\n  p100: {{nodes: {nodes}, sockets: 2, cores_per_socket: 8, memory_gb: 60,\n"
        "    gpu: {model: P100-PCIe, gres_type: p100, per_node: 4}}\n"
    )
    return path
