"""What a role needs, what of it is missing, and the one command that installs the rest.

facts/packages.yaml says which packages, `python` rows and questions a role has; looking for
packages is `hpcdl.system.packages`. Programs are asked for their versions side by side: some take a
second to say it. Slurm and the site file are looked at once; other questions are about one of them,
and are not asked where it is not there. Nothing here changes anything. What a compute node lacks
is the preflight's to say: `srun hpcdl preflight probe`.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from hpcdl import facts
from hpcdl.site import Site, find_site_file, live, load_site
from hpcdl.site.live import LiveCluster
from hpcdl.slurm import client
from hpcdl.stack.release import release_for
from hpcdl.system.errors import BadInput, HpcdlError
from hpcdl.system.packages import Package, apt_line, look, version_in
from hpcdl.system.resources import to_install
from hpcdl.system.run import run
from hpcdl.system.text import did_you_mean, table

DEMO = "demo"
"""The default role: the machine on which `make demo` runs."""


class Need(NamedTuple):
    """One thing that a purpose or role needs: where it is, which version, or how to get it."""

    purpose: str
    name: str
    required: bool
    found: str | None
    version: str
    remedy: str


class Diagnosis(NamedTuple):
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
        packages += [one._replace(required=False) for one in pool.map(_finding, optional)]
    python = ".".join(map(str, sys.version_info[:3]))  # one that is too old had not started us
    own = Need("python", "python", True, sys.executable, python, "")
    return Diagnosis(
        findings=(own, *packages, *map(_module, modules), *_answers(row["asks"], role, site_file)),
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
        "findings": [one._asdict() for one in diagnosis.findings],
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
        parts.append("on a cluster: hpcdl doctor login or admin")
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


def _answers(asks: Sequence[str], role: str, site_file: str | None) -> Iterator[Need]:
    site: Site | None = None
    cluster: LiveCluster | None = None
    if "slurm" in asks:
        try:
            cluster = live.look()
            yield _ok(role, "Slurm", f"answers: {cluster.name}", cluster.version)
        except HpcdlError as fault:
            yield _lack(role, "Slurm", fault.in_one_line())
    if "site" in asks:
        try:
            site = load_site(find_site_file(site_file))
            yield _site(role, site, cluster)
        except HpcdlError as fault:
            yield _lack(role, "site file", fault.in_one_line())
    for name in asks:
        if cluster is not None and name in OF_SLURM:
            yield OF_SLURM[name](role, cluster)
        elif site is not None and name in OF_SITE:
            yield OF_SITE[name](role, site)


def _ok(role: str, name: str, found: object, version: str = "") -> Need:
    return Need(role, name, True, str(found), version, "")


def _lack(role: str, name: str, remedy: str) -> Need:
    return Need(role, name, True, None, "", remedy)


def _site(role: str, site: Site, cluster: LiveCluster | None) -> Need:
    if cluster is not None and (differ := live.compare(site, cluster)):
        keys = ", ".join(one.key for one in differ[:3])
        return _lack(role, "site file", f"it differs from Slurm in {keys}: `hpcdl site check`")
    return _ok(role, "site file", site.source)


def _accounting(role: str, cluster: LiveCluster) -> Need:
    found = "slurmdbd" if cluster.accounting else None
    without = "without slurmdbd, old jobs are forgotten"
    return Need(role, "accounting", False, found, "", "" if found else without)


def _all_jobs(role: str, _: LiveCluster) -> Need:
    with suppress(HpcdlError):
        if client.sees_all_jobs():
            return _ok(role, "everybody's jobs", "shown to this user")
    remedy = "`stack gc` needs them: sacctmgr modify user NAME set AdminLevel=Operator"
    return _lack(role, "everybody's jobs", remedy)


def _modules(role: str, site: Site) -> Need:
    init = site.paths.lmod_init
    if init.is_file():
        return _ok(role, "Lmod", init)
    return _lack(role, "Lmod", f"there is no {init}: install Lmod, or set `paths.lmod_init`")


def _prefix(role: str, site: Site) -> Need:
    prefix = site.paths.prefix
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


def _work(role: str, site: Site) -> Need:
    work = site.paths.work
    place = next(one for one in (work, *work.parents) if one.exists())
    if os.access(place, os.W_OK | os.X_OK):
        return _ok(role, "work directory", work)
    return _lack(role, "work directory", f"you cannot write in {place}: set `paths.work`")


def _release(role: str, site: Site) -> Need:
    try:
        release = release_for(site, site.default_partition)
    except HpcdlError as fault:
        return _lack(role, "release", fault.in_one_line())
    if release is None:
        how = "none is published: the admin's `hpcdl stack build` and `hpcdl stack publish`"
        return Need(role, "release", role != "admin", None, "", how)
    return _ok(role, "release", release.id, release.versions.get("tensorflow", ""))


OF_SLURM: dict[str, Callable[[str, LiveCluster], Need]] = {
    "accounting": _accounting,
    "all_jobs": _all_jobs,
}
OF_SITE: dict[str, Callable[[str, Site], Need]] = {
    "modules": _modules,
    "prefix": _prefix,
    "work": _work,
    "release": _release,
}
