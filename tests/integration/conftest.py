"""Real things for the integration tests: an embedded cluster per session, always torn down."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcdl.cluster import LOOPBACK, NAMESPACES
from hpcdl.cluster.needs import check_packages, choose_mode
from hpcdl.cluster.state import environment
from hpcdl.system.errors import MissingPrerequisite
from tests.homes import short_home
from tests.make.releases import LMOD
from tests.make.sites import shipped, up
from tests.make.specs import QUICK
from tests.waiting import wait_for

HPCDL = Path(sys.executable).with_name("hpcdl")
needs_lmod = pytest.mark.skipif(not LMOD.is_file(), reason="Lmod is not installed")
_FOREIGN = ("MAKE", "MFLAGS", "SLURM", "SBATCH", "HPCDL", "OMPI", "MODULEPATH")


def clean_environment():
    """This process's environment without another cluster's or site's variables."""
    return {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)}


@dataclass
class Shell:
    """Runs commands as a person would after `eval "$(hpcdl cluster env)"`."""

    env: Mapping[str, str]
    directory: Path

    def __call__(self, *argv, timeout=60, check=True):
        done = subprocess.run(
            [str(word) for word in argv],
            env=dict(self.env),
            cwd=self.directory,
            timeout=timeout,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{argv} gave {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def hpcdl(self, *words, **more):
        return self(HPCDL, *words, **more)

    def refused(self, code, *words, **more):
        """What an hpcdl command that must fail says of it."""
        done = self.hpcdl(*words, check=False, **more)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stderr

    def json(self, *words, **more):
        """What an hpcdl command tells a machine, however it ends."""
        return json.loads(self.hpcdl(*words, "--json", check=False, **more).stdout)

    def submit(self, *words):
        """The answer of `job submit`, without modules and preflight."""
        shared = ("job", "submit", "--no-module", "--file", QUICK, "--json")
        return json.loads(self.hpcdl(*shared, *words).stdout)

    def ended(self, job):
        """How a job ended, watched until then, and its log as `text`."""
        answer = self.json("job", "watch", str(job), timeout=280)
        return {**answer, "text": Path(answer["log"]).read_text()}

    def run(self, *words):
        answer = self.submit(*words)
        return {**answer, **self.ended(answer["job_id"])}

    def take(self, partition, nodes=1):
        """A job that has nodes for itself: what is queued for them waits."""
        words = ("-p", partition, "-N", str(nodes), "--exclusive", "-o", "/dev/null", "--wrap")
        job = self("sbatch", "--parsable", *words, "sleep 900").stdout.strip()
        wait_for(lambda: self("squeue", "-h", "-j", job, "-o", "%T").stdout == "RUNNING\n", 180)
        return job


def shell_of(state, directory, **env):
    """Runs commands against a cluster of the test's own."""
    return Shell({**environment(state, clean_environment()), **env}, directory)


def need_packages(*, accounting=False):
    try:
        check_packages(accounting=accounting)
    except MissingPrerequisite as lack:
        pytest.skip(f"{lack.message}; {lack.hint}")


@contextmanager
def small_disk(place, options):
    """A file system of its own at a directory, as `size=8m` makes it."""
    place.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", place]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture(scope="session")
def cluster_home():
    """A short HPCDL_HOME; whatever clusters are left below it are stopped at the end."""
    with short_home() as home:
        yield home


@pytest.fixture(scope="session")
def embedded_site():
    return shipped()


@pytest.fixture(params=[NAMESPACES, LOOPBACK])
def mode(request):
    """How a cluster's nodes are kept apart: each way that this machine has."""
    if request.param == NAMESPACES and choose_mode("auto") != NAMESPACES:
        pytest.skip("mode namespaces needs root and unshare")
    return str(request.param)


@pytest.fixture(scope="session")
def cluster(cluster_home, embedded_site):
    directory = cluster_home / "cluster" / "embedded"
    try:
        return up(embedded_site, directory=directory)
    except MissingPrerequisite as lack:
        pytest.skip(f"{lack.message}; {lack.hint}")


@pytest.fixture(scope="session")
def cluster_env(cluster, cluster_home):
    return {
        **environment(cluster, clean_environment()),
        "HPCDL_HOME": str(cluster_home),
        "HPCDL_CLUSTER_DIR": str(cluster.directory),
    }


@pytest.fixture
def slurm(cluster, cluster_env, tmp_path):
    return Shell(cluster_env, tmp_path)
