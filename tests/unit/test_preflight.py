"""The preflight's verdicts: one number per cause, the first one counts."""

import json
import socket
from dataclasses import asdict, replace

import pytest

from hpcdl import facts
from hpcdl.cli import main
from hpcdl.jobs.preflight import ExpectedAllocation, Probe, judge, notes, probe, read_probes

EXPECTED = ExpectedAllocation(
    world=4,
    tasks_per_node=2,
    cpus_per_task=4,
    gpus_per_node=2,
    release="tf-1",
    scratch="/tmp",
    data="/data",
    driver="535.54",
)
SMALL = ExpectedAllocation(world=4, tasks_per_node=2, cpus_per_task=4)
NONE = {"gpus": (), "release": "", "scratch_free_mb": None, "data": None}


def healthy():
    """Four ranks on two nodes, as the expectation wants them."""
    return [
        Probe(
            rank=rank,
            local_rank=rank % 2,
            host=f"p100-0{rank // 2 + 1}",
            world=4,
            cpus=4,
            affinity=4,
            gpus=("GPU-a", "GPU-b"),
            release="tf-1",
            scratch_free_mb=1000,
            data=True,
            driver="535.104.05",
        )
        for rank in range(4)
    ]


def codes(probes, expected=EXPECTED):
    return [*judge(probes, expected)]


@pytest.mark.parametrize(
    ("probes", "expected", "noted"),
    [
        (healthy(), EXPECTED, 0),
        # The same number on two nodes is two GPUs.
        ([replace(p, gpus=("0", "1")) for p in healthy()], EXPECTED, 0),
        # Isolated GPUs and unbound CPUs are worth a note.
        ([replace(p, gpus=(f"GPU-{p.local_rank}",), affinity=2) for p in healthy()], EXPECTED, 2),
        # What is not asked for is not checked.
        ([replace(p, **NONE) for p in healthy()], SMALL, 0),
    ],
)
def test_an_allocation_in_order_has_no_problem(probes, expected, noted):
    assert codes(probes, expected) == []
    assert len(notes(probes, expected)) == noted


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"release": "tf-0"}, 20),
        ({"release": ""}, 20),
        ({"world": 1}, 21),
        ({"gpus": ()}, 22),
        ({"gpus": ("GPU-a",), "local_rank": 0}, 22),
        ({"driver": "525.60.13"}, 28),
        ({"gpu_faults": ("nvidia-smi failed with exit code 15",), "gpus": ()}, 28),
        ({"cpus": 1}, 23),
        ({"scratch_free_mb": None}, 25),
        ({"scratch_free_mb": 0}, 25),
        ({"data": False}, 26),
    ],
)
def test_each_cause_has_its_number(change, code):
    probes = healthy()
    probes[1] = replace(probes[1], **change)
    assert codes(probes) == [code]
    assert code in facts.load("slurm_reasons")["preflight"]


@pytest.mark.parametrize(
    ("probes", "code", "said"),
    [
        (healthy()[:3], 21, "3"),
        (
            [replace(p, gpus=("GPU-a",)) for p in healthy()],
            22,
            "ranks 0, 1 share GPU GPU-a of p100-01",
        ),
        # One rank a node, which is to use both GPUs.
        (
            [replace(p, gpus=("GPU-a",)) for p in healthy()[::2]],
            22,
            "p100-01 shows the job 1 of 2 GPUs",
        ),
    ],
)
def test_ranks_that_miss_or_share_a_gpu_are_named(probes, code, said):
    found = judge(probes, EXPECTED)
    assert max(found) == code
    assert said in found[code]


def test_probes_survive_the_noise_of_a_log():
    lines = [json.dumps(asdict(p)) for p in reversed(healthy())]
    text = "\n".join(["slurmstepd: hello", *lines, '{"rank": broken', "0: " + lines[0]])
    assert [p.rank for p in read_probes(text)] == [0, 1, 2, 3, 3]


@pytest.mark.parametrize(
    "change",
    [
        {"rank": "0"},
        {"cpus": "4"},
        {"affinity": None},
        {"host": ["n1"]},
        {"local_rank": None},
        {"driver": 550},
        {"gpus": 5},
        {"else": 1},
    ],
)
def test_a_line_that_no_probe_wrote_is_no_rank(change):
    values = asdict(healthy()[0])
    text = "\n".join([json.dumps(values | change), '{"rank": ' + "[" * 100_000])
    assert read_probes(text) == ()


def test_a_number_of_ranks_may_be_any_and_is_answered_at_once():
    problems = judge(healthy(), ExpectedAllocation(10**20, 2, 4))
    assert problems[21].endswith("ranks did not answer: 4, 5, 6, 7, 8, 9, 10, 11")


def test_a_rank_reads_slurm_s_environment_and_looks_at_scratch_where_it_will_lie(tmp_path):
    env = {
        "SLURM_PROCID": "3",
        "SLURM_LOCALID": "1",
        "SLURM_NTASKS": "4",
        "SLURM_CPUS_PER_TASK": "4",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }
    found = probe("/", "/no/such/data", env)
    assert (found.rank, found.local_rank, found.world, found.cpus) == (3, 1, 4, 4)
    assert (found.gpu, found.data) == ("1", False)
    assert found.scratch_free_mb
    assert probe(str(tmp_path / "me" / "deeper")).scratch_free_mb, "staging would make it"
    assert probe("no/whole/path").scratch_free_mb is None


def test_a_node_goes_by_slurm_s_name_even_where_nodes_share_a_host():
    assert probe(environ={"SLURMD_NODENAME": "p100-02"}).host == "p100-02"
    assert probe(environ={}).host == socket.gethostname()
    assert probe(environ={"SLURM_PROCID": "x", "OMPI_COMM_WORLD_RANK": "5"}).rank == 5


GOOD = "echo '0, GPU-aa, 535.104.05, 0'; echo '1, GPU-bb, 535.104.05, [N/A]'"
ASKED = ("--world=1", "--tasks-per-node=1", "--cpus-per-task=1", "--gpus-per-node=2")


@pytest.mark.parametrize(
    ("script", "visible", "code", "wrong"),
    [
        (GOOD, "0,1", 0, ""),
        (GOOD, "GPU-bb,GPU-aa", 0, ""),
        (GOOD, None, 0, ""),
        (f"{GOOD}; exit 14", "0,1", 0, ""),  # a damaged infoROM: it computes as before
        (GOOD, "NoDevFiles", 22, "rank 0 on n1 sees no GPU"),
        (GOOD, "-1", 22, "rank 0 on n1 sees no GPU"),
        (GOOD, "", 22, "rank 0 on n1 sees no GPU"),
        (GOOD, "0", 22, "n1 shows the job 1 of 2 GPUs"),
        (GOOD, "0,7", 22, "n1 shows the job 1 of 2 GPUs"),
        (None, "0,1", 22, "rank 0 on n1 finds no nvidia-smi"),
        ("echo 'Driver/library version mismatch'; exit 18", "0,1", 28, "exit code 18: Driver/lib"),
        (f"{GOOD}; echo 'Unable: GPU is lost.' >&2; exit 15", "0,1", 28, "exit code 15"),
        (f"{GOOD}; exit 255", "0,1", 28, "nvidia-smi failed with exit code 255"),
        ("sleep 100", "0,1", 28, "nvidia-smi did not answer within 0.5 s"),
        (
            "echo 'Failed to initialize NVML: Driver/library version mismatch'; "
            "echo 'NVML library version: 550.127'; exit 18",
            "0,1",
            28,
            "exit code 18: Failed to initialize NVML: Driver/library version mismatch",
        ),
        (
            f"echo 'Unable to determine the device handle for GPU1: Not Found'; {GOOD}",
            "0,1",
            28,
            "device handle for GPU1",
        ),
        ("echo '0, GPU-aa, 535, ERR!'; echo '1, GPU-bb, 535, 0'", "0,1", 28, "ERR!"),
        ("echo '0, GPU-aa, 535, 3'; echo '1, GPU-bb, 535, 0'", "0,1", 28, "3 uncorrected ECC"),
        (f"{GOOD}; echo 'Xid 79 on GPU 1'", "0,1", 28, "Xid 79"),
        (
            f'case $1 in *apps*) echo "GPU-bb, 1, /usr/bin/miner";; *) {GOOD};; esac',
            "0,1",
            28,
            "miner",
        ),
        (f'case $1 in *apps*) echo "GPU-cc, 1, other";; *) {GOOD};; esac', "0,1", 0, ""),
        (f'case $1 in *apps*) echo "GPU-bb, $PPID, own";; *) {GOOD};; esac', "0,1", 0, ""),
        ("echo '0, GPU-aa, 470.57, 0'; echo '1, GPU-bb, 470.57, 0'", "0,1", 28, "needs 525.60.13"),
    ],
)
def test_what_nvidia_smi_says_decides_whether_gpus_are_well(
    tmp_path, monkeypatch, capfd, script, visible, code, wrong
):
    """A stand-in for nvidia-smi; the release is loaded, and Slurm emulates nothing."""
    if script is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    (tmp_path / "release.json").write_text('{"needs": {"driver": {"from": "525.60.13"}}}')
    monkeypatch.setattr("hpcdl.system.nvidia.SECONDS", 0.5)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("HPCDL_STACK", str(tmp_path / "stack"))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none"))
    for name, value in {"SLURMD_NODENAME": "n1", "SLURM_JOB_ID": "7"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr("hpcdl.system.nvidia.of_job", lambda pid, job: pid > 1 and job == "7")
    (tmp_path / "p.jsonl").write_text(json.dumps(asdict(probe())))
    assert main(["preflight", "judge", *ASKED, str(tmp_path / "p.jsonl")]) == code
    assert wrong in capfd.readouterr().err
