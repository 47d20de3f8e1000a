"""What the training benchmarks share: the built release's Python, and how to run it."""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from tests.integration.train_runs import Runs, environment

ROOT = Path(__file__).resolve().parents[2]


def stack_python():
    """HPCDL_TEST_PYTHON, else the Python of the release that the tests share."""
    if named := os.environ.get("HPCDL_TEST_PYTHON"):
        return Path(named)
    from hpcdl.stack.build import build
    from hpcdl.system.resources import cache
    from tests.make import plan_build
    from tests.small_release import small_site

    site = small_site(cache() / "tests" / "prefix")
    return build(plan_build(site), lambda what: print(what, file=sys.stderr)).python


@contextmanager
def runs():
    with tempfile.TemporaryDirectory(prefix="hpcdl-bench-") as folder:
        yield Runs(stack_python(), Path(folder))


def script(python, name, *words):
    command = [str(python), "-m", f"tests.bench.{name}", *map(str, words)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout.strip().splitlines()[-1])
