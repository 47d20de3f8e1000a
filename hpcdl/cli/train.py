"""`hpcdl train`: the training program, here or in the published release."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from hpcdl.cli.framework import command, the_site
from hpcdl.system.errors import ExitCode, HpcdlError, MissingPrerequisite


def in_release(package: str, argv: list[str], args: argparse.Namespace) -> NoReturn:
    """Go on as `python -m PACKAGE ARGUMENTS` of the published release, which has TensorFlow."""
    from hpcdl.stack.release import current_release
    from hpcdl.system.run import module_argv

    release, why = None, "no release is published at this site"
    try:
        release = current_release(the_site(args))
    except HpcdlError as error:
        why = error.message
    if release is None or not release.python.exists():
        raise MissingPrerequisite(
            f"this Python ({sys.executable}) has no TensorFlow",
            details=[why],
            hint="run `module load tensorflow` first, or build a release: `hpcdl stack build`, "
            "`hpcdl stack publish`; without a cluster: `pip install tensorflow` beside hpcdl",
        )
    if Path(sys.executable) == release.python:  # it would start itself for ever
        raise MissingPrerequisite(
            f"the release {release.id} is damaged: its Python has no TensorFlow",
            hint="`hpcdl stack verify` says what is missing; `hpcdl stack rollback` goes back to "
            "the release before",
        )
    sys.stdout.flush()
    os.environ.setdefault("HPCDL_RELEASE", release.id)
    program = [*map(str, module_argv(release.python, package)), *argv]
    os.execv(release.python, program)  # noqa: S606 - Python of a release whose owner is known


def train_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `hpcdl train`."""
    from hpcdl.system.declare import configure
    from hpcdl.train.options import TrainOptions

    configure(parser, TrainOptions)
    parser.set_defaults(elsewhere=_elsewhere)


def _elsewhere(option: str) -> str:
    from hpcdl.jobs.spec import JobSpec
    from hpcdl.system.declare import entries

    known = {"--dry-run", "--watch", "--file", "--over"}
    for entry in entries(JobSpec):
        known |= {str(entry.flag), *entry.constants}
    return "`hpcdl job` takes it: write it before --" if option in known else ""


@command("hpcdl train --model mlp --data DIR --epochs 20 --target-accuracy 0.95", train_arguments)
def _train(args: argparse.Namespace) -> ExitCode:
    """Train a network, with checkpoints, on one or many ranks."""
    from hpcdl.train.options import facts_of, from_namespace, to_argv

    options = from_namespace(args)
    facts_of(options.model)  # a misspelt model is told before TensorFlow is looked for
    # A process that is to be replaced has imported nothing heavy; nor does the search.
    if find_spec("tensorflow") is None:
        in_release("hpcdl.train", to_argv(options), args)
    return ExitCode(import_module("hpcdl.train.__main__").main(to_argv(options)))


COMMAND = _train
