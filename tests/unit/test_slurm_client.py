"""What `sbatch --test-only` answers: no to what can never run, not to what has to wait."""

import os
from pathlib import Path

import pytest

from hpcdl.slurm import client
from hpcdl.system.errors import BadInput


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
