"""A script rendered, and one linted, by a new process, beside Python that imports yaml and jinja2
and renders one small template: what a generator of scripts cannot do without.

The first render on a machine judges the site file and compiles the template; both are kept, and
that first time is a figure of its own. The ratio is of medians of alternating runs.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench import alternate, report

RUNS = 20
GOAL, LINT_GOAL = 1.1, 1.5
YARDSTICK = """
import yaml, jinja2
text = '''#!/bin/bash
#SBATCH --job-name={{ name }}
#SBATCH --nodes={{ nodes }}
{% for option in options %}#SBATCH {{ option }}
{% endfor %}
srun {{ program }}
'''
values = {"name": "train", "nodes": 2, "options": ["--exclusive"], "program": "python train.py"}
print(jinja2.Template(text).render(values))
"""
RENDER = [
    "-m",
    "hpcdl",
    "job",
    "render",
    "--site",
    "p100-v100-k80",
    "--partition",
    "p100",
    "--gpus",
    "8",
    "--",
    "python",
    "-c",
    "pass",
]

LINT = ["-m", "hpcdl", "job", "lint", "--slurm-version", "22.05"]


def main():
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "HPCDL_HOME": f"{home}/home", "HPCDL_CACHE": f"{home}/cache"}

        def call(*words):
            subprocess.run(
                [sys.executable, *words],
                env=env,
                check=True,
                stdout=subprocess.DEVNULL,
                cwd=Path(__file__).resolve().parents[2],
            )

        start = time.perf_counter()
        call(*RENDER)
        first = time.perf_counter() - start
        script = Path(home, "job.sh")
        script.write_text(subprocess.check_output([sys.executable, *RENDER], env=env, text=True))
        render, linted, yardstick, empty = alternate(
            RUNS,
            lambda: call(*RENDER),
            lambda: call(*LINT, str(script)),
            lambda: call("-c", YARDSTICK),
            lambda: call("-c", "pass"),
        )
    shown = f"{yardstick * 1000:.0f} ms (empty Python {empty * 1000:.0f} ms)"
    ratio = render / yardstick
    report(
        "job render, a new process",
        ratio,
        "x",
        most=GOAL,
        yardstick=f"import yaml, jinja2 and one template: {shown}",
        note=f"{render * 1000:.0f} ms",
    )
    report(
        "job lint, a new process",
        linted / yardstick,
        "x",
        most=LINT_GOAL,
        yardstick=f"the same yardstick: {shown}",
        note=f"{linted * 1000:.0f} ms, the script of that render",
    )
    report(
        "job render, the first on a machine",
        first * 1000,
        "ms",
        yardstick=f"the same yardstick: {shown}",
        note="site judged, template compiled",
    )
