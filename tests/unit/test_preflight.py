"""The preflight's verdicts: one number per cause, the first one counts."""

import socket
import threading
from dataclasses import replace

import pytest

from hpcdl import facts
from hpcdl.jobs.preflight import (
    Expectation,
    NoLibrary,
    Probe,
    Problem,
    as_json_line,
    judge,
    notes,
    probe,
    read_probes,
    with_links,
)
from hpcdl.system.errors import MissingPrerequisite

EXPECTED = Expectation(
    world=4, tasks_per_node=2, cpus_per_task=4, gpus_per_node=2, memory_mb=60_000,
    release="tf-1", scratch="/tmp", data="/data",
)  # fmt: skip
SMALL = Expectation(world=4, tasks_per_node=2, cpus_per_task=4)
SHAPE = replace(SMALL, gpus_per_node=2, fabric="infiniband")
NONE = {"gpus": (), "release": "", "scratch_free_mb": None, "data": None}


def healthy() -> list[Probe]:
    """Four ranks on two nodes, as the expectation wants them."""
    return [
        Probe(
            rank=rank, local_rank=rank % 2, host=f"p100-0{rank // 2 + 1}", world=4, cpus=4,
            affinity=4, gpus=("GPU-a", "GPU-b"), memory_mb=60_000, release="tf-1",
            scratch_free_mb=1000, data=True,
        )
        for rank in range(4)
    ]  # fmt: skip


def codes(probes: list[Probe], expected: Expectation = EXPECTED) -> list[int]:
    return [problem.code for problem in judge(probes, expected)]


@pytest.mark.parametrize(("probes", "expected", "noted"), [
    (healthy(), EXPECTED, 0),
    # The same number on two nodes is two GPUs.
    ([replace(p, gpus=("0", "1")) for p in healthy()], EXPECTED, 0),
    # Isolated GPUs and unbound CPUs are worth a note.
    ([replace(p, gpus=(f"GPU-{p.local_rank}",), affinity=2) for p in healthy()], EXPECTED, 2),
    # What is not asked for is not checked.
    ([replace(p, **NONE) for p in healthy()], SMALL, 0),
])  # fmt: skip
def test_an_allocation_in_order_has_no_problem(probes, expected, noted):
    assert codes(probes, expected) == []
    assert len(notes(probes, expected)) == noted


@pytest.mark.parametrize(("change", "code"), [
    ({"release": "tf-0"}, 20),
    ({"release": ""}, 20),
    ({"world": 1}, 21),
    ({"gpus": ()}, 22),
    ({"gpus": ("GPU-a",), "local_rank": 0}, 22),
    ({"cpus": 1}, 23),
    ({"memory_mb": 1000}, 24),
    ({"scratch_free_mb": None}, 25),
    ({"scratch_free_mb": 0}, 25),
    ({"data": False}, 26),
])  # fmt: skip
def test_each_cause_has_its_number(change, code):
    probes = healthy()
    probes[1] = replace(probes[1], **change)
    assert codes(probes) == [code]
    assert code in facts.load("slurm_reasons")["preflight"]


@pytest.mark.parametrize(("probes", "code", "said"), [
    (healthy()[:3], 21, "3"),
    ([replace(p, gpus=("GPU-a",)) for p in healthy()], 22, "ranks 0, 1 share GPU GPU-a of p100-01"),
])  # fmt: skip
def test_ranks_that_miss_or_share_a_gpu_are_named(probes, code, said):
    (problem,) = judge(probes, EXPECTED)
    assert problem.code == code
    assert said in problem.sentence


def test_probes_survive_the_noise_of_a_log():
    lines = [as_json_line(p) for p in reversed(healthy())]
    text = "\n".join(["slurmstepd: hello", *lines, '{"rank": broken', "0: " + lines[0]])
    assert [p.rank for p in read_probes(text)] == [0, 1, 2, 3, 3]


def test_a_rank_reads_slurm_s_environment_and_looks_at_scratch_where_it_will_lie(tmp_path):
    env = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "4",
           "SLURM_CPUS_PER_TASK": "4", "CUDA_VISIBLE_DEVICES": "0,1"}  # fmt: skip
    found = probe("/", "/no/such/data", env)
    assert (found.rank, found.local_rank, found.world, found.cpus) == (3, 1, 4, 4)
    assert (found.gpu, found.data) == ("1", False)
    assert found.scratch_free_mb
    assert probe(str(tmp_path / "me" / "deeper")).scratch_free_mb, "staging would make it"
    assert probe("no/whole/path").scratch_free_mb is None


def test_a_node_goes_by_slurm_s_name_even_where_nodes_share_a_host():
    assert probe(environ={"SLURMD_NODENAME": "p100-02"}).host == "p100-02"
    assert probe(environ={}).host == socket.gethostname()


def never(_: Probe) -> None:
    raise AssertionError("it was not stuck")


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A driver that answers; NCCL is the test's."""
    monkeypatch.setattr("hpcdl.jobs.preflight._driver_uuids", lambda: {"0": "GPU-a"})
    return monkeypatch


def failing(fault: Exception) -> object:
    def exchange(*_: object) -> str:
        raise fault

    return exchange


def test_a_library_that_is_not_there_is_a_note_and_no_failure(gpus, tmp_path):
    """An image, or a program that brings its own NCCL, need not have it on the loader's path."""
    lack = NoLibrary("the library libnccl.so.2 cannot be loaded")
    gpus.setattr("hpcdl.jobs.preflight.exchange", failing(lack))
    probes = [with_links(p, tmp_path, never) for p in healthy()]
    assert codes(probes, SHAPE) == []
    (note,) = notes(probes, SHAPE)
    assert note == f"{lack.message}: how GPUs reach each other was not checked"


def test_gpus_that_fail_are_named_and_not_the_ranks_that_they_took_along(gpus, tmp_path):
    fault = MissingPrerequisite("ncclCommInitRank failed with code 2")
    gpus.setattr("hpcdl.jobs.preflight.exchange", failing(fault))
    found = read_probes(as_json_line(with_links(healthy()[2], tmp_path, never)))
    (problem,) = judge(found, SHAPE)
    assert problem == Problem(27, "rank 2 on p100-02: ncclCommInitRank failed with code 2")
    assert notes(found, SHAPE) == ()


def test_gpus_that_never_answer_are_not_waited_for(gpus, tmp_path):
    told, said = threading.Event(), []

    def stuck(found: Probe) -> None:
        said.append(found)
        told.set()

    gpus.setattr("hpcdl.jobs.preflight.exchange", lambda *_: str(told.wait(20)))
    with_links(healthy()[0], tmp_path, stuck, seconds=0.05)
    assert [problem.code for problem in judge(said, SHAPE)] == [27]
    assert "within" in said[0].fault
