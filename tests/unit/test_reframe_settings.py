"""ReFrame as its users know it, and only releases that it was run with; settings anywhere."""

import configparser
import os
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.jobs.spec import Module
from hpcdl.regress.reframe_adapter.process import CheckRequest, refuse_ours, supported, to_argv
from hpcdl.regress.reframe_adapter.settings import render_settings
from hpcdl.regress.run_directory import RunDirectory
from hpcdl.site import find_site_file
from hpcdl.system.errors import BadInput, ExitCode
from hpcdl.system.resources import to_install
from tests.make.sites import shipped

REFRAME = Path(sys.executable).with_name("reframe")
TEAM = """
import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import sanity_function

class Plain(rfm.RunOnlyRegressionTest):
    valid_systems, executable = ["*"], "true"

    @sanity_function
    def well(self):
        return sn.assert_true(1)
"""
ONE = '\n@rfm.simple_test\nclass {0}(Plain):\n    valid_prog_environs = ["+{0}"]\n'


def configuration(site):
    text = render_settings(site, defaultdict(lambda: Module(("tensorflow",))))
    found = {}
    exec(text.replace("import hpcdl.regress.reframe_adapter.backend", ""), found)
    return found["site_configuration"]


def reframe(folder, *words):
    """What ReFrame prints there."""
    pytest.importorskip("reframe")
    done = subprocess.run([REFRAME, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def test_environments_have_features_and_compilers(three_generations):
    known = {one["name"]: one for one in configuration(three_generations)["environments"]}
    assert known["gnu"]["features"] == ["openmp"]
    assert known["gnu-mpi"]["features"] == ["mpi", "openmp"]
    assert (known["gnu"]["cc"], known["gnu-mpi"]["cxx"]) == ("gcc", "mpicxx")
    assert "cuda" not in known, "the site does not say where it is"


def test_cuda_is_an_environment_of_partitions_with_gpus_where_the_site_has_it(three_generations):
    site = three_generations
    name, stack = next(iter(site.stacks.items()))
    with_cuda = replace(site, stacks={name: replace(stack, cuda_home=Path("/opt/cuda-12"))})
    found = configuration(with_cuda)
    (cuda,) = [one for one in found["environments"] if one["name"] == "cuda"]
    assert (cuda["features"], cuda["nvcc"]) == (["cuda", "openmp"], "/opt/cuda-12/bin/nvcc")
    offered = {part["name"]: part["environs"] for part in found["systems"][0]["partitions"]}
    gpus = {part.label: part.gpu is not None for part in site.by_groups()}
    assert {label: "cuda" in offered[label] for label in gpus} == gpus


def test_a_check_gets_the_environments_that_have_its_feature(tmp_path):
    settings = render_settings(shipped(), defaultdict(lambda: Module(())))
    (tmp_path / "settings.py").write_text(settings)
    (tmp_path / "team.py").write_text(TEAM + ONE.format("mpi") + ONE.format("openmp"))
    words = ("-C", "settings.py", "-c", "team.py", "-L", "--system=embedded:p100")
    lines = reframe(tmp_path, *words).splitlines()
    assert len({line for line in lines if line.startswith(("- mpi", "- openmp"))}) == 2
    assert any("Found 2 check(s)" in line for line in lines)


def test_settings_of_a_site_that_was_named_from_here_work_from_anywhere(
    tmp_path, monkeypatch, hpcdl
):
    (tmp_path / "here").mkdir()
    (tmp_path / "else").mkdir()
    (tmp_path / "here" / "site.yaml").write_text(find_site_file("p100-v100-k80").read_text())
    monkeypatch.chdir(tmp_path / "here")
    settings = tmp_path / "settings.py"
    settings.write_text(hpcdl("check", "settings", "--site", "site.yaml").out)
    assert "Found 2 check(s)" in reframe(tmp_path / "else", "-C", settings, "-l", "-n", "^storage")


def test_arguments_of_reframe_are_passed_on(tmp_path):
    request = CheckRequest(passed=("-J", "reservation=tests", "-x", "slow", "--exec-order=uid"))
    refuse_ours(request.passed)
    assert to_argv(RunDirectory(tmp_path), request, serial=True)[-5:] == list(request.passed)
    assert request.changed == ()
    assert CheckRequest(passed=("-S", "size=4")).changed == ("-S",), "it is no night"


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("-C", "PREFIX/reframe.py"),
        ("-Cother.py", "PREFIX/reframe.py"),
        ("--config-file=x", "PREFIX/reframe.py"),
        ("--tag=smoke", "--tag"),
        ("-l", "hpcdl check list"),
        ("--dry-run", "not for a run"),
        ("--dry", "not for a run"),
        ("--report-file=x", "not for a run"),
        ("--max-ret=3", "--runs"),
        # Both made every check pass without a number, and the gate opened.
        ("--skip-performance-check", "--waive"),
        ("--skip-sanity-check", "no result"),
        ("--an-option-of-tomorrow", "not for a run"),
        ("--job-opt=x", "write --job-option"),
    ],
)
def test_arguments_by_which_hpcdl_runs_reframe_are_refused(word, hint):
    with pytest.raises(BadInput) as refused:
        refuse_ours(["-J", "reservation=tests", word])
    assert hint in (refused.value.hint or "")


ROOT = Path(__file__).resolve().parents[2]
ADAPTER = ROOT / "hpcdl" / "regress" / "reframe_adapter"


def test_only_the_adapter_knows_more_of_reframe_than_its_public_names():
    imports = re.compile(r"^\s*(import reframe|from reframe)", re.MULTILINE)
    inner = r"RFM_|_rfm_|\bjob\._|reframe\.frontend|reframe\.core\.(schedulers|meta|launchers)"
    private = re.compile(inner)
    files = [*(ROOT / "hpcdl").rglob("*.py"), *(ROOT / "reframe_checks").glob("*.py")]
    others = {path: path.read_text() for path in files if ADAPTER not in path.parents}
    assert not [path for path, text in others.items() if private.search(text)]
    importing = [path for path, text in others.items() if imports.search(text)]
    assert [p.name for p in importing if p.parent.name != "reframe_checks"] == ["checkbase.py"]


def test_the_packages_bounds_are_the_first_and_the_last_release_that_was_run():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    wanted = setup["options.extras_require"]["checks"].strip()
    assert wanted == f"reframe-hpc >= {supported()[0]}, <= {supported()[-1]}"


@pytest.mark.parametrize("release", ["4.9.3", "4.11.0", "5.0"])
def test_another_release_is_refused_with_the_range(tmp_path, release):
    """By a real package of that release, first on Python's path, without what hpcdl needs."""
    (tmp_path / "reframe").mkdir()
    (tmp_path / "reframe" / "__init__.py").write_text(f"VERSION = {release!r}\n")
    known = tmp_path / f"reframe_hpc-{release}.dist-info"
    known.mkdir()
    said = f"Metadata-Version: 2.1\nName: reframe-hpc\nVersion: {release}\n"
    (known / "METADATA").write_text(said)
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", "hpcdl", "check", "run", "--site", "pi"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == ExitCode.MISSING_PREREQUISITE
    assert done.stderr.splitlines() == [
        f"error: ReFrame {release} is not supported: "
        f"hpcdl works with {supported()[0]} and newer that have what {supported()[-1]} has",
        f"help: {sys.executable} -m pip install 'hpcdl[checks]'",
    ]


def test_nobody_is_told_to_install_into_a_release(tmp_path, monkeypatch):
    (tmp_path / "release.json").touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "stack"))
    assert "`module unload tensorflow`" in to_install("checks")


def test_checks_are_listed_with_tags_and_partitions(tmp_path, hpcdl):
    pytest.importorskip("reframe")
    (tmp_path / "team.py").write_text(TEAM + ONE.format("mpi") + ONE.format("openmp"))
    listed = hpcdl("check", "list", "--site", "pi", "--checks", str(tmp_path / "team.py")).out
    assert [line.split()[0] for line in listed.splitlines()[1:]] == ["mpi", "openmp"]
    own = hpcdl("check", "list", "--site", "pi").out
    assert re.search(r"allreduce %shape=horovod-2x2 +nightly, smoke +.*p100", own)
    none = hpcdl("check", "list", "--site", "pi", "--checks", "/nowhere.py", code=2).err
    assert "there are no checks at /nowhere.py" in none
    (tmp_path / "team.py").write_text("import nothing_of_the_kind" + TEAM + ONE.format("mpi"))
    left_out = hpcdl("check", "list", "--site", "pi", "--checks", str(tmp_path), code=2).err
    assert "No module named 'nothing_of_the_kind'" in left_out
