"""What several commands of `hpcdl check` share: the selection of checks, the history, progress."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcdl.jobs import Module
    from hpcdl.regress.answer import GateAnswer
    from hpcdl.regress.check_request import CheckRequest
    from hpcdl.regress.reframe_adapter.process import Progress
    from hpcdl.regress.run_directory import RunDirectory
    from hpcdl.site import Site
    from hpcdl.system.text import StatusLine


def modules(site: Site, args: argparse.Namespace) -> dict[str, Module]:
    """The module of every partition that is checked."""
    from hpcdl.workflows.modules import modules_by_partition

    return modules_by_partition(site, args.partition, published=True)


def selection(parser: argparse.ArgumentParser) -> None:
    """The options that choose checks."""
    add = parser.add_argument
    add("--partition", action="append", default=[], metavar="NAME",
        help="partition to check; may be repeated (default: all)")  # fmt: skip
    add("--tag", action="append", default=[], metavar="TAG",
        help="only checks with this tag: smoke, nightly, weekly, node")  # fmt: skip
    add("--name", action="append", default=[], metavar="NAME",
        help="only this check, or CHECK/CASE")  # fmt: skip
    add("--checks", action="append", default=[], type=Path, metavar="PATH",
        help="file or directory of ReFrame checks instead of hpcdl's own")  # fmt: skip
    add("--set", action="append", default=[], metavar="NAME=VALUE",
        help="option of the training program, such as delay_ms=400")  # fmt: skip


def request_of(args: argparse.Namespace) -> CheckRequest:
    """What the options ask for."""
    from hpcdl.regress.check_request import CheckRequest

    return CheckRequest(
        partitions=tuple(args.partition),
        tags=tuple(args.tag),
        names=tuple(args.name),
        settings=tuple(args.set),
        waived=tuple(getattr(args, "waive", ())),
        paths=tuple(args.checks),
        distribute=getattr(args, "distribute", False),
        repeat=getattr(args, "runs", 1),
        retries=getattr(args, "retries", None),
        passed=tuple(getattr(args, "rest", ())),
        config=tuple(path.absolute() for path in getattr(args, "config", ())),
    )


def answer_of(site: Site, args: argparse.Namespace, **chosen: Any) -> GateAnswer:
    """The gate's answer now, from the history that the options name; `chosen` as `answer_now`."""
    from hpcdl.regress.accept import answer_now

    return answer_now(site, args.history, **chosen)


def history_option(parser: argparse.ArgumentParser) -> None:
    """The option that names the history."""
    parser.add_argument("--history", type=Path, metavar="FILE",
                        help="history file (default: HPCDL_HISTORY, or one per site)")  # fmt: skip


def shown(status: StatusLine) -> Progress:
    """What renews a status line while checks run."""
    from hpcdl.regress.show import progress_line

    def progress(directory: RunDirectory) -> None:
        text, key = progress_line(directory)
        status.show(text, key=key)

    return progress
