"""`hpcdl data`: make data sets, and inspect them."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from importlib.util import find_spec

from hpcdl.cli.framework import Group, command
from hpcdl.system.errors import ExitCode


def _run(name: str, args: argparse.Namespace) -> ExitCode:
    if find_spec("tensorflow") is None:
        from hpcdl.cli.train import in_release

        in_release("hpcdl", sys.argv[1:], args)
    return ExitCode(getattr(import_module("hpcdl.train.data.commands"), name)(args))


def _make_arguments(parser: argparse.ArgumentParser) -> None:
    from hpcdl.train.data.data_options import make_arguments

    make_arguments(parser)


def _inspect_arguments(parser: argparse.ArgumentParser) -> None:
    from hpcdl.train.data.data_options import inspect_arguments

    inspect_arguments(parser)


@command("hpcdl data make digits DIR", _make_arguments, changes=True)
def _make(args: argparse.Namespace) -> ExitCode:
    """Write TFRecords of handwritten digits."""
    return _run("make", args)


@command("hpcdl data inspect DIR", _inspect_arguments)
def _inspect(args: argparse.Namespace) -> ExitCode:
    """Count records, verify checksums, name damaged, truncated and missing shards."""
    return _run("inspect", args)


GROUP = Group("data", (_make, _inspect))
