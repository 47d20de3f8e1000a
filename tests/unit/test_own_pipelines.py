"""The project's own pipelines: sound for their services, and they call make's targets alone."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ".github/workflows/ci.yml"
GITLAB = ".gitlab-ci.yml"
FILES = {GITHUB: "vendor.github-workflows", GITLAB: "vendor.gitlab-ci"} | {
    f".github/ISSUE_TEMPLATE/{name}.yml": "vendor.github-issue-forms" for name in ("fault", "wish")
}


@pytest.mark.parametrize("name", FILES)
def test_its_service_accepts_it(name):
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", FILES[name]]
    done = subprocess.run([*check, ROOT / name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", [GITHUB, GITLAB])
def test_it_calls_targets_that_there_are(name):
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M))
    called = set(re.findall(r"(?<!git )\bmake ([a-z][a-z-]+)$", (ROOT / name).read_text(), re.M))
    assert called <= targets, called - targets
    assert {"test-fast", "test-matrix", "down"} <= called


def test_every_python_that_is_supported_is_tried():
    setup = (ROOT / "setup.cfg").read_text()
    tried = yaml.safe_load((ROOT / GITHUB).read_text())["jobs"]["fast"]["strategy"]["matrix"]
    assert re.findall(r"Python :: (3\.\d+)", setup) == tried["python"]
