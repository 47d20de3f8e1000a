"""The stand-ins against the real sbatch and srun, in what these refuse before any controller.

No cluster is needed. The installed Slurm is asked, and each root directory named in
HPCDL_SLURM_ROOTS (`:` between them; a Debian root with slurm-client) by chroot.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest
import standin_batch
import standin_steps
from slurm_model import Fatal, Slurm

from tests.unit.lint.conftest import CONFIG

DIRECTIVES = [
    "--mem=1G --mem-per-cpu=1G",
    "--exclusive --oversubscribe",
    "--gpus-per-node=1 --gres=gpu:1",
    "--gpus=2 --ntasks-per-gpu=1 --ntasks-per-node=2",
    "--gpus-per-task=1 --ntasks-per-gpu=1",
    "--gpus=2 --cpus-per-gpu=1 --cpus-per-task=1",
    "--tres-per-task=cpu:1",
    "--prefer=fast",
    "--segment=2",
    "--power=level",
    "--gpu-bind=none",
    "--gres-flags=allow-task-sharing",
    "--gpu-per-node=1",
    "-Y",
    "-n1 two",
    "--parti=main",
    "--cpus-per=2",
    "--nodes=2 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=4",
]
TEXTS = [
    *(f"#!/bin/bash\n#SBATCH {one}\ntrue\n" for one in DIRECTIVES),
    "#SBATCH -n1\ntrue\n",
    "#!/bin/sh\r\ntrue\r\n",
    "#!/bin/sh\ntrue \0\n",
    "#!/bin/sh\n#SBATCH -n1 \\\n  --gpu-per-node\n",
    "#!/bin/sh\ntrue\n#SBATCH --gpu-per-node\n",
]
STEPS = [
    ("--exclusive --overlap", {}),
    ("--exact --whole", {}),
    ("--cpu-bind=rank", {}),
    ("--tres-bind=gres/gpu:none", {}),
    ("--gres=gpu:1", {"SLURM_GPUS_PER_NODE": "1"}),
    ("", {"SLURM_CPUS_PER_TASK": "2", "SLURM_TRES_PER_TASK": "cpu=4"}),
    ("-c2", {"SLURM_NTASKS_PER_GPU": "1", "SLURM_GPUS": "1", "SLURM_TRES_PER_TASK": "cpu=2"}),
    ("-c2 --cpus-per-gpu=2 --gpus=1", {}),
    ("--wait-for-children", {}),
    ("-n2 -c4 --kill-on-bad-exit=1", {}),
]
_REFUSALS = re.compile(
    r"mutually exclusive|unrecognized option|invalid option|ambiguous|Invalid|only used with srun|"
    r"two different environment variables|look like a batch script|DOS line breaks|NULL character"
)


def roots():
    named = [Path(part) for part in os.environ.get("HPCDL_SLURM_ROOTS", "").split(":") if part]
    return [Path("/"), *named]


@pytest.fixture(scope="module", params=roots(), ids=str)
def slurm(request, tmp_path_factory):
    """What runs a command of a real Slurm: (its release, run(words, environment, stdin))."""
    root = request.param
    if not any((root / place / "sbatch").exists() for place in ("usr/bin", "usr/local/bin", "bin")):
        pytest.skip(f"no sbatch below {root}")
    if root == Path("/"):
        folder, prefix = tmp_path_factory.mktemp("conf"), []
    else:
        folder, prefix = root / "tmp", ["chroot", str(root)]
        if os.geteuid() != 0:
            pytest.skip("chroot needs root")
    config = folder / "hpcdl.conf"
    config.write_text(CONFIG)
    inside = f"/{config.relative_to(root)}"
    environment = {"PATH": os.environ["PATH"], "SLURM_CONF": inside, "HOME": "/"}

    def run(words, around=None, stdin=""):
        argv = ["timeout", "--signal=KILL", "8", *prefix, *words]
        env = {**environment, **(around or {})}
        return subprocess.run(argv, env=env, input=stdin, capture_output=True, text=True)

    yield run(["sbatch", "--version"]).stdout.split()[-1], run
    config.unlink()


def refusal(plan, *arguments):
    """What a stand-in says where it refuses."""
    try:
        plan(*arguments)
    except Fatal as fault:
        return str(fault)
    return ""


@pytest.mark.parametrize("text", TEXTS)
def test_the_stand_in_refuses_the_scripts_that_the_real_sbatch_refuses(slurm, text):
    version, run = slurm
    real = run(["sbatch"], stdin=text).stderr
    said = refusal(standin_batch.plan, Slurm(version), [], text.encode(), {})
    assert bool(_REFUSALS.search(said)) == bool(_REFUSALS.search(real)), (said, real)


@pytest.mark.parametrize(("options", "around"), STEPS)
def test_the_stand_in_refuses_the_steps_that_the_real_srun_refuses(slurm, options, around):
    version, run = slurm
    words = [*options.split(), "true"]
    real = run(["srun", *words], around).stderr
    said = refusal(standin_steps.plan, Slurm(version), words, around)
    assert bool(_REFUSALS.search(said)) == bool(_REFUSALS.search(real)), (said, real)


def test_the_real_slurm_has_no_plugin_that_the_facts_lack(slurm):
    version, run = slurm
    listed, known = run(["srun", "--mpi=list"]), r"\b(none|pmi2|pmix(?:_v\d)?|cray_shasta)\b"
    found = set(re.findall(known, listed.stderr + listed.stdout))
    assert found
    assert found <= set(Slurm(version).plugins())
