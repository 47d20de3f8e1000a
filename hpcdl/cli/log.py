"""`hpcdl job log`: what a job has written, and what it writes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.cli.framework import print_json, the_site
from hpcdl.system.amounts import at_least
from hpcdl.system.errors import ExitCode

if TYPE_CHECKING:
    from hpcdl.jobs.submission import Submission

_MOST = 1_000_000
_PIECE = 65536


def options(parser: argparse.ArgumentParser) -> None:
    """The job, how much of its log, and whether to wait for more."""
    parser.add_argument("job", metavar="JOB", help="job id, or the job's directory")
    parser.add_argument("-n", "--lines", type=at_least(1, _MOST), default=100, metavar="N",
                        help="last lines to begin with (100)")  # fmt: skip
    parser.add_argument("-f", "--follow", action="store_true",
                        help="print what comes until the job ends, across requeues")  # fmt: skip


def run(args: argparse.Namespace) -> ExitCode:
    """Print the end of a job's log, and what is added to it."""
    from hpcdl.jobs.submission import find
    from hpcdl.jobs.watch import watched
    from hpcdl.system.safe_read import last_text

    submission = find(the_site(args), args.job)
    # Where the file ends now is where following begins: nothing is printed twice or left out.
    end = submission.log.stat().st_size if submission.log.is_file() else 0
    lines = last_text(submission.log, end=end).splitlines()[-args.lines :]
    if args.json and not args.follow:
        print_json({"log": submission.log, "lines": lines})
        return ExitCode.OK
    with watched(submission):
        print("\n".join(lines), end="\n" if lines else "", flush=True)
        return _follow(submission, end) if args.follow else ExitCode.OK


def _follow(submission: Submission, start: int) -> ExitCode:
    """Print what is added to the log until its job has ended."""
    from hpcdl.jobs.watch import as_line, follow

    place, last, state = start, None, None
    for last in follow(submission):
        place = _print_new(submission.log, place)
        if state is not None and (last.state, last.restarts) != state and not last.ended:
            print(f"--- {as_line(last)}", file=sys.stderr)
        state = (last.state, last.restarts)
    place = _print_new(submission.log, place)
    for rest in _pieces(submission.log, place):  # a last line without an end
        print(rest.decode(errors="replace"))
    assert last is not None
    print(f"--- {as_line(last)}", file=sys.stderr)
    return ExitCode.OK if last.ok else ExitCode.NO


def _print_new(path: Path, start: int) -> int:
    """Print the whole lines from `start` on; gives where they end."""
    for piece in _pieces(path, start):
        whole = piece[: piece.rfind(b"\n") + 1] or (piece if len(piece) == _PIECE else b"")
        print(whole.decode(errors="replace"), end="")
        start += len(whole)
        if len(whole) < len(piece):
            break
    sys.stdout.flush()
    return start


def _pieces(path: Path, start: int) -> Iterator[bytes]:
    from hpcdl.system.errors import BadInput
    from hpcdl.system.safe_read import open_regular

    try:
        with open_regular(path, "log") as file:
            while True:
                file.seek(start)
                piece = file.read(_PIECE)
                if not piece:
                    return
                yield piece
                start += piece.rfind(b"\n") + 1 or len(piece)
    except BadInput:  # it has not started yet
        return
