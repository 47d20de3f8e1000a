"""`hpcdl stack resolve` and `--why-not` as commands, beside a Python that can read YAML."""

import subprocess
import sys

from tests.bench import alternate, report

RUNS = 15
GOAL_MS = 200.0


def command(*words):
    """Runs a Python to its end; `--why-not` may well answer no."""
    argv = [sys.executable, *words]
    return lambda: subprocess.run(argv, capture_output=True, check=False)


def main():
    resolve = ("-m", "hpcdl", "stack", "resolve", "--site", "pi")
    empty, all_of_it, asked = alternate(
        RUNS,
        command("-c", "import yaml"),
        command(*resolve),
        command(*resolve, "--partition", "k80", "--why-not", "tensorflow@2.18"),
    )
    for name, seconds in (("stack resolve, 5 partitions", all_of_it), ("--why-not", asked)):
        report(
            name,
            seconds * 1000,
            "ms",
            most=GOAL_MS,
            yardstick=f"`import yaml` alone: {empty * 1000:.0f} ms",
        )
