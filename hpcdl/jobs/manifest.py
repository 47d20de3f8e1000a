"""The manifest of a sweep, sweep.json: which job and task runs which point, and what all share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hpcdl.slurm.once import embedded_cluster, locate
from hpcdl.system.errors import BadInput
from hpcdl.system.files import read_regular, write_json

_MOST_BYTES = 200_000_000
_SCHEMA = 2
Common = Mapping[str, Any]
"""What all points of a sweep share, and their results depend on."""
_KINDS = {"values": dict, "job_id": int, "task": int, "exit_code": int}


class RunStatus(NamedTuple):
    """A point of a sweep, its status, and the task that runs it: a row of the manifest.

    `job_id` is None where no job was submitted, or where only the `token` of one is known.
    `problem` is why the point cannot run. A failed point has its program's exit code. `cluster` is
    the embedded cluster that the job is of, '' for another. `waits_for` is the limit of Slurm that
    kept a missing point from being queued.
    """

    id: str
    values: Mapping[str, str]
    directory: str
    problem: str = ""
    state: str = ""
    job_id: int | None = None
    task: int | None = None
    token: str | None = None
    cluster: str = ""
    exit_code: int | None = None
    waits_for: str = ""

    @property
    def unconfirmed(self) -> bool:
        """Whether a command was stopped between writing down its token and its job."""
        return bool(self.token) and self.job_id is None

    @property
    def log(self) -> Path | None:
        """The log of its last run."""
        logs = Path(self.directory).parents[1] / "logs"
        return None if self.job_id is None else logs / f"{self.job_id}_{self.task or 0}.log"


@dataclass
class Manifest:
    """The content of a sweep's sweep.json: the points by id; `request` is None if it was not kept.

    Its owner alone reads it: the request has the values of variables.
    """

    folder: Path
    rows: dict[str, RunStatus]
    request: Common | None = None

    def write(self) -> None:
        """Write it as a whole."""
        request = {} if self.request is None else {"request": dict(self.request)}
        points = [row._asdict() for row in self.rows.values()]
        content = {"schema": _SCHEMA, **request, "points": points}
        write_json(self.folder / "sweep.json", content, mode=0o600)


def _shown(value: object) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value or "none")
    return text if len(text) <= 100 else f"{text[:97]}..."


def read_manifest(folder: Path, request: Common | None = None) -> Manifest:
    """The manifest of a sweep, empty where there is none.

    Raises BadInput: it cannot be read, or is of another `request`, so that the directory holds
    results of other jobs.
    """
    path, document = folder / "sweep.json", dict[str, Any]()
    try:
        if path.exists():
            document = json.loads(read_regular(path, _MOST_BYTES, "sweep.json"))
            if document["schema"] != _SCHEMA:
                raise ValueError("another version")
        rows = {row.id: row for row in map(_row, document.get("points", ()))}
    except (BadInput, OSError, ValueError, TypeError, LookupError, RecursionError) as fault:
        hint = f"take {folder} away to start over"
        raise BadInput(f"{path} is no manifest of version {_SCHEMA}", hint=hint) from fault
    was = document.get("request") if isinstance(document.get("request"), dict) else None
    if was is not None and request is not None and was != request:
        keys = [key for key in dict.fromkeys((*was, *request)) if was.get(key) != request.get(key)]
        raise BadInput(
            f"the sweep '{folder.name}' was begun with other jobs",
            details=[
                f"{key}: {_shown(was.get(key))}, now {_shown(request.get(key))}" for key in keys
            ],
            hint=f"give this one another --name, or take {folder} away to start over",
        )
    return Manifest(folder, rows, request or was)


def _row(entry: Any) -> RunStatus:
    own = {key: entry[key] for key in RunStatus._fields if key in entry and entry[key] is not None}
    if all(isinstance(value, _KINDS.get(key, str)) for key, value in own.items()):
        return RunStatus(**own)
    raise TypeError(f"{entry} is no point of a sweep")


def of_this_cluster(rows: Iterable[RunStatus]) -> list[RunStatus]:
    """Return the points of a sweep whose jobs belong to this Slurm."""
    here = embedded_cluster()
    return [row for row in rows if row.cluster == here]


def located(rows: Iterable[RunStatus], since: float | None = None) -> tuple[RunStatus, ...]:
    """The points with the jobs that are found by their tokens; `since` as in `locate`."""
    rows, lost = tuple(rows), dict[str, list[Path]]()
    for row in rows:
        if row.unconfirmed:
            lost.setdefault(str(row.token), []).append(Path(row.directory))
    known = locate(lost, since)
    return tuple(
        row._replace(job_id=known.get(str(row.token))) if row.unconfirmed else row for row in rows
    )
