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

import pytest

ROOT = Path(__file__).resolve().parents[2]
MPIRUN = ("mpirun", "--oversubscribe", "--bind-to", "none", "-np")
INSIDE = ("-m", "tests.integration.train_inside")
_PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


@dataclass(frozen=True)
class Done:
    """A run that has ended: exit code, outputs, and the folder it worked in."""

    code: int
    out: str
    err: str
    folder: Path

    def must(self, code, *says):
        """It ended so and said so; a refusal shows no traceback."""
        assert self.code == code, f"{self.code}\n{self.out[-2000:]}\n{self.err[-3000:]}"
        for text in says:
            assert text in self.out + self.err, f"{text}\n{self.out[-2000:]}\n{self.err[-3000:]}"
        assert code not in {1, 2, 3} or "Traceback" not in self.err, self.err
        return self

    @property
    def result(self):
        return json.loads((self.folder / "result.json").read_text())

    @property
    def losses(self):
        """Of the last segment's steps."""
        return list(self.result["samples"]["loss"])

    @property
    def metrics(self):
        """Of the test set."""
        return dict(self.result["summary"]["metrics"])

    @property
    def weights(self):
        """The arrays of the newest checkpoint, as bytes."""
        return b"".join(array.tobytes() for array in self._arrays())

    @property
    def variables(self):
        """Those of model and optimizer, as numbers; the last array has the losses."""
        return [float(number) for array in self._arrays()[:-1] for number in array.ravel()]

    def _arrays(self):
        from hpcdl.train.checkpoint import load

        return load(max((self.folder / "checkpoints").glob("step-*.ckpt"))).arrays


@dataclass(frozen=True)
class Runs:
    """Launches training and data commands with one interpreter, each in a folder of its own."""

    python: Path
    folder: Path
    digits: Path = Path("digits")

    def start(self, *words, ranks=1, job="job", env=None):
        command = [str(self.python), "-m", "hpcdl.train", "--job-dir", str(self.folder / job)]
        if ranks > 1:
            command = [*MPIRUN, str(ranks), *command]
        return subprocess.Popen(
            [*command, *words],
            cwd=self.folder,
            start_new_session=True,
            umask=0,
            env=environment() | (env or {}),
            **_PIPES,
        )

    def end(self, process, job="job", timeout=300):
        """Wait for a run; a hang is killed and fails the test."""
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            pytest.fail(f"hung for {timeout} s:\n{out[-2000:]}\n{err[-2000:]}")
        return Done(process.returncode, out, err, self.folder / job)

    def train(self, *words, ranks=1, job="job", timeout=300, code=0, says=(), **env):
        done = self.end(self.start(*words, ranks=ranks, job=job, env=env), job, timeout)
        return done.must(code, *([says] if isinstance(says, str) else says))

    def learn(self, *words, **more):
        return self.train("--data", str(self.digits), *words, **more)

    def data(self, *words, code=0, says=()):
        process = subprocess.Popen(
            [self.python, "-m", "hpcdl", "data", *words],
            cwd=self.folder,
            env=environment(),
            **_PIPES,
        )
        return self.end(process).must(code, *([says] if isinstance(says, str) else says))

    def photos(self, folder, *words, code=0, says=()):
        """Photographs, by the program in examples/."""
        process = subprocess.Popen(
            [self.python, ROOT / "examples/photographs.py", folder, *words],
            cwd=self.folder,
            env=environment() | {"PYTHONPATH": str(ROOT)},
            **_PIPES,
        )
        return self.end(process).must(code, *([says] if isinstance(says, str) else says))

    def refused(self, *rows):
        """These command lines are refused in these words; one process takes them all."""
        data = ("--data", str(self.digits), "--job-dir")
        lines = [(*data, f"refused-{at}", *words) for at, (words, _) in enumerate(rows)]
        found = self.script(*INSIDE, "refusals", json.dumps(lines))
        for (code, err), (_, said) in zip(found, rows, strict=True):
            Done(code, "", err, self.folder).must(2, said)

    def write(self, name, text):
        """A file where runs find it as a module."""
        (self.folder / name).write_text(text)

    def script(self, *words, timeout=500, **env):
        """The JSON that a program prints last, run by the interpreter."""
        known = environment() | {"PYTHONPATH": str(ROOT)} | env
        done = subprocess.run(
            [self.python, *words],
            cwd=self.folder,
            env=known,
            timeout=timeout,
            check=False,
            **_PIPES,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    def wait_for(self, pattern, job="job", timeout=240):
        """The first file of a job's folder that matches, once there is one."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for path in (self.folder / job).glob(pattern):
                return path
            time.sleep(0.01)
        pytest.fail(f"no {pattern} within {timeout} s")


def environment():
    """This process's environment, without a job's, with mpirun allowed for root."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "HPCDL_JOB"))}
    kept["HPCDL_TRUSTED_NETWORK"] = "1"  # --strategy multiworker opens TensorFlow's server here
    allowed = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    }
    return kept | allowed


@pytest.fixture(scope="session")
def train_python(request):
    return Path(os.environ.get("HPCDL_TEST_PYTHON") or request.getfixturevalue("release").python)


@pytest.fixture
def runs(train_python, digits, tmp_path):
    return Runs(train_python, tmp_path, digits)


@pytest.fixture(scope="session")
def digits(train_python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "digits"
    Runs(train_python, folder.parent).data("make", "digits", folder)
    return folder
