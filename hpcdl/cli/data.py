"""`hpcdl data`: make data sets, and inspect them."""

from __future__ import annotations

import argparse
from functools import partial

from hpcdl.cli.framework import Group, command
from hpcdl.system.errors import ExitCode


def _arguments(name: str, parser: argparse.ArgumentParser) -> None:
    from hpcdl.train.data.data_options import COMMANDS

    COMMANDS[name](parser)


def _run(name: str, args: argparse.Namespace) -> ExitCode:
    from hpcdl.cli.train import launch
    from hpcdl.train.data.data_options import to_argv

    return launch("hpcdl.train.data", to_argv(name, args), args)


@command("hpcdl data make digits DIR", partial(_arguments, "make"), changes=True)
def _make(args: argparse.Namespace) -> ExitCode:
    """Write TFRecords of handwritten digits."""
    return _run("make", args)


@command("hpcdl data inspect DIR", partial(_arguments, "inspect"))
def _inspect(args: argparse.Namespace) -> ExitCode:
    """Count records, verify checksums, name damaged, truncated and missing shards."""
    return _run("inspect", args)


GROUP = Group("data", (_make, _inspect))
