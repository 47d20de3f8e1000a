"""Launchers, exit codes, cancelling and sweeps, on every release."""

import json
import re
import time

import pytest

from hpcdl.slurm import client, once
from tests.make.specs import QUICK
from tests.matrix.machines import HPCDL, script
from tests.waiting import wait_for

UNTIL_TERM = """\
trap 'echo "rank $SLURM_PROCID was told"; exit 5' TERM
echo begun; i=0; while [ $i -lt 600 ]; do sleep 0.1; i=$((i + 1)); done
"""


def ranks_of_mpi(log):
    return sorted(re.findall(r"mpi rank=(\d+) world=(\d+) sum=(\d+)", log))


def test_horovod_s_launcher_joins_ranks_by_pmix(machine, mpi_program):
    if "pmix" not in machine.mpi:
        pytest.skip(f"Slurm {machine.release} of Debian has no PMIx plug-in")
    text = script(machine, mpi_program(), partition="p100", nodes=2, gpus_per_node=2)
    assert "srun --mpi=pmix " in text
    ended = machine.submit(text).end()
    assert ended.state == "COMPLETED", ended.said
    assert ranks_of_mpi(ended.log) == [(str(rank), "4", "6") for rank in range(4)], ended.log


@pytest.mark.parametrize("nodes", [1, 2])
def test_mpirun_joins_ranks_without_any_plug_in(machine, mpi_program, nodes):
    if nodes > 1 and machine.release.series == "26.05":
        pytest.skip("Open MPI 6.0.0rc2 of sid finds no way between two nodes of one machine")
    text = script(
        machine,
        mpi_program(),
        partition="p100",
        nodes=nodes,
        gpus_per_node=4 // nodes,
        launcher="horovod-mpirun",
    )
    ended = machine.submit(text).end()
    assert ended.state == "COMPLETED", ended.said
    assert ranks_of_mpi(ended.log) == [(str(rank), "4", "6") for rank in range(4)], ended.log


def test_workers_of_tf_distribute_know_each_other(machine):
    program = ["sh", "-c", 'echo "task $TF_CONFIG"']
    shape = {"partition": "p100", "nodes": 2, "gpus_per_node": 2, "launcher": "multiworker"}
    ended = machine.submit(script(machine, program, **shape)).end()
    assert ended.state == "COMPLETED", ended.said
    found = [json.loads(one) for one in re.findall(r"task (\{.*\})", ended.log)]
    workers = found[0]["cluster"]["worker"]
    assert all(one["cluster"] == {"worker": workers} for one in found)
    nodes = [one.partition(":")[0] for one in workers]
    assert nodes == ["p100-01", "p100-01", "p100-02", "p100-02"]
    assert len(set(workers)) == 4, "a port of its own for each rank of a node"
    assert sorted(one["task"]["index"] for one in found) == [0, 1, 2, 3]


@pytest.mark.parametrize("code", [0, 7, 127])
def test_the_program_s_exit_code_is_the_job_s(machine, code):
    ended = machine.submit(script(machine, ["sh", "-c", f"exit {code}"])).end()
    assert ended.exit_code == code
    assert ended.state == ("FAILED" if code else "COMPLETED")


def test_when_a_rank_dies_its_peers_are_ended(machine):
    program = 'if [ "$SLURM_PROCID" = 3 ]; then sleep 1; exit 9; fi; sleep 300'
    begin = time.monotonic()
    ended = machine.submit(script(machine, ["sh", "-c", program], nodes=2, tasks_per_node=2)).end()
    assert ended.state == "FAILED"
    assert ended.exit_code != 0
    assert time.monotonic() - begin < 45


def test_scancel_tells_the_ranks_and_never_requeues(machine):
    text = script(machine, ["sh", "-c", UNTIL_TERM], nodes=2, tasks_per_node=1, cpus_per_task=1)
    job = machine.submit(text)
    wait_for(lambda: job.text().count("begun") == 2)
    machine("scancel", str(job.number))
    ended = job.end()
    assert (ended.state, ended.restarts) == ("CANCELLED", 0)
    wait_for(lambda: job.text().count("was told") == 2, 10)


def test_a_sweep_runs_as_an_array_with_a_throttle(machine):
    name = f"s{time.time_ns()}"
    options = f"--no-module --file {QUICK} --json --partition cpu --cpus-per-task 1 --running 2"
    sweep = ["job", "sweep", *options.split(), "--name", name, "--over", "n=1,2,3"]
    program = ["--", "sh", "-c", "echo $SLURM_ARRAY_TASK_COUNT {n} >out"]
    assert len(json.loads(machine.hpcdl(*sweep, *program))["points"]) == 3

    def states():
        again = json.loads(machine(HPCDL, *sweep, "--status", *program).stdout)
        return [point["state"] for point in again["points"]]

    wait_for(lambda: states() == ["done"] * 3, 90)


def test_our_records_of_jobs_are_slurm_s_and_no_name_forges_one(machine, monkeypatch):
    for name, value in machine.env.items():
        monkeypatch.setenv(name, value)
    forged = "evil\nJobId=99999 JobState=COMPLETED\n99999 COMPLETED"
    held = machine.submit(
        "#!/bin/sh\nexit 0\n",
        "--hold",
        f"--job-name={forged}",
        "--comment=x JobState=COMPLETED JobId=99999",
    )
    ended = machine.submit("#!/bin/sh\nexit 3\n")
    assert ended.end().state == "FAILED"
    known = {record.id: record for record in client.queue()}
    assert 99999 not in known
    assert known[held.number].state == "PENDING"
    assert known[held.number].name.split() == forged.split()
    record = client.job(ended.number)
    assert (record.state, record.exit_code, record.restarts) == ("FAILED", 3, 0)
    assert client.job(99999) is None
    machine("scancel", str(held.number))


@pytest.mark.parametrize("options", [(), ("--array=0-2%1",)])
def test_a_job_is_found_by_its_token_alone(machine, monkeypatch, options):
    for name, value in machine.env.items():
        monkeypatch.setenv(name, value)
    script = machine.folder / "token.sh"
    script.write_text("#!/bin/sh\ntest $# = 1 && sleep 60\n")
    tokens = [once.new_token() for _ in range(3)]
    asked = ("--comment=mine", "--job-name=mine", f"--output={machine.folder}/token.log", *options)
    jobs = [once.submit(script, asked, token=token) for token in tokens[:2]]
    forged = machine.submit(
        "#!/bin/sh\nexit 0\n", "--hold", f"--comment={tokens[2]}", f"--job-name=x\n9|{tokens[2]}.sh"
    )

    def ours():
        return [one for one in client.queue() if (one.array_job or one.id) in jobs]

    assert once.by_token(tokens) == {tokens[0]: (jobs[0],), tokens[1]: (jobs[1],)}
    wait_for(lambda: [one for one in ours() if one.state == "RUNNING"], 30)
    machine("scancel", *map(str, [*jobs, forged.number]))
    wait_for(lambda: not [one for one in ours() if one.active])
    assert once.by_token(tokens).keys() == {*tokens[:2]}, "ended ones, too"
