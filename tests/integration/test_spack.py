"""Spack's own runs over the overlay: audit, scopes, lock files, and solving the environments.

They need a Spack (HPCDL_SPACK_ROOT) and its packages (HPCDL_SPACK_PACKAGES), and run without
network. Solving takes minutes per environment: `make test-long`.
"""

import dataclasses
import json
import platform
import re
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

from hpcdl import facts
from hpcdl.site import External, SpackSettings, StackRequest
from hpcdl.stack.publish import publish
from hpcdl.stack.release import read_release
from hpcdl.stack.resolve_facts import COMPONENTS, known
from hpcdl.stack.spack_backend import spack_build
from hpcdl.stack.spack_backend.environment import (
    concretize,
    differences,
    find_spack,
    inventory,
    render,
    render_site,
    write_files,
)
from hpcdl.stack.spack_backend.spack_build import (
    adopt,
    adopt_installed,
    build_spack,
    open_build,
    plan_adoption,
)
from hpcdl.system.resources import folder
from hpcdl.system.run import run
from tests.integration.conftest import needs_lmod
from tests.integration.spack_fixture import PACKAGES, why_not
from tests.integration.stack_fixture import bill
from tests.make.releases import LMOD, passing, plan_build
from tests.make.sites import shipped
from tools.spack_environments import environments

OVERLAY = sorted(
    path.parent.name.replace("_", "-")
    for path in (folder("spack") / "spack_repo" / "hpcdl").glob("packages/*/package.py")
)


pytestmark = [
    pytest.mark.spack,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
    pytest.mark.timeout(2400),
]


def spack(home, *words, env=None):
    return run([find_spack(), *words], directory=home, env=env, timeout=900)


def test_the_overlay_passes_spacks_audit(spack_home):
    where = str(spack_home / "environments" / "p100")
    result = spack(spack_home, "-e", where, "audit", "packages", *OVERLAY)
    assert "issue" not in result.stdout, result.stdout


def test_plain_spack_finds_the_overlay_and_the_default_target(spack_home):
    where = str(spack_home / "environments" / "p100")
    assert "hpcdl" in spack(spack_home, "-e", where, "repo", "list").stdout
    told = spack(spack_home, "-e", where, "config", "get", "packages").stdout
    assert yaml.safe_load(told)["packages"]["all"]["require"] == ["target=x86_64_v3"]


def test_a_sites_settings_take_the_place_of_the_defaults(spack_home):
    settings = SpackSettings(externals=(External("slurm", "20.11.9", Path("/usr")),))
    site = dataclasses.replace(shipped("pi"), spack=settings)
    scope = spack_home / "site.yaml"
    scope.write_text(render_site(site, site.partitions["k80"]))
    where = str(spack_home / "environments" / "k80")
    env = {"HPCDL_SPACK_SITE": str(scope)}
    told = spack(spack_home, "-e", where, "config", "get", "packages", env=env).stdout
    packages = yaml.safe_load(told)["packages"]
    assert packages["all"]["require:"] == ["target=sandybridge"]
    assert packages["pmix"]["require"] == ["@3.2"]
    assert packages["slurm"]["externals"][0]["prefix"] == "/usr"
    assert packages["py-tensorflow"]["require"] == ["@2.14.1"]
    told = spack(spack_home, "-e", where, "config", "get", "config", env=env).stdout
    assert yaml.safe_load(told)["config"]["install_tree"]["padded_length"] == 128


@pytest.mark.parametrize("one", environments(), ids=lambda one: one.name)
def test_the_committed_lock_is_what_spack_reads(spack_home, one):
    where = spack_home / "environments" / one.name
    if not (where / "spack.lock").exists():
        pytest.skip(f"no lock file for {one.name}")

    def locked():
        data = json.loads((where / "spack.lock").read_text())
        return {key: value for key, value in data.items() if key != "spack"}  # which one wrote it

    before = locked()
    spack(spack_home, "-e", str(where), "concretize")
    assert locked() == before, "the lock no longer fits its spack.yaml"


@pytest.mark.long
@pytest.mark.parametrize("one", environments(), ids=lambda one: one.name)
def test_spack_solves_the_environment_with_the_versions_of_resolve(spack_home, one):
    (spack_home / "environments" / one.name / "spack.yaml").write_text(render(one))
    (spack_home / "environments" / one.name / "spack.lock").unlink(missing_ok=True)
    lock = concretize(spack_home, one, print)
    assert differences(one, lock) == ()
    assert len(lock.specs) > (5 if one.wheels else 100)


OFFERED = [name for name in COMPONENTS if "spack" in known().components[name].versions]


@pytest.mark.parametrize("name", OFFERED)
def test_every_version_the_facts_offer_is_in_a_recipe(name):
    package = facts.load("spack")["packages"][name].replace("-", "_")
    overlay = folder("spack") / "spack_repo" / "hpcdl" / "packages" / package / "package.py"
    own = overlay.read_text() if overlay.exists() else "Builtin"
    inherited = (PACKAGES / "packages" / package / "package.py").read_text()
    text = own + (inherited if "Builtin" in own else "")
    for version in known().components[name].versions["spack"]:
        assert re.search(rf'"{re.escape(version)}[".-]', text), version


@pytest.mark.long
@needs_lmod
@pytest.mark.parametrize(
    ("partitions", "example", "module"),
    [
        (("k80", "k20"), "pi", "2.14.1-cuda11.8-sm35-sm37"),
        (("p100",), "p100-v100-k80", "2.20.0-cuda12.6-sm60"),
        (("v100",), "p100-v100-k80", "2.20.0-cuda12.6-sm70"),
        (("a100",), "a100-h100", "2.20.0-cuda12.6-sm80"),
        (("h100",), "a100-h100", "2.20.0-cuda12.6-sm90"),
    ],
)
def test_every_gpu_stack_is_one_view_and_one_module(
    spack_home, tmp_path, monkeypatch, partitions, example, module
):
    """From the committed lock, with empty packages, to the published module under real Lmod."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the environment is for Python 3.11")
    lock = spack_home / "environments" / partitions[0] / "spack.lock"
    shutil.rmtree(lock.with_name(".spack-env"), ignore_errors=True)
    monkeypatch.setenv("HPCDL_HOME", str(tmp_path / "home"))
    site = shipped(example, prefix=tmp_path / "prefix", lmod_init=LMOD)
    request = StackRequest("gpu", "spack", partitions, {})
    site = dataclasses.replace(site, stacks={"gpu": request}, private=True)
    site = dataclasses.replace(site, agreements={"cuda": "nobody", "cudnn": "nobody"})
    plan = plan_build(site, "gpu")
    write_files(plan.folder, plan.files)
    where = plan.where
    shutil.copyfile(lock, where / "spack.lock")
    (where / ".solved").write_text(plan.stamp())
    plan = plan.solved()
    program = open_build(plan)
    program.run("-e", where, "install", "--fake", timeout=1800)
    prefixes = {one["name"]: one["prefix"] for one in inventory(program, where)["packages"]}
    venv = Path(prefixes["python-venv"])
    run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", venv])

    # Empty packages have no Python modules.
    monkeypatch.setattr(spack_build, "require_imports", lambda *_: None)
    release_id = adopt(plan, program, print).id
    assert release_id == plan.release_id
    publish(site, release_id, passing, say=print)
    release = read_release(site, release_id)
    assert {entry["name"] for entry in release.lock} >= {"py-tensorflow", "cuda", "cudnn", "nccl"}
    assert release.module == f"tensorflow/{module}"
    components = bill(release)
    purls = {one["name"]: one["purl"] for one in components}
    assert len(purls) > 100
    assert purls["py-numpy"].startswith("pkg:pypi/numpy@")
    assert "github.com/tensorflow/tensorflow" in purls["py-tensorflow"]
    assert purls["openmpi"].startswith("pkg:generic/openmpi@5.0.10?checksum=sha256:")
    assert [purl for name, purl in purls.items() if ":pypi/" in purl and name[:3] != "py-"] == []

    script = (
        f". {LMOD}; module use {release.modules}; module load tensorflow; module -t list 2>&1; "
        "echo $LD_LIBRARY_PATH; echo $XLA_FLAGS; command -v hpcdl; module unload tensorflow; "
        'echo "[$LD_LIBRARY_PATH$XLA_FLAGS]"'
    )
    env = {"MODULEPATH": ""}
    listed, libraries, flags, hpcdl, after = run(["bash", "-c", script], env=env).stdout.split()
    assert listed == release.module
    stack = release.prefix
    parts = ("lib", "extras/CUPTI/lib64", "lib64")
    assert libraries.split(":") == [f"{stack}/{part}" for part in parts]
    assert flags == f"--xla_gpu_cuda_data_dir={stack}"
    assert hpcdl == f"{stack}/bin/hpcdl"
    assert after == "[]"


@pytest.mark.long
def test_a_stack_from_wheels_is_built_and_loaded(spack_home, tmp_path, monkeypatch):
    """The whole way for real: solve, install, gate, module, and once more."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the wheels are for Python 3.11")
    needed = ("mpicxx", "cmake", "make", "patch")
    lacking = [name for name in needed if shutil.which(name) is None]
    if lacking or not LMOD.is_file():
        pytest.skip(f"not installed: {', '.join(lacking) or 'Lmod'}")
    short = Path(tempfile.mkdtemp(prefix="hpcdl-", dir="/tmp"))  # gpg's socket wants it
    monkeypatch.setenv("HPCDL_HOME", str(short / "home"))
    site = _wheels_site(short / "prefix")
    try:
        release = build_spack(plan_build(site), print)
        checks = {one.name: one for one in publish(site, release.id, say=print).proof.checks}
        assert checks["libraries"].detail.endswith("all that the release has are its own")
        program = "import tensorflow as tf; print(tf.__version__, float(tf.ones((3, 3))[0, 0]))"
        script = (
            f". {LMOD}; module use {site.paths.prefix}/current/modules; module load tensorflow; "
            f"python -c '{program}'"
        )
        told = run(["bash", "-c", script], env={"TF_CPP_MIN_LOG_LEVEL": "3"}, timeout=600)
        assert told.stdout.split()[:2] == ["2.21.0", "1.0"]
        assert plan_build(site).exists
        before = release.root.stat().st_mtime_ns
        again = build_spack(plan_build(site), print)
        assert (again.id, again.root.stat().st_mtime_ns) == (release.id, before)

        # The same environment adopted by itself is the same release.
        adoption = plan_adoption(site, str(plan_build(site).where))
        assert adoption.release_id == release.id
        shutil.rmtree(release.root)
        adopted = adopt_installed(adoption, print)
        assert (adopted.id, adopted.versions, adopted.needs, adopted.environment) == (
            release.id,
            release.versions,
            release.needs,
            release.environment,
        )
        publish(site, adopted.id, say=print)
    finally:
        shutil.rmtree(short, ignore_errors=True)


def _wheels_site(prefix):
    """A site with one partition without GPUs, whose stack Spack makes from wheels."""
    pi = shipped("pi", prefix=prefix, lmod_init=LMOD)
    version = platform.python_version()
    externals = (
        External("python", version, Path(sys.base_prefix)),
        External("openmpi", "4.1.4", Path("/usr")),
        External("cmake", "3.25.1", Path("/usr")),
        External("gmake", "4.3", Path("/usr")),
    )
    return dataclasses.replace(
        pi,
        name="tiny",
        partitions={"cpu": dataclasses.replace(pi.partitions["cpu"], stack="tensorflow")},
        stacks={"tensorflow": StackRequest("tensorflow", "spack-wheels", ("cpu",), {})},
        slurm=dataclasses.replace(pi.slurm, pmix=None),
        spack=SpackSettings(externals=externals),
        private=True,  # the Python of whoever runs the tests
    )
