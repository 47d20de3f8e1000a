"""`cluster.json`: what runs below a state directory. Written atomically, checked on reading."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpcdl.cluster.model import ClusterState, Node, ProcessId
from hpcdl.site import Site
from hpcdl.system.errors import BadInput, HpcdlError
from hpcdl.system.files import clear_leftovers, write_atomic, write_json
from hpcdl.system.resources import home
from hpcdl.system.trust import require_no_stranger, require_private

_FILE = "cluster.json"
MARK = ".hpcdl-cluster"


def state_directory(site: Site) -> Path:
    """Where the cluster of a site lies: HPCDL_CLUSTER_DIR, else home()/cluster/NAME."""
    return chosen_directory() or home("cluster") / site.name


def chosen_directory() -> Path | None:
    """HPCDL_CLUSTER_DIR as an absolute path without links, where it is set.

    Raises:
        MissingPrerequisite: somebody else can change where it leads.
    """
    chosen = os.environ.get("HPCDL_CLUSTER_DIR")
    return require_no_stranger(Path(chosen).expanduser()).resolve() if chosen else None


def claim(directory: Path) -> None:
    """Mark a directory as a cluster's, under its lock: only in such a one is anything removed."""
    clear_leftovers(directory / MARK)
    write_atomic(directory / MARK, "An embedded cluster's state; see `hpcdl cluster`.\n")


def is_ours(directory: Path) -> bool:
    """Whether a directory was made by `hpcdl cluster up`."""
    return (directory / MARK).is_file() or (directory / _FILE).is_file()


def is_ours_or_empty(directory: Path) -> bool:
    """Whether `up` may use a directory: a cluster's, an empty one, or none yet.

    Another `up` may claim it meanwhile: what is there is listed before it is asked whose it is.
    One that was killed while it claimed the directory leaves the mark under its temporary name.
    """
    try:
        names = [entry.name for entry in directory.iterdir()]
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return False
    begun = all(name == "lock" or name.startswith((MARK, f".{MARK}.")) for name in names)
    return begun or is_ours(directory)


def write_state(state: ClusterState) -> ClusterState:
    """Write `cluster.json` and give the state back."""
    data = {key: str(value) if isinstance(value, Path) else value
            for key, value in asdict(state).items()}  # fmt: skip
    write_json(state.directory / _FILE, {"schema": 1, **data})
    return state


def read_state(directory: Path) -> ClusterState | None:
    """The state below `directory`; None where no cluster is recorded.

    Raises:
        BadInput: the file is damaged or of another version.
        MissingPrerequisite: others can change it or its directory.
    """
    path = directory / _FILE
    if not path.exists():
        return None
    # What it names is executed, by root as well: `etc/`, Slurm's commands, the root file system.
    require_private(directory)
    require_private(path)
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if data.pop("schema") != 1:
            raise ValueError("another version")
        nodes = tuple(Node(**node) for node in data["nodes"])
        running = {name: ProcessId(**one) for name, one in data["processes"].items()}
        paths = {key: Path(data[key]) for key in ("directory", "site_file", "prefix", "lmod_init")}
        data |= {**paths, "nodes": nodes, "processes": running}
        data |= {key: tuple(data[key]) for key in ("killed", "cut")}
        data["root"] = Path(data["root"]) if data.get("root") else None
        return ClusterState(**data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        why = "it is nested too deep" if isinstance(fault, RecursionError) else fault
        hint = "`hpcdl cluster down` stops what is left and removes it"
        raise BadInput(f"{path} is not a cluster's state ({why})", hint=hint) from fault


def all_states() -> list[ClusterState]:
    """The clusters below home(); damaged ones and those of others are left out."""
    found = []
    for path in sorted((home() / "cluster").glob(f"*/{_FILE}")):
        try:
            state = read_state(path.parent)
        except HpcdlError:
            continue
        found += [state] if state else []
    return found


def forget(directory: Path) -> None:
    """Remove the record of a cluster."""
    (directory / _FILE).unlink(missing_ok=True)
