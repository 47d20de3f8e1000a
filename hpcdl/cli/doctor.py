"""`hpcdl doctor`: the prerequisites of the demo, or of a machine's role on a cluster."""

from __future__ import annotations

import argparse

from hpcdl.cli.framework import Command, option, show
from hpcdl.system.errors import ExitCode


def _doctor(args: argparse.Namespace) -> ExitCode:
    from hpcdl.workflows import doctor

    diagnosis = doctor.diagnose(args.role, args.site)
    show(args, doctor.as_data(diagnosis), doctor.as_text(diagnosis))
    return ExitCode.MISSING_PREREQUISITE if diagnosis.lacking else ExitCode.OK


COMMAND = Command(
    "doctor",
    "Check this machine's prerequisites, or those of its role on a cluster; name what is missing.",
    "hpcdl doctor --role login",
    _doctor,
    option(
        "--role",
        metavar="ROLE",
        default="demo",
        help="login, compute, admin or laptop (default: the demo)",
    ),
)
