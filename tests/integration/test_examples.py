"""The programs to copy: they run as they are, on one process and on two, and go on when killed."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.train_runs import ROOT, Runs, environment

EXAMPLES = ROOT / "hpcdl" / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*_digits.py"))


def run(runs: Runs, name: str, ranks: int = 1) -> str:
    """What a program prints, started in a directory where nothing of hpcdl is."""
    kept = {key: value for key, value in environment().items() if key != "PYTHONPATH"}
    command = [str(runs.python), "-P", str(EXAMPLES / f"{name}_digits.py"), "out"]
    kept["TF_CPP_MIN_LOG_LEVEL"] = "2"
    if name == "distribute" and ranks > 1:
        return together(runs, command, kept, ranks)
    if ranks > 1:
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks), *command]
    done = subprocess.run(command, cwd=runs.folder, env=kept, text=True, capture_output=True,
                          timeout=400, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def together(runs: Runs, command: list[str], env: dict[str, str], ranks: int) -> str:
    """The workers that TF_CONFIG describes."""
    workers = [f"localhost:{29000 + rank}" for rank in range(ranks)]
    started: list[Any] = []
    for rank in range(ranks):
        task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        started.append(subprocess.Popen(
            command, cwd=runs.folder, env=env | {"TF_CONFIG": json.dumps(task)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ))  # fmt: skip
    outs = [process.communicate(timeout=400) for process in started]
    assert [process.returncode for process in started] == [0] * ranks, outs
    return str(outs[0][0])


@pytest.mark.stack
@pytest.mark.parametrize(("name", "ranks"), [("keras", 1), ("distribute", 2), ("horovod", 2)])
def test_an_example_learns_the_digits_and_goes_on_when_it_is_started_again(
    runs: Runs, name: str, ranks: int
) -> None:
    first = run(runs, name, ranks)
    assert float(re.findall(r"accuracy ([0-9.]+)$", first, re.M)[-1]) > 0.88
    if name != "keras":
        again = run(runs, name, ranks)
        assert "epoch" not in again, "all epochs were done"
        assert re.findall(r"accuracy .*", again)[-1] == re.findall(r"accuracy .*", first)[-1]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_an_example_is_short_and_uses_nothing_of_hpcdl(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 90
    assert "import hpcdl" not in text
    assert "from hpcdl" not in text
