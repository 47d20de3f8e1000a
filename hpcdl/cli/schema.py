"""`hpcdl schema`: what editors complete and check our files by."""

from __future__ import annotations

import argparse

from hpcdl.cli.framework import command, option, print_json
from hpcdl.system.errors import ExitCode

RESULTS = {
    "result": "RESULT",
    "verdicts": "VERDICTS",
    "progress": "PROGRESS",
    "expectation": "EXPECTATION",
    "request": "JOB",
    "dataset": "DATASET",
}


@command(
    "hpcdl schema site > site.schema.json",
    option("file", "site.yaml, job.yaml, or a file of results", choices=("site", "job", *RESULTS)),
    site=False,
)
def _schema(args: argparse.Namespace) -> ExitCode:
    """Print a JSON Schema: of the site file or job files for editors, or of results."""
    from hpcdl.jobs.spec import job_schema
    from hpcdl.results import records
    from hpcdl.site.check import site_schema
    from hpcdl.system.declare import for_editors

    if args.file in RESULTS:
        kind = getattr(records, RESULTS[args.file])
        print_json({**kind.schema, "title": kind.name})
    else:
        print_json(for_editors(site_schema() if args.file == "site" else job_schema()))
    return ExitCode.OK


COMMAND = _schema
