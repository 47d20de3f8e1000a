"""Every layout, as `hpcdl job render` writes it, on every release: what ranks and Slurm see."""

import re
from dataclasses import dataclass
from itertools import product

import pytest

# In every rank: what it was given. Rank 0 asks Slurm's own record of the step as well.
PROBE = """\
echo "rank=$SLURM_PROCID local=$SLURM_LOCALID world=$SLURM_NTASKS node=$SLURM_NODEID \
cpus=$SLURM_CPUS_PER_TASK gpus=${CUDA_VISIBLE_DEVICES:-none}"
[ "$SLURM_PROCID" = 0 ] || exit 0
scontrol show step -o "$SLURM_JOB_ID.$SLURM_STEP_ID" | sed 's/^/step: /'
scontrol show job -d -o "$SLURM_JOB_ID" | sed 's/^/job: /'
"""


@dataclass(frozen=True)
class Shape:
    """What is asked for, and what must come of it; CPUs per rank and GPUs per node."""

    words: str
    nodes: int
    tasks: int
    cpus: int
    gpus: int
    sees: str


SHAPES = {
    "CPU only": Shape("--partition cpu", 1, 1, 1, 0, "none"),
    "CPUs, 2 nodes x 4": Shape("--partition cpu --nodes 2 --tasks 8", 2, 4, 4, 0, "none"),
    "1 GPU": Shape("--gpus 1", 1, 1, 4, 1, r"\d"),
    "part of a node": Shape("--gpus 2", 1, 2, 4, 2, r"\d,\d"),
    "part of 2 nodes": Shape("--nodes 2 --gpus-per-node 2", 2, 2, 4, 2, r"\d,\d"),
    "whole node": Shape("--gpus 4", 1, 4, 4, 4, "0,1,2,3"),
    "2 nodes x 4": Shape("--gpus 8", 2, 4, 4, 4, "0,1,2,3"),
    "one process for 4 GPUs": Shape("--gpus 4 --launcher single", 1, 1, 16, 4, "0,1,2,3"),
}


def render(machine, *words):
    version = ["--slurm-version", str(machine.release)]
    return machine.hpcdl("job", "render", "--no-module", *version, *words)


@pytest.fixture(scope="session")
def layout_jobs(machines):
    """All layouts submitted to all releases at once; queues do the rest."""
    probe = {}
    for machine in machines.values():
        if isinstance(machine, str):
            continue
        for form in ("gpus-per-node", "gres"):
            site = machine.folder / f"{form}.yaml"
            text = machine.state.site_file.read_text()
            site.write_text(text.replace("gpu_request: gpus-per-node", f"gpu_request: {form}"))
            for name, shape in SHAPES.items():
                if form == "gres" and not shape.gpus:
                    continue
                # Ranks that know nothing of MPI: not each of these Slurms has PMI.
                launcher = [] if "--launcher" in shape.words else ["--launcher", "torch"]
                words = [*shape.words.split(), *launcher, "--site", str(site)]
                words += ["--", "sh", "-c", PROBE]
                probe[machine.name, form, name] = machine.submit(render(machine, *words))
    return probe


CASES = [
    (form, name)
    for name, shape in SHAPES.items()
    for form in ("gpus-per-node", "gres")
    if shape.gpus or form == "gpus-per-node"
]


@pytest.mark.parametrize(("form", "name"), CASES)
def test_a_layout_reaches_its_ranks_and_slurm_s_records(machine, layout_jobs, form, name):
    shape = SHAPES[name]
    ended = layout_jobs[machine.name, form, name].end()
    assert ended.state == "COMPLETED", ended.said
    lines = re.findall(r"rank=\d+ local=\d+ world=\d+ node=\d+ cpus=\d* gpus=[\w,]+", ended.log)
    ranks = [dict(part.split("=", 1) for part in line.split()) for line in lines]
    world = shape.nodes * shape.tasks
    assert sorted(int(rank["rank"]) for rank in ranks) == list(range(world))
    assert {rank["world"] for rank in ranks} == {str(world)}
    places = {(int(rank["node"]), int(rank["local"])) for rank in ranks}
    assert places == {*product(range(shape.nodes), range(shape.tasks))}
    assert {rank["cpus"] for rank in ranks} == {str(shape.cpus)}
    assert all(re.fullmatch(shape.sees, rank["gpus"]) for rank in ranks), ranks

    step = ended.log[ended.log.index("step: ") :].splitlines()[0]
    assert f" Tasks={world} " in step
    assert held(step) == held(ended.record) == {"cpu": world * shape.cpus, "node": shape.nodes}
    # Whole nodes: ranks go socket by socket, as GPUs are numbered.
    in_order = shape.gpus == shape.tasks == 4
    assert (" Dist=BBlock " in step) == in_order, step
    if shape.gpus:
        assert re.search(rf"TresPerNode=\S*gpu:p100:{shape.gpus}\b", step), step
        each = re.findall(r" GRES=gpu:p100:(\d+)\(IDX", ended.log)
        assert set(each) == {str(shape.gpus)}, ended.log


def held(record):
    """CPUs and nodes of a job or a step, in Slurm's own record."""
    tres = re.search(r"\b(?:Alloc)?TRES=(\S+)", record)
    pairs = [part.rsplit("=", 1) for part in tres.group(1).split(",")]
    assert "mem" in dict(pairs)
    return {name: int(count) for name, count in pairs if name in {"cpu", "node"}}
