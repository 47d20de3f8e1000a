"""Roots and the clusters in them leave nothing behind, whatever is killed."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from hpcdl.cluster import processes, rootfs
from hpcdl.cluster.teardown import down
from hpcdl.site import load_site
from hpcdl.system.errors import CheckFailed
from hpcdl.workflows.embedded import site_of
from tests.make.sites import up
from tests.matrix.machines import HPCDL
from tests.waiting import wait_for


def mounts():
    return sorted(Path("/proc/self/mounts").read_text().splitlines())


def command_lines():
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it may end while it is read
            yield (process / "cmdline").read_text(errors="replace")


def test_the_machine_sees_no_mount_and_its_own_slurm_stays(machine):
    assert not any("/rootfs/" in line for line in mounts())
    assert machine("sinfo", "--version").stdout.split()[-1] == str(machine.release)


def test_the_site_of_the_cluster_names_its_release_and_plug_in(machine):
    site = load_site(machine.state.site_file)
    assert site.slurm.version == str(machine.release)
    assert (site.slurm.mpi == "pmix") == ("pmix" in machine.mpi)


def test_another_release_is_refused_while_one_runs(machine):
    other = next(one for one in rootfs.releases() if one != machine.name)
    with pytest.raises(CheckFailed, match=f"up already, with Slurm {machine.name}"):
        up(load_site(machine.state.site_file), directory=machine.state.directory, slurm=other)


def test_a_cluster_needs_no_cgroup_file_system(machine):
    command = f"{HPCDL} cluster up --slurm {machine.name} && {HPCDL} cluster down --purge"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs tmpfs /sys && {command}"],
        env={
            **os.environ,
            "HPCDL_CLUSTER_DIR": f"/tmp/hpcdl-n{os.getpid()}",
            "HPCDL_SITE": str(Path(__file__).with_name("site.yaml")),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout


def test_a_killed_build_leaves_no_root_no_mount_and_no_process(tmp_path):
    before = mounts()
    build = subprocess.Popen(
        [HPCDL, "cluster", "up", "--site", "embedded", "--slurm", "24.11"],
        env={
            **os.environ,
            "HPCDL_CACHE": str(tmp_path),
            "HPCDL_HOME": str(tmp_path / "home"),
            "HPCDL_CLUSTER_DIR": f"/tmp/hpcdl-k{os.getpid()}",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for((tmp_path / "rootfs/.trixie.partial").exists, 30)
    time.sleep(1)
    build.send_signal(signal.SIGKILL)
    build.wait()
    assert not (tmp_path / "rootfs/trixie").exists()
    assert mounts() == before
    wait_for(lambda: f"{tmp_path}/rootfs" not in "".join(command_lines()), 10)


def test_a_cluster_that_is_down_has_no_process_left(machines):
    release = next(name for name, one in machines.items() if not isinstance(one, str))
    directory = Path(f"/tmp/hpcdl-m{os.getpid()}/cluster/matrix")
    state = up(load_site(machines[release].state.site_file), directory=directory, slurm=release)
    assert down(directory)
    # A shell that has used it names its site file in HPCDL_SITE.
    state = up(site_of(str(state.site_file)), directory=directory, slurm=release)
    processes.end([state.processes["munged"]])
    assert down(directory, purge=True)
    assert processes.of_cluster(directory) == []
    assert not directory.exists()
    directory.parent.rmdir()
    directory.parent.parent.rmdir()
