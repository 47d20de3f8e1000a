"""What ReFrame submits is what `hpcdl job render` prints, on every kind of layout.

No Slurm is needed: ReFrame writes the scripts of a dry run, the command line prints its own.
"""

import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from trainings import TrainingCase

from hpcdl.jobs.spec import Module
from hpcdl.regress.checkbase import rendered
from hpcdl.regress.reframe_adapter.settings import render_settings
from hpcdl.regress.training import ALL, shape_name
from tests.make.sites import shipped

pytest.importorskip("reframe", reason="ReFrame is not installed (pip install 'hpcdl[checks]')")
REFRAME = Path(sys.executable).with_name("reframe")
NO_MODULE = Module(())
SITES = ["p100-v100-k80", pytest.param("a100-h100", marks=pytest.mark.long)]
SHAPES = [(1, 1), (1, ALL), (2, ALL), (4, ALL)]


def dry_run(site, folder, pattern):
    """The scripts of a dry run, by partition and job name."""
    modules = defaultdict(lambda: NO_MODULE)
    (folder / "settings.py").write_text(render_settings(site, modules, prefix=folder / "rfm"))
    subprocess.run(
        [REFRAME, "-C", folder / "settings.py", "-n", pattern, "--dry-run"],
        check=True,
        capture_output=True,
        timeout=300,
        cwd=folder,
    )
    found = {}
    for path in (folder / "rfm").rglob("rfm_job.sh"):
        options = dict(
            option.removeprefix("--").split("=", 1)
            for option in re.findall("^#SBATCH (.*=.*)", path.read_text(), re.MULTILINE)
        )
        found[options["partition"], options["job-name"]] = path
    return found


@pytest.mark.parametrize("name", SITES)
def test_scripts_agree_for_every_layout_of_a_training(name, tmp_path):
    site = shipped(name)
    scripts = dry_run(site, tmp_path, "throughput.*resnet50.*synthetic-fp32")
    compared = 0
    for nodes, ranks in SHAPES:
        case = TrainingCase(
            "resnet50", nodes, ranks, steps=100, batch=64, data="synthetic", real=True, minutes=30
        )
        for partition in site.partitions.values():
            if partition.nodes < nodes or partition.gpu is None:
                continue
            spec = case.request(site, partition, "throughput")
            path = scripts[partition.name, spec.name]
            users = rendered(site, replace(spec, job_dir=path.parent), NO_MODULE)
            assert path.read_text() == users, f"{partition.name} {shape_name(nodes, ranks)}"
            compared += 1
    assert compared == len(scripts) > len(SHAPES)
