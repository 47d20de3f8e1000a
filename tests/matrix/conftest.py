"""The Slurm matrix: a cluster of each release, all up for the whole session.

A release whose root cannot be had is a counted skip with the reason.
"""

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from hpcdl.cluster import cluster_plan, rootfs
from hpcdl.site import load_site
from hpcdl.system.errors import HpcdlError
from tests.homes import short_home
from tests.make.sites import up
from tests.matrix.machines import Machine, script

_HERE = Path(__file__).parent
# No test here loses a node. A shared machine may stand still for longer than a message may take:
# Slurm then holds a requeued job, or calls it timed out.
PATIENT = {"node": 300, "message": 60, "credential": 20}


def pytest_collection_modifyitems(items):
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.matrix)


@pytest.fixture(scope="session")
def machines():
    """A cluster per release; the reason in its place where there is none."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(_build, rootfs.releases()))
    with short_home() as home, pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_plan, "TIMEOUTS", PATIENT)
        yield {release: _start(release, home / release) for release in rootfs.releases()}


def _build(release):
    with suppress(HpcdlError):  # `up` will say it
        rootfs.get(release, print)


def _start(release, home):
    jobs = home / "files"
    jobs.mkdir(parents=True)
    try:
        state = up(load_site(_HERE / "site.yaml"), directory=home / "cluster/matrix", slurm=release)
    except HpcdlError as fault:
        return f"Slurm {release}: {fault.message} {' '.join(fault.details)[:300]}"
    return Machine(release, state, jobs)


@pytest.fixture(params=rootfs.releases())
def machine(request, machines):
    found = machines[request.param]
    if isinstance(found, str):
        pytest.skip(found)
    return found


# The first run waits for the signal before the end of its time, writes and asks to go on.
UNTIL_THE_SIGNAL = """\
echo "run ${SLURM_RESTART_COUNT:-0}"
[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || exit 0
trap 'echo "rank $SLURM_PROCID writes a checkpoint"; exit 75' USR2
i=0; while [ $i -lt 3000 ]; do sleep 0.1; i=$((i + 1)); done
"""


@pytest.fixture(scope="session")
def slow_jobs(machines):
    """Jobs that take minutes: begun on all releases before any other is waited for."""
    found = {}
    for machine in machines.values():
        if isinstance(machine, str):
            continue
        words = ["sh", "-c", UNTIL_THE_SIGNAL]
        text = script(machine, words, minutes=4, nodes=2, tasks_per_node=2, cpus_per_task=1)
        assert "--signal=B:USR2@60" in text
        found[machine.name, "walltime"] = machine.submit(text)
        failing = script(machine, ["sh", "-c", "exit 75"], requeues=1, cpus_per_task=1)
        found[machine.name, "capped"] = machine.submit(failing)
    return found


@pytest.fixture(autouse=True)
def _begin_slow_jobs(slow_jobs):
    """Begun by whichever test comes first."""


MPI_PROBE = """\
#include <mpi.h>
#include <stdio.h>
/* A shared object, preloaded: a program linked with this machine's libc would not start under
   an older one; this needs nothing of it but printf. */
__attribute__((constructor)) static void probe(void) {
  int rank, size, sum;
  MPI_Init(NULL, NULL);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  printf("mpi rank=%d world=%d sum=%d\\n", rank, size, sum);
  MPI_Finalize();
}
"""


@pytest.fixture(scope="session")
def mpi_program(tmp_path_factory):
    """The words that run the MPI probe in any release."""

    def words():
        if shutil.which("mpicc") is None:
            pytest.skip("mpicc is not installed (apt-get install libopenmpi-dev)")
        folder = tmp_path_factory.getbasetemp() / "mpi"
        built = folder / "probe.so"
        if not built.exists():
            folder.mkdir(exist_ok=True)
            (folder / "probe.c").write_text(MPI_PROBE)
            options = ["-shared", "-fPIC", "-O1", "-Wl,--as-needed", "-o", str(built)]
            subprocess.run(["mpicc", *options, str(folder / "probe.c")], check=True, timeout=60)
        return ["env", f"LD_PRELOAD={built}", "/bin/true"]

    return words
