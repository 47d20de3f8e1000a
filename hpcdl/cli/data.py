"""`hpcdl data`: make data sets and look into them."""

from __future__ import annotations

import argparse

from hpcdl.cli.framework import Command, Group
from hpcdl.cli.launch import launch
from hpcdl.system.errors import ExitCode


def _make_arguments(parser: argparse.ArgumentParser) -> None:
    from hpcdl.train.data.options import configure_make

    configure_make(parser)


def _make(args: argparse.Namespace) -> ExitCode:
    from hpcdl.train.data.options import make_words

    return launch("hpcdl.train.data", make_words(args), args)


GROUP = Group(
    "data",
    "make data sets and look into them",
    (
        Command(
            "make",
            "Write a data set as TFRecords: `digits` are scikit-learn's 1,797 handwritten ones.",
            "hpcdl data make digits DIR",
            _make,
            _make_arguments,
            changes=True,
        ),
    ),
)
