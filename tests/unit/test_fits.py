"""One judge says whether a request fits; it agrees with the layout of rendered jobs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdl.jobs import JobSpec
from hpcdl.jobs.layout import limits_of, plan_on
from hpcdl.slurm.fits import NodeKind, PartitionLimits, ResourceRequest, misfits
from hpcdl.slurm.unwrap import is_agent, unwrap
from hpcdl.system.errors import BadInput
from tests.make.sites import shipped

P100 = NodeKind(2, 16, 122880, {"p100": 4}, frozenset({"p100", "ib"}))
LIMITS = PartitionLimits("p100", (P100,), 1440, frozenset({"normal"}), 1001, ("none", "pmix"))
MIXED = PartitionLimits("mixed", (P100, NodeKind(1, 64, 245760, {"": 8})), None)
SITE = shipped("p100-v100-k80")
COUNT = st.none() | st.integers(1, 64)


@pytest.mark.parametrize(
    ("asked", "fields"),
    [
        (
            {"nodes": 2, "tasks_per_node": 4, "cpus_per_task": 4, "gpus_per_node": (("p100", 4),)},
            (),
        ),
        ({"nodes": 3}, ("nodes",)),
        ({"gpus_per_node": (("p100", 5),)}, ("gpus_per_node",)),
        ({"gpus_per_node": (("v100", 1),)}, ("gpus_per_node",)),
        ({"nodes": 1, "gpus": (("", 8),)}, ("gpus", "gpus_per_task")),
        ({"nodes": 1, "tasks": 8, "gpus_per_task": 1}, ("gpus", "gpus_per_task")),
        ({"tasks_per_node": 17}, ("cpus_per_task", "tasks_per_node", "tasks")),
        ({"tasks": 33}, ("tasks", "cpus_per_task")),
        ({"memory_mb": 122881}, ("memory_mb", "memory_per_cpu", "memory_per_gpu")),
        (
            {"memory_per_cpu": 8000, "tasks_per_node": 16},
            ("memory_mb", "memory_per_cpu", "memory_per_gpu"),
        ),
        ({"minutes": 1441}, ("minutes",)),
        ({"feature": "p100&skylake"}, ("feature",)),
        ({"feature": "p100|skylake"}, ()),
        ({"qos": "long"}, ("qos",)),
        ({"last_of_array": 1001}, ("last_of_array",)),
    ],
)
def test_what_is_too_much_is_named_and_nothing_else(asked, fields):
    found = misfits(ResourceRequest(**asked), LIMITS)
    assert [one.fields for one in found] == ([fields] if fields else [])


def test_of_several_kinds_of_nodes_one_that_fits_is_enough():
    assert misfits(ResourceRequest(tasks_per_node=64, gpus_per_node=(("", 8),)), MIXED) == ()
    assert misfits(ResourceRequest(tasks_per_node=64, gpus_per_node=(("p100", 4),)), MIXED) == ()
    assert misfits(ResourceRequest(nodes=3, gpus=(("", 17),)), MIXED)


@given(
    st.sampled_from(sorted(SITE.partitions)), COUNT, COUNT, COUNT, st.none() | st.integers(1, 5000)
)
@settings(max_examples=300, deadline=None)
def test_what_the_layout_takes_fits(name, nodes, gpus, cpus, minutes):
    spec = JobSpec(name, nodes=nodes, gpus=gpus, cpus_per_task=cpus, minutes=minutes)
    try:
        group, layout = plan_on(SITE, spec)
    except BadInput:
        return
    asked = ResourceRequest(
        nodes=layout.nodes,
        tasks_per_node=layout.tasks_per_node,
        cpus_per_task=layout.cpus_per_task,
        gpus_per_node=(("", layout.gpus_per_node),) if layout.gpus_per_node else (),
        memory_mb=layout.memory_mb or None,
        minutes=layout.minutes,
    )
    assert misfits(asked, limits_of(group)) == ()


@given(st.sampled_from(sorted(SITE.partitions)), st.integers(1, 40), st.integers(1, 5000))
@settings(max_examples=200, deadline=None)
def test_what_the_layout_refuses_of_nodes_and_time_does_not_fit(name, nodes, minutes):
    partition = SITE.partition(name)
    found = misfits(ResourceRequest(nodes=nodes, minutes=minutes), limits_of(partition))
    try:
        plan_on(SITE, JobSpec(name, nodes=nodes, minutes=minutes))
        taken = True
    except BadInput:
        taken = False
    assert taken == (found == ())


# Wrappers, launchers and containers are peeled until the program itself is left.


@pytest.mark.parametrize(
    ("line", "programs"),
    [
        ("python a.py", "python"),
        (
            "time -f %e nice -n 5 env A=b -u C timeout -s INT 5m ./app -x",
            "time nice env timeout ./app",
        ),
        ("srun -n 4 --exclusive -c 2 --mpi=pmix ./app", "srun ./app"),
        (
            "srun --ntasks 4 -K1 apptainer exec --nv -B /data img.sif mpirun ./app",
            "srun apptainer mpirun ./app",
        ),
        ("mpirun -mca pml ob1 -np 4 --oversubscribe python a.py", "mpirun python"),
        ("numactl --cpunodebind=0 -m 0 taskset -c 0-3 ./app", "numactl taskset ./app"),
        ("docker run --rm --gpus all -v /a:/b image python a.py", "docker python"),
        ("apptainer build a.sif a.def", "apptainer"),
        ("nsys profile -o out torchrun --nproc_per_node 4 a.py", "nsys torchrun"),
        ("uv run --with numpy torchrun a.py", "uv torchrun"),
        ("uvx --from accelerate accelerate launch a.py", "uvx accelerate"),
        ("uv sync", "uv"),
        ("poetry run deepspeed a.py", "poetry deepspeed"),
        ("conda run --no-capture-output -n tf python a.py", "conda python"),
        ("conda install numpy", "conda"),
        ("pixi run -e cuda python a.py", "pixi python"),
        ("xvfb-run -a torchrun a.py", "xvfb-run torchrun"),
        ("env -- ./app", "env ./app"),
        ("srun $OPTIONS ./app", "srun $OPTIONS"),
        ("env A=b", "env"),
        ("", ""),
    ],
)
def test_each_program_of_a_command_line_is_found(line, programs):
    words = line.split()
    assert [words[at] for at in unwrap(words)] == programs.split()


@pytest.mark.parametrize(
    ("line", "agent"),
    [
        ("torchrun a.py", True),
        ("/opt/bin/deepspeed --num_gpus 4 a.py", True),
        ("accelerate launch a.py", True),
        ("accelerate config", False),
        ("python3 -u -m torch.distributed.run a.py", True),
        ("python -m torch.distributed.launch a.py", True),
        ("python a.py -m torch.distributed.run", False),
        ("python torchrun", False),
    ],
)
def test_what_starts_the_ranks_of_a_node_is_an_agent(line, agent):
    assert is_agent(line.split()) == agent
