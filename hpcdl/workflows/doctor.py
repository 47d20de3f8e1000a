"""What a role needs, what of it is missing, and the one command that installs the rest.

facts/packages.yaml says which packages, `python` rows and questions a role has; looking for
packages is `hpcdl.system.packages`. Programs are asked for their versions side by side: some take a
second to say it. A question is a function of `Here`, which looks once at what several ask for: the
site file and the live Slurm. The answer is a `Need`, or nothing where the question does not
arise. Nothing here changes anything.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.site import Site, find_site_file, live, load_site
from hpcdl.site.live import LiveCluster
from hpcdl.site.model import Partition
from hpcdl.slurm import client, execution
from hpcdl.slurm.hostlist import expand_hostlist
from hpcdl.stack.release import release_for
from hpcdl.system import nvidia
from hpcdl.system.errors import BadInput, HpcdlError
from hpcdl.system.packages import Package, apt_line, look, version_in
from hpcdl.system.resources import to_install
from hpcdl.system.run import run
from hpcdl.system.text import did_you_mean, table

DEMO = "demo"
"""The default role: the machine on which `make demo` runs."""


@dataclass(frozen=True)
class Need:
    """One thing that a purpose or role needs: where it is, which version, or how to get it."""

    purpose: str
    name: str
    required: bool
    found: str | None
    version: str
    remedy: str


@dataclass(frozen=True)
class Diagnosis:
    """All findings; `apt` installs every missing package that the role needs."""

    findings: tuple[Need, ...]
    apt: str
    apt_optional: str
    role: str

    @property
    def lacking(self) -> tuple[Need, ...]:
        """Return the needs that are required and missing."""
        return tuple(one for one in self.findings if one.required and one.found is None)


def diagnose(role: str = DEMO, site_file: str | None = None) -> Diagnosis:
    """Look at what a role needs: packages, and what Slurm, site and prefix answer."""
    table_of_packages = facts.load("packages")
    roles = table_of_packages["roles"]
    if role not in roles:
        raise BadInput(f"unknown role '{role}'", hint=did_you_mean(role, roles))
    row = roles[role]
    needed, optional = _packages(row["needs"]), _packages(row["optional"])
    modules = [one for one in table_of_packages["python"] if one["purpose"] in row["optional"]]
    with ThreadPoolExecutor(8) as pool:
        packages = [*pool.map(_finding, needed)]
        packages += [replace(one, required=False) for one in pool.map(_finding, optional)]
    python = ".".join(map(str, sys.version_info[:3]))  # one that is too old had not started us
    own = Need("python", "python", True, sys.executable, python, "")
    here = Here(site_file)
    answers = filter(None, [_answer(question, role, here) for question in row["asks"]])
    return Diagnosis(
        findings=(own, *packages, *map(_module, modules), *answers),
        apt=apt_line(needed),
        apt_optional=apt_line(optional),
        role=role,
    )


def as_data(diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis as plain values."""
    return {
        "schema": 1,
        "role": diagnosis.role,
        "complete": not diagnosis.lacking,
        "apt": diagnosis.apt,
        "apt_optional": diagnosis.apt_optional,
        "findings": [vars(one) for one in diagnosis.findings],
    }


def as_text(diagnosis: Diagnosis) -> str:
    """The diagnosis as text: a table, then what to do."""
    parts = [f"{diagnosis.role}:\n{table([*dict.fromkeys(map(_row, diagnosis.findings))])}"]
    remedies = [diagnosis.apt, *(_remedy(need) for need in diagnosis.lacking if need.remedy)]
    todo = [f"  {line}" for line in dict.fromkeys(remedies) if line]
    parts.append("\n".join(["what to do:", *todo]) if todo else "nothing is missing")
    extra = [diagnosis.apt_optional] if diagnosis.apt_optional else []
    extra += [
        _remedy(need)
        for need in diagnosis.findings
        if need.remedy and need.found is None and not need.required
    ]
    if extra:
        parts.append("\n".join(["and what is optional:", *(f"  {line}" for line in extra)]))
    if diagnosis.role == DEMO:
        parts.append("on a cluster: hpcdl doctor --role login, compute or admin")
    return "\n\n".join(parts)


def _remedy(one: Need) -> str:
    """A command as it is; what else to do with the name of what lacks."""
    return one.remedy if " pip install " in one.remedy else f"{one.name}: {one.remedy}"


def _row(one: Need) -> tuple[str, ...]:
    state = one.found or ("MISSING" if one.required else "not there")
    return ("  " + one.name, one.version or "-", state)


def _packages(chosen: Iterable[str]) -> tuple[Package, ...]:
    found = look(facts.load("packages")["packages"], chosen)
    return tuple(_of_this_python(one) if one.purpose == "python" else one for one in found)


def _of_this_python(package: Package) -> Package:
    """A Python that is not the distribution's has its own venv module and headers."""
    header = Path(sysconfig.get_path("include"), "Python.h")
    if package.missing and find_spec("ensurepip") is not None and header.is_file():
        return replace(package, found=Path(sys.base_prefix))
    return package


def _finding(package: Package) -> Need:
    path, version = (str(package.found), "") if package.found else (None, "")
    if package.found is not None and package.version_option is not None:
        with suppress(HpcdlError):
            answer = run([package.found, package.version_option], check=False, timeout=10)
            version = version_in(answer.stdout + answer.stderr)
    elif path:
        version = version_in(path)
    return Need(package.purpose, package.name, True, path, version, "")


def _module(row: dict[str, Any]) -> Need:
    found: tuple[str | None, str] = None, ""
    with suppress(PackageNotFoundError):
        found = "in this Python", version(row["package"])
    return Need(row["purpose"], row["package"], False, *found, to_install(row["extra"]))


def _answer(question: str, role: str, here: Here) -> Need | None:
    """The answer to a question; None if it needs a site or a Slurm that is not there.

    Two questions say so: `slurm` and `site`.
    """
    try:
        return QUESTIONS[question](role, here)
    except HpcdlError:
        return None


@dataclass(frozen=True)
class Here:
    """This machine, and what several questions are about."""

    given: str | None

    @cached_property
    def _site(self) -> Site | HpcdlError:
        try:
            return load_site(find_site_file(self.given))
        except HpcdlError as fault:
            return fault

    @cached_property
    def _cluster(self) -> LiveCluster | HpcdlError:
        try:
            return live.look()
        except HpcdlError as fault:
            return fault

    @property
    def site(self) -> Site:
        """The site; HpcdlError says why there is none."""
        if isinstance(self._site, HpcdlError):
            raise self._site
        return self._site

    @property
    def cluster(self) -> LiveCluster:
        """The live Slurm; HpcdlError says why it does not answer."""
        if isinstance(self._cluster, HpcdlError):
            raise self._cluster
        return self._cluster

    @cached_property
    def partition(self) -> Partition | None:
        """The partition of this node, where it is one of the site's."""
        name = os.environ.get("SLURMD_NODENAME") or os.uname().nodename.split(".")[0]
        parts = [group for one in self.site.partitions.values() for group in one.node_groups]
        inside = (one for one in parts if one.hostlist and name in expand_hostlist(one.hostlist))
        return next(inside, self.site.partitions.get(os.environ.get("SLURM_JOB_PARTITION", "")))


def _ok(role: str, name: str, found: object, version: str = "") -> Need:
    return Need(role, name, True, str(found), version, "")


def _lack(role: str, name: str, remedy: str) -> Need:
    return Need(role, name, True, None, "", remedy)


def _slurm(role: str, here: Here) -> Need:
    try:
        cluster = here.cluster
    except HpcdlError as fault:
        return _lack(role, "Slurm", fault.in_one_line())
    return _ok(role, "Slurm", f"answers: {cluster.name}", cluster.version)


def _site(role: str, here: Here) -> Need:
    try:
        site = here.site
    except HpcdlError as fault:
        return _lack(role, "site file", fault.in_one_line())
    with suppress(HpcdlError):  # without Slurm there is nothing to compare it with
        if differ := live.compare(site, here.cluster):
            keys = ", ".join(one.key for one in differ[:3])
            return _lack(role, "site file", f"it differs from Slurm in {keys}: `hpcdl site check`")
    return _ok(role, "site file", site.source)


def _accounting(role: str, here: Here) -> Need | None:
    found = "slurmdbd" if here.cluster.accounting else None
    without = "without slurmdbd, old jobs are forgotten"
    return Need(role, "accounting", False, found, "", "" if found else without)


def _all_jobs(role: str, here: Here) -> Need | None:
    if client.sees_all_jobs():
        return _ok(role, "everybody's jobs", "shown to this user")
    remedy = "`stack gc` needs them: sacctmgr modify user NAME set AdminLevel=Operator"
    return _lack(role, "everybody's jobs", remedy)


def _modules(role: str, here: Here) -> Need | None:
    init = here.site.paths.lmod_init
    if init.is_file():
        return _ok(role, "Lmod", init)
    return _lack(role, "Lmod", f"there is no {init}: install Lmod, or set `paths.lmod_init`")


def _prefix(role: str, here: Here) -> Need | None:
    prefix = here.site.paths.prefix
    writes = role == "admin"
    place = next(one for one in (prefix, *prefix.parents) if one.exists()) if writes else prefix
    if os.access(place, os.R_OK | os.X_OK | (os.W_OK if writes else 0)):
        return _ok(role, "prefix", prefix)
    if writes:
        remedy = f"{prefix} cannot be written: make it, or use the account that owns it"
    else:
        problem = "cannot be read" if prefix.exists() else "is not there"
        remedy = f"{prefix} {problem}: is it mounted here, and has `hpcdl stack build` made it?"
    return _lack(role, "prefix", remedy)


def _work(role: str, here: Here) -> Need | None:
    work = here.site.paths.work
    place = next(one for one in (work, *work.parents) if one.exists())
    if os.access(place, os.W_OK | os.X_OK):
        return _ok(role, "work directory", work)
    return _lack(role, "work directory", f"you cannot write in {place}: set `paths.work`")


def _release(role: str, here: Here) -> Need | None:
    part = here.partition.name if here.partition else here.site.default_partition
    try:
        release = release_for(here.site, part)
    except HpcdlError as fault:
        return _lack(role, "release", fault.in_one_line())
    if release is None:
        how = "none is published: the admin's `hpcdl stack build` and `hpcdl stack publish`"
        return Need(role, "release", role != "admin", None, "", how)
    return _ok(role, "release", release.id, release.versions.get("tensorflow", ""))


def _scratch(role: str, here: Here) -> Need | None:
    if here.partition is None:
        remedy = "no partition of the site file has this node in its `hostlist`"
        return _lack(role, "partition", remedy)
    scratch = here.partition.scratch
    place = os.path.expandvars(scratch.path) if scratch else tempfile.gettempdir()
    if os.access(place, os.W_OK | os.X_OK):
        return _ok(role, "scratch", place, f"{shutil.disk_usage(place).free // 10**9} GB free")
    return _lack(role, "scratch", f"{place} cannot be written: `scratch.path` of the partition")


def _driver(role: str, here: Here) -> Need | None:
    """Of a node with GPUs; an emulated one has none."""
    if here.partition is None or here.partition.gpu is None:
        return None
    if execution.current_or_cluster() is execution.SINGLE_NODE:
        return Need(role, "GPU driver", False, None, "", "emulated nodes have none")
    driver = nvidia.report()
    if not driver.installed:
        return _lack(role, "GPU driver", "there is no nvidia-smi: is the driver installed?")
    if driver.faults:
        return _lack(role, "GPU driver", driver.faults[0])
    if not driver.gpus:
        return _lack(role, "GPU driver", "nvidia-smi shows no GPU: is the driver loaded?")
    wanted, count = here.partition.gpus_per_node, len(driver.gpus)
    if count < wanted and "SLURM_JOB_ID" not in os.environ:
        return _lack(role, "GPU driver", f"{count} GPUs answer, the site file has {wanted}")
    return _ok(role, "GPU driver", f"{count} GPUs", driver.driver)


QUESTIONS: Mapping[str, Callable[[str, Here], Need | None]] = {
    "slurm": _slurm,
    "site": _site,
    "accounting": _accounting,
    "all_jobs": _all_jobs,
    "modules": _modules,
    "prefix": _prefix,
    "work": _work,
    "release": _release,
    "scratch": _scratch,
    "driver": _driver,
}
