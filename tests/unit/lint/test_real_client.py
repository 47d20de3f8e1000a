"""The stand-ins against the real sbatch and srun, in what these refuse before any controller.

No cluster is needed: options and the script's text are checked first. The installed Slurm is
asked, and each root directory named in HPCDL_SLURM_ROOTS (`:` between them; a Debian root with
slurm-client) by chroot; what is absent is a skip.
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

SCRIPTS = {
    "memory": "#SBATCH --mem=1G --mem-per-cpu=1G",
    "exclusive": "#SBATCH --exclusive --oversubscribe",
    "gpu pair": "#SBATCH --gpus-per-node=1 --gres=gpu:1",
    "ntasks per gpu": "#SBATCH --gpus=2 --ntasks-per-gpu=1 --ntasks-per-node=2",
    "gpus per task": "#SBATCH --gpus-per-task=1 --ntasks-per-gpu=1",
    "cpus per gpu": "#SBATCH --gpus=2 --cpus-per-gpu=1 --cpus-per-task=1",
    "tres": "#SBATCH --tres-per-task=cpu:1",
    "prefer": "#SBATCH --prefer=fast",
    "segment": "#SBATCH --segment=2",
    "power": "#SBATCH --power=level",
    "bind none": "#SBATCH --gpu-bind=none",
    "sharing": "#SBATCH --gres-flags=allow-task-sharing",
    "misspelt": "#SBATCH --gpu-per-node=1",
    "letter": "#SBATCH -Y",
    "word": "#SBATCH -n1 two",
    "right": "#SBATCH --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=4",
    "beginning": "#SBATCH --parti=main",
    "ambiguous": "#SBATCH --cpus-per=2",
}
TEXTS = {
    "no shebang": "#SBATCH -n1\ntrue\n",
    "DOS line ends": "#!/bin/sh\r\ntrue\r\n",
    "NUL character": "#!/bin/sh\ntrue \0\n",
    "continued directive": "#!/bin/sh\n#SBATCH -n1 \\\n  --gpu-per-node\n",
    "late directive": "#!/bin/sh\ntrue\n#SBATCH --gpu-per-node\n",
}
STEPS = {
    "exclusive overlap": ("--exclusive --overlap", {}),
    "exact whole": ("--exact --whole", {}),
    "bind rank": ("--cpu-bind=rank", {}),
    "tres bind": ("--tres-bind=gres/gpu:none", {}),
    "gpu pair by the job": ("--gres=gpu:1", {"SLURM_GPUS_PER_NODE": "1"}),
    "cpus twice": ("", {"SLURM_CPUS_PER_TASK": "2", "SLURM_TRES_PER_TASK": "cpu=4"}),
    "ntasks per gpu": ("-c2", {"SLURM_NTASKS_PER_GPU": "1", "SLURM_GPUS": "1",
                               "SLURM_TRES_PER_TASK": "cpu=2"}),
    "cpus per gpu": ("-c2 --cpus-per-gpu=2 --gpus=1", {}),
    "wait for children": ("--wait-for-children", {}),
    "right": ("-n2 -c4 --kill-on-bad-exit=1", {}),
}  # fmt: skip
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
    if root != Path("/") and os.geteuid() != 0:
        pytest.skip("chroot needs root")
    config = (root / "tmp" if root != Path("/") else tmp_path_factory.mktemp("conf")) / "hpcdl.conf"
    config.write_text(CONFIG)
    inside = f"/{config.relative_to(root)}" if root != Path("/") else str(config)
    prefix = ["chroot", str(root)] if root != Path("/") else []
    environment = {"PATH": os.environ["PATH"], "SLURM_CONF": inside, "HOME": "/"}

    def run(words, around=None, stdin=""):
        argv = ["timeout", "--signal=KILL", "8", *prefix, *words]
        return subprocess.run(
            argv, env={**environment, **(around or {})}, input=stdin, capture_output=True,
            text=True, check=False, timeout=20,
        )  # fmt: skip

    version = run(["sbatch", "--version"]).stdout.split()[-1]
    yield version, run
    config.unlink()


def refusal(plan, *arguments):
    """What a stand-in says where it refuses."""
    try:
        plan(*arguments)
    except Fatal as fault:
        return str(fault)
    return ""


@pytest.mark.parametrize("name", [*SCRIPTS, *TEXTS])
def test_the_stand_in_refuses_the_scripts_that_the_real_sbatch_refuses(slurm, name):
    version, run = slurm
    text = TEXTS.get(name) or f"#!/bin/bash\n{SCRIPTS[name]}\ntrue\n"
    real = run(["sbatch"], stdin=text).stderr
    said = refusal(standin_batch.plan, Slurm(version), [], text.encode(), {})
    assert bool(_REFUSALS.search(said)) == bool(_REFUSALS.search(real)), (said, real)


@pytest.mark.parametrize("name", STEPS)
def test_the_stand_in_refuses_the_steps_that_the_real_srun_refuses(slurm, name):
    version, run = slurm
    options, around = STEPS[name]
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
