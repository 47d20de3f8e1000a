"""Which embedded cluster a command means: by --site, HPCDL_SITE or HPCDL_CLUSTER_DIR.

Without any it is the default one. `hpcdl.cluster` itself knows no site file.
"""

from __future__ import annotations

import os
from pathlib import Path

from hpcdl.cluster import state
from hpcdl.cluster.rootfs import original_site
from hpcdl.cluster.shape import ClusterState
from hpcdl.site import Site, find_site_file, load_site
from hpcdl.site.load import installed_site_file
from hpcdl.system.errors import BadInput, CheckFailed

_DEFAULT_SITE = "embedded"


def site_of(given: str | None) -> Site:
    """The site to emulate; the shipped `embedded` one where none is named.

    A shell that used a cluster of another release names that cluster's own file: meant is the
    one it was written from.
    """
    return load_site(original_site(_site_file(given)))


def directory_of(given: str | None) -> Path:
    """The state directory that is meant.

    A cluster whose recorded site file is the one named is found first: so `down` works when
    that file was broken or removed since.
    """
    chosen = state.chosen_directory()
    if chosen is not None:
        return chosen
    try:
        file = _site_file(given).absolute()
    except BadInput:
        # Not Path.expanduser: it raises where `~nosuch` names no user.
        name = given or os.environ.get("HPCDL_SITE") or _DEFAULT_SITE
        file = Path(os.path.expanduser(name)).absolute()  # noqa: PTH111
    for other in state.all_states():
        if other.site_file == file:
            return other.directory
    return state.state_directory(load_site(_site_file(given)))


def running(given: str | None) -> ClusterState:
    """The cluster that is meant, up or broken; CheckFailed without one names others that are up."""
    directory = directory_of(given)
    current = state.read_state(directory)
    if current is None:
        others = [f"{other.site} ({other.directory})" for other in state.all_states()]
        raise CheckFailed(
            f"no cluster is up below {directory}",
            details=[f"up: {other}" for other in others],
            hint="`hpcdl cluster up` starts it"
            + ("; --site FILE chooses another" if others else ""),
        )
    return current


def _site_file(given: str | None) -> Path:
    if given or os.environ.get("HPCDL_SITE"):
        return find_site_file(given)
    return installed_site_file() or find_site_file(_DEFAULT_SITE)
