"""Slurm's commands are called alike whoever calls, and their answers are told apart."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcdl.slurm import client
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.run import CommandFailed

Command = Callable[[str, str], None]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Puts a command of this body first on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def write(name: str, body: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)

    return write


def test_times_have_one_form_whatever_the_caller_likes(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    command("scontrol", 'echo "format = $SLURM_TIME_FORMAT"')
    assert client.config() == {"format": "standard"}


_GONE = "scancel: error: Kill job error on job id 7: Invalid job id specified"
_ENDED = "scancel: error: Kill job error on job id 8: Job/step already completing or completed"


@pytest.mark.parametrize("said", [_GONE, _ENDED, f"{_GONE}\n{_ENDED}"])
def test_to_cancel_what_has_ended_is_no_error(command: Command, said: str) -> None:
    command("scancel", f"echo '{said}' >&2; exit 1")
    client.cancel([7, 8])


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (f"{_GONE}\nscancel: error: Kill job error on job id 8: Access/permission denied",
         CommandFailed),
        ("", CommandFailed),
        (
            "scancel: error: Unable to contact slurm controller (connect failure)",
            MissingPrerequisite,
        ),
    ],
)  # fmt: skip
def test_a_job_that_could_not_be_cancelled_is_told(
    command: Command, said: str, error: type[Exception]
) -> None:
    command("scancel", f"echo '{said}' >&2; exit 1" if said else "exit 1")
    with pytest.raises(error):
        client.cancel([7, 8])


# What `sbatch --test-only` answers: no to what can never run, not to what has to wait.


def answering(folder: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    """An sbatch that refuses with these words."""
    said = f'#!/bin/sh\necho "allocation failure: {words}" >&2\nexit 1\n'
    (folder / "sbatch").write_text(said)
    (folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    "words",
    [
        "Requested node configuration is not available",
        "Requested nodes are busy",
        "Required node not available (down, drained or reserved)",
    ],
)
def test_a_job_that_would_wait_for_nodes_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    answering(tmp_path, monkeypatch, words)
    client.would_run(tmp_path / "job.sh")


def test_any_other_refusal_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(tmp_path, monkeypatch, "Invalid account or account/partition combination specified")
    with pytest.raises(BadInput) as caught:
        client.would_run(tmp_path / "job.sh")
    assert "Invalid account" in "".join(caught.value.details)
