"""Which cluster is meant: by --site, HPCDL_SITE or HPCDL_CLUSTER_DIR, else the default one."""

from __future__ import annotations

import os
from pathlib import Path

from hpcdl.cluster.model import ClusterState
from hpcdl.cluster.state import all_states, chosen_directory, read_state, state_directory
from hpcdl.site import Site, find_site_file, load_site
from hpcdl.system.errors import BadInput, CheckFailed
from hpcdl.system.resources import home

_DEFAULT_SITE = "embedded"


def site_of(given: str | None) -> Site:
    """The site to emulate; the shipped `embedded` one where none is named.

    A shell that used a cluster of another release names that cluster's own file: meant is the
    one it was written from.
    """
    from hpcdl.cluster.rootfs import original_site

    return load_site(original_site(_site_file(given)))


def directory_of(given: str | None) -> Path:
    """The state directory that is meant.

    A cluster whose recorded site file is the one named is found first: so `down` works when
    that file was broken or removed since.
    """
    chosen = chosen_directory()
    if chosen is not None:
        return chosen
    named = Path(given or os.environ.get("HPCDL_SITE") or _DEFAULT_SITE).expanduser().absolute()
    try:
        file = _site_file(given).absolute()
    except BadInput:
        file = named
    for state in all_states():
        if state.site_file == file:
            return state.directory
    return state_directory(load_site(_site_file(given)))


def running(given: str | None) -> ClusterState:
    """The cluster that is meant, up or broken.

    Raises:
        CheckFailed: there is none; others that are up are named.
    """
    directory = directory_of(given)
    state = read_state(directory)
    if state is None:
        others = [f"{other.site} ({other.directory})" for other in all_states()]
        raise CheckFailed(
            f"no cluster is up below {directory}",
            details=[f"up: {other}" for other in others],
            hint="`hpcdl cluster up` starts it"
            + ("; --site FILE chooses another" if others else ""),
        )
    return state


def _site_file(given: str | None) -> Path:
    if given or os.environ.get("HPCDL_SITE") or (home() / "site.yaml").is_file():
        return find_site_file(given)
    try:
        return find_site_file(None)
    except BadInput:
        return find_site_file(_DEFAULT_SITE)
