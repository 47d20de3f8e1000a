"""`hpcdl stage`: data on the node's own disk. Job scripts call it for `stage_data`."""

from __future__ import annotations

import argparse
import os
import re
import socket
import time
from contextlib import suppress
from pathlib import Path

from hpcdl.cli.framework import command, option, show
from hpcdl.system.errors import BadInput, ExitCode, HpcdlError


@command(
    "hpcdl stage /data/imagenet '/local/$SLURM_JOB_ID/data'",
    option("source", "DATA", "directory of the data set", type=Path),
    option("target", "DIR", "directory on the node; expands variables"),
    # Of scripts that are queued while hpcdl is upgraded.
    option("--workers", "N", "ignored", help=argparse.SUPPRESS),
    changes=True,
    site=False,
)
def _stage(args: argparse.Namespace) -> ExitCode:
    """Copy a data set to the node's own disk, in parallel, as much as fits."""
    from hpcdl.jobs.stage import remove_left, stage
    from hpcdl.slurm.client import own_jobs

    target = Path(os.path.expandvars(args.target))
    if unset := re.search(r"\$\{?\w+", str(target)):
        message = f"{args.target}: {unset[0]} has no value here"
        raise BadInput(message, hint="export it, or write the directory")
    if args.dry_run:
        print(f"would fill {target}")
        return ExitCode.OK
    removed = 0
    with suppress(HpcdlError, OSError):  # staging works without the space that ended jobs hold
        removed = remove_left(target, own_jobs)
    start = time.monotonic()
    done = stage(args.source, target)
    seconds = round(time.monotonic() - start, 3)
    host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    size = sum(size for _, size in done.copied)
    counts = {"copied": len(done.copied), "linked": len(done.linked), "bytes": size}
    text = f"{host}: {len(done.copied)} files ({size / 1e6:,.0f} MB) in {target}, {seconds:.1f} s"
    text += f", {len(done.linked)} linked that do not fit" * bool(done.linked)
    text += f"; removed the files of {removed} ended runs" * bool(removed)
    staged = {"host": host, "target": target, **counts, "seconds": seconds, "removed": removed}
    return show(args, staged, text)


COMMAND = _stage
