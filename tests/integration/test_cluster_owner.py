"""Who is served by an embedded cluster: its owner; as root, everybody as himself.

Two real users with homes of 0755. The stranger has the path of slurm.conf, and where the owner
opens the directory all the same, Slurm itself refuses.
"""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdl.cluster.teardown import down
from hpcdl.site import load_site
from hpcdl.system.errors import MissingPrerequisite
from tests.integration.conftest import need_packages
from tests.make.sites import embedded_file, up
from tests.make.specs import QUICK
from tests.strangers import as_root, people
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, as_root]
HPCDL = (sys.executable, "-P", "-m", "hpcdl")
SRUN = ("srun", "--mpi=none", "-p", "cpu")


@pytest.fixture(scope="module")
def owned():
    """A cluster that a user without root has started, its owner, and another user."""
    need_packages()
    with people(f"hpcdla{os.getpid()}", f"hpcdlb{os.getpid()}") as (owner, other):
        words = ("cluster", "up", "--max-nodes-per-partition", "1")
        done = owner(*HPCDL, *words, reads_all=True)
        try:
            assert done.returncode == 0, done.stdout + done.stderr
            yield owner, other, owner.home / ".local/share/hpcdl/cluster/embedded"
        finally:
            owner(*HPCDL, "cluster", "down", "--purge", reads_all=True)


def conf(place):
    return {"SLURM_CONF": str(place / "etc/slurm.conf")}


def test_nothing_of_it_is_open_to_others(owned):
    owner, other, place = owned
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert owner(*SRUN, "id", "-un", **conf(place)).stdout == f"{owner.name}\n"
    for argv in ((*SRUN, "id"), ("sbatch", "--wrap", "id"), ("squeue",), ("scontrol", "ping")):
        done = other("timeout", "2", *argv, **conf(place))  # Slurm looks for its file for a minute
        assert (done.returncode != 0, done.stdout) == (True, ""), argv
    assert other("test", "-S", place / "run/munge.sock").returncode


ATTACKS = [
    (*SRUN, "id"),
    ("sbatch", "-p", "cpu", "--wrap", "id"),
    ("salloc", "-p", "cpu", "id"),
    ("srun", "--mpi=none", "-p", "p100", "--gpus=p100:1", "id"),
    ("srun", "--jobid={job}", "--overlap", "--mpi=none", "id"),
    ("sattach", "{job}.batch"),
    ("sbcast", "--jobid={job}", "/etc/hostname", "/tmp/none/here"),
    ("scancel", "{job}"),
    ("scontrol", "update", "JobId={job}", "TimeLimit=1"),
    ("scontrol", "requeue", "{job}"),
    ("scontrol", "write", "batch_script", "{job}", "-"),
    ("scontrol", "update", "PartitionName=cpu", "RootOnly=NO"),
    ("scontrol", "update", "NodeName=cpu-01", "State=DOWN", "Reason=x"),
    ("scontrol", "create", "reservation", "users=root", "nodes=ALL", "starttime=now", "duration=9"),
    ("scontrol", "reconfigure"),
    ("scontrol", "shutdown"),
]


def test_slurm_itself_refuses_other_users(owned):
    """The owner has opened the directory by a careless chmod: sockets and files are in reach."""
    owner, other, place = owned
    job = owner(
        "sbatch", "--parsable", "-p", "cpu", "-o", "/dev/null", "--wrap", "sleep 300", **conf(place)
    ).stdout.strip()
    running = ("squeue", "-h", "-j", job, "-o", "%T %l %u")
    wait_for(lambda: owner(*running, **conf(place)).stdout.startswith("RUNNING"))
    before = owner(*running, **conf(place)).stdout
    subprocess.run(["chmod", "-R", "go+rX", owner.home], check=True)
    (place / "run/munge.sock").chmod(0o777)
    try:
        assert "UP" in other("scontrol", "ping", **conf(place)).stdout, "Slurm is in reach"
        won = []
        for argv in ATTACKS:
            words = [word.format(job=job) for word in argv]
            done = other("timeout", "20", *words, **conf(place))
            # sattach and scontrol exit with 0 though they were refused.
            refused = done.returncode or re.search("error|denied|Invalid user", done.stderr)
            if not refused or done.stdout:
                won.append((argv, done.stdout, done.stderr))
        assert won == []
        assert owner(*running, **conf(place)).stdout == before
        assert owner("squeue", "-h", "-o", "%u", **conf(place)).stdout == f"{owner.name}\n"
    finally:
        place.chmod(0o700)
        owner("scancel", job, **conf(place))
    # A directory that an older hpcdl made is closed by the next `up`.
    place.chmod(0o755)
    assert (
        owner(*HPCDL, "cluster", "up", "--max-nodes-per-partition", "1", reads_all=True).returncode
        == 0
    )
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_without_root_its_nodes_share_the_machine(owned):
    owner, _, place = owned
    show = "id -un; echo $CUDA_VISIBLE_DEVICES"
    words = ("--mpi=none", "-p", "p100", "--gpus-per-node=p100:2", "sh", "-c", show)
    assert owner("srun", *words, **conf(place)).stdout.split() == [owner.name, "0,1"]
    words = ("job", "submit", "--no-module", f"--file={QUICK}", "--partition=p100", "--gpus=2")
    words += ("--site=embedded", f"--job-dir={owner.home}/job", "--watch", "--", "true")
    done = owner(*HPCDL, *words, reads_all=True, **conf(place))
    assert done.returncode == 0, done.stdout + done.stderr
    done = owner(*HPCDL, "cluster", "up", "--mode", "namespaces", reads_all=True)
    assert (done.returncode, "namespaces need root" in done.stderr) == (3, True)
    with pytest.raises(MissingPrerequisite, match=f"belongs to {owner.name}"):
        down(place)


def test_as_root_jobs_run_as_the_users_who_submit_them(tmp_path, cluster_home, mode):
    """Root's cluster serves others, as a real one does: slurmd becomes the user."""
    need_packages()
    file = embedded_file(tmp_path)
    place = cluster_home / "cluster" / "everybody"
    with people(f"hpcdlc{os.getpid()}") as (person,):
        cluster_home.chmod(0o755)
        up(load_site(file), mode=mode, directory=place, max_nodes=1)
        try:
            done = person(*SRUN, "sh", "-c", "id -un; id -G; cat /etc/shadow", **conf(place))
            own = subprocess.run(["id", "-G", person.name], capture_output=True, text=True)
            assert done.stdout == f"{person.name}\n{own.stdout}"
            assert person("sh", "-c", f"echo x >>{place}/etc/slurm.conf").returncode
            munge_key = place / "etc/munge.key"
            assert person("cat", munge_key).returncode
            open_to_others = [
                path
                for path in place.rglob("*")
                if not path.is_symlink()
                and path.stat().st_mode & stat.S_IWOTH
                and not stat.S_ISSOCK(path.stat().st_mode)
            ]
            assert open_to_others == []
        finally:
            down(place, purge=True)
            assert Path("/home", person.name).is_dir()
