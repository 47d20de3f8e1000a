"""`hpcdl data`: make data sets, inspect them, measure the input pipeline."""

from __future__ import annotations

import argparse
from functools import partial

from hpcdl.cli.framework import Command, Group
from hpcdl.system.errors import ExitCode


def _arguments(command: str, parser: argparse.ArgumentParser) -> None:
    from hpcdl.train.data.data_options import COMMANDS

    COMMANDS[command](parser)


def _run(command: str, args: argparse.Namespace) -> ExitCode:
    from hpcdl.cli.train import launch
    from hpcdl.train.data.data_options import to_argv

    return launch("hpcdl.train.data", to_argv(command, args), args)


GROUP = Group(
    "data",
    "data sets: make, inspect and time TFRecords",
    (
        Command(
            "make",
            "Write TFRecords: handwritten digits, generated photos, or your own images.",
            "hpcdl data make digits DIR",
            partial(_run, "make"),
            partial(_arguments, "make"),
            changes=True,
        ),
        Command(
            "inspect",
            "Count records, verify checksums, name damaged, truncated and missing shards.",
            "hpcdl data inspect DIR",
            partial(_run, "inspect"),
            partial(_arguments, "inspect"),
        ),
        Command(
            "bench",
            "Measure the throughput of an input pipeline alone, on JPEG records.",
            "hpcdl data bench DIR --pipeline new",
            partial(_run, "bench"),
            partial(_arguments, "bench"),
        ),
    ),
)
