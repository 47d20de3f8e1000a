"""Recover or revoke, by token, submissions whose job id was never written.

Ids count from 1 on every cluster: `embedded_cluster` names the cluster of a job.

When a job starts it makes the link DIRECTORY/.job-TOKEN to its own id. A link is made once, whole,
by whoever comes first: a second job of the same token ends there, and so does each job of a token
that was revoked, whose link leads to 0. So a submission runs once or never, however late it is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from hpcdl.slurm import client, once
from hpcdl.system.files import explain_os_errors

_REVOKED = "0"
_MOMENT_SECONDS = 5.0


def _started(folder: Path, token: str) -> int | None:
    """The job that took a token; None where none did."""
    with suppress(OSError, ValueError):
        return int(os.readlink(folder / f".job-{token}")) or None  # noqa: PTH115 - no path
    return None


def revoke(folder: Path, token: str) -> int | None:
    """Let no job of this token run; the id of one that has begun already."""
    with explain_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            (folder / f".job-{token}").symlink_to(_REVOKED)
    return _started(folder, token)


def locate(submissions: Mapping[str, Sequence[Path]], since: float | None = None) -> dict[str, int]:
    """The jobs of tokens, each with the directories that its job or its tasks would run in.

    Of several jobs of one token, all but the one that counts are cancelled. With `since` (epoch),
    when sbatch was called last, what a killed one sent is given a moment to arrive.

    Raises:
        SlurmAway: Slurm does not answer, so it is unknown.
    """
    found = _located(submissions)
    if since is not None and len(found) < len(submissions):
        time.sleep(min(_MOMENT_SECONDS, max(0.0, since + _MOMENT_SECONDS - time.time())))
        found = _located(submissions)
    return found


def _located(submissions: Mapping[str, Sequence[Path]]) -> dict[str, int]:
    job_ids: dict[str, int] = {}
    queued = once.by_token(submissions)
    queued |= once.accounted(submissions.keys() - queued)
    for token, folders in submissions.items():
        ids = queued.get(token, ())
        began = next((job for folder in folders if (job := _started(folder, token))), None)
        if began or ids:
            job_ids[token] = began or ids[0]
            client.cancel([job for job in ids if job != job_ids[token]])
    return job_ids


def links(folder: Path) -> Iterator[tuple[Path, Path]]:
    """This user's links of a directory, and where they lead."""
    with suppress(OSError):
        for entry in sorted(folder.iterdir()):
            with suppress(OSError):
                if entry.is_symlink() and entry.lstat().st_uid == os.geteuid():
                    yield entry, folder / os.readlink(entry)  # noqa: PTH115 - no path


def embedded_cluster() -> str:
    """The embedded cluster whose Slurm is asked, as 8 digits: its job ids are its own; else ''."""
    cluster = Path(os.environ.get("SLURM_CONF") or "/").parent.parent
    try:
        mark = (cluster / ".hpcdl-cluster").read_bytes()  # with the random part of its name
    except OSError:
        return ""
    return sha256(bytes(cluster) + mark).hexdigest()[:8]


def of_this_cluster(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the points of a sweep whose jobs belong to this Slurm."""
    here = embedded_cluster()
    return [row for row in rows if (row.get("cluster") or "") == here]
