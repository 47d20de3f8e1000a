"""`hpcdl doctor`: the prerequisites of the demo, or of a machine's role on a cluster."""

from __future__ import annotations

import argparse

from hpcdl.cli.framework import command, option, show
from hpcdl.system.errors import ExitCode


@command(
    "hpcdl doctor login",
    option("role", "ROLE", "login, admin or laptop (default: the demo)", nargs="?", default="demo"),
)
def _doctor(args: argparse.Namespace) -> ExitCode:
    """Check this machine's prerequisites, or those of its role; name what is missing."""
    from hpcdl.workflows import doctor

    diagnosis = doctor.diagnose(args.role, args.site)
    show(args, doctor.as_data(diagnosis), doctor.as_text(diagnosis))
    return ExitCode.MISSING_PREREQUISITE if diagnosis.lacking else ExitCode.OK


COMMAND = _doctor
