"""The stand-in of srun: options by release, then every rank as a process of this machine.

It works inside of a job of the stand-in sbatch. See slurm_model.py for its settings.
"""

import json
import subprocess
import time

import slurm_model as model


def main(slurm, words, environment):
    given, got, command = plan(slurm, words, environment)
    entry = {
        "release": slurm.version,
        "options": given.values,
        "sources": given.sources,
        "step": got,
        "command": command,
    }
    entry["exit_codes"] = run_ranks(given, got, command, environment)
    model.record("step", entry)
    return max(entry["exit_codes"])


def plan(slurm, words, environment):
    """The options in force, what the step gets, and the program."""
    given = model.Given()
    model.from_environment(slurm, "srun", environment, given)
    command = model.parse(slurm, "srun", words, "cli", given)
    model.validate(slurm, "srun", given)
    check_mpi(slurm, given)
    text = environment.get("SLURM_STANDIN_ALLOCATION")
    job = json.loads(text) if text else model.allocation(slurm, given, model.Node())
    return given, model.step(slurm, given, job), command


def check_mpi(slurm, given):
    name = given.values.get("mpi", "none").partition(",")[0]
    if name not in slurm.plugins():
        first = f"srun: error: Couldn't find the specified plugin name for mpi/{name} looking at "
        last = f"srun: error: Invalid MPI type '{name}', --mpi=list for acceptable types"
        raise model.Fatal(f"{first}all files\n{last}")


def run_ranks(given, got, command, around):
    """Start all ranks, and end the others when one fails, if asked to."""
    ranks = [
        subprocess.Popen(command, env=rank_environment(given, got, rank, around))
        for rank in range(got["tasks"])
    ]
    while got["kill_on_bad_exit"] != "0" and any(rank.poll() is None for rank in ranks):
        if any(rank.poll() for rank in ranks):
            for rank in ranks:
                rank.terminate()
            break
        time.sleep(0.01)
    return [code if code >= 0 else 128 - code for code in (rank.wait() for rank in ranks)]


def rank_environment(given, got, rank, around):
    """What a rank finds: the step's environment by --export, and model.Slurm's own."""
    export = given.values.get("export", "ALL")
    environment = dict(around)
    if "ALL" not in export.split(","):
        kept = [part.partition("=")[0] for part in export.split(",")]
        environment = {k: v for k, v in around.items() if k.startswith("SLURM_") or k in kept}
    environment |= dict(part.split("=", 1) for part in export.split(",") if "=" in part)
    local, node = rank % got["tasks_per_node"], rank // got["tasks_per_node"]
    environment |= {
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(local),
        "SLURM_NODEID": str(node),
        "SLURM_NTASKS": str(got["tasks"]),
        "SLURM_STEP_NUM_TASKS": str(got["tasks"]),
        "SLURMD_NODENAME": f"node{node + 1:02d}",
    }
    # Unless srun was told, ranks find what the batch script had, be it the truth or not.
    environment |= model.cpus_of_tres(given)
    if given.has("cpus-per-task"):
        environment["SLURM_CPUS_PER_TASK"] = given.values["cpus-per-task"]
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    if got["gpus_visible"][local]:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, got["gpus_visible"][local]))
    return environment
