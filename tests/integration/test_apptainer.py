"""A job in an Apptainer image, on the newest Slurm: Debian has the two only together."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.cluster import rootfs
from hpcdl.cluster.teardown import down
from hpcdl.jobs import JobSpec, Module
from hpcdl.jobs.script import render_script
from hpcdl.site import load_site
from tests.homes import short_home
from tests.images import busybox_image
from tests.make.sites import up
from tests.matrix.machines import Machine

pytestmark = pytest.mark.long
RELEASE = "26.05"
# Only a root's /usr is used: what Apptainer keeps elsewhere must be the machine's own.
CONFIG, SESSION = Path("/etc/apptainer"), Path("/var/lib/apptainer/mnt/session")
# A container's root may lack capabilities that Apptainer would hand on.
HERE = {"APPTAINER_NO_PRIVS": "1"}


@pytest.fixture(scope="module")
def with_apptainer():
    """A cluster whose root has Apptainer: a copy, for the kept one stays as it is."""
    if CONFIG.exists() or SESSION.parents[1].exists():
        pytest.skip("this machine has an Apptainer of its own")
    source = rootfs.get(RELEASE, print).directory
    with short_home() as home, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HPCDL_CACHE", str(home / "cache"))
        root = home / "cache/rootfs" / source.name
        root.parent.mkdir(parents=True)
        subprocess.run(["cp", "-a", source, root], check=True)  # it has devices in /dev
        _install(root)
        shutil.copytree(root / "etc/apptainer", CONFIG)
        SESSION.mkdir(parents=True)
        try:
            site = Path(__file__).parents[1] / "matrix/site.yaml"
            state = up(load_site(site), directory=home / "cluster/matrix", slurm=RELEASE)
            try:
                yield Machine(RELEASE, state, home)
            finally:
                down(state.directory)
        finally:
            shutil.rmtree(CONFIG)
            shutil.rmtree(SESSION.parents[1])


def _install(root):
    """Unpack Apptainer and what it needs; no package's scripts run."""
    shutil.copy("/etc/resolv.conf", root / "etc")
    for name in ("var/cache/apt/archives/partial", "var/lib/apt/lists/partial"):
        (root / name).mkdir(parents=True, exist_ok=True)
    unpack = "for deb in /var/cache/apt/archives/*.deb; do dpkg-deb -x $deb / || exit 1; done"
    get = "apt-get install -qq --no-install-recommends --download-only apptainer"
    update = "apt-get update -qq -o Acquire::Check-Valid-Until=false"  # a mirror may lag behind
    command = f"{update} && {get} && {unpack} && ldconfig"
    done = subprocess.run(
        ["chroot", root, "sh", "-c", command],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"Apptainer cannot be had here: {done.stderr[-300:]}")


def test_a_job_in_an_image_sees_its_data_and_its_own_directory(with_apptainer):
    machine = with_apptainer
    data = machine.folder / "data"
    data.mkdir()
    (data / "shard").write_text("shard")
    site = load_site(machine.state.site_file)
    paths = replace(site.paths, work=machine.folder / "work")
    site = replace(site, container="apptainer", paths=paths)
    for folder in (site.paths.datasets, site.paths.work, machine.folder / "job"):
        folder.mkdir(parents=True, exist_ok=True)
    program = 'echo "$(cat $HPCDL_DATA/shard) by $SLURM_PROCID"; ls /usr; echo kept >kept'
    spec = JobSpec(
        "cpu",
        nodes=2,
        program=("sh", "-c", program),
        data=str(data),
        container=str(busybox_image(machine.folder / "image")),
        job_dir=machine.folder / "job",
        preflight=False,
    )
    ended = machine.submit(render_script(site, spec, Module(())).text, **HERE).end()
    assert ended.state == "COMPLETED", ended.said
    assert {"shard by 0", "shard by 1"} <= set(ended.log.splitlines()), ended.log
    assert ended.log.count("No such file") == 2, "the machine's /usr is not in the image"
    assert (machine.folder / "job/kept").read_text() == "kept\n"
