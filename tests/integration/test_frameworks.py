"""PyTorch, JAX and MXNet beside `hpcdl train`: the same networks, batches and results."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcdl.results.records import RESULT
from hpcdl.train.data.source import epoch_order
from hpcdl.workflows.study.cells import NEEDED
from tests.integration.test_examples import free_ports
from tests.integration.test_launchers import python_with

PROGRAMS = Path(__file__).resolve().parents[2] / "examples" / "frameworks"
FRAMEWORKS = ("torch", "jax", "mxnet")
# Of hpcdl train's networks, for 64 x 64 pixels and 1,000 classes.
WEIGHTS = {
    "alexnet": 24_400_680,
    "googlenet": 6_624_904,
    "resnet50": 25_583_592,
    "vit_s16": 21_980_776,
}
# What the launcher and Slurm tell a process of JAX.
JAX = """\
import jax, runpy, sys
_, rank, address, *sys.argv = sys.argv
real = jax.distributed.initialize
jax.distributed.initialize = lambda: real(address, 2, int(rank))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def trained(folder, framework, *options):
    """What two ranks leave, started as the framework's launcher starts them."""
    python = python_with(framework, f"python3-{framework}")
    port, other = map(str, free_ports(2))
    workers = {"worker": [f"127.0.0.1:{port}", f"127.0.0.1:{other}"]}
    program, started = PROGRAMS / f"{framework}_training.py", []
    for rank in range(2):
        env = {
            **os.environ,
            "HPCDL_JOB_DIR": str(folder),
            "SLURMD_NODENAME": f"n{rank}",
            "SLURM_JOB_ID": "7",
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "2",
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "TF_CONFIG": json.dumps({"cluster": workers, "task": {"index": rank}}),
        }
        env.pop("PYTHONPATH", None)
        argv = [str(program), *options]
        if framework == "jax":
            argv = ["-c", JAX, str(rank), f"127.0.0.1:{port}", *argv]
            env["PYTHONPATH"] = str(PROGRAMS)
        piped = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen([python, *argv], env=env, cwd=folder, **piped))
    # JAX compiles GoogLeNet for minutes where the machine is busy.
    outs = [process.communicate(timeout=1500)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], outs
    return json.loads((folder / "result.json").read_text())


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_two_ranks_train_and_leave_a_result_as_hpcdl_train_does(tmp_path, framework):
    found = trained(
        tmp_path, framework, "--steps", "4", "--warmup-steps", "1", "--batch-per-rank", "2"
    )
    record = RESULT.read(tmp_path / "result.json")
    record.need(*NEEDED)
    assert not record.faults
    assert found["parameters"] == WEIGHTS["alexnet"]
    layout, samples = record.values["layout"], record.values["samples"]
    assert (layout["ranks"], len(layout["hosts"])) == (2, 2)
    parts = ("input", "compute", "communication", "update", "other")
    for step, seconds in enumerate(samples["seconds"]):
        assert sum(samples[part][step] for part in parts) == pytest.approx(seconds, abs=1e-5)
    assert sum(samples["communication"]) > 0
    assert found["exchange"] > 0


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("model", WEIGHTS)
def test_a_network_has_as_many_weights_as_that_of_hpcdl_train(tmp_path, framework, model):
    found = trained(tmp_path, framework, "--model", model, "--steps", "1", "--batch-per-rank", "2")
    assert found["parameters"] == WEIGHTS[model]


@pytest.fixture
def harness(monkeypatch):
    monkeypatch.syspath_prepend(str(PROGRAMS))
    yield importlib.import_module("harness")
    for name in ("harness", "pictures"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_batches_are_those_of_hpcdl_train_in_its_order(harness, monkeypatch, ranks):
    monkeypatch.setattr(sys, "argv", ["x", "--batch-per-rank", str(16 // ranks)])
    parts = [harness.Batches(harness.options(""), rank, ranks) for rank in range(ranks)]
    for step in (0, 3, 17):  # 256 images are 16 batches: the last is of the second epoch
        epoch, number = divmod(step, 16)
        rows = epoch_order(1, epoch, 256)[16 * number : 16 * (number + 1)]
        labels = np.concatenate([part(step)[1] for part in parts])
        assert labels.tolist() == parts[0].labels[rows].tolist()


def test_without_the_framework_a_program_says_so(tmp_path):
    for name, said in (("torch", "PyTorch"), ("jax", "JAX"), ("mxnet", "MXNet")):
        path = f"import sys; sys.path.insert(0, {str(PROGRAMS)!r}); sys.modules.update({name}=None)"
        argv = [sys.executable, "-P", "-c", f"{path}; import {name}_training"]
        done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == 1
        assert f"error: {said} is not installed for {sys.executable}" in done.stderr
