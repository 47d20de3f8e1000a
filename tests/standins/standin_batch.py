"""The stand-in of sbatch: refuses, allocates and runs like the release it stands for.

The script runs at once, on this machine, as the batch step on the first node; then the job's id
is printed. See slurm_model.py for its settings.
"""

import json
import shlex
import subprocess
from pathlib import Path

import slurm_model as model

JOB_ID = "1"


def main(slurm, words, environment):
    (script,) = model.parse(slurm, "sbatch", words, "cli", model.Given())
    data = Path(script).read_bytes()
    given = plan(slurm, words, data, environment)
    job = model.allocation(slurm, given, model.Node())
    return submit(slurm, given, job, data, environment)


def plan(slurm, words, data, environment):
    """The options in force: the script's, below the environment's, below the command line's."""
    check_text(data)
    given = model.Given()
    for line in directives(data.decode("utf-8", "replace")):
        left = model.parse(slurm, "sbatch", line, "script", given)
        if left:
            said = f"sbatch: error: Invalid directive found in batch script: {left[0]}"
            raise model.Fatal(said, 255)
    model.from_environment(slurm, "sbatch", environment, given)
    model.parse(slurm, "sbatch", words, "cli", given)
    model.validate(slurm, "sbatch", given)
    return given


def check_text(data):
    """What sbatch refuses before it reads a directive."""
    if not data.startswith(b"#!"):
        first = "sbatch: error: This does not look like a batch script.  The first"
        second = "sbatch: error: line must start with #! followed by the path to an interpreter."
        raise model.Fatal(f"{first}\n{second}\nsbatch: error: For instance: #!/bin/sh")
    if b"\0" in data:
        first = "sbatch: error: The model.Slurm controller does not allow scripts that"
        raise model.Fatal(f"{first}\nsbatch: error: contain a NULL character '\\0'.")
    if b"\r\n" in data:
        first = "sbatch: error: Batch script contains DOS line breaks (\\r\\n)"
        raise model.Fatal(f"{first}\nsbatch: error: instead of expected UNIX line breaks (\\n).")


def directives(text):
    """The words of each #SBATCH line, up to the first command."""
    found = []
    for line in text.split("\n"):
        if line.startswith("#SBATCH"):
            found.append(words_of(line[len("#SBATCH") :]))
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return found


def words_of(text):
    """A directive's words; a backslash at the end continues nothing."""
    return shlex.split(text.rstrip().removesuffix("\\"), comments=True)


def submit(slurm, given, job, data, around):
    environment = job_environment(slurm, given, job, around)
    entry = {
        "release": slurm.version,
        "job_id": JOB_ID,
        "options": given.values,
        "sources": given.sources,
        "allocation": job,
        "script": data.decode("utf-8", "replace"),
        "environment": {k: v for k, v in environment.items() if k.startswith(("SLURM_", "CUDA_"))},
    }
    entry["exit_code"] = run(given, data, environment)
    model.record("job", entry)
    print(f"Submitted batch job {JOB_ID}")
    return 0


def job_environment(slurm, given, job, around):
    """The batch step's environment: the submitter's by --export, and model.Slurm's own."""
    export = given.values.get("export", "ALL")
    environment = exported(export, around)
    if export != "ALL":
        environment["SLURM_EXPORT_ENV"] = export
    names = {
        "cpus-per-task": "SLURM_CPUS_PER_TASK",
        "cpus-per-gpu": "SLURM_CPUS_PER_GPU",
        "gpus": "SLURM_GPUS",
        "gpus-per-node": "SLURM_GPUS_PER_NODE",
        "gpus-per-socket": "SLURM_GPUS_PER_SOCKET",
        "gpus-per-task": "SLURM_GPUS_PER_TASK",
        "ntasks": "SLURM_NTASKS",
        "ntasks-per-node": "SLURM_NTASKS_PER_NODE",
        "ntasks-per-gpu": "SLURM_NTASKS_PER_GPU",
        "tres-per-task": "SLURM_TRES_PER_TASK",
        "gpu-bind": "SLURM_GPU_BIND",
        "mem-per-cpu": "SLURM_MEM_PER_CPU",
        "mem": "SLURM_MEM_PER_NODE",
    }
    for option, variable in names.items():
        if given.has(option):
            environment[variable] = given.values[option]
    if slurm.fact("tres-per-task-exported") and given.has("cpus-per-task"):
        environment["SLURM_TRES_PER_TASK"] = f"cpu={given.values['cpus-per-task']}"
    environment |= model.cpus_of_tres(given)
    environment |= {
        "SLURM_JOB_ID": JOB_ID,
        "SLURM_JOBID": JOB_ID,
        "SLURM_JOB_NUM_NODES": str(job["nodes"]),
        "SLURM_NNODES": str(job["nodes"]),
        "SLURM_RESTART_COUNT": "0",
        "SLURM_NODEID": "0",
        "SLURM_JOB_NODELIST": f"node[01-{job['nodes']:02d}]",
        "SLURM_PROCID": "0",
        "SLURM_JOB_PARTITION": given.values.get("partition", "main"),
        "SLURM_LOCALID": "0",
        "SLURM_STANDIN_ALLOCATION": json.dumps(job),
    }
    if job["gpus_per_node"]:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(job["gpus_per_node"])))
    return environment


def exported(export, around):
    """The part of the submitter's environment that --export lets through."""
    kept = {k: v for k, v in around.items() if k.startswith(("SLURM_", "PATH"))}
    parts = [part for part in export.split(",") if part]
    if "ALL" in parts:
        kept = dict(around)
    for part in parts:
        name, equals, value = part.partition("=")
        if equals or name in around:
            kept[name] = value if equals else around[name]
    return kept


def run(given, data, environment):
    """Run the script; its output goes where --output says."""
    log = Path(given.values["output"])
    script = log.with_suffix(".batch")
    script.write_bytes(data)
    script.chmod(0o700)
    with log.open("wb") as out:
        return subprocess.call(
            [script.resolve()],
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
