"""`make demo` a second time: everything is used again. The first one's time is its own report."""

import os
import re
import subprocess
import time
from pathlib import Path

from tests.bench import report

ROOT = Path(__file__).resolve().parents[2]


def demo() -> tuple[float, str]:
    """Seconds and output of one `make demo`."""
    start = time.monotonic()
    env = {key: value for key, value in os.environ.items() if not key.startswith("HPCDL_SITE")}
    done = subprocess.run(
        ["make", "demo"], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stdout[-3000:] + done.stderr[-3000:])
    return time.monotonic() - start, done.stdout


def main() -> None:
    first, _ = demo()
    second, text = demo()
    report("demo: whatever came first", first, "s", goal="<= 900 s", met=first <= 900,
           note="a first one builds Horovod, a later one does not")  # fmt: skip
    report("demo: the second", second, "s", goal="<= 90 s", met=second <= 90,
           note=f"{len(re.findall('FAIL as expected', text))} slowed job caught")  # fmt: skip
    subprocess.run(["make", "down"], cwd=ROOT, check=False, capture_output=True)


if __name__ == "__main__":
    main()
