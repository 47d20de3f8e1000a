"""Launchers with the real thing: PyTorch and JAX stopped, killed and resumed; plain MPI."""

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.integration.conftest import Shell
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster
PROGRAMS = Path(__file__).parent / "programs"
TWO_NODES = ("--nodes", "2", "--gpus-per-node", "2")


@cache
def python_with(module, package):
    """A Python that has a module: this one, the system's, or $HPCDL_TEST_PYTHONS (`:` between)."""
    given = os.environ.get("HPCDL_TEST_PYTHONS", "").split(":")
    for python in filter(None, [*given, sys.executable, "/usr/bin/python3"]):
        done = subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False)
        if done.returncode == 0:
            return python
    pytest.skip(f"no Python here has {module} (install {package})")


def result(ended):
    assert ended["state"] == "COMPLETED", ended["text"]
    return re.findall(r"ended .*", str(ended["text"]))[-1]


# PyTorch 1.13's torchrun, Debian 12's, does not start with its Python 3.11: an enumeration there
# no longer lists its 0. This is it with that mended.
TORCHRUN = """\
#!{python}
from torch.distributed.elastic.multiprocessing import api
if api.Std.from_str("0") is None:
    api.Std.from_str = lambda text: api.Std(int(text))
from torch.distributed.run import main
main()
"""
CASES = [("torch", "torch"), ("torchrun", "torch"), ("jax", "jax")]


@pytest.mark.parametrize(("launcher", "module"), CASES)
def test_a_run_that_was_stopped_and_killed_ends_as_any_other(slurm, tmp_path, launcher, module):
    python = python_with(module, {"torch": "python3-torch", "jax": "jax from PyPI"}[module])
    (tmp_path / "torchrun").write_text(TORCHRUN.format(python=python))
    (tmp_path / "torchrun").chmod(0o755)
    slurm.env = {**slurm.env, "PATH": f"{tmp_path}:{slurm.env['PATH']}"}
    program = ("--launcher", launcher, "--", python, PROGRAMS / f"{module}_program.py")
    whole = slurm.submit(*TWO_NODES, "--job-dir", tmp_path / "whole", *program)
    apart = ("--job-dir", tmp_path / "apart", "--env", "PAUSE=0.3")
    job = str(slurm.submit(*TWO_NODES, *apart, *program)["job_id"])
    log = tmp_path / "apart/job.log"

    def started(times):
        return log.exists() and len(re.findall(r"from step \d", log.read_text())) == 4 * times

    wait_for(lambda: started(1))
    slurm("scancel", "--batch", "--signal=USR2", job)
    wait_for(lambda: started(2), 240)
    first = {int(one) for one in re.findall(r"from step (\d+)", log.read_text())}
    assert len(first) == 2, log.read_text()  # 0, and for all ranks where the first run stopped
    checkpoint = next((tmp_path / "apart").glob("checkpoint.*"))
    written = checkpoint.stat().st_mtime
    wait_for(lambda: checkpoint.exists() and checkpoint.stat().st_mtime > written)
    slurm("scontrol", "requeue", job)  # nobody is told: as for a lost node
    ended = slurm.ended(job)
    assert ended["restarts"] == 2
    again = int(re.findall(r"from step (\d+)", ended["text"])[-1])
    assert again > max(first)
    assert again % 10 == 0
    assert result(ended) == result(slurm.ended(whole["job_id"]))
    ranks = set(re.findall(r"rank (\d) of 4, local (\d)", ended["text"]))
    assert ranks == {("0", "0"), ("1", "1"), ("2", "0"), ("3", "1")}


# A rank writes its checkpoint for as many seconds as its number says, and leaves with 75.
SLOW = """\
[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || exit 0
trap 'sleep $((1 + 19 * SLURM_PROCID % 38)); echo "rank $SLURM_PROCID wrote"; exit 75' USR2
: >"ready-$SLURM_PROCID"; for i in $(seq 1200); do sleep 0.1; done
"""
# Rank 0 writes for all and leaves; its peers wait for it for ever. Minutes: 3, grace: 22 s.
NEVER = SLOW.replace("trap '", 'trap \'[ "$SLURM_PROCID" = 0 ] || while :; do sleep 9; done; ')


@pytest.fixture(scope="module")
def told(cluster_env, tmp_path_factory):
    """Two jobs that were told to leave, side by side: their numbers by their programs."""
    place = tmp_path_factory.mktemp("told")
    slurm, jobs = Shell(cluster_env, place), {}
    for program, minutes in {SLOW: "60", NEVER: "3"}.items():
        words = (*TWO_NODES, "--time", minutes, "--job-dir", place / minutes)
        jobs[program] = slurm.submit(*words, "--", "sh", "-c", program)["job_id"]
    wait_for(lambda: len(list(place.glob("*/ready-*"))) == 8)
    slurm("scancel", "--batch", "--signal=USR2", *map(str, jobs.values()))
    return jobs


def test_ranks_that_leave_early_end_none_that_still_writes_its_checkpoint(slurm, told):
    ended = slurm.ended(told[SLOW])
    assert (ended["state"], ended["exit_code"], ended["restarts"]) == ("COMPLETED", 0, 1)
    assert sorted(re.findall(r"rank (\d) wrote", ended["text"])) == ["0", "1", "2", "3"]
    assert "nobody asked" not in ended["text"]


def test_a_rank_that_never_leaves_keeps_the_others_from_nothing(slurm, told):
    ended = slurm.ended(told[NEVER])
    assert (ended["state"], ended["restarts"]) == ("COMPLETED", 1), ended["text"]


PROGRAM = """\
#include <mpi.h>
#include <stdio.h>
int main(int n, char **words) {
  int rank, size, sum;
  MPI_Init(&n, &words);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  printf("mpi %d of %d: %d\\n", rank, size, sum);
  return MPI_Finalize();
}
"""


@pytest.mark.parametrize("launcher", ["mpi", "mpi-mpirun", "horovod-mpirun"])
def test_a_plain_mpi_program_under_srun_and_mpirun(slurm, tmp_path, launcher):
    if shutil.which("mpicc") is None:
        pytest.skip("mpicc is not installed (apt-get install libopenmpi-dev)")
    (tmp_path / "program.c").write_text(PROGRAM)
    slurm("mpicc", "-o", "program", "program.c")
    words = ("--partition", "cpu", "--nodes", "2", "--tasks", "6", "--launcher", launcher)
    ended = slurm.run(*words, "--job-dir", tmp_path / "job", "--", tmp_path / "program")
    lines = re.findall(r"mpi .*", ended["text"])
    assert sorted(lines) == [f"mpi {rank} of 6: 15" for rank in range(6)], ended["text"]


def test_many_plain_processes_of_which_one_fails(slurm, tmp_path):
    """The others go on; the job has the code of the one that failed. OpenMP has a rank's cores."""
    program = (
        "[ $SLURM_PROCID != 3 ] || exit 7; sleep 3; "
        "echo done $SLURM_PROCID with $OMP_NUM_THREADS on $(hostname)"
    )
    words = "--partition cpu --tasks 8 --nodes 2 --cpus-per-task 2 --launcher plain --job-dir"
    ended = slurm.run(*words.split(), tmp_path / "job", "--", "sh", "-c", program)
    assert (ended["state"], ended["exit_code"]) == ("FAILED", 7), ended["text"]
    lines = re.findall(r"done (\d) with 2 on (\S+)", ended["text"])
    assert {number for number, _ in lines} == set("0124567")
    assert len({host for _, host in lines}) == 2
