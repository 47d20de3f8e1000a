"""A cluster of one Slurm release, and what a job on it came to."""

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from hpcdl.cluster.shape import ClusterState
from hpcdl.cluster.state import environment
from hpcdl.site import load_site
from hpcdl.slurm.rules import SlurmRelease
from tests.make import specs

HPCDL = str(Path(sys.executable).with_name("hpcdl"))
_ENDED = re.compile(
    r"JobState=(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL|BOOT_FAIL|OUT_OF_MEMORY|DEADLINE)"
)


@dataclass(frozen=True)
class Ended:
    """How a job ended: what sbatch said where it refused, Slurm's record, and the job's log."""

    refusal: str
    record: str
    log: str

    @property
    def state(self):
        """COMPLETED, FAILED and so on; REFUSED where sbatch did not take it."""
        return "REFUSED" if self.refusal else self.field("JobState")

    @property
    def exit_code(self):
        return int(self.field("ExitCode").split(":")[0])

    @property
    def restarts(self):
        return int(self.field("Restarts"))

    @property
    def said(self):
        return f"{self.refusal}\n{self.log}"

    def field(self, name):
        found = re.search(rf"\b{name}=(\S*)", self.record)
        return found.group(1) if found else ""


@dataclass(frozen=True)
class Machine:
    name: str
    state: ClusterState
    folder: Path

    @property
    def release(self):
        return SlurmRelease.parse(self.state.slurm_version)

    @cached_property
    def env(self):
        """What a person's shell has: nothing of ours but Slurm's commands is on PATH."""
        base = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": os.environ.get("HOME", "/"),
            "LANG": "C.UTF-8",
            "HPCDL_HOME": str(self.state.directory.parent.parent),
            "HPCDL_CLUSTER_DIR": str(self.state.directory),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
        return environment(self.state, base)

    def __call__(self, *argv, timeout=60, **changes):
        """Run a command as a person would after `eval "$(hpcdl cluster env)"`."""
        return subprocess.run(
            [str(word) for word in argv],
            env={**self.env, **changes},
            cwd=self.folder,
            timeout=timeout,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )

    def hpcdl(self, *words):
        """What one of our commands prints; it must succeed."""
        done = self(HPCDL, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @cached_property
    def mpi(self):
        done = self("srun", "--mpi=list")
        return tuple(re.findall(r"\b(?:none|pmi2|pmix\w*)\b", done.stdout + done.stderr))

    def submit(self, script, *options, **changes):
        data = script if isinstance(script, bytes) else script.encode()
        path = self.folder / f"{time.monotonic_ns()}.sh"
        path.write_bytes(data)
        log = path.with_suffix(".log")
        done = self("sbatch", "--parsable", f"--output={log}", *options, path, **changes)
        if done.returncode:
            return Job(self, 0, log, done.stderr)
        return Job(self, int(done.stdout.split(";")[0]), log, "")


@dataclass(frozen=True)
class Job:
    machine: Machine
    number: int
    log: Path
    refusal: str

    def record(self):
        return self.machine("scontrol", "show", "job", "-o", str(self.number)).stdout

    def text(self):
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def end(self, seconds=90):
        if self.refusal:
            return Ended(self.refusal, "", "")
        record = self.record()
        deadline = time.monotonic() + seconds
        while not _ENDED.search(record):
            assert time.monotonic() < deadline, f"job {self.number} goes on: {record}{self.text()}"
            time.sleep(0.1)
            record = self.record()
        return Ended("", record, self.text())


def script(machine, program, **spec):
    """The script of a job, as render writes it for this release."""
    site = load_site(machine.state.site_file)
    # Jobs of all releases run at once, and have the same numbers.
    site = replace(site, paths=replace(site.paths, work=machine.folder / "work"))
    # Of a Slurm without PMI, ranks that know nothing of MPI can be started all the same.
    launcher = "torch" if site.slurm.mpi == "none" else "horovod"
    asked = {"partition": "cpu", "preflight": False, "launcher": launcher, **spec}
    return specs.script(site, program=tuple(program), **asked).text
