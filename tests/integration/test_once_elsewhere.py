"""Jobs that hpcdl submits for itself, killed before any call: a study's, the gate's, a check's.

As in test_exactly_once.py: strace ends the command where it is about to make its n-th call of a
kind, each of those between the first file of a submission and the last. `make test` tries the
last of some kinds, `make test-long` all of them.
"""

import json
import subprocess
import sys

import pytest

from hpcdl.regress.run_directory import sweep
from hpcdl.site import load_site
from hpcdl.slurm import client
from tests.drill.jobs import CHECK, STANDINS
from tests.integration.test_exactly_once import KINDS, calls, needs_strace, once
from tests.integration.test_study import TINY
from tests.make.releases import make_current
from tests.waiting import wait_for

__all__ = ["once"]
pytestmark = [pytest.mark.cluster, needs_strace]
SHORT = ("rename", "symlink", "unlink", "fsync", "clone", "wait4")
each = pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)])


def chosen(points, every):
    """All points, or the last one of each kind that changes what a later command finds."""
    last = {kind: (kind, at) for kind, at in points if kind in SHORT}
    return points if every else list(last.values())


@pytest.fixture
def released(once):
    """A release without software, so that its jobs end at once."""
    file, prefix = once.folder / "site.yaml", once.folder / "prefix"
    file.write_text(file.read_text().replace("$HPCDL_HOME/embedded/prefix", str(prefix)))
    site = load_site(file)
    if not site.paths.lmod_init.is_file():
        pytest.skip("Lmod is not installed")
    make_current(site, "a")
    return site


@pytest.fixture
def full(slurm):
    """Nodes that are taken: what is queued waits."""
    slurm.take("p100", 2)
    yield
    slurm("scancel", "--me")


def study(once, name):
    """A study of a name of its own: three cells, two arrays."""
    file = once.folder / f"{name}.py"
    file.write_text(TINY)
    return ["study", "run", str(file), "--no-wait"]


@each
@pytest.mark.timeout(1200)
def test_a_study_killed_at_any_call_queues_each_cell_once(once, released, full, every):
    extent = "all" if every else "few"  # Slurm still knows the jobs of the other
    once(*study(once, f"{extent}-first"))
    points = once.points(*study(once, f"{extent}-traced"))
    assert {"rename", "symlink", "wait4"} <= {kind for kind, _ in points}
    for number, (kind, count) in enumerate(chosen(points, every)):
        name = f"{extent}-{number}"
        words = study(once, name)
        once.killed(kind, count, *words)
        once(*words)
        found = once.jobs(f"{name}-training")
        path = once.work / "studies" / f"{name}-small" / "sweep.json"
        told = {row["job_id"] for row in json.loads(path.read_text())["points"]}
        assert sorted(told) == found, (kind, count)
        assert len(found) == len(once.jobs(f"{extent}-first-training")), (kind, count)
    assert once.left() == []


@each
@pytest.mark.timeout(1200)
def test_a_gate_killed_at_any_call_has_one_job_and_resumes_it(once, released, every):
    gate = ["stack", "verify", "a", "--partition", "cpu"]
    once.code = 1  # there is no TensorFlow to find
    once(*gate)
    points = once.points(*gate)
    assert {"rename", "symlink", "wait4"} <= {kind for kind, _ in points}
    for kind, count in chosen(points, every):
        before = once.jobs("gate-cpu")
        once.killed(kind, count, *gate)
        once(*gate)
        found = set(once.jobs("gate-cpu")) - set(before)
        # How often it waits is the machine's business: it may be killed after its submission.
        assert 1 <= len(found) <= (2 if kind in {"poll", "wait4"} else 1), (kind, count, found)
        assert found <= set(once.listed()), (kind, count)
    assert once.left() == []


# A check that lets strace kill ReFrame; hpcdl stands still meanwhile, so that nobody clears up.
ATTACHED = """
import os, signal, subprocess, time
os.kill(os.getppid(), signal.SIGSTOP)
argv = ["strace", "-o", {log!r}, "-s", "200", *{options!r}, "-p", str(os.getpid())]
subprocess.Popen(argv, start_new_session=True, stderr=subprocess.DEVNULL)
while "TracerPid:\t0" in open("/proc/self/status").read():
    time.sleep(0.01)
"""


class Check:
    """A check run whose ReFrame is traced, or killed at a point, and hpcdl with it."""

    def __init__(self, once):
        self.once, self.site = once, load_site(once.folder / "site.yaml")
        self.log = once.folder / "reframe.strace"

    def run(self, *options):
        """Both are dead afterwards."""
        self.log.unlink(missing_ok=True)
        file = self.once.folder / "attached.py"
        file.write_text(ATTACHED.format(log=str(self.log), options=options) + STANDINS.read_text())
        words = [sys.executable, "-c", CHECK, str(self.site.source), str(file), "run"]
        with (self.once.folder / "check.log").open("w") as out:
            process = subprocess.Popen(
                words, env=dict(self.once.slurm.env), cwd=self.once.folder, stdout=out, stderr=out
            )
        wait_for(lambda: self.log.exists() and "+++" in self.log.read_text())
        process.kill()
        process.wait()

    def points(self):
        """The calls from the first note of the submission to the last one."""
        self.run("-e", f"trace={KINDS}")
        found = calls(self.log)
        notes = [
            at
            for at, (kind, _, said) in enumerate(found)
            if kind == "write" and '\\"token\\"' in said
        ]
        return [(kind, count) for kind, count, _ in found[notes[0] : notes[1] + 2]]

    def killed(self, kind, count):
        self.run("-e", f"trace={kind}", "-e", f"inject={kind}:signal=KILL:when={count}")

    def queued(self):
        return {one.id for one in client.queue()}


@each
@pytest.mark.timeout(1200)
def test_a_check_killed_at_any_call_leaves_no_job_behind(once, every, monkeypatch):
    """ReFrame and hpcdl die; the next run finds what was sent, by its token, and cancels it."""
    pytest.importorskip("reframe", reason="ReFrame is not installed")
    for name in ("PATH", "SLURM_CONF"):  # this process looks at the queue, too
        monkeypatch.setenv(name, once.slurm.env[name])
    check = Check(once)
    points = check.points()
    assert {"symlink", "write", "fsync", "wait4"} <= {kind for kind, _ in points}
    sent = 0
    for kind, count in chosen(points, every):
        before = check.queued()
        check.killed(kind, count)
        found = check.queued() - before
        assert len(found) <= 1, (kind, count, found)
        sweep(check.site)
        sent += len(found)
        wait_for(lambda: not any(one.active for one in client.queue()))
    assert sent, "some were killed after sbatch"
