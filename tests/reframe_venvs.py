"""Makes an environment for each supported release of ReFrame and runs the probes with all of them.

`make test-reframe`; the environments stay in build/reframe.
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

from hpcdl.regress.reframe_adapter.process import supported

ROOT = Path(__file__).resolve().parents[1]
PROBES = "tests/integration/test_reframe_releases.py"


def python_with(release):
    """The Python of an environment with a release of ReFrame and what hpcdl itself needs."""
    place = ROOT / "build" / "reframe" / release
    python = place / "bin" / "python"
    if not python.exists():
        venv.create(place, with_pip=True)
    wanted = [f"reframe-hpc=={release}", "jinja2", "PyYAML", "shtab"]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True)
    return python


if __name__ == "__main__":
    os.environ["HPCDL_REFRAME_PYTHONS"] = ":".join(str(python_with(one)) for one in supported())
    sys.exit(subprocess.call([sys.executable, "-m", "pytest", PROBES], cwd=ROOT))
