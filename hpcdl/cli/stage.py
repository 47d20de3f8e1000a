"""`hpcdl stage`: data on the node's own disk. Job scripts call it with --stage-data."""

from __future__ import annotations

import argparse
import os
import re
import socket
import time
from contextlib import suppress
from pathlib import Path

from hpcdl.cli.framework import Command, print_json
from hpcdl.system.errors import BadInput, ExitCode, HpcdlError


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, metavar="DATA", help="directory of the data set")
    parser.add_argument("target", metavar="DIR", help="directory on the node; expands variables")
    parser.add_argument("--workers", type=int, default=8, metavar="N", help="parallel copies (8)")
    parser.add_argument("--clean", action="store_true", help="remove DIR")


def _stage(args: argparse.Namespace) -> ExitCode:
    from hpcdl.jobs.stage import clean, remove_left, stage
    from hpcdl.slurm.client import own_jobs

    target = Path(os.path.expandvars(args.target))
    if unset := re.search(r"\$\{?\w+", str(target)):
        message = f"{args.target}: {unset[0]} has no value here"
        raise BadInput(message, hint="export it, or write the directory")
    if args.dry_run:
        print(f"would {'remove' if args.clean else 'fill'} {target}")
        return ExitCode.OK
    if args.clean:
        clean(target)
        return ExitCode.OK
    removed = 0
    with suppress(HpcdlError, OSError):  # staging works without the space that ended jobs hold
        removed = remove_left(target, own_jobs)
    start = time.monotonic()
    done = stage(args.source, target, workers=args.workers)
    seconds = time.monotonic() - start
    staged = {
        "host": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        "target": target,
        "copied": len(done.copy),
        "linked": len(done.link),
        "bytes": done.copied_bytes,
        "seconds": round(seconds, 3),
        "removed": removed,
    }
    if args.json:
        print_json(staged)
    else:
        rest = f", {len(done.link)} linked that do not fit" if done.link else ""
        rest += f"; removed the files of {removed} ended runs" if removed else ""
        print(
            f"{staged['host']}: {len(done.copy)} files ({done.copied_bytes / 1e6:,.0f} MB) in "
            f"{target}, {seconds:.1f} s{rest}"
        )
    return ExitCode.OK


COMMAND = Command(
    "stage",
    "Copy a data set to the node's own disk, in parallel and checked, as much as fits.",
    "hpcdl stage /data/imagenet '/local/$SLURM_JOB_ID/data'",
    _stage,
    _options,
    changes=True,
    site=False,
)
