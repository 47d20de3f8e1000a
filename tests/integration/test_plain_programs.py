"""Programs that know nothing of hpcdl run in its jobs as under plain sbatch."""

import os
import re
import shutil

import pytest

from tests.waiting import wait_for

pytestmark = pytest.mark.cluster
CPU = ("--partition", "cpu")

# A pool as multiprocessing and DataLoaders make it: forked, after a library with OpenMP was loaded.
POOL = """
import ctypes, multiprocessing, os
ctypes.CDLL("libgomp.so.1").omp_get_max_threads()
def cpus(_):
    return len(os.sched_getaffinity(0))
with multiprocessing.get_context("fork").Pool(4) as pool:
    print("cpus", cpus(0), pool.map(cpus, range(4)))
"""


@pytest.mark.parametrize("launcher", ["single", "mpi", "torch", "plain"])
def test_the_workers_of_a_pool_have_all_cpus_of_their_rank(slurm, launcher):
    words = (*CPU, "--tasks", "1", "--cpus-per-task", "2", "--launcher", launcher)
    text = slurm.run(*words, "--", "python3", "-c", POOL)["text"]
    assert "cpus 2 [2, 2, 2, 2]" in text


# What PyTorch's users run: an OpenMP of its own, and forked workers that load data.
LOADER = """
import os, torch
from torch.utils.data import DataLoader, Dataset
class Numbers(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return index, len(os.sched_getaffinity(0))
torch.ones(512, 512) @ torch.ones(512, 512)
batches = [*DataLoader(Numbers(), batch_size=8, num_workers=2)]
cpus = {int(count) for _, counts in batches for count in counts}
total = sum(int(numbers.sum()) for numbers, _ in batches)
print("threads", torch.get_num_threads(), "sum", total, "cpus", cpus)
"""
R = """
counts <- parallel::mclapply(1:4, function(i) length(parallel::mcaffinity(NULL)), mc.cores = 2)
cat("cpus", unlist(counts), "sum", sum(unlist(parallel::mclapply(1:100, sqrt, mc.cores = 2))))
"""


@pytest.mark.parametrize("launcher", ["single", "torch", "mpi"])
def test_a_data_loader_of_pytorch_has_all_cpus_of_its_rank(slurm, launcher):
    python = os.environ.get("HPCDL_TORCH_PYTHON")
    if not python:
        pytest.skip("HPCDL_TORCH_PYTHON names no Python that has PyTorch")
    words = (*CPU, "--tasks", "1", "--cpus-per-task", "2", "--launcher", launcher)
    text = slurm.run(*words, "--", python, "-c", LOADER)["text"]
    assert "threads 2 sum 2016 cpus {2}" in text


def test_r_and_its_forked_workers_have_all_cpus_of_the_job(slurm):
    if not shutil.which("Rscript"):
        pytest.skip("R is not installed")
    text = slurm.run(*CPU, "--cpus-per-task", "2", "--", "Rscript", "-e", R)["text"]
    assert "cpus 2 2 2 2 sum 671.4" in text


def test_a_program_for_cpus_gets_one_cpu_and_its_share_of_memory(slurm):
    text = slurm.run(*CPU, "--", "sh", "-c", "scontrol show job $SLURM_JOB_ID --oneliner")["text"]
    assert re.search(r"NumTasks=1 CPUs/Task=1 ", text)
    assert not re.search(r"MinMemoryNode=0 |OverSubscribe=NO ", text)


@pytest.mark.parametrize("words", ["--launcher single", "--launcher plain", "--tasks 2"])
def test_the_signal_before_the_limit_ends_no_program_without_a_handler(slurm, words):
    """The batch shell is told as Slurm tells it; the program goes on and ends by itself."""
    program = ("sh", "-c", "touch $HPCDL_JOB_DIR/up; sleep 6; echo the end")
    job = slurm.submit(*CPU, *words.split(), "--", *program)
    log = job["log"]
    wait_for((slurm.directory / log).parent.joinpath("up").exists)
    slurm("scancel", "--batch", "--signal=USR2", str(job["job_id"]))
    ended = slurm.ended(job["job_id"])
    assert ended["state"] == "COMPLETED", ended["text"]
    assert "the ranks get USR2" in ended["text"]
    assert "the end" in ended["text"]
    assert "the ranks got USR2" in slurm.hpcdl("job", "report", str(job["job_id"])).stdout


@pytest.mark.long
def test_a_program_without_a_handler_runs_on_until_its_time_is_up(slurm):
    """Slurm itself sends the signal, at most 90 s before the limit of three minutes."""
    words = ("--time", "3", "--signal-before", "30")
    ended = slurm.run(*CPU, *words, "--", "sh", "-c", "sleep 170; echo the end")
    assert ended["state"] == "COMPLETED", ended["text"]
    assert re.search(r"the ranks get USR2\n(.*\n)*the end", ended["text"])


def test_a_handler_of_the_program_gets_the_signal(slurm):
    code = (
        "import os, pathlib, signal, sys\n"
        "signal.signal(signal.SIGUSR2, lambda *_: sys.exit(7))\n"
        "pathlib.Path(os.environ['HPCDL_JOB_DIR'], 'up').touch()\n"
        "signal.pause()"
    )
    job = slurm.submit(*CPU, "--", "python3", "-c", code)
    wait_for((slurm.directory / job["log"]).parent.joinpath("up").exists)
    slurm("scancel", "--batch", "--signal=USR2", str(job["job_id"]))
    assert slurm.ended(job["job_id"])["exit_code"] == 7


def test_setup_lines_requeues_and_the_signal_are_as_asked(slurm):
    words = ("--setup", "ulimit -c 0; MINE=set", "--setup", "export MINE", "--no-requeue")
    show = "echo mine=$MINE; scontrol show job $SLURM_JOB_ID --oneliner"
    text = slurm.run(*CPU, *words, "--signal-before", "none", "--", "sh", "-c", show)["text"]
    assert "mine=set" in text
    assert " Requeue=0 " in text
