"""The programs to copy: they run as they are, on one process and on two, and go on when killed."""

import json
import re
import socket
import subprocess
import time
from contextlib import ExitStack

import pytest

from hpcdl.results.records import RESULT
from tests.integration.train_runs import ROOT, environment

EXAMPLES = ROOT / "examples"


def run(runs, name, ranks=1):
    """What a program prints, started in a directory where nothing of hpcdl is."""
    kept = {key: value for key, value in environment().items() if key != "PYTHONPATH"}
    command = [str(runs.python), "-P", str(EXAMPLES / f"{name}_digits.py"), "out"]
    kept["TF_CPP_MIN_LOG_LEVEL"] = "2"
    if name == "distribute" and ranks > 1:
        return together(runs, command, kept, ranks)
    if ranks > 1:
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks), *command]
    done = subprocess.run(
        command, cwd=runs.folder, env=kept, text=True, capture_output=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def free_ports(count):
    """Ports of this machine that nobody listens at now."""
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("localhost", 0))
        return [int(one.getsockname()[1]) for one in found]


def together(runs, command, env, ranks):
    """The workers that TF_CONFIG describes."""
    workers = [f"localhost:{port}" for port in free_ports(ranks)]
    started = []
    for rank in range(ranks):
        task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        started.append(
            subprocess.Popen(
                command,
                cwd=runs.folder,
                env=env | {"TF_CONFIG": json.dumps(task)},
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
    outs = [process.communicate(timeout=400) for process in started]
    assert [process.returncode for process in started] == [0] * ranks, outs
    return str(outs[0][0])


@pytest.mark.stack
@pytest.mark.parametrize(("name", "ranks"), [("keras", 1), ("distribute", 2), ("horovod", 2)])
def test_an_example_learns_the_digits_and_goes_on_when_it_is_started_again(runs, name, ranks):
    first = run(runs, name, ranks)
    assert float(re.findall(r"accuracy ([0-9.]+)$", first, re.M)[-1]) > 0.88
    if name != "keras":
        again = run(runs, name, ranks)
        assert "epoch" not in again, "all epochs were done"
        assert re.findall(r"accuracy .*", again)[-1] == re.findall(r"accuracy .*", first)[-1]


@pytest.fixture
def tasks(runs):
    """Starts a task of a parameter server cluster of four; all are ended with the test."""
    ports = [f"localhost:{port}" for port in free_ports(4)]
    cluster = {"chief": ports[:1], "ps": ports[1:2], "worker": ports[2:]}
    command = [str(runs.python), "-P", str(EXAMPLES / "parameter_server_digits.py"), "out", "3000"]
    started = []

    def start(kind, index=0):
        config = json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
        with (runs.folder / f"{kind}.out").open("a") as out:
            started.append(
                subprocess.Popen(
                    command,
                    cwd=runs.folder,
                    env=environment() | {"TF_CONFIG": config},
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.stack
def test_asynchronous_training_outlives_a_killed_worker_and_a_killed_server(runs, tasks):
    server, _, worker = tasks("ps", 0), tasks("worker", 0), tasks("worker", 1)
    chief = tasks("chief", 0)

    def wait(said):
        deadline = time.monotonic() + 400
        while time.monotonic() < deadline:
            text = (runs.folder / "chief.out").read_text(errors="replace")
            if re.search(said, text, re.M):
                return text
            assert chief.poll() is None or "accuracy" in text, text[-2000:]
            time.sleep(0.05)
        raise AssertionError(f"no {said}:\n{text[-2000:]}")

    wait("^step")
    worker.kill()
    before = len(re.findall("^step", wait("^step"), re.M))
    wait(rf"(^step[^\0]*){{{before + 2}}}")
    server.kill()
    wait("^a server is lost")
    tasks("ps", 0)
    tasks("worker", 1)
    text = wait("^accuracy")
    begun = [int(step) for step in re.findall(r"^begins after step (\d+)", text, re.M)]
    assert begun[0] == 0 < begun[-1], "from its last checkpoint on"
    assert float(re.findall(r"^accuracy ([0-9.]+)", text, re.M)[-1]) > 0.88
    assert re.search(r"staleness [0-9.]+ steps, at most [0-9.]+", text)


STRATEGY = ("--model=mlp", "--global-batch=64", "--epochs=4")


@pytest.mark.stack
@pytest.mark.parametrize(
    ("name", "ranks"), [("model_parallel", 1), ("multiworker", 2), ("parameter_server", 1)]
)
def test_another_way_to_go_parallel_learns_and_leaves_a_result(runs, name, ranks):
    program = EXAMPLES / "strategies" / f"{name}.py"
    command = [str(runs.python), str(program), "--data", str(runs.digits), *STRATEGY]
    env = environment() | {"PYTHONPATH": str(ROOT), "HPCDL_JOB_DIR": str(runs.folder / "job")}
    if ranks > 1:
        together(runs, command, env, ranks)
    else:
        done = subprocess.run(
            command,
            cwd=runs.folder,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    record = RESULT.read(runs.folder / "job" / "result.json")
    assert record.faults == {}
    assert record.values["strategy"] == name.replace("_", "-")
    assert record.values["layout"]["ranks"] == ranks
    assert record.values["summary"]["metrics"]["accuracy"] > 0.85
    if name == "model_parallel":
        assert sum(record.values["parameters_by_device"].values()) == 12778
    if name == "parameter_server":
        assert record.values["asynchronous"]["workers"] == 1


@pytest.mark.parametrize("path", (EXAMPLES / "strategies").glob("*.py"), ids=lambda path: path.stem)
def test_a_strategy_is_a_program_of_at_most_120_lines(path):
    assert path.read_text().count("\n") <= 120


@pytest.mark.parametrize(
    ("pattern", "most"),
    [("*_digits.py", 90), ("frameworks/*_*.py", 120), ("frameworks/harness.py", 215)],
)
def test_an_example_is_short_and_uses_nothing_of_hpcdl(pattern, most):
    for path in EXAMPLES.glob(pattern):
        text = path.read_text()
        assert len(text.splitlines()) <= most, path
        assert not re.search("(import|from) hpcdl", text), path
