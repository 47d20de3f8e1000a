"""`hpcdl train`: the training program, here or in the published release."""

from __future__ import annotations

import argparse

from hpcdl.cli.framework import Command
from hpcdl.cli.launch import launch
from hpcdl.system.errors import ExitCode


def _arguments(parser: argparse.ArgumentParser) -> None:
    from hpcdl.train.options import configure

    configure(parser)


def _train(args: argparse.Namespace) -> ExitCode:
    from hpcdl.train.options import from_namespace, to_argv

    return launch("hpcdl.train", to_argv(from_namespace(args)), args)


COMMAND = Command(
    "train",
    "Train a network, with checkpoints, on one or many ranks.",
    "hpcdl train --model mlp --data DIR --epochs 20 --target-accuracy 0.95",
    _train,
    _arguments,
)
