"""What is installed and what is missing, by purpose, and the one command that installs the rest.

The rows are facts/packages.yaml and the `python` rows in it; looking is `hpcdl.system.packages`.
Programs are asked for their versions side by side: some take a second to say it.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.cluster.needs import choose_mode
from hpcdl.system.errors import BadInput, HpcdlError
from hpcdl.system.packages import Package, apt_line, look, version_in
from hpcdl.system.resources import to_install
from hpcdl.system.run import run
from hpcdl.system.text import did_you_mean, table
from hpcdl.workflows.doctor_roles import Finding, answers


@dataclass(frozen=True)
class Diagnosis:
    """All findings; `apt` installs every missing package of the required purposes."""

    findings: tuple[Finding, ...]
    apt: str
    apt_optional: str
    cluster_mode: str = ""
    role: str = ""

    @property
    def lacking(self) -> tuple[Finding, ...]:
        """What is required and missing."""
        return tuple(one for one in self.findings if one.required and one.found is None)


def purposes() -> dict[str, dict[str, Any]]:
    """The purposes by name, each with `required` and `summary`."""
    known: dict[str, dict[str, Any]] = facts.load("packages")["purposes"]
    return known


def diagnose(role: str = "", site_file: str | None = None) -> Diagnosis:
    """Look at everything the facts name, or at what a role needs.

    Of a role, what Slurm, site and prefix answer is looked at as well.
    """
    roles, known = facts.load("packages")["roles"], purposes()
    if role and role not in roles:
        raise BadInput(f"unknown role '{role}'", hint=did_you_mean(role, roles))
    required = [name for name, row in known.items() if row["required"]]
    rest = [name for name in known if name not in required]
    row = roles[role] if role else {"needs": required, "optional": rest, "asks": []}
    needed, optional = _packages(row["needs"]), _packages(row["optional"])
    modules = [one for one in facts.load("packages")["python"]
               if not role or one["purpose"] in row["optional"]]  # fmt: skip
    with ThreadPoolExecutor(8) as pool:
        packages = [*pool.map(_finding, needed)]
        packages += [replace(one, required=False) for one in pool.map(_finding, optional)]
    python = ".".join(map(str, sys.version_info[:3]))  # one that is too old had not started us
    own = Finding("python", "python", True, sys.executable, python, "")
    return Diagnosis(
        findings=(own, *packages, *map(_module, modules), *answers(role, row["asks"], site_file)),
        apt=apt_line(needed), apt_optional=apt_line(optional),
        cluster_mode="" if role else _cluster_mode(), role=role,
    )  # fmt: skip


def as_data(diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis as plain values."""
    return {
        "schema": 1,
        "role": diagnosis.role,
        "complete": not diagnosis.lacking,
        "cluster_mode": diagnosis.cluster_mode,
        "apt": diagnosis.apt,
        "apt_optional": diagnosis.apt_optional,
        "findings": [vars(one) for one in diagnosis.findings],
    }


def as_text(diagnosis: Diagnosis) -> str:
    """The diagnosis as text: a table per purpose, or one of a role; then what to do."""
    if diagnosis.role:
        parts = [f"{diagnosis.role}:\n{table([*map(_row, diagnosis.findings)])}"]
    else:
        parts = [*_by_purpose(diagnosis)]
        parts.append(f"the embedded cluster would run in mode {diagnosis.cluster_mode}")
    remedies = [diagnosis.apt, *(_remedy(one) for one in diagnosis.lacking if one.remedy)]
    todo = [f"  {line}" for line in dict.fromkeys(remedies) if line]
    parts.append("\n".join(["what to do:", *todo]) if todo else "nothing is missing")
    extra = [diagnosis.apt_optional] if diagnosis.apt_optional else []
    extra += [_remedy(one) for one in diagnosis.findings
              if one.remedy and one.found is None and not one.required]  # fmt: skip
    if extra:
        parts.append("\n".join(["and what is optional:", *(f"  {line}" for line in extra)]))
    if not diagnosis.role:
        parts.append("on a cluster: hpcdl doctor --role login, compute or admin")
    return "\n\n".join(parts)


def _by_purpose(diagnosis: Diagnosis) -> Iterator[str]:
    for purpose in dict.fromkeys(one.purpose for one in diagnosis.findings):
        row = purposes()[purpose]
        note = "" if row["required"] else " (optional)"
        lines = [_row(one) for one in diagnosis.findings if one.purpose == purpose]
        yield f"{purpose}{note}: {row['summary']}\n{table(lines)}"


def _remedy(one: Finding) -> str:
    """A command as it is; what else to do with the name of what lacks."""
    return one.remedy if one.remedy.startswith("pip ") else f"{one.name}: {one.remedy}"


def _row(one: Finding) -> list[str]:
    state = one.found or ("MISSING" if one.required else "not there")
    return ["  " + one.name, one.version or "-", state]


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
    required = bool(purposes()[package.purpose]["required"])
    found, version = (str(package.found), "") if package.found else (None, "")
    if package.found is not None and package.version_option is not None:
        with suppress(HpcdlError):
            answer = run([package.found, package.version_option], check=False, timeout=10)
            version = version_in(answer.stdout + answer.stderr)
    elif found:
        version = version_in(found)
    return Finding(package.purpose, package.name, required, found, version, "")


def _module(row: dict[str, Any]) -> Finding:
    required = bool(purposes()[row["purpose"]]["required"])
    remedy = to_install(row["extra"])
    there: str | None = "in this Python"
    found = ""
    try:
        found = version(row["package"])
    except PackageNotFoundError:
        there = None
    return Finding(row["purpose"], row["package"], required, there, found, remedy)


def _cluster_mode() -> str:
    try:
        return choose_mode("auto")
    except HpcdlError as error:
        return f"none: {error.message}"
