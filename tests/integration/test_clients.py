"""Other people's clients of Slurm run their own first examples on the embedded cluster.

Nextflow is not among them: what PyPI has fetches it from its own site.
"""

import re

import pytest

from tests.integration.test_launchers import python_with

pytestmark = pytest.mark.cluster

# Of the README of facebookincubator/submitit; only partition and time limit are this cluster's.
SUBMITIT = """\
import submitit

def add(a, b):
    return a + b

executor = submitit.AutoExecutor(folder="log_test", cluster="slurm")
executor.update_parameters(timeout_min=2, slurm_partition="cpu")
job = executor.submit(add, 5, 7)
print(job.job_id)
output = job.result()
assert output == 12
jobs = executor.map_array(add, [1, 2, 3], [10, 20, 30])
print([job.result() for job in jobs])
"""

# Of dask-jobqueue's "Example"; sizes, partition and the address of this machine are ours.
DASK = """\
from dask_jobqueue import SLURMCluster
from dask.distributed import Client

if __name__ == "__main__":
    cluster = SLURMCluster(queue="cpu", cores=2, processes=1, memory="2GB", walltime="00:05:00",
                           local_directory=".", scheduler_options={"host": "ADDRESS"})
    cluster.scale(jobs=2)
    client = Client(cluster)
    client.wait_for_workers(2, timeout=120)
    print(sum(client.gather(client.map(lambda x: x * x, range(10)))))
    client.close()
    cluster.close()
"""


# Of Snakemake's tutorial, "Generalizing the read mapping rule": a job per sample, and one of all.
SNAKEFILE = """\
SAMPLES = ["A", "B"]

rule all:
    input: "all.txt"

rule map:
    output: "{sample}.txt"
    shell: "echo {wildcards.sample} $SLURM_JOB_ID >{output}"

rule call:
    input: expand("{sample}.txt", sample=SAMPLES)
    output: "all.txt"
    shell: "cat {input} >{output}"
"""


@pytest.mark.long
def test_a_workflow_of_snakemake(slurm, tmp_path):
    python = python_with("snakemake_executor_plugin_slurm", "its name with dashes, from PyPI")
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    slurm(python, "-m", "snakemake", "--executor", "slurm", "--jobs", "2",
          "--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "2",
          "--seconds-between-status-checks", "2", "--latency-wait", "30", "--default-resources",
          "slurm_partition=cpu", "slurm_account=none", "mem_mb=200", "runtime=5",
          timeout=280)  # fmt: skip
    samples = [line.split() for line in (tmp_path / "all.txt").read_text().splitlines()]
    assert [name for name, _ in samples] == ["A", "B"]
    assert len({job for _, job in samples}) == 2


@pytest.mark.parametrize(
    ("module", "example", "said"),
    [("submitit", SUBMITIT, r"\[11, 22, 33\]"), ("dask_jobqueue", DASK, r"^285$")],
)
def test_a_client_s_example(slurm, tmp_path, module, example, said):
    config = slurm("scontrol", "show", "config").stdout
    (address,) = re.findall(r"^SlurmctldHost\[0\] *= \S+\((\S+)\)", config, re.MULTILINE)
    (tmp_path / "example.py").write_text(example.replace("ADDRESS", address))
    done = slurm(python_with(module, f"{module} from PyPI"), "example.py", timeout=240)
    assert re.search(said, done.stdout, re.MULTILINE), done.stdout
