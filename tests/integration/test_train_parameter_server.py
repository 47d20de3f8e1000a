"""`--strategy parameter-server`: asynchronous, and it outlives whoever is killed."""

import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.waiting import wait_for

pytestmark = pytest.mark.stack
SERVERS = "--strategy=parameter-server"


def members(job):
    """Kind with index, and pid, of the members of a run that works in a directory."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            said = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            if b"hpcdl.train" in said and str(job).encode() in said:
                found = re.search(r'"type": "(\w+)", "index": (\d+)', said.decode(errors="replace"))
                if found:
                    yield f"{found[1]} {found[2]}", int(process.name)


def kill(job, *names):
    """Kill members of a run, each once there is a newer checkpoint than at the kill before."""

    def newest():
        steps = [int(path.stem[5:]) for path in (job / "checkpoints").glob("step-*.ckpt")]
        return max(steps, default=0)

    wait_for(newest, 240)
    for name in names:
        before = newest()
        os.kill(dict(members(job))[name], signal.SIGKILL)
        wait_for(lambda before=before: newest() > before, 200)


def test_it_trains_and_says_how_late_gradients_came(runs):
    done = runs.learn(SERVERS, "--epochs=12", "--optimizer=adam", "--servers=2", ranks=2)
    result = done.result
    assert done.metrics["accuracy"] > 0.9
    assert result["asynchronous"]["workers"] == result["asynchronous"]["servers"] == 2
    assert result["asynchronous"]["max_staleness"] > 0
    assert result["layout"]["ranks"] == 2
    assert not list(members(done.folder)), "everybody has left"


@pytest.mark.long
def test_a_killed_worker_server_and_chief_end_nothing(runs):
    asked = (SERVERS, "--epochs=40", "--delay-ms=25", "--checkpoint-every=40")
    process = runs.start("--data", str(runs.digits), *asked, ranks=2)
    kill(runs.folder / "job", "worker 1", "ps 0", "chief 0")
    says = ("was killed by signal 9; it starts again", "server was lost, with its weights")
    done = runs.end(process).must(0, *says)
    assert done.metrics["accuracy"] > 0.9
    begun = [segment["first_step"] for segment in done.result["segments"]]
    assert len(begun) == 3, "the server and the chief took the chief's place in the steps"
    assert begun[0] == 0 < begun[1] < begun[2]


@pytest.mark.parametrize(
    ("more", "env", "code", "said"),
    [
        (("--xla", "--precision=fp16"), {}, 2, "--xla, --precision fp16 cannot be had with"),
        ((), {"HPCDL_TRUSTED_NETWORK": "0"}, 3, "asks nobody for a password"),
        ((), {"TF_CONFIG": "no JSON"}, 2, "TF_CONFIG is not the JSON of a cluster"),
    ],
    ids=["unfit", "not-trusted", "bad-config"],
)
def test_what_cannot_be_is_one_error(runs, more, env, code, said):
    runs.learn(SERVERS, *more, code=code, says=said, **env)
