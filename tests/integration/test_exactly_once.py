"""Submissions on the real Slurm: killed before any system call, late, garbled, unanswered: once.

strace kills a command where it is about to make its n-th call of a kind that changes something, or
that starts, awaits or reads sbatch. Each such call between the first and the last file of the
submission is a point, none is left to chance; what the command does between two of them changes
nothing. After each kill the same command runs again, and there must be one job.
"""

import json
import os
import re
import shutil
import subprocess
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.conftest import HPCDL
from tests.make.sites import embedded_file
from tests.make.specs import QUICK
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster
KINDS = (
    "rename,unlink,symlink,mkdir,write,pwrite64,ftruncate,fchmod,fsync,flock,"
    "clone,vfork,clone3,execve,poll,wait4"
)


def calls(log):
    """Kind, number within its kind, and arguments of each call that strace wrote down."""
    counts, found = Counter(), []
    for kind, arguments in re.findall(r"^([a-z0-9_]+)\((.*)", log.read_text(), re.M):
        counts[kind] += 1
        found.append((kind, counts[kind], arguments))
    return found


class Once:
    """Runs hpcdl in a site of the test's own, whole or killed at a point."""

    def __init__(self, slurm, folder):
        self.slurm, self.folder, self.work = slurm, folder, folder / "work"
        self.code = 0  # with which the commands of a test end where nothing kills them
        embedded_file(folder, ("$HPCDL_HOME/embedded/work", self.work))

    def argv(self, *words):
        group, command, *rest = words
        return [HPCDL, group, command, "--site", str(self.folder / "site.yaml"), *rest]

    def __call__(self, *words, path=None, code=None):
        """What a command prints; `path` comes first on PATH."""
        first = ["env", f"PATH={path}:{self.slurm.env['PATH']}"] if path else []
        done = self.slurm(*first, *self.argv(*words), check=False, timeout=120)
        wanted = self.code if code is None else code
        assert done.returncode == wanted, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def killed(self, kind, count, *words):
        """Run a command that is killed before its n-th call of a kind; whether it came so far.

        How often it polls and waits is the machine's business; everything else it does each time.
        """
        inject = ["-e", f"trace={kind}", "-e", f"inject={kind}:signal=KILL:when={count}"]
        argv = ["strace", "-o", "/dev/null", *inject, *self.argv(*words)]
        code = self.slurm(*argv, check=False, timeout=120).returncode
        assert code == -9 or (code == self.code and kind in {"poll", "wait4"}), (kind, count, code)
        return code == -9

    def points(self, *words):
        """Kind and number of each call from the first file of a submission to the last one."""
        log = self.folder / "strace"
        argv = ["strace", "-o", str(log), "-s", "200", "-e", f"trace={KINDS}", *self.argv(*words)]
        assert self.slurm(*argv, check=False, timeout=120).returncode == self.code
        found = calls(log)
        ours = [
            at
            for at, (kind, _, said) in enumerate(found)
            if str(self.work) in said and kind != "write"
        ]
        return [(kind, count) for kind, count, _ in found[ours[0] : ours[-1] + 1]]

    def jobs(self, name):
        """What Slurm holds by this name, ended or not."""
        asked = ["squeue", "--all", "--states=all", "--noheader", "--format=%F", "--name", name]
        return sorted({int(one) for one in self.slurm(*asked).stdout.split()})

    def listed(self):
        """What `job list` knows; it must know of nothing unconfirmed."""
        told = self("job", "list", "--json", "--last", "999", code=0)
        return [one["job_id"] for one in json.loads(told)]

    def left(self):
        """What submissions need on their way only."""
        return [
            one
            for one in self.work.rglob("*")
            if "unconfirmed" in one.parent.name
            or one.name.startswith((".job.", ".sweep", ".array"))
        ]


@pytest.fixture
def once(slurm, tmp_path):
    return Once(slurm, tmp_path)


ASKED = ("--no-module", "--file", QUICK, "--partition", "cpu", "--name")
# A job says in its directory that it ran.
RUNS = ("--", "sh", "-c", "echo x >>runs")


def job(name, *options):
    return ["job", "submit", *ASKED, name, "--cpus-per-task", "1", *options, *RUNS]


def sweep(name):
    return ["job", "sweep", *ASKED, name, "--over", "cpus-per-task=1,2", *RUNS]


def runs(folder):
    """What the programs of all jobs below a directory wrote."""
    return [one.read_text() for one in folder.rglob("runs")]


needs_strace = pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")


@needs_strace
@pytest.mark.parametrize("chain", [1, 2])
def test_a_submission_killed_at_any_call_is_one_job(once, chain):
    """Killed, the command is run again: `chain` jobs in all, and `job list` knows the run."""
    options = ["--chain", str(chain)]
    once(*job("first", *options))
    points = once.points(*job("traced", *options))
    assert {"rename", "fsync", "poll", "wait4", "symlink", "unlink"} <= {kind for kind, _ in points}
    for number, (kind, count) in enumerate(points):
        name = f"c{chain}-{number}"
        killed = once.killed(kind, count, *job(name, *options))
        queued = once.jobs(name)
        listed_first = number % 2 and queued  # `job list` settles it, or the command itself
        if killed and not listed_first:
            once(*job(name, *options))
        found = once.jobs(name)
        assert len(found) == (len(queued) if listed_first else chain), (kind, count, queued, found)
        assert found[0] in once.listed(), (kind, count)
    assert once.left() == []
    wait_for(lambda: not once.slurm("squeue", "--me", "--noheader").stdout)
    assert set(runs(once.work)) == {"x\n"}, "nothing ran twice in one directory"


@needs_strace
def test_a_sweep_killed_at_any_call_queues_each_point_once(once):
    once(*sweep("first"))
    for number, (kind, count) in enumerate(once.points(*sweep("traced"))):
        name = f"s{number}"
        once.killed(kind, count, *sweep(name))
        once(*sweep(name))
        found = once.jobs(name)
        assert len(found) == 2, (kind, count, found)
        manifest = json.loads((once.work / "sweeps" / name / "sweep.json").read_text())
        assert sorted(row["job_id"] for row in manifest["points"]) == found, (kind, count)
    wait_for(lambda: not once.slurm("squeue", "--me", "--noheader").stdout)
    assert set(runs(once.work)) == {"x\n"}, "no point ran twice"
    assert once.left() == []


# What stands first on PATH in place of sbatch, or of squeue.

REAL = {name: shutil.which(name) for name in ("sbatch", "squeue")}
AFTER = {
    "a warning stands in the answer": 'echo "sbatch: your quota is nearly used up"; {real} "$@"',
    "it says nothing": '{real} "$@" >/dev/null',
    "it is killed when it has sent the job": '{real} "$@"; kill -9 $$',
    "it fails when it has sent the job": '{real} "$@"; echo "error: Invalid argument" >&2; exit 1',
    "it never answers when it has sent the job": '{real} "$@"; exec sleep 99',
}


def command(folder, name, body):
    folder.mkdir(exist_ok=True)
    asks = 'case "$*" in *--test-only*) exec {real} "$@";; esac'
    (folder / name).write_text(f"#!/bin/sh\n{asks}\n{body}\n".replace("{real}", str(REAL[name])))
    (folder / name).chmod(0o755)
    return folder


@pytest.mark.parametrize("how", AFTER)
def test_a_job_whose_number_does_not_arrive_is_found_at_once(slurm, tmp_path, how):
    """One and an array, side by side: sbatch has half a minute to answer."""
    path = command(tmp_path / "bin", "sbatch", AFTER[how])

    def submitted(what):
        name, folder = f"{what.__name__}{time.time_ns()}", tmp_path / what.__name__
        folder.mkdir()
        once = Once(slurm, folder)
        once(*what(name), path=path)
        found = once.jobs(name)
        assert what is sweep or once.listed() == found
        assert once.left() == []
        return len(found)

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(submitted, (job, sweep))) == [1, 2]


MUTE = 'echo "{real}: error: Socket timed out on send/recv operation" >&2; exit 1'


def test_while_nobody_answers_a_job_is_unconfirmed_and_then_found(once, tmp_path):
    """sbatch sent the job, and neither it nor squeue answers: the record stays, and says so."""
    command(tmp_path / "bin", "sbatch", '{real} "$@" >/dev/null; ' + MUTE)
    path = command(tmp_path / "bin", "squeue", MUTE)
    said = once(*job("mute"), path=path, code=3)
    assert "did not confirm the submission" in said
    assert "the same command again" in said
    assert once(*job("mute"), path=path, code=3).count("does not answer") == 1
    (found,) = once.jobs("mute")
    assert once.listed() == [found]
    wait_for(lambda: runs(once.work) == ["x\n"])


def test_what_was_never_sent_is_listed_as_such_and_submitted_by_the_next_try(once, tmp_path):
    path = command(tmp_path / "bin", "sbatch", MUTE)
    once(*job("never"), path=path, code=3)
    assert "UNCONFIRMED" in once("job", "list")
    (folder,) = (one for one in (once.work / "jobs").glob("never-*"))
    once("job", "report", str(folder), code=3)
    assert "of the same command before" in once(*job("never"))
    assert once.listed() == once.jobs("never")
    assert len(once.jobs("never")) == 1


def test_after_ten_minutes_it_is_withdrawn_and_a_late_job_ends_itself(once, tmp_path):
    """The queue takes the job after all, much later: it finds that nobody waits for it."""
    late = command(tmp_path / "bin", "sbatch", f'echo "$@" >{tmp_path}/sent; {MUTE}')
    once(*job("late"), path=late, code=3)
    (folder,) = (one for one in (once.work / "jobs").glob("late-*"))
    script = (folder / "job.sh").read_text()
    token = (tmp_path / "sent").read_text().split()[-1]
    old = time.time() - 601
    os.utime(folder / "job.json", (old, old))
    said = once("job", "list")
    assert "NOT QUEUED" in said
    assert "submit it again" in said
    assert "NOT QUEUED" not in once("job", "list")
    (tmp_path / "job.sh").write_text(script)
    done = once.slurm("sbatch", "--parsable", "--wait", tmp_path / "job.sh", token, check=False)
    assert (done.returncode, runs(once.work)) == (5, [])
    assert "0: withdrawn" in (folder / "job.log").read_text()


def test_two_jobs_of_one_token_run_once(once, tmp_path):
    """A submission that arrived twice: the second one ends where it would run."""
    twice = '{real} "$@" >/dev/null; {real} "$@"'
    once(*job("twice"), path=command(tmp_path / "bin", "sbatch", twice))
    wait_for(lambda: not once.slurm("squeue", "--me", "--noheader").stdout)
    assert (len(once.jobs("twice")), runs(once.work)) == (2, ["x\n"])


def test_a_refused_job_leaves_nothing(once, tmp_path):
    refused = 'echo "sbatch: error: Invalid qos specification" >&2; exit 1'
    once(*job("no"), path=command(tmp_path / "bin", "sbatch", refused), code=2)
    assert not [one for one in once.work.rglob("*") if not one.is_dir()]
    assert not list((once.work / "jobs").glob("no-*"))
    assert once.listed() == []


@pytest.fixture(autouse=True)
def _free(slurm):
    yield
    subprocess.run(["scancel", "--me"], env=dict(slurm.env), check=False)
