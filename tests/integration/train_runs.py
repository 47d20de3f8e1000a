"""Real training runs for tests: `runs` launches ranks with mpirun on the built release.

HPCDL_TEST_PYTHON names an interpreter with TensorFlow and Horovod to use instead of a release.
"""

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Done:
    """A run that has ended: exit code, outputs, and the folder it worked in."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def result(self) -> dict[str, Any]:
        """result.json."""
        loaded: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return loaded

    @property
    def weights(self) -> bytes:
        """The arrays of the newest checkpoint, as bytes."""
        newest = max((self.folder / "checkpoints").glob("step-*.ckpt"))
        data = newest.read_bytes()
        start = len(b"hpcdl-checkpoint-1\n")
        return data[start + 12 + int.from_bytes(data[start : start + 8], "little") :]


@dataclass(frozen=True)
class Runs:
    """Launches training and data commands with one interpreter, each in a folder of its own."""

    python: Path
    folder: Path

    def start(
        self, *words: str, ranks: int = 1, job: str = "job", env: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Begin a training of `ranks` ranks in the folder `job`."""
        command = [str(self.python), "-m", "hpcdl.train", "--job-dir", str(self.folder / job)]
        if ranks > 1:
            mpirun = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)]
            command = [*mpirun, *command]
        return subprocess.Popen(
            [*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=self.folder, env=environment() | (env or {}), start_new_session=True,
        )  # fmt: skip

    def end(self, process: subprocess.Popen[str], job: str = "job", timeout: float = 300) -> Done:
        """Wait for a run; a hang is killed and fails the test."""
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            pytest.fail(f"hung for {timeout} s:\n{out[-2000:]}\n{err[-2000:]}")
        return Done(process.returncode, out, err, self.folder / job)

    def train(
        self, *words: str, ranks: int = 1, job: str = "job", timeout: float = 300, **env: str
    ) -> Done:
        """A whole training."""
        return self.end(self.start(*words, ranks=ranks, job=job, env=env), job, timeout)

    def data(self, *words: str) -> Done:
        """A whole data command."""
        process = subprocess.Popen(
            [str(self.python), "-m", "hpcdl.train.data", *words], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, cwd=self.folder, env=environment(),
        )  # fmt: skip
        return self.end(process)

    def wait_for(self, pattern: str, job: str = "job", timeout: float = 240) -> Path:
        """The first file of a job's folder that matches, once there is one."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for path in (self.folder / job).glob(pattern):
                return path
            time.sleep(0.01)
        pytest.fail(f"no {pattern} within {timeout} s")


def environment() -> dict[str, str]:
    """This process's environment, without a job's, with mpirun allowed for root."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "HPCDL_JOB"))}
    kept["HPCDL_TRUSTED_NETWORK"] = "1"  # --strategy multiworker opens TensorFlow's server here
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_btl_vader_single_copy_mechanism":
               "none"}  # fmt: skip
    return kept | allowed


@pytest.fixture(scope="session")
def train_python(request) -> Path:
    """The interpreter that has TensorFlow, Horovod and hpcdl."""
    named = os.environ.get("HPCDL_TEST_PYTHON")
    if named:
        return Path(named)
    release = request.getfixturevalue("release")
    return Path(release.python)


@pytest.fixture
def runs(train_python, tmp_path) -> Runs:
    """Runs in a folder of this test."""
    return Runs(train_python, tmp_path)


@pytest.fixture(scope="session")
def digits(train_python, tmp_path_factory) -> Path:
    """The digits, made once."""
    folder = tmp_path_factory.mktemp("data") / "digits"
    done = Runs(train_python, folder.parent).data("make", "digits", str(folder))
    assert done.code == 0, done.err
    return folder
