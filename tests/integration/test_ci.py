"""Rendered pipelines are what GitLab, GitHub, systemd and Slurm take."""

import shutil
import subprocess
import sys

import pytest

from hpcdl.regress.ci import Request, render, this_command
from tests.make.sites import shipped

SITES = ("p100-v100-k80", "a100-h100", "pi", "embedded")


def written(kind, folder):
    """The pipelines of all shipped sites."""
    request, paths = Request("site.yaml", user="hpc", command=this_command()), []
    for index, site in enumerate(map(shipped, SITES)):
        for name, text in render(kind, site, request).items():
            paths.append(folder / str(index) / name)
            paths[-1].parent.mkdir(exist_ok=True)
            paths[-1].write_text(text)
    return paths


@pytest.mark.parametrize(
    ("kind", "schema"), [("gitlab", "vendor.gitlab-ci"), ("github", "vendor.github-workflows")]
)
def test_a_pipeline_fits_the_schema_of_its_service(kind, schema, tmp_path):
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema]
    done = subprocess.run([*words, *written(kind, tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_systemd_takes_the_units(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (apt-get install systemd)")
    units = written("systemd", tmp_path)
    for folder in {path.parent for path in units}:
        words = ["systemd-analyze", "verify", "--man=no", *folder.iterdir()]
        done = subprocess.run(words, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
    times = {
        line.partition("=")[2]
        for path in units
        for line in path.read_text().splitlines()
        if line.startswith("OnCalendar=")
    }
    done = subprocess.run(["systemd-analyze", "calendar", *times], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.count("Next elapse") == len(times) == 3


@pytest.mark.cluster
def test_slurm_takes_the_options_of_the_scrontab(slurm, embedded_site, tmp_path):
    """A scrontab's options are sbatch's (scrontab(1)); each group of them is asked for."""
    text = render("scrontab", embedded_site, Request("s"))["scrontab"]
    groups = [part.splitlines() for part in text.split("\n\n") if "#SCRON" in part]
    assert len(groups) >= 2
    for lines in groups:
        *options, command = lines
        assert all(option.startswith("#SCRON --") for option in options)
        script = tmp_path / "script"
        directives = [option.replace("#SCRON", "#SBATCH") for option in options]
        script.write_text("\n".join(["#!/bin/sh", *directives, command.split(" ", 5)[5], ""]))
        assert "to start at" in slurm("sbatch", "--test-only", script).stderr
