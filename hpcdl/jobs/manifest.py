"""The manifest of a sweep, sweep.json: which job and task runs which point, and what all share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdl.results.records import at
from hpcdl.slurm.once import embedded_cluster
from hpcdl.system.errors import BadInput
from hpcdl.system.files import read_regular, write_json

_MOST_BYTES = 200_000_000
_SCHEMA = 2
Common = Mapping[str, Any]
"""What all points of a sweep share, and their results depend on."""


@dataclass(frozen=True)
class Manifest:
    """The content of sweep.json; `request` is None if it was not kept."""

    rows: tuple[Mapping[str, Any], ...] = ()
    request: Common | None = None


def check_same_jobs(folder: Path, manifest: Manifest, request: Common | None) -> None:
    """Raise BadInput if the directory holds results of other jobs."""
    was, now = manifest.request, request
    if was is None or now is None or was == now:
        return
    keys = [key for key in dict.fromkeys((*was, *now)) if was.get(key) != now.get(key)]
    raise BadInput(
        f"the sweep '{folder.name}' was begun with other jobs",
        details=[f"{key}: {_shown(was.get(key))}, now {_shown(now.get(key))}" for key in keys],
        hint=f"give this one another --name, or take {folder} away to start over",
    )


def _shown(value: object) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value or "none")
    return text if len(text) <= 100 else f"{text[:97]}..."


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a sweep, empty where there is none; BadInput for an unreadable one."""
    path = folder / "sweep.json"
    hint = f"take {folder} away to start over"
    try:
        if not path.exists():
            return Manifest()
        document = json.loads(read_regular(path, _MOST_BYTES, "sweep.json"))
    except (BadInput, OSError, ValueError, RecursionError) as fault:
        raise BadInput(f"{path} cannot be read", hint=hint) from fault
    if at(document, "schema") != _SCHEMA:
        raise BadInput(f"{path} is not of version {_SCHEMA}", hint=hint)
    rows, request = document.get("points"), document.get("request")
    if not isinstance(rows, list) or not all(map(_is_row, rows)):
        raise BadInput(f"{path} does not say which point is whose", hint=hint)
    return Manifest(tuple(rows), request if isinstance(request, dict) else None)


def _is_row(row: object) -> bool:
    kinds = {"id": str, "job_id": int | None, "task": int | None, "token": str | None}
    known = all(isinstance(at(row, name), kind) for name, kind in kinds.items())
    return known and (at(row, "token") is None or isinstance(at(row, "directory"), str))


def of_this_cluster(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the points of a sweep whose jobs belong to this Slurm."""
    here = embedded_cluster()
    return [row for row in rows if (row.get("cluster") or "") == here]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest as a whole."""
    request = {} if manifest.request is None else {"request": dict(manifest.request)}
    document = {"schema": _SCHEMA, **request, "points": [dict(row) for row in manifest.rows]}
    write_json(folder / "sweep.json", document)
