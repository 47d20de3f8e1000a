"""`hpcdl train`: the training program, here or in the published release."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from hpcdl import facts
from hpcdl.cli.framework import Parser, command, the_site
from hpcdl.system.errors import BadInput, ExitCode, HpcdlError, MissingPrerequisite
from hpcdl.system.resources import cached
from hpcdl.system.text import did_you_mean


def launch(package: str, argv: list[str], args: argparse.Namespace) -> ExitCode:
    """Run `python -m PACKAGE ARGUMENTS` where TensorFlow is: in this process, else in a release."""
    # The process that is to be replaced has imported nothing heavy; nor does the search.
    if find_spec("tensorflow") is not None:
        return ExitCode(import_module(f"{package}.__main__").main(argv))
    return _in_release(package, argv, args)


def _in_release(package: str, argv: list[str], args: argparse.Namespace) -> NoReturn:
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
    sys.stdout.flush()
    os.environ.setdefault("HPCDL_RELEASE", release.id)
    os.execv(release.python, [*map(str, module_argv(release.python, package)), *argv])  # noqa: S606


def _arguments(parser: argparse.ArgumentParser) -> None:
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


@command("hpcdl train --model mlp --data DIR --epochs 20 --target-accuracy 0.95", _arguments)
def _train(args: argparse.Namespace) -> ExitCode:
    """Train a network, with checkpoints, on one or many ranks."""
    from hpcdl.train.options import from_namespace, to_argv

    return launch("hpcdl.train", to_argv(from_namespace(args)), args)


@cache
def _parser() -> Parser:
    parser = Parser(prog="hpcdl train", allow_abbrev=False)
    _arguments(parser)
    parser.add_argument("--json", action="store_true")
    return parser


def train_options(program: Sequence[str]) -> set[str]:
    """The names of the options of `hpcdl train`; none for another program."""
    from hpcdl.jobs.spec import is_train
    from hpcdl.train.options import OPTIONS

    return {str(one.flag).removeprefix("--") for one in OPTIONS} if is_train(program) else set()


def check_words(program: Sequence[str], *, queued: bool) -> None:
    """Refuse arguments of `hpcdl train` that it would refuse when the job runs.

    A data set is looked for where the job is queued: a script that is only printed may be for
    another machine.
    """
    from hpcdl.jobs.spec import is_train

    if not is_train(program) or len(program) == 2 or {"-h", "--help"} & set(program):
        return
    from hpcdl.train.options import SYNTHETIC, from_namespace

    options = from_namespace(_parser().parse_args(program[2:]))
    models = cached("facts", [facts.path("models")], lambda: facts.load("models"))["models"]
    if options.model not in models and ":" not in options.model:
        raise BadInput(f"unknown model '{options.model}'", hint=did_you_mean(options.model, models))
    data = options.data if queued else ""
    if data and data != SYNTHETIC and "$" not in data and not Path(data, "dataset.json").is_file():
        there = Path(data).is_dir()
        raise BadInput(
            f"{data} has no dataset.json" if there else f"there is no data set {data}",
            hint="`hpcdl data make` writes one; `--data synthetic` needs none",
        )


COMMAND = _train
