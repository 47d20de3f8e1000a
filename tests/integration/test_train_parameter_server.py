"""`--strategy parameter-server`: asynchronous, and it outlives whoever is killed."""

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = pytest.mark.stack


def members(job: Path) -> Iterator[tuple[str, int]]:
    """Kind with index, and pid, of the members of a run that works in a directory."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            said = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            if b"hpcdl.train" in said and str(job).encode() in said:
                text = said.decode(errors="replace")
                found = re.search(r'"type": "(\w+)", "index": (\d+)', text)
                if found:
                    yield f"{found[1]} {found[2]}", int(process.name)


def words(digits: Path, *more: str) -> tuple[str, ...]:
    return ("--strategy=parameter-server", "--data", str(digits), *more)


def test_it_trains_and_says_how_late_gradients_came(runs, digits):
    done = runs.train(*words(digits, "--epochs=12", "--optimizer=adam", "--servers=2"), ranks=2)
    assert done.code == 0, done.err
    result = done.result
    assert result["summary"]["metrics"]["accuracy"] > 0.9
    assert result["asynchronous"]["workers"] == result["asynchronous"]["servers"] == 2
    assert result["asynchronous"]["max_staleness"] > 0
    assert result["layout"]["ranks"] == 2
    assert not list(members(done.folder)), "everybody has left"


@pytest.mark.long
def test_a_killed_worker_server_and_chief_end_nothing(runs, digits):
    asked = ("--epochs=40", "--delay-ms=25", "--checkpoint-every=40")
    process = runs.start(*words(digits, *asked), ranks=2)

    def kill(member: str) -> None:
        step = max((runs.folder / "job/checkpoints").glob("step-*.ckpt"))
        os.kill(dict(members(runs.folder / "job"))[member], signal.SIGKILL)
        deadline = time.monotonic() + 200
        while max((runs.folder / "job/checkpoints").glob("step-*.ckpt")) <= step:
            assert time.monotonic() < deadline, f"no further checkpoint without {member}"
            time.sleep(0.05)

    runs.wait_for("checkpoints/step-*.ckpt")
    for member in ("worker 1", "ps 0", "chief 0"):
        kill(member)
    done = runs.end(process)
    assert done.code == 0, done.err
    assert done.result["summary"]["metrics"]["accuracy"] > 0.9
    begun = [segment["first_step"] for segment in done.result["segments"]]
    assert len(begun) == 3, "the server and the chief took the chief's place in the steps"
    assert begun[0] == 0 < begun[1] < begun[2]
    assert "was killed by signal 9; it starts again" in done.err
    assert "a parameter server was lost, with its weights" in done.err


@pytest.mark.parametrize(
    ("more", "env", "said"),
    [
        (("--xla", "--precision=fp16"), {}, "--xla, --precision fp16 cannot be had with"),
        ((), {"HPCDL_TRUSTED_NETWORK": "0"}, "asks nobody for a password"),
        ((), {"TF_CONFIG": "no JSON"}, "TF_CONFIG is not the JSON of a cluster"),
    ],
    ids=["unfit", "not-trusted", "bad-config"],
)
def test_what_cannot_be_is_one_error(runs, digits, more, env, said):
    done = runs.train(*words(digits, *more), **env)
    assert done.code in (2, 3)
    assert said in done.err
    assert "Traceback" not in done.err
