"""One program for TensorFlow 2.14 to the newest, with Keras 2 and Keras 3, alone and with Horovod.

Every TensorFlow comes from PyPI into a virtual environment of the cache; Horovod's wheel is built
against it by the recipe of `hpcdl stack build`. What cannot be got is skipped by name.
"""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdl.stack.build import build
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.resources import cache
from tests.integration.train_runs import ROOT, Runs
from tests.make.releases import plan_build, silent

pytestmark = [pytest.mark.stack, pytest.mark.long, pytest.mark.timeout(3600)]
ALONE = [
    ("2.14.1", "2"),
    ("2.16.2", "3"),
    ("2.16.2", "3.3.3"),
    ("2.16.2", "2"),
    ("2.18.1", "3"),
    ("2.18.1", "2"),
    ("2.20.0", "3"),
    ("2.20.0", "2"),
    ("2.21.0", "3"),
]
WITH_HOROVOD = ["2.14.1", "2.18.1", "2.21.0"]
NEEDS = "setuptools<81 scikit-learn cloudpickle psutil PyYAML packaging jinja2 shtab"
SMALL = ("--image-size=32", "--lr=0.01", "--deterministic")
RESNET = ("--model=resnet50", "--global-batch=4", "--steps=6", "--checkpoint-every=2", *SMALL)


def environment_of(version, keras):
    """The interpreter of a virtual environment with this TensorFlow and this checkout.

    `keras` is `2`, `3` for the newest that fits, or one version of it.
    """
    pinned = [f"keras=={keras}"] if "." in keras else []
    name = "-keras-".join([version, keras] if pinned else [version])
    folder = cache() / "tests" / "tensorflows" / name
    python = folder / "bin" / "python"
    if not (folder / ".done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        legacy = [] if version.startswith("2.14") else [f"tf_keras=={version[:4]}.*"]
        wanted = [f"tensorflow-cpu=={version}", *pinned, *legacy, *NEEDS.split()]
        pip = [python, "-m", "pip", "install", "-q", *wanted]
        for command in ([sys.executable, "-m", "venv", folder], pip):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                why = done.stderr.strip().splitlines()[-1]
                pytest.skip(f"TensorFlow {version} cannot be got for this Python: {why}")
        site = next(folder.glob("lib/python*/site-packages"))
        (site / "hpcdl-checkout.pth").write_text(f"{ROOT}\n")
        (folder / ".done").touch()
    return python


def with_horovod(site, version):
    request = dataclasses.replace(next(iter(site.stacks.values())), pins={"tensorflow": version})
    pinned = dataclasses.replace(site, stacks={request.name: request})
    try:
        return Path(build(plan_build(pinned), silent).python)
    except (BadInput, MissingPrerequisite) as lack:
        pytest.skip(f"no release with TensorFlow {version} can be built here: {lack.message}")


def kill_and_resume(runs, ranks, env):
    """A Keras network that is killed and resumed ends bitwise like one that is not."""
    whole = runs.train(*RESNET, ranks=ranks, job="whole", timeout=600, **env)
    process = runs.start(*RESNET, "--delay-ms=1500", ranks=ranks, job="killed", env=env)
    runs.wait_for("checkpoints/step-*.ckpt", "killed", timeout=600)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    said = "resumed after step"
    again = runs.train(*RESNET, ranks=ranks, job="killed", timeout=600, says=said, **env)
    assert 0 < again.result["samples"]["first_step"] < 6
    assert again.weights == whole.weights


def digits_reach_95_percent(runs, ranks, env):
    runs.data("make", "digits", "digits")
    words = ("--data=digits", "--global-batch=128", "--epochs=20", "--target-accuracy=0.95")
    done = runs.train(*words, ranks=ranks, job="digits-job", timeout=600, **env)
    assert done.result["layout"]["ranks"] == ranks


def findings_are_scored(runs, ranks, env):
    asked = "--count=32 --test=32 --shards=2 --size=64x64 --bytes=3500 --classes=findings"
    runs.photos("chest", *asked.split())
    words = ("--model=chexnet", "--data=chest", "--global-batch=8", "--steps=2", *SMALL)
    done = runs.train(*words, ranks=ranks, job="chexnet-job", timeout=600, **env)
    assert done.result["parameters"] == 6968206
    assert {"auroc", "auroc/Hernia"} <= done.metrics.keys()


@pytest.mark.parametrize(("version", "keras"), ALONE)
def test_every_tensorflow_trains_scores_and_resumes(tmp_path, version, keras):
    runs = Runs(environment_of(version, keras), tmp_path)
    env = {"TF_USE_LEGACY_KERAS": "1"} if keras == "2" and version != "2.14.1" else {}
    digits_reach_95_percent(runs, 1, env)
    findings_are_scored(runs, 1, env)
    kill_and_resume(runs, 1, env)


@pytest.mark.parametrize("version", WITH_HOROVOD)
def test_every_horovod_trains_scores_and_resumes_on_two_ranks(tmp_path, stack_site, version):
    runs = Runs(with_horovod(stack_site, version), tmp_path)
    digits_reach_95_percent(runs, 2, {})
    findings_are_scored(runs, 2, {})
    kill_and_resume(runs, 2, {})
