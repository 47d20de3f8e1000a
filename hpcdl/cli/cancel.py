"""`hpcdl job cancel`: ends jobs, chains and the arrays of sweeps."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hpcdl.cli.framework import print_json, the_site
from hpcdl.system.errors import ExitCode

if TYPE_CHECKING:
    from hpcdl.site import Site


def _to_cancel(site: Site, which: str) -> tuple[int, ...]:
    """The jobs of a run, or the array of a sweep."""
    from hpcdl.jobs.listing import arrays
    from hpcdl.jobs.submission import find
    from hpcdl.system.errors import BadInput
    from hpcdl.system.trust import require_own

    try:
        one = find(site, which)
    except BadInput:
        if which not in {str(array.job_id) for array in arrays(site) if array.job_id}:
            raise
        return (int(which),)
    require_own(one.folder)  # a stranger's job.json could name any job of this user
    return one.chain


def run(args: argparse.Namespace) -> ExitCode:
    """Cancel jobs that are still there, and say which had ended."""
    from hpcdl.slurm import client

    site = the_site(args)
    ids = [job_id for job in args.jobs for job_id in _to_cancel(site, job)]
    if args.dry_run:
        print(f"would cancel {', '.join(map(str, ids))}")
        return ExitCode.OK
    active = {number for one in client.queue() if one.active for number in (one.id, one.array_job)}
    client.cancel(ids)  # all of them: the queue may be seconds old
    cancelled = [job_id for job_id in ids if job_id in active]
    ended = [job_id for job_id in ids if job_id not in active]
    if args.json:
        print_json({"cancelled": cancelled, "ended": ended})
        return ExitCode.OK
    for what, which in (("cancelled", cancelled), ("had ended:", ended)):
        if which:
            print(f"{what} {', '.join(map(str, which))}")
    return ExitCode.OK
