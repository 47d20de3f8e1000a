"""Starts the programs that need TensorFlow: in this process, else in the published release."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import NoReturn

from hpcdl.cli.framework import the_site
from hpcdl.system.errors import ExitCode, HpcdlError, MissingPrerequisite
from hpcdl.system.python import module_argv


def launch(package: str, argv: list[str], args: argparse.Namespace) -> ExitCode:
    """Run `python -m PACKAGE ARGUMENTS` where TensorFlow is, here or in a release."""
    # The process that is to be replaced has imported nothing heavy; nor does the search.
    if find_spec("tensorflow") is not None:
        return ExitCode(import_module(f"{package}.__main__").main(argv))
    return _in_release(package, argv, args)


def _in_release(package: str, argv: list[str], args: argparse.Namespace) -> NoReturn:
    from hpcdl.stack.release import current_release

    try:
        release = current_release(the_site(args))
    except HpcdlError as error:
        raise _no_tensorflow(error.message) from error
    if release is None or not release.python.exists():
        raise _no_tensorflow("no release is published at this site")
    sys.stdout.flush()
    os.environ.setdefault("HPCDL_RELEASE", release.id)
    os.execv(release.python, [*map(str, module_argv(release.python, package)), *argv])  # noqa: S606


def _no_tensorflow(why: str) -> MissingPrerequisite:
    return MissingPrerequisite(
        f"this Python ({sys.executable}) has no TensorFlow",
        details=[why],
        hint="run `module load tensorflow` first, or build a release: `hpcdl stack build`, "
        "`hpcdl stack publish`; without a cluster: `pip install tensorflow` beside hpcdl",
    )
