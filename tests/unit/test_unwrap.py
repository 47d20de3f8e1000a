"""Wrappers, launchers and containers are peeled until the program itself is left."""

import pytest

from hpcdl.slurm.unwrap import is_agent, unwrap


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
