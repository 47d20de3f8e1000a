"""Real things for the integration tests: an embedded cluster per session, always torn down.

The cluster lies in a short folder of its own below /tmp, never in HPCDL_HOME of the person who
runs the tests.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hpcdl.cluster import ClusterState, environment, up
from hpcdl.cluster.model import LOOPBACK, NAMESPACES
from hpcdl.cluster.needs import choose_mode
from hpcdl.site import Site, find_site_file, load_site
from hpcdl.system.errors import MissingPrerequisite
from tests.homes import short_home

_FOREIGN = ("MAKE", "MFLAGS", "SLURM", "SBATCH", "HPCDL", "OMPI", "MODULEPATH")


def clean_environment() -> dict[str, str]:
    """This process's environment without another cluster's or site's variables."""
    return {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)}


@dataclass
class Shell:
    """Runs commands as a person would after `eval "$(hpcdl cluster env)"`."""

    env: Mapping[str, str]
    directory: Path
    results: list[subprocess.CompletedProcess[str]] = field(default_factory=list)

    def __call__(
        self, *argv: str | Path, timeout: float = 60, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(word) for word in argv],
            env=dict(self.env), cwd=self.directory, timeout=timeout,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if check and done.returncode != 0:
            raise AssertionError(f"{argv} gave {done.returncode}:\n{done.stdout}{done.stderr}")
        return done


@pytest.fixture(scope="session")
def cluster_home() -> Iterator[Path]:
    """A short HPCDL_HOME; whatever clusters are left below it are stopped at the end."""
    with short_home() as home:
        yield home


@pytest.fixture(scope="session")
def embedded_site() -> Site:
    """The shipped site of the embedded cluster."""
    return load_site(find_site_file("embedded"))


@pytest.fixture(params=[NAMESPACES, LOOPBACK])
def mode(request) -> str:
    """How a cluster's nodes are kept apart: each way that this machine has."""
    if request.param == NAMESPACES and choose_mode("auto") != NAMESPACES:
        pytest.skip("mode namespaces needs root and unshare")
    return str(request.param)


@pytest.fixture(scope="session")
def cluster(cluster_home, embedded_site) -> ClusterState:
    """The embedded cluster, up for the whole session."""
    directory = cluster_home / "cluster" / "embedded"
    try:
        return up(embedded_site, directory=directory)
    except MissingPrerequisite as lack:
        pytest.skip(f"{lack.message}; {lack.hint}")


@pytest.fixture(scope="session")
def cluster_env(cluster, cluster_home) -> dict[str, str]:
    """The environment of programs that use the cluster."""
    return {
        **environment(cluster, clean_environment()),
        "HPCDL_HOME": str(cluster_home),
        "HPCDL_CLUSTER_DIR": str(cluster.directory),
    }


@pytest.fixture
def slurm(cluster, cluster_env, tmp_path) -> Shell:
    """Runs commands against the cluster, in a folder of the test's own."""
    return Shell(cluster_env, tmp_path)


@pytest.fixture
def compile_mpi(tmp_path) -> Callable[[str], Path]:
    """Compiles a small MPI program in C; skips where there is no MPI compiler."""
    if shutil.which("mpicc") is None:
        pytest.skip("mpicc is not installed (apt-get install libopenmpi-dev)")

    def build(source: str) -> Path:
        program = tmp_path / "program"
        (tmp_path / "program.c").write_text(source)
        subprocess.run(
            ["mpicc", "-O1", "-o", program, tmp_path / "program.c"], check=True, timeout=60
        )
        return program

    return build
