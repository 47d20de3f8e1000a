"""What a machine has to have for its role on a cluster: `hpcdl doctor --role`.

facts/packages.yaml says which packages and which questions a role has. A question is a function of
`_Here`, which looks once at what several ask for: the site file and the live Slurm. The answer is a
`Finding`, or nothing where the question does not arise. None of them changes anything.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from hpcdl.site import Site, find_site_file, load_site
from hpcdl.site.live import LiveCluster, look
from hpcdl.site.model import Partition
from hpcdl.site.site_drift import compare
from hpcdl.slurm import client, execution
from hpcdl.slurm.hostlist import expand_hostlist
from hpcdl.stack.release import release_for
from hpcdl.system.errors import HpcdlError
from hpcdl.system.run import run

_T = TypeVar("_T")


@dataclass(frozen=True)
class Finding:
    """One thing that a purpose or role needs: where it is, which version, or how to get it."""

    purpose: str
    name: str
    required: bool
    found: str | None
    version: str
    remedy: str


class _Unasked(Exception):
    """What a question is about is not there, and another question says so."""


def _or_fault(ask: Callable[[], _T]) -> _T | HpcdlError:
    try:
        return ask()
    except HpcdlError as fault:
        return fault


def _there(found: _T | HpcdlError) -> _T:
    if isinstance(found, HpcdlError):
        raise _Unasked
    return found


@dataclass(frozen=True)
class _Here:
    """This machine in its role, and what several questions are about."""

    role: str
    given: str | None

    @cached_property
    def tried_site(self) -> Site | HpcdlError:
        return _or_fault(lambda: load_site(find_site_file(self.given)))

    @cached_property
    def tried_cluster(self) -> LiveCluster | HpcdlError:
        return _or_fault(look)

    @property
    def site(self) -> Site:
        return _there(self.tried_site)

    @property
    def cluster(self) -> LiveCluster:
        return _there(self.tried_cluster)

    @cached_property
    def partition(self) -> Partition | None:
        """The partition of this node, where it is one of the site's."""
        name = os.environ.get("SLURMD_NODENAME") or os.uname().nodename.split(".")[0]
        parts = [group for one in self.site.partitions.values() for group in one.node_groups]
        inside = (one for one in parts if one.hostlist and name in expand_hostlist(one.hostlist))
        return next(inside, self.site.partitions.get(os.environ.get("SLURM_JOB_PARTITION", "")))

    def ok(self, name: str, found: object, version: str = "") -> Finding:
        return Finding(self.role, name, True, str(found), version, "")

    def lack(self, name: str, remedy: str, *, required: bool = True) -> Finding:
        return Finding(self.role, name, required, None, "", remedy)


def answers(role: str, questions: list[str], given: str | None) -> Iterator[Finding]:
    """The answers to a role's questions, in their order."""
    here = _Here(role, given)
    for question in questions:
        try:
            yield QUESTIONS[question](here)
        except _Unasked:
            continue


def _slurm(here: _Here) -> Finding:
    found = here.tried_cluster
    if isinstance(found, HpcdlError):
        return here.lack("Slurm", found.in_one_line())
    return here.ok("Slurm", f"answers: {found.name}", found.version)


def _site(here: _Here) -> Finding:
    site, slurm = here.tried_site, here.tried_cluster
    if isinstance(site, HpcdlError):
        return here.lack("site file", site.in_one_line())
    if isinstance(slurm, LiveCluster) and (differ := compare(site, slurm)):
        keys = ", ".join(one.key for one in differ[:3])
        return here.lack("site file", f"it differs from Slurm in {keys}: `hpcdl site check`")
    return here.ok("site file", site.source)


def _pmix(here: _Here) -> Finding:
    name = here.site.slurm.mpi
    if name not in (*here.cluster.mpi_plugins, "none"):
        remedy = f"`srun --mpi=list` has no {name}: set `slurm.mpi`, or install Slurm's plug-in"
        return here.lack("MPI plug-in", remedy)
    return here.ok("MPI plug-in", f"srun --mpi={name}")


def _accounting(here: _Here) -> Finding:
    if here.cluster.accounting:
        return Finding(here.role, "accounting", False, "slurmdbd", "", "")
    without = "without slurmdbd there are no `job usage` and no memory of old jobs"
    return here.lack("accounting", without, required=False)


def _all_jobs(here: _Here) -> Finding:
    if here.cluster and client.sees_all_jobs():
        return here.ok("everybody's jobs", "shown to this user")
    remedy = "`stack gc` needs them: sacctmgr modify user NAME set AdminLevel=Operator"
    return here.lack("everybody's jobs", remedy)


def _modules(here: _Here) -> Finding:
    init = here.site.paths.lmod_init
    if init.is_file():
        return here.ok("Lmod", init)
    return here.lack("Lmod", f"there is no {init}: install Lmod, or set `paths.lmod_init`")


def _existing(path: Path) -> Path:
    """A path, or the nearest above it that exists."""
    return next(one for one in (path, *path.parents) if one.exists())


def _prefix(here: _Here) -> Finding:
    prefix, writes = here.site.paths.prefix, here.role == "admin"
    place = _existing(prefix) if writes else prefix
    if os.access(place, os.R_OK | os.X_OK | (os.W_OK if writes else 0)):
        return here.ok("prefix", prefix)
    remedy = "make it, or use the account that owns it" if writes else "is it mounted here?"
    return here.lack("prefix", f"{prefix} cannot be {'written' if writes else 'read'}: {remedy}")


def _work(here: _Here) -> Finding:
    place = _existing(here.site.paths.work)
    if os.access(place, os.W_OK | os.X_OK):
        return here.ok("work directory", here.site.paths.work)
    return here.lack("work directory", f"you cannot write in {place}: set `paths.work`")


def _release(here: _Here) -> Finding:
    part = here.partition.name if here.partition else here.site.default_partition
    try:
        release = release_for(here.site, part)
    except HpcdlError as fault:
        return here.lack("release", fault.in_one_line())
    if release is None:
        how = "none is published: the admin's `hpcdl stack build` and `hpcdl stack publish`"
        return here.lack("release", how, required=here.role != "admin")
    return here.ok("release", release.id, release.versions.get("tensorflow", ""))


def _scratch(here: _Here) -> Finding:
    if here.partition is None:
        remedy = "no partition of the site file has this node in its `hostlist`: --site, `hostlist`"
        return here.lack("partition", remedy)
    scratch = here.partition.scratch
    place = os.path.expandvars(scratch.path) if scratch else tempfile.gettempdir()
    if os.access(place, os.W_OK | os.X_OK):
        return here.ok("scratch", place, f"{shutil.disk_usage(place).free // 10**9} GB free")
    return here.lack("scratch", f"{place} cannot be written: `scratch.path` of the partition")


def _driver(here: _Here) -> Finding:
    """Of a node with GPUs; an emulated one has none."""
    if here.partition is None or here.partition.gpu is None:
        raise _Unasked
    answers = isinstance(here.tried_cluster, LiveCluster)
    if answers and execution.current() is execution.SINGLE_NODE:
        return here.lack("GPU driver", "emulated nodes have none", required=False)
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = run(query, check=False, timeout=20)
    except HpcdlError as fault:
        return here.lack("GPU driver", fault.in_one_line())
    lines = said.stdout.split()
    if not said.ok or not lines:
        return here.lack("GPU driver", "nvidia-smi shows no GPU: is the driver loaded?")
    wanted = here.partition.gpus_per_node
    if len(lines) < wanted and "SLURM_JOB_ID" not in os.environ:
        return here.lack("GPU driver", f"{len(lines)} GPUs answer, the site file has {wanted}")
    return here.ok("GPU driver", f"{len(lines)} GPUs", lines[0])


QUESTIONS: Mapping[str, Callable[[_Here], Finding]] = {
    "slurm": _slurm, "site": _site, "pmix": _pmix, "accounting": _accounting,
    "all_jobs": _all_jobs, "modules": _modules, "prefix": _prefix, "work": _work,
    "release": _release, "scratch": _scratch, "driver": _driver,
}  # fmt: skip
