"""What every tier shares: what was left out is counted and named at the end."""

import gc
import signal
import sys
from collections import Counter
from importlib.util import find_spec
from types import ModuleType

import pytest

from hpcdl.system.resources import folder

# The built release that the real tests share; nothing is built before one asks for it.
pytest_plugins = [
    "tests.integration.spack_fixture",
    "tests.integration.stack_fixture",
    "tests.integration.train_runs",
    "tests.strangers",
]

# ReFrame imports a check with its directory on the path.
sys.path.insert(0, str(folder("reframe_checks")))
# Modules of hpcdl.train import TensorFlow at their top; what in them needs none is tested without.
if find_spec("tensorflow") is None:
    sys.modules["tensorflow"] = ModuleType("tensorflow")

_left_out = Counter()
_TIERS = {
    "long": "make test-long",
    "matrix": "make test-matrix",
    "gpu_build": "make test-gpu-build",
}


def pytest_configure():
    """Heed signals, as programs do that a person starts.

    What runs in the background, or under nohup, ignores some, and so would all that tests start.
    """
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_collection_finish():
    """Thousands of tests live to the end: no need to look through them for garbage each time."""
    gc.freeze()


def pytest_deselected(items):
    for item in items:
        marks = [name for name in _TIERS if item.get_closest_marker(name)]
        _left_out[marks[0] if marks else "not asked for"] += 1


def pytest_sessionfinish(session):
    """A worker of pytest-xdist hands its count on."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = dict(_left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Each worker leaves out the same tests."""
    if not _left_out:
        _left_out.update(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter):
    for skipped in terminalreporter.stats.get("skipped", []):
        reason = skipped.longrepr[2] if isinstance(skipped.longrepr, tuple) else ""
        _left_out[reason.removeprefix("Skipped: ")] += 1
    if not _left_out:
        return
    terminalreporter.section("left out")
    for reason, count in sorted(_left_out.items()):
        where = f" (run by `{_TIERS[reason]}`)" if reason in _TIERS else ""
        terminalreporter.line(f"{count:4d}  {reason}{where}")
