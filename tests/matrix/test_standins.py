"""The stand-ins of the releases between say what the four real ones say.

The same scripts go to the real sbatch and to the stand-in of that very release: both take or
refuse them, in the same words where it matters, and the ranks find the same tasks, CPUs and
GPUs. What holds at both ends of a span may be believed of the stand-ins within it.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

STANDINS = Path(__file__).parents[1] / "standins"
FOUR = "--nodes=1 --ntasks-per-node=4 --gpus-per-node=4"
TWO = "--nodes=1 --ntasks-per-node=2"
# Rank 0 also tells what Slurm has written down about the step.
RANK = """\
echo "rank=$SLURM_PROCID of=$SLURM_NTASKS local=$SLURM_LOCALID node=$SLURM_NODEID \
cpus=${SLURM_CPUS_PER_TASK:-none} gpus=${CUDA_VISIBLE_DEVICES:-none};"
[ "$SLURM_PROCID" = 0 ] || exit 0
scontrol show step -o "$SLURM_JOB_ID.$SLURM_STEP_ID" 2>/dev/null | grep -o " CPUs=[0-9]*"
true"""


@dataclass(frozen=True)
class Submission:
    """Options of the job and of its step; variables around sbatch, and around srun.

    `but` is a release with ways of its own, which are no rule, and `why` says which.
    """

    job: str
    step: str = ""
    around: dict[str, str] = field(default_factory=dict)
    inside: str = ""
    but: str = ""
    why: str = ""

    @property
    def script(self):
        lines = "".join(f"#SBATCH {line}\n" for line in self.job.split("\n"))
        program = f"sh -c '{RANK}'"
        return (
            f"#!/bin/bash\n#SBATCH --partition=p100 --time=5\n{lines}{self.inside}\n"
            f'srun {self.step} {program}\necho "srun gives $(( $? != 0 ))"\n'
        )


TAKEN = {
    "CPUs said to both": Submission(f"{TWO} --cpus-per-task=4", "--cpus-per-task=4"),
    "CPUs said to the job only": Submission(f"{TWO} --cpus-per-task=4", "--exact"),
    "CPUs said by SRUN_CPUS_PER_TASK": Submission(
        f"{TWO} --exclusive", "--exact", inside="export SRUN_CPUS_PER_TASK=4"
    ),
    "CPUs made exact": Submission(f"{TWO} --exclusive", "--cpus-per-task=2"),
    "a step of all": Submission("--nodes=1 --ntasks-per-node=4", "--ntasks=2"),
    "an exact step": Submission("--nodes=1 --ntasks-per-node=4", "--ntasks=2 --exact"),
    "a step of a whole node": Submission(f"{TWO} --exclusive"),
    "GPUs per node": Submission(FOUR),
    "GPUs by gres": Submission("--nodes=1 --ntasks-per-node=4 --gres=gpu:4"),
    "GPUs with a type": Submission(f"{TWO} --gpus-per-node=p100:2", "--cpus-per-task=1"),
    "two nodes": Submission(
        "--nodes=2 --ntasks-per-node=2 --gpus-per-node=2 --cpus-per-task=2",
        "--cpus-per-task=2 --kill-on-bad-exit=1",
    ),
    "no GPUs": Submission(TWO),
    "GPUs per task": Submission(f"{TWO} --gpus-per-task=1"),
    "tasks per GPU": Submission(
        "--nodes=1 --gpus=2 --ntasks-per-gpu=1",
        but="20.11",
        why="20.11.4 may show both tasks the same GPU",
    ),
    "GPUs bound singly": Submission(FOUR, "--gpu-bind=single:1"),
    "GPUs bound by a list": Submission(FOUR, "--gpu-bind=map_gpu:3,2,1,0"),
    "GPUs shared by tasks": Submission(
        f"{TWO} --gpus-per-task=1", "--gres-flags=allow-task-sharing"
    ),
    "CPUs per GPU": Submission("--nodes=1 --ntasks=2 --gpus=2 --cpus-per-gpu=4", "--exact"),
    "GPUs by a variable": Submission(
        f"{TWO} --gpus-per-node=1", around={"SBATCH_GPUS_PER_NODE": "2"}
    ),
    "bound by rank": Submission(TWO, "--cpu-bind=rank"),
    "two jobs in one directive line": Submission(f"{TWO} --gpus-per-node=2 # --gpus-per-node=4"),
    "a directive behind a command": Submission(TWO, inside="true\n#SBATCH --ntasks=3"),
}
REFUSED = {
    "two forms of GPU request": Submission("--gpus-per-node=2\n--gres=gpu:2"),
    "two forms, one on the step": Submission(FOUR, "--gres=gpu:4"),
    "tasks per GPU and per node": Submission("--gpus=4 --ntasks-per-gpu=1 --ntasks-per-node=4"),
    "tasks per GPU with CPUs": Submission(
        "--ntasks=2 --gpus=2 --ntasks-per-gpu=1 --cpus-per-task=2",
        "-c2",
        but="20.11",
        why="20.11.4 binds both tasks to the first GPU where the job does not hold GPU 0",
    ),
    "CPUs per GPU and per task": Submission(
        "--nodes=1 --ntasks=1 --gpus-per-node=2 --cpus-per-gpu=2 --cpus-per-task=2", "-c2"
    ),
    "exclusive and shared": Submission("--exclusive --oversubscribe"),
    "memory twice": Submission("--mem=1G --mem-per-cpu=1G"),
    "exact and whole": Submission(TWO, "--exact --whole"),
    "exclusive and overlap": Submission(TWO, "--exclusive --overlap"),
    "a changed SLURM_CPUS_PER_TASK": Submission(
        f"{TWO} --cpus-per-task=4", inside="export SLURM_CPUS_PER_TASK=2"
    ),
    "task sharing on sbatch": Submission(f"{FOUR} --gres-flags=allow-task-sharing"),
    "no binding": Submission(FOUR, "--gpu-bind=none"),
    "binding per task": Submission(FOUR, "--gpu-bind=per_task:1"),
    "TRES per task": Submission("--ntasks=2 --tres-per-task=cpu:2"),
    "power": Submission("--ntasks=1 --power=level"),
    "misspelt": Submission("--gpu-per-node=4"),
    "no option": Submission("--ntasks=1 two"),
    "a plug-in of no release": Submission(TWO, "--mpi=mvapich"),
    "an old plug-in": Submission(
        TWO, "--mpi=pmix_v1", but="20.11", why="Debian's is built without PMIx 1"
    ),
    "too many GPUs": Submission("--gpus-per-node=5"),
    "too many CPUs": Submission("--nodes=1 --ntasks=17"),
}
ALL = {**TAKEN, **REFUSED}
# What a refusal is about: the words by which a person would search for it.
ABOUT = re.compile(
    r"mutually exclusive|unrecognized option|Invalid directive|different environment variables|"
    r"Invalid --?[a-z-]+|only used with srun|node configuration is not available|"
    r"more processors|nvalid MPI type"
)


@dataclass(frozen=True)
class Told:
    """What came of a submission: refused by sbatch or srun, with which words; what ranks found."""

    refused: str
    about: frozenset[str]
    ranks: tuple[tuple[str, ...], ...]
    held: int | None


def told(refusal, log):
    """The same summary of the real thing's words and of the stand-in's."""
    where = "by sbatch" if refusal else "by srun" if "srun gives 1" in log else ""
    about = frozenset(ABOUT.findall(refusal + log)) if where else frozenset()
    ranks = [
        dict(re.findall(r"(\w+)=([^\s;]+)", line))
        for line in log.splitlines()
        if line.startswith("rank=")
    ]
    held = re.search(r"^ CPUs=(\d+)", log, re.M)
    return Told(where, about, _numbered(ranks), int(held.group(1)) if held else None)


def _numbered(ranks):
    """Ranks in order; GPUs counted from 0 among those that the job has on a node."""
    seen = {}
    for rank in ranks:
        if rank["gpus"] != "none":
            seen.setdefault(rank["node"], set()).update(map(int, rank["gpus"].split(",")))
    order = {node: sorted(gpus) for node, gpus in seen.items()}
    return tuple(
        sorted(
            (
                rank["rank"],
                rank["of"],
                rank["local"],
                rank["node"],
                rank["cpus"],
                ",".join(
                    str(order[rank["node"]].index(int(gpu))) for gpu in rank["gpus"].split(",")
                )
                if rank["gpus"] != "none"
                else "none",
            )
            for rank in ranks
        )
    )


@pytest.fixture(scope="session")
def real(machines):
    return {
        (machine.name, name): machine.submit(one.script, **one.around)
        for name, one in ALL.items()
        for machine in machines.values()
        if not isinstance(machine, str)
    }


def standin(release, one, folder):
    script, log = folder / "job.sh", folder / "job.log"
    script.write_text(one.script)
    environment = {
        "PATH": f"{STANDINS}:{Path(sys.executable).parent}:{os.defpath}",
        "HOME": "/",
        "SLURM_STANDIN_VERSION": release,
        "SLURM_STANDIN_RECORD": str(folder / "records"),
        **one.around,
    }
    done = subprocess.run(
        ["sbatch", f"--output={log}", script],
        env=environment,
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    found = told(done.stderr if done.returncode else "", log.read_text() if log.exists() else "")
    steps = sorted((folder / "records").glob("step-*.json"))
    if not steps:
        return found
    step = json.loads(steps[-1].read_text())["step"]
    return Told(found.refused, found.about, found.ranks, step["cpus_held_per_node"] * step["nodes"])


@pytest.mark.parametrize("name", ALL)
def test_the_stand_in_says_what_the_release_says(machine, real, name, tmp_path):
    ended = real[machine.name, name].end(180)
    truth = told(ended.refusal, ended.log)
    if machine.name == ALL[name].but:
        pytest.skip(f"Slurm {machine.name}: {name}: {ALL[name].why}")
    assert standin(str(machine.release), ALL[name], tmp_path) == truth, ended.said
