"""What a machine has to have for its role on a cluster: `hpcdl doctor --role`.

facts/packages.yaml says which packages and which questions a role has. A question is a function of
`Here`, which looks once at what several ask for: the site file and the live Slurm. The answer is a
`Finding`, or nothing where the question does not arise. None of them changes anything.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from hpcdl.site import Site, find_site_file, load_site
from hpcdl.site.live import LiveCluster, compare, look
from hpcdl.site.model import Partition
from hpcdl.slurm import client, execution
from hpcdl.slurm.hostlist import expand_hostlist
from hpcdl.stack.release import release_for
from hpcdl.system.errors import HpcdlError
from hpcdl.system.run import run


@dataclass(frozen=True)
class Finding:
    """One thing that a purpose or role needs: where it is, which version, or how to get it."""

    purpose: str
    name: str
    required: bool
    found: str | None
    version: str
    remedy: str


@dataclass(frozen=True)
class Here:
    """This machine, and what several questions are about."""

    given: str | None

    @cached_property
    def site(self) -> Site | HpcdlError:
        """The site, or why there is none."""
        try:
            return load_site(find_site_file(self.given))
        except HpcdlError as fault:
            return fault

    @cached_property
    def cluster(self) -> LiveCluster | HpcdlError:
        """The live Slurm, or why it does not answer."""
        try:
            return look()
        except HpcdlError as fault:
            return fault

    @cached_property
    def partition(self) -> Partition | None:
        """The partition of this node, where it is one of the site's."""
        if isinstance(self.site, HpcdlError):
            return None
        name = os.environ.get("SLURMD_NODENAME") or os.uname().nodename.split(".")[0]
        parts = [group for one in self.site.partitions.values() for group in one.node_groups]
        inside = (one for one in parts if one.hostlist and name in expand_hostlist(one.hostlist))
        return next(inside, self.site.partitions.get(os.environ.get("SLURM_JOB_PARTITION", "")))


def answers(role: str, questions: list[str], given: str | None) -> Iterator[Finding]:
    """The answers to a role's questions, in their order."""
    here = Here(given)
    for question in questions:
        found = QUESTIONS[question](role, here)
        if found is not None:
            yield found


def _ok(role: str, name: str, found: object, version: str = "") -> Finding:
    return Finding(role, name, True, str(found), version, "")


def _lack(role: str, name: str, remedy: str) -> Finding:
    return Finding(role, name, True, None, "", remedy)


def _slurm(role: str, here: Here) -> Finding:
    if isinstance(here.cluster, HpcdlError):
        return _lack(role, "Slurm", here.cluster.in_one_line())
    return _ok(role, "Slurm", f"answers: {here.cluster.name}", here.cluster.version)


def _site(role: str, here: Here) -> Finding:
    if isinstance(here.site, HpcdlError):
        return _lack(role, "site file", here.site.in_one_line())
    if isinstance(here.cluster, LiveCluster) and (differ := compare(here.site, here.cluster)):
        keys = ", ".join(one.key for one in differ[:3])
        return _lack(role, "site file", f"it differs from Slurm in {keys}: `hpcdl site check`")
    return _ok(role, "site file", here.site.source)


def _pmix(role: str, here: Here) -> Finding | None:
    if isinstance(here.site, HpcdlError) or isinstance(here.cluster, HpcdlError):
        return None
    name, known = here.site.slurm.mpi, here.cluster.mpi_plugins
    if name not in (*known, "none"):
        remedy = f"`srun --mpi=list` has no {name}: set `slurm.mpi`, or install Slurm's plug-in"
        return _lack(role, "MPI plug-in", remedy)
    return _ok(role, "MPI plug-in", f"srun --mpi={name}")


def _accounting(role: str, here: Here) -> Finding | None:
    if isinstance(here.cluster, HpcdlError):
        return None
    found = "slurmdbd" if here.cluster.accounting else None
    without = "without slurmdbd there are no `job usage` and no memory of old jobs"
    return Finding(role, "accounting", False, found, "", "" if found else without)


def _all_jobs(role: str, here: Here) -> Finding | None:
    if isinstance(here.cluster, HpcdlError):
        return None
    if client.sees_all_jobs():
        return _ok(role, "everybody's jobs", "shown to this user")
    remedy = "`stack gc` needs them: sacctmgr modify user NAME set AdminLevel=Operator"
    return _lack(role, "everybody's jobs", remedy)


def _modules(role: str, here: Here) -> Finding | None:
    if isinstance(here.site, HpcdlError):
        return None
    init = here.site.paths.lmod_init
    if init.is_file():
        return _ok(role, "Lmod", init)
    return _lack(role, "Lmod", f"there is no {init}: install Lmod, or set `paths.lmod_init`")


def _prefix(role: str, here: Here) -> Finding | None:
    if isinstance(here.site, HpcdlError):
        return None
    prefix = here.site.paths.prefix
    writes = role == "admin"
    place = next(one for one in (prefix, *prefix.parents) if one.exists()) if writes else prefix
    if os.access(place, os.R_OK | os.X_OK | (os.W_OK if writes else 0)):
        return _ok(role, "prefix", prefix)
    if writes:
        remedy = f"{prefix} cannot be written: make it, or use the account that owns it"
    else:
        said = "cannot be read" if prefix.exists() else "is not there"
        remedy = f"{prefix} {said}: is it mounted here, and has `hpcdl stack build` made it?"
    return _lack(role, "prefix", remedy)


def _work(role: str, here: Here) -> Finding | None:
    if isinstance(here.site, HpcdlError):
        return None
    work = here.site.paths.work
    place = next(one for one in (work, *work.parents) if one.exists())
    if os.access(place, os.W_OK | os.X_OK):
        return _ok(role, "work directory", work)
    return _lack(role, "work directory", f"you cannot write in {place}: set `paths.work`")


def _release(role: str, here: Here) -> Finding | None:
    if isinstance(here.site, HpcdlError):
        return None
    part = here.partition.name if here.partition else here.site.default_partition
    try:
        release = release_for(here.site, part)
    except HpcdlError as fault:
        return _lack(role, "release", fault.in_one_line())
    if release is None:
        how = "none is published: the admin's `hpcdl stack build` and `hpcdl stack publish`"
        return Finding(role, "release", role != "admin", None, "", how)
    return _ok(role, "release", release.id, release.versions.get("tensorflow", ""))


def _scratch(role: str, here: Here) -> Finding | None:
    if here.partition is None:
        remedy = "no partition of the site file has this node in its `hostlist`"
        return None if isinstance(here.site, HpcdlError) else _lack(role, "partition", remedy)
    scratch = here.partition.scratch
    place = os.path.expandvars(scratch.path) if scratch else tempfile.gettempdir()
    if os.access(place, os.W_OK | os.X_OK):
        return _ok(role, "scratch", place, f"{shutil.disk_usage(place).free // 10**9} GB free")
    return _lack(role, "scratch", f"{place} cannot be written: `scratch.path` of the partition")


def _driver(role: str, here: Here) -> Finding | None:
    """Of a node with GPUs; an emulated one has none."""
    if here.partition is None or here.partition.gpu is None:
        return None
    if isinstance(here.cluster, LiveCluster) and execution.current() is execution.SINGLE_NODE:
        return Finding(role, "GPU driver", False, None, "", "emulated nodes have none")
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = run(query, check=False, timeout=20)
    except HpcdlError as fault:
        return _lack(role, "GPU driver", fault.in_one_line())
    lines = said.stdout.split()
    if not said.ok or not lines:
        return _lack(role, "GPU driver", "nvidia-smi shows no GPU: is the driver loaded?")
    wanted = here.partition.gpus_per_node
    if len(lines) < wanted and "SLURM_JOB_ID" not in os.environ:
        return _lack(role, "GPU driver", f"{len(lines)} GPUs answer, the site file has {wanted}")
    return _ok(role, "GPU driver", f"{len(lines)} GPUs", lines[0])


QUESTIONS: Mapping[str, Callable[[str, Here], Finding | None]] = {
    "slurm": _slurm, "site": _site, "pmix": _pmix, "accounting": _accounting,
    "all_jobs": _all_jobs, "modules": _modules, "prefix": _prefix, "work": _work,
    "release": _release, "scratch": _scratch, "driver": _driver,
}  # fmt: skip
