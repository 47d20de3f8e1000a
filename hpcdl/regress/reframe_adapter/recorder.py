"""Runs ReFrame and records what it leaves out: `python -m` this module, with ReFrame's arguments.

ReFrame runs what it can, logs the rest in English, and exits with status 0. This wraps the
functions of its Python API where that happens, and appends a line of JSON each time: check files
that cannot be loaded, checks that cannot be made, cases left out because of others, metrics
without a value, and how many cases are selected. Without a first line, nothing was watched.

ReFrame's `--max-retries` runs again whatever failed. Here a retry skips, before its job is queued,
all but what was measured and too slow: a dead node stays dead, and a wrong result is no chance.
"""

# mypy: disable-error-code="misc,no-untyped-call,untyped-decorator"

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import reframe
from reframe import utility
from reframe.core import decorators
from reframe.core.exceptions import PerformanceError, SkipTestError, what
from reframe.core.meta import RegressionTestMeta
from reframe.core.pipeline import CompileOnlyRegressionTest, RegressionTest, RunOnlyRegressionTest
from reframe.core.runtime import runtime
from reframe.frontend import cli, dependencies
from reframe.frontend.executors import Runner
from reframe.frontend.loader import RegressionCheckLoader

from hpcdl.regress.reframe_adapter.process import RECORD_VARIABLE, RETRY_ALL, require_reframe
from hpcdl.system.errors import HpcdlError

_RETRY_ALL = RETRY_ALL in sys.argv
_SLOW: set[tuple[str, ...]] = set()
"""The cases of this process that were measured and too slow."""
_REQUIRED = ("valid_systems", "valid_prog_environs")


def record(event: str, **values: object) -> None:
    """Append an event to the run's record."""
    with Path(os.environ[RECORD_VARIABLE]).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"event": event, **values}) + "\n")


def left_out(kind: str, name: object, why: object = "") -> None:
    """Record that ReFrame leaves something out."""
    record("left out", kind=kind, name=str(name), why=" ".join(str(why).split()))


@contextmanager
def unless_it_raises(kind: str, name: object) -> Iterator[None]:
    """Record what an exception leaves out; ReFrame, which catches it, would only log it."""
    try:
        yield
    except SkipTestError:  # the check itself says that it does not apply
        raise
    except Exception:
        left_out(kind, name, what(*sys.exc_info()))
        raise


def _load_all(original: Any, loader: Any, *args: Any, **kwargs: Any) -> Any:
    for path in (one for one in loader.load_path if not Path(one).exists()):
        left_out("check file", path, "it does not exist")
    checks = original(loader, *args, **kwargs)
    names, tags = {type(one).__name__ for one in checks}, {str(t) for c in checks for t in c.tags}
    record("loaded", name=sorted(names), tag=sorted(tags))
    return checks


def _guarded(name: Callable[..., object]) -> Callable[..., Any]:
    """What records that a call with these arguments raised, and so left a check file out."""

    def around(original: Any, *args: Any, **kwargs: Any) -> Any:
        with unless_it_raises("check file", name(*args)):
            return original(*args, **kwargs)

    return around


def _simple_test(original: Any, cls: Any) -> Any:
    original(cls)
    if cls not in getattr(inspect.getmodule(cls), "_rfm_test_registry", ()):
        why = "a parameter has no values, or it is for another release of ReFrame"
        left_out("check", cls.__qualname__, why)
    return cls


def _make_check(original: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
    if not issubclass(cls, RegressionTest):
        return original(cls, *args, **kwargs)
    with unless_it_raises("check", cls.__qualname__):
        return original(cls, *args, **kwargs)


def _validate_check(original: Any, loader: Any, check: Any) -> Any:
    valid = original(loader, check)
    if not valid:
        lacks = [name for name in _REQUIRED if not hasattr(check, name)]
        why = f"{lacks[0]} is not set" if lacks else "it holds what cannot be copied"
        left_out("check", type(check).__qualname__, why)
    return valid


def _build_deps(original: Any, *args: Any, **kwargs: Any) -> Any:
    graph, skipped = original(*args, **kwargs)
    for case in skipped:
        left_out("case", case, "what it depends on is not there")
    return graph, skipped


def _run_all(original: Any, runner: Any, testcases: Any, *args: Any, **kwargs: Any) -> Any:
    record("selected", cases=len(testcases))
    return original(runner, testcases, *args, **kwargs)


def _check_performance(original: Any, check: Any) -> None:
    try:
        original(check)
    except PerformanceError:
        _SLOW.add(_case(check, check.current_partition, check.current_environ))
        raise
    measured = {key.rpartition(":")[2] for key in check.perfvalues}
    for name in () if check.is_dry_run() else {*check.perf_variables} - measured:
        left_out("metric", name, f"{check.unique_name} gave no value")


def _setup(original: Any, check: Any, partition: Any, environ: Any, **options: Any) -> None:
    again = runtime().current_run > 0
    if again and not _RETRY_ALL and _case(check, partition, environ) not in _SLOW:
        raise SkipTestError("it is not tried again: it was not measured")
    original(check, partition, environ, **options)


def _case(check: Any, partition: Any, environ: Any) -> tuple[str, ...]:
    return check.unique_name, partition.fullname, environ.name


_WATCHED: Sequence[tuple[Any, str, Callable[..., Any]]] = (
    (RegressionCheckLoader, "load_all", _load_all),
    (utility, "import_module_from_file", _guarded(lambda file, *_: file)),
    (RegressionCheckLoader, "load_from_module", _guarded(lambda _, module: module.__file__)),
    (reframe, "simple_test", _simple_test),
    (decorators, "simple_test", _simple_test),
    (RegressionTestMeta, "__call__", _make_check),
    (RegressionCheckLoader, "_validate_check", _validate_check),
    (dependencies, "build_deps", _build_deps),
    (Runner, "runall", _run_all),
    *(
        (cls, "setup", _setup)
        for cls in (RegressionTest, RunOnlyRegressionTest, CompileOnlyRegressionTest)
    ),
    (RegressionTest, "check_performance", _check_performance),
)
"""Where ReFrame leaves something out and continues: the function, and what is called around it."""


def watch() -> None:
    """Wrap the functions of ReFrame's; one that is not there is an AttributeError."""
    for owner, name, around in _WATCHED:
        setattr(owner, name, _wrapped(getattr(owner, name), around))
    record("watching", reframe=reframe.VERSION)


def _wrapped(original: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    return call


def main() -> None:
    """Run ReFrame with the arguments of this process."""
    # ReFrame's log of its own, which a killed one leaves, lies in the run's directory; a TMPDIR
    # would go on into the jobs.
    tempfile.tempdir = str(Path.cwd())
    try:
        require_reframe(reframe.VERSION)
    except HpcdlError as error:
        sys.exit(error.render())
    watch()
    sys.argv = [word for word in sys.argv if word != RETRY_ALL]
    cli.main()


if __name__ == "__main__":
    main()
