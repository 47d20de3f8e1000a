"""The manifest of a sweep, sweep.json: what all its points share, and each point's job.

A point's name follows from its values alone. What all of them share is kept beside them, so
that results of another program or partition are never taken for this one's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

from hpcdl.jobs.spec import JobSpec
from hpcdl.results.records import at
from hpcdl.system.errors import BadInput
from hpcdl.system.files import write_json
from hpcdl.system.safe_read import read_regular

_MOST_BYTES = 200_000_000
SCHEMA = 2
Request = Mapping[str, Any]
_FREE = frozenset({"name", "minutes", "account", "qos", "job_dir", "requeues", "preflight", "chain",
                   "trusted_network"})  # fmt: skip
"""What may differ when a sweep is run again: no result follows from it."""


@dataclass(frozen=True)
class Manifest:
    """What sweep.json says; `request` is None where it was not kept."""

    rows: tuple[Mapping[str, Any], ...] = ()
    request: Request | None = None


def request_of(base: JobSpec, modules: Sequence[str] = ()) -> Request:
    """What all points of a sweep share, as far as their results follow from it, as JSON values.

    `modules` are those that the user named: a release that is published meanwhile is no
    reason to run everything again.
    """
    said = {one.name: getattr(base, one.name) for one in fields(base) if one.name not in _FREE}
    said |= {"environment": sorted(base.environment), "modules": modules}
    # As a manifest gives it back, which is what it is compared with: paths and tuples are none.
    request: Request = json.loads(json.dumps({k: v for k, v in said.items() if v}, default=str))
    return request


def check_request(folder: Path, manifest: Manifest, request: Request | None) -> None:
    """Raise BadInput for other jobs than those whose results lie in the directory."""
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
        said = json.loads(read_regular(path, _MOST_BYTES, "sweep.json"))
    except (BadInput, OSError, ValueError, RecursionError) as fault:
        raise BadInput(f"{path} cannot be read", hint=hint) from fault
    if at(said, "schema") != SCHEMA:
        raise BadInput(f"{path} is not of version {SCHEMA}", hint=hint)
    rows, request = said.get("points"), said.get("request")
    if not isinstance(rows, list) or not all(map(_is_row, rows)):
        raise BadInput(f"{path} does not say which point is whose", hint=hint)
    return Manifest(tuple(rows), request if isinstance(request, dict) else None)


def _is_row(row: object) -> bool:
    kinds = {"id": str, "job_id": int | None, "task": int | None, "token": str | None}
    known = all(isinstance(at(row, name), kind) for name, kind in kinds.items())
    return known and (at(row, "token") is None or isinstance(at(row, "directory"), str))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest as a whole."""
    request = {} if manifest.request is None else {"request": dict(manifest.request)}
    said = {"schema": SCHEMA, **request, "points": [dict(row) for row in manifest.rows]}
    write_json(folder / "sweep.json", said)


def embedded_cluster() -> str:
    """The embedded cluster whose Slurm is asked, as 8 digits: its job ids are its own; else ''."""
    cluster = Path(os.environ.get("SLURM_CONF") or "/").parent.parent
    there = (cluster / ".hpcdl-cluster").is_file()
    return sha256(bytes(cluster)).hexdigest()[:8] if there else ""


def of_this_cluster(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those points of a sweep whose jobs are of the Slurm that is asked."""
    here = embedded_cluster()
    return [row for row in rows if (row.get("cluster") or "") == here]
