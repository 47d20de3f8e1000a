"""`hpcdl schema`: what editors complete and check our files by."""

from __future__ import annotations

import argparse

from hpcdl.cli.framework import command, option, print_json
from hpcdl.system.errors import ExitCode


@command(
    "hpcdl schema site > site.schema.json",
    option("file", "site.yaml or job.yaml", choices=("site", "job")),
    site=False,
)
def _schema(args: argparse.Namespace) -> ExitCode:
    """Print the JSON Schema of the site file or of job files, for editors."""
    from hpcdl.jobs.spec import job_schema
    from hpcdl.site.check import site_schema
    from hpcdl.system.declare import for_editors

    print_json(for_editors(site_schema() if args.file == "site" else job_schema()))
    return ExitCode.OK


COMMAND = _schema
