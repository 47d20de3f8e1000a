"""What a role needs, what of it is missing, and the one command that installs the rest.

The rows are facts/packages.yaml and the `python` rows in it; looking is `hpcdl.system.packages`.
Programs are asked for their versions side by side: some take a second to say it.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.system.errors import BadInput, HpcdlError
from hpcdl.system.packages import Package, apt_line, look, version_in
from hpcdl.system.resources import to_install
from hpcdl.system.run import run
from hpcdl.system.text import did_you_mean, table
from hpcdl.workflows.doctor_roles import Finding, answers

DEMO = "demo"
"""The role of a machine of which nobody says another: what `make demo` runs on."""


@dataclass(frozen=True)
class Diagnosis:
    """All findings; `apt` installs every missing package that the role needs."""

    findings: tuple[Finding, ...]
    apt: str
    apt_optional: str
    role: str

    @property
    def lacking(self) -> tuple[Finding, ...]:
        """What is required and missing."""
        return tuple(one for one in self.findings if one.required and one.found is None)


def diagnose(role: str = DEMO, site_file: str | None = None) -> Diagnosis:
    """Look at what a role needs: packages, and what Slurm, site and prefix answer."""
    known = facts.load("packages")
    roles = known["roles"]
    if role not in roles:
        raise BadInput(f"unknown role '{role}'", hint=did_you_mean(role, roles))
    row = roles[role]
    needed, optional = _packages(row["needs"]), _packages(row["optional"])
    modules = [one for one in known["python"] if one["purpose"] in row["optional"]]
    with ThreadPoolExecutor(8) as pool:
        packages = [*pool.map(_finding, needed)]
        packages += [replace(one, required=False) for one in pool.map(_finding, optional)]
    python = ".".join(map(str, sys.version_info[:3]))  # one that is too old had not started us
    own = Finding("python", "python", True, sys.executable, python, "")
    return Diagnosis(
        findings=(own, *packages, *map(_module, modules), *answers(role, row["asks"], site_file)),
        apt=apt_line(needed), apt_optional=apt_line(optional), role=role,
    )  # fmt: skip


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
    remedies = [diagnosis.apt, *(_remedy(one) for one in diagnosis.lacking if one.remedy)]
    todo = [f"  {line}" for line in dict.fromkeys(remedies) if line]
    parts.append("\n".join(["what to do:", *todo]) if todo else "nothing is missing")
    extra = [diagnosis.apt_optional] if diagnosis.apt_optional else []
    extra += [_remedy(one) for one in diagnosis.findings
              if one.remedy and one.found is None and not one.required]  # fmt: skip
    if extra:
        parts.append("\n".join(["and what is optional:", *(f"  {line}" for line in extra)]))
    if diagnosis.role == DEMO:
        parts.append("on a cluster: hpcdl doctor --role login, compute or admin")
    return "\n\n".join(parts)


def _remedy(one: Finding) -> str:
    """A command as it is; what else to do with the name of what lacks."""
    return one.remedy if " pip install " in one.remedy else f"{one.name}: {one.remedy}"


def _row(one: Finding) -> tuple[str, ...]:
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


def _finding(package: Package) -> Finding:
    found, version = (str(package.found), "") if package.found else (None, "")
    if package.found is not None and package.version_option is not None:
        with suppress(HpcdlError):
            answer = run([package.found, package.version_option], check=False, timeout=10)
            version = version_in(answer.stdout + answer.stderr)
    elif found:
        version = version_in(found)
    return Finding(package.purpose, package.name, True, found, version, "")


def _module(row: dict[str, Any]) -> Finding:
    remedy = to_install(row["extra"])
    there: str | None = "in this Python"
    found = ""
    try:
        found = version(row["package"])
    except PackageNotFoundError:
        there = None
    return Finding(row["purpose"], row["package"], False, there, found, remedy)
