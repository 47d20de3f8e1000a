"""What PyPI serves of the wheels that the facts name: versions that go together, and digests.

`facts/wheel_lock.yaml` comes with hpcdl, so neither the index, nor a mirror, nor a cache can say
what a wheel is. Without a row are machines that are no x86_64, and what `packages:` of a site
asks for: of these, what is fetched first counts.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path

from hpcdl import facts
from hpcdl.stack.purl import normal_name
from hpcdl.system.errors import MissingPrerequisite

MACHINE = "x86_64"
"""Whose wheels the facts have."""


def pins(tensorflow: str, python: str) -> tuple[str, ...]:
    """The versions beside a TensorFlow under a Python such as `3.11`, as pip's constraints.

    Empty where there is no row for it.
    """
    rows = facts.load("wheel_lock")["pins"].get(python, {})
    if tensorflow not in rows or platform.machine() != MACHINE:
        return ()
    chosen = dict(one.split("==") for one in f"{rows['all']} {rows[tensorflow]}".split())
    return tuple(f"{name}=={version}" for name, version in chosen.items())


def setuptools_for(python: str) -> str:
    """What pip is asked for, with its digests; the name alone for a Python without a row."""
    table, name = facts.load("wheel_lock"), "setuptools"
    common = table["pins"].get(python, {}).get("all", "")
    version = dict(one.split("==") for one in common.split()).get(name)
    if version is None:
        return name
    digests = table["wheels"][f"{name} {version}"].values()
    return f"{name}=={version}" + "".join(f" --hash=sha256:{one}" for one in digests)


def digest_of(file: str) -> str | None:
    """The SHA-256 that a wheel's file must have; None where the facts have none."""
    name, version, tags = file.removesuffix(".whl").split("-", 2)
    wheels = facts.load("wheel_lock")["wheels"].get(f"{normal_name(name)} {version}", {})
    found: str | None = wheels.get(tags)
    return found


def require_known(wheels: Iterable[tuple[str, str]], where: Path, *, all_of_them: bool) -> None:
    """Compare wheels with the facts.

    `wheels` are file names and digests, `where` is the directory they lie in. If `all_of_them`, one
    that the facts do not have is refused, too.

    Raises:
        MissingPrerequisite: names the first few that differ.
    """
    wrong = [
        f"{file}: sha256 {digest[:16]}..., not {(known or 'known')[:16]}"
        for file, digest in wheels
        if (known := digest_of(file)) != digest and (known or all_of_them)
    ]
    if wrong:
        raise MissingPrerequisite(
            f"{len(wrong)} of the wheels in {where} are not those of PyPI; none is installed",
            details=wrong[:10],
            hint=f"an index, a mirror or somebody has changed them: check pip.conf, remove {where} "
            "if it is there, then build again",
        )
