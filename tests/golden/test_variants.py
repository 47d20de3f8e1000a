"""Launchers, containers, staging and arrays: their scripts are what they were, and clean."""

import shutil
import subprocess

import pytest

from hpcdl.jobs import JobSpec, Module, render_script
from hpcdl.jobs.lint import lint
from hpcdl.site import find_site_file, load_site
from hpcdl.system.errors import BadInput
from tests.golden.variants import HERE, RELEASE, VARIANTS, script


@pytest.mark.parametrize("name", VARIANTS)
def test_the_kept_script_is_the_one_that_is_written_now(name: str) -> None:
    """When this fails on purpose: `make golden`, then read the diff."""
    assert (HERE / f"{name}.sh").read_text() == script(name)


def test_nothing_else_is_kept() -> None:
    assert {path.stem for path in HERE.glob("*.sh")} == set(VARIANTS)


@pytest.mark.parametrize("name", VARIANTS)
def test_bash_and_the_linter_have_nothing_to_say(name: str) -> None:
    subprocess.run(["bash", "-n", HERE / f"{name}.sh"], check=True)
    assert [str(one) for one in lint(script(name), name=name, version=RELEASE)] == []


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say() -> None:
    command = ["shellcheck", "--norc", *sorted(HERE.glob("*.sh"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == ""


def test_apptainer_gets_the_gpus_and_the_job_s_folders() -> None:
    words = (
        "apptainer exec --nv --bind=/work/me --bind=/data "
        '"--bind=/local/$SLURM_JOB_ID" "--pwd=$HPCDL_JOB_DIR" /images/tensorflow.sif python'
    )
    assert words in script("container-apptainer")


def test_pyxis_takes_its_image_on_the_step() -> None:
    assert "--container-mounts=/work/me:/work/me,/data:/data" in script("container-pyxis")


def test_a_container_needs_a_runtime_that_the_site_declares() -> None:
    site = load_site(find_site_file("embedded"))
    with pytest.raises(BadInput, match="declares no container runtime"):
        render_script(site, JobSpec("p100", container="/x.sif"), Module(()))
