"""Runs ReFrame and records what its report lacks: `python -m` this module, with its options.

ReFrame runs what it can, logs the rest in English, and exits with status 0. This wraps the few
functions of its Python API where that happens, and appends a line of JSON each time: its warnings,
checks that fit no partition, references without a number, why it skipped a case or expected it to
fail. Without a first line, nothing was watched.

`--probe` only tells whether this ReFrame has these functions.
"""

# mypy: disable-error-code="misc,no-untyped-call,untyped-decorator"

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import reframe
from reframe.core.exceptions import what
from reframe.core.logging import LoggerAdapter
from reframe.core.pipeline import RegressionTest
from reframe.frontend import cli
from reframe.frontend.executors import RegressionTask

from hpcdl.regress.reframe_adapter.process import PROBE, RECORD_VARIABLE


def record(event: str, **values: object) -> None:
    """Append an event to the run's record."""
    with Path(os.environ[RECORD_VARIABLE]).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"event": event, **values}) + "\n")


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


def _warning(original: Any, logger: Any, message: object, *args: Any, **kwargs: Any) -> None:
    check = getattr(logger.check, "unique_name", "")
    record("warning", check=check, text=f"ReFrame warns: {_one_line(message)}")
    original(logger, message, *args, **kwargs)


def _verbose(original: Any, logger: Any, message: object, *args: Any, **kwargs: Any) -> None:
    # A check that skips itself while it is made is in no report, and only told so with -v.
    if str(message).startswith("skipping test "):
        record("note", text=_one_line(message))
    original(logger, message, *args, **kwargs)


def _generate(original: Any, checks: Any, *args: Any, **kwargs: Any) -> Any:
    cases = original(checks, *args, **kwargs)
    placed = {case.check.unique_name for case in cases}
    for check in checks:
        # One of hpcdl's own that fits no partition says so with an empty list.
        if check.unique_name not in placed and check.valid_systems:
            where = f"{', '.join(check.valid_systems)} with {', '.join(check.valid_prog_environs)}"
            record("note", text=f"check {check.display_name} fits no partition: {where}")
    return cases


def _check_performance(original: Any, check: Any) -> None:
    original(check)
    # Of one whose number is not found ReFrame itself warns.
    for name in sorted(_referenced(check) - {*check.perf_variables}):
        text = f"metric {name} has a reference, and the check does not measure it"
        record("warning", check=check.unique_name, text=text)


def _referenced(check: Any) -> set[str]:
    """The metrics that a check's own references name for the partition that it runs on."""
    reference: Any = getattr(check, "reference", ())
    if not hasattr(reference, "scope_separator"):  # one of a file ($ref) names other checks' too
        return set()
    here, keys = check.current_partition.fullname, list[str](reference)
    found = {key.rpartition(":") for key in keys}
    return {name for scope, _, name in found if scope in {here, here.partition(":")[0], "*"}}


def _neutral(original: Any, task: Any, *args: Any, **kwargs: Any) -> None:
    original(task, *args, **kwargs)
    check, partition, environ = task.testcase
    case = {"check": check.unique_name, "partition": partition.name, "environ": environ.name}
    record("neutral", **case, why=_one_line(what(*task.exc_info)))


_WATCHED: Sequence[tuple[Any, str, Callable[..., Any]]] = (
    (LoggerAdapter, "warning", _warning),
    (LoggerAdapter, "verbose", _verbose),
    (cli, "generate_testcases", _generate),
    (RegressionTest, "check_performance", _check_performance),
    (RegressionTask, "skip", _neutral),
    (RegressionTask, "xfail", _neutral),
)
"""Where ReFrame tells what its report does not have: the function, and what is called around it."""


def watch() -> None:
    """Wrap the functions of ReFrame's; one that is not there is an AttributeError."""
    for owner, name, around in _WATCHED:
        setattr(owner, name, _wrapped(getattr(owner, name), around))


def _wrapped(original: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    return call


def main() -> None:
    """Run ReFrame with the arguments of this process."""
    watch()
    if PROBE in sys.argv:
        return
    # ReFrame's log of its own, which a killed one leaves, is in the run's directory; a TMPDIR
    # would go on into the jobs.
    tempfile.tempdir = str(Path.cwd())
    record("watching", reframe=reframe.VERSION)
    cli.main()


if __name__ == "__main__":
    main()
