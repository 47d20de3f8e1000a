"""`hpcdl doctor`: the prerequisites of this machine, or of its role on a cluster."""

from __future__ import annotations

import argparse

from hpcdl.cli.framework import Command, print_json, show
from hpcdl.system.errors import ExitCode


def _configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--role", metavar="ROLE", help="login, compute, admin or laptop")
    add("--apt", nargs="*", metavar="PURPOSE",
        help="print only the missing packages of these purposes, one per line")  # fmt: skip


def _doctor(args: argparse.Namespace) -> ExitCode:
    from hpcdl.workflows import doctor

    if args.apt is not None:
        names = doctor.missing_packages(args.apt)
        if args.json:
            print_json(names)
        elif names:
            print("\n".join(names))
        return ExitCode.OK
    diagnosis = doctor.diagnose(args.role or "", args.site)
    show(args, doctor.as_data(diagnosis), doctor.as_text(diagnosis))
    return ExitCode.MISSING_PREREQUISITE if diagnosis.lacking else ExitCode.OK


COMMAND = Command(
    "doctor",
    "Check this machine's prerequisites, or those of its role on a cluster; say what is missing.",
    "hpcdl doctor --role login",
    _doctor,
    _configure,
)
