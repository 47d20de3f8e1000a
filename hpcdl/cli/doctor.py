"""`hpcdl doctor`: what this machine has and lacks."""

from __future__ import annotations

import argparse

from hpcdl.cli.framework import Command, print_json
from hpcdl.system.errors import ExitCode


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--apt", nargs="*", metavar="PURPOSE",
        help="print the missing packages of some purposes only, one per line",
    )  # fmt: skip


def _doctor(args: argparse.Namespace) -> ExitCode:
    from hpcdl.workflows import doctor

    if args.apt is not None:
        names = doctor.missing_packages(args.apt)
        if args.json:
            print_json(names)
        elif names:
            print("\n".join(names))
        return ExitCode.OK
    diagnosis = doctor.diagnose()
    if args.json:
        print_json(doctor.as_data(diagnosis))
    else:
        print(doctor.as_text(diagnosis))
    return ExitCode.MISSING_PREREQUISITE if diagnosis.lacking else ExitCode.OK


COMMAND = Command(
    "doctor",
    "Show what this machine has and lacks, and the command that installs the rest.",
    "hpcdl doctor",
    _doctor,
    _configure,
    site=False,
)
