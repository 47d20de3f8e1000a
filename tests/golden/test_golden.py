"""The scripts are what they were, for every GPU, size, release of Slurm and variant, and clean."""

import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from hpcdl.jobs import JobSpec, Module, render_script
from hpcdl.jobs.lint import lint
from hpcdl.slurm.rules import known_releases
from hpcdl.system.errors import BadInput
from hpcdl.system.resources import folder
from tests.golden.matrix import FORMS, PARTITIONS, SIZES, kept, script, wanted
from tests.golden.variants import RELEASE, VARIANTS, all_scripts
from tests.make.sites import shipped

TEXTS = all_scripts()

# The script of a release, from that of the newest form: what is replaced, and by what.
CHANGES = {
    "23.11": [],
    "22.05": [("HOSTFILE}", "HOSTFILE,TRES_PER_TASK}")],
    "20.11": [
        ("HOSTFILE}", "HOSTFILE,TRES_PER_TASK}"),
        (r"^(.*(?:\bsrun|--) --mpi=\w+ --cpus-per-task=\d+)", r"\1 --exact"),
    ],
}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """Every script, as a file."""
    folder = tmp_path_factory.mktemp("golden")
    for name, text in TEXTS.items():
        (folder / f"{name}.sh").write_text(text)
    return sorted(folder.iterdir())


def test_the_kept_scripts_are_those_that_are_written_now():
    """When this fails on purpose: `make golden`, then read the diff."""
    assert kept() == wanted(TEXTS)


@pytest.mark.parametrize("version", known_releases())
def test_what_differs_by_release_is_what_the_release_makes_necessary(version):
    """Every partition and size: with what is kept of the newest form, each script byte for byte."""
    order = known_releases()
    form = [name for name in FORMS if order.index(name) <= order.index(version)][-1]
    for partition in PARTITIONS:
        for size in SIZES:
            text = script(partition, size, FORMS[-1])
            text = text.replace(f"Slurm {FORMS[-1]}", f"Slurm {version}")
            for pattern, new in CHANGES[form]:
                text, count = re.subn(f"(?m){pattern}", new, text)
                assert count
            assert script(partition, size, version) == text, (partition, size)


def test_bash_takes_them(scripts):
    for path in scripts:
        done = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), path.name


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say(scripts):
    words = ["shellcheck", "--norc", folder("templates") / "sbatch/jupyter.sh", *scripts]
    assert subprocess.run(words, capture_output=True, text=True, check=False).stdout == ""


@pytest.mark.parametrize("name", TEXTS)
def test_the_linter_has_nothing_to_say(name):
    version = RELEASE if name in VARIANTS else name.rpartition("-")[2]
    found = lint(TEXTS[name], name=name, version=version)
    assert [str(one) for one in found] == []


def test_a_container_needs_a_runtime_that_the_site_declares():
    site = replace(shipped(), container=None)
    with pytest.raises(BadInput, match="declares no container runtime"):
        render_script(site, JobSpec("p100", container="/x.sif"), Module(()))
