"""Spack's environments: rendered from the resolution, free of any site, up to date."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from hpcdl import facts
from hpcdl.site import SpackSettings
from hpcdl.site.model import External
from hpcdl.stack.resolve import Resolver
from hpcdl.stack.resolve_solver import Range
from hpcdl.stack.spack_backend.environment import (
    Lock,
    differences,
    files_of,
    read_lock,
    render,
    render_site,
    write_files,
)
from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.resources import folder
from tests.make.sites import shipped
from tests.unit.conftest import environment_for
from tools.spack_environments import environment, environments

SPACK = folder("spack")
ENVIRONMENTS = environments()
NAMES = [one.name for one in ENVIRONMENTS]


def site(name="p100-v100-k80", **changes):
    return replace(shipped(name), **changes)


def scope(one, partition="p100"):
    """What Spack is told of a site."""
    return yaml.safe_load(render_site(one, one.partitions[partition]))


def test_there_is_one_environment_per_gpu_generation():
    assert NAMES == ["k80", "p100", "v100", "a100", "h100", "p100-wheels"]
    assert {path.parent.name for path in SPACK.glob("environments/*/spack.yaml")} == set(NAMES)


@pytest.mark.parametrize("one", ENVIRONMENTS, ids=NAMES)
def test_the_committed_environment_is_what_rendering_gives(one):
    committed = (SPACK / "environments" / one.name / "spack.yaml").read_text()
    assert committed == render(one), "run: python -m tools.spack_environments"


COMPILED = [one for one in ENVIRONMENTS if not one.wheels]


@pytest.mark.parametrize("one", COMPILED, ids=lambda one: one.name)
def test_an_environment_fixes_the_versions_of_the_resolution(one):
    packages = yaml.safe_load(render(one))["spack"]["packages"]
    assert packages["py-tensorflow"]["require"] == [f"@{one.versions['tensorflow']}"]
    assert packages["cuda"]["require"] == [f"@{one.versions['cuda']}"]
    assert packages["cxx"]["require"] == [f"gcc@{one.gcc}"]
    assert Range(one.gcc).allows(one.versions["gcc"])
    kepler = (one.gcc, one.archs, one.versions["tensorflow"]) == (":11", ("35", "37"), "2.14.1")
    assert kepler == (one.name == "k80"), "its own compilers, and code for both cards"


def test_the_paths_in_an_environment_exist_beside_it():
    tree = yaml.safe_load(render(environment("p100")))["spack"]
    here = SPACK / "environments" / "p100"
    assert (Path(tree["repos"]["hpcdl"].replace("$env", str(here))) / "repo.yaml").is_file()
    assert (here / tree["include"][1]["path"] / "packages.yaml").is_file()


def test_a_sites_scope_has_its_target_pmix_compilers_mirrors_and_padding():
    externals = (
        External("gcc", "12.2.0", Path("/opt/gcc-12")),
        External("slurm", "22.05.8", Path("/opt/slurm")),
    )
    mirrors = {"site": "file:///apps/mirror"}
    tree = scope(site(spack=SpackSettings(externals=externals, mirrors=mirrors, build_jobs=16)))
    packages = tree["packages"]
    assert packages["all"] == {"require:": ["target=x86_64_v3"]}
    assert packages["pmix"] == {"require": ["@4.2"], "buildable": True}
    assert packages["slurm"]["externals"] == [{"spec": "slurm@22.05.8", "prefix": "/opt/slurm"}]
    compilers = packages["gcc"]["externals"][0]["extra_attributes"]["compilers"]
    assert compilers["cxx"] == "/opt/gcc-12/bin/g++"
    store = {"root": "/apps/hpcdl/spack/store", "padded_length": 128}
    assert (tree["config"]["install_tree"], tree["config"]["build_jobs"]) == (store, 16)
    assert tree["mirrors"] == mirrors
    own = scope(site(spack=SpackSettings(store=Path("/apps/spack/opt"), padded_length=0)))
    assert own["config"]["install_tree"] == {"root": "/apps/spack/opt"}


@pytest.mark.parametrize("name", ["pi", "p100-v100-k80", "a100-h100", "embedded"])
def test_a_sites_scope_is_yaml_without_duplicate_keys(name):
    one = site(name)
    text = render_site(one, next(iter(one.partitions.values())))
    names = re.findall(r"^  ([a-z0-9-]+):$", text.split("config:")[0], re.MULTILINE)
    assert len(names) == len(set(names))
    packages = yaml.safe_load(text)["packages"]
    assert packages["pmix"]["require"] == [f"@{one.slurm.pmix}"]
    assert {external.name for external in one.spack.externals} <= set(packages)


def test_a_gcc_beside_the_default_one_is_named_by_its_release(tmp_path):
    """As on Debian 13: gcc is 14, and nvcc 12.4 takes 13."""
    (tmp_path / "bin").mkdir()
    for name in ("gcc", "g++"):
        for release in ("13", "14"):
            (tmp_path / "bin" / f"{name}-{release}").touch()
        (tmp_path / "bin" / name).symlink_to(f"{name}-14")
    named = tuple(External("gcc", version, tmp_path) for version in ("13.3.0", "14.2.0"))
    told = scope(site(spack=SpackSettings(externals=named)))["packages"]["gcc"]["externals"]
    thirteen, fourteen = (one["extra_attributes"]["compilers"] for one in told)
    assert (thirteen["c"], thirteen["cxx"]) == (f"{tmp_path}/bin/gcc-13", f"{tmp_path}/bin/g++-13")
    assert (fourteen["c"], fourteen["cxx"]) == (f"{tmp_path}/bin/gcc", f"{tmp_path}/bin/g++")


def test_a_partitions_environment_follows_the_sites_pins_and_compilers():
    gcc = SpackSettings(externals=(External("gcc", "12.2.0", Path("/usr")),))
    request = replace(site().stacks["pascal"], pins={"tensorflow": "2.18.1"})
    found = environment_for(site(spack=gcc, stacks={"pascal": request}), "p100")
    assert found.versions["tensorflow"] == "2.18.1"
    assert (found.gcc, found.archs) == ("12.2.0", ("60",))


def test_what_has_no_gpus_compiles_for_cpus_and_what_fits_nothing_is_refused():
    cpus = environment_for(site("pi"), "cpu")
    assert (cpus.specs, cpus.variant) == (("hpcdl-tensorflow ~cuda",), "cpu")
    assert cpus.versions["tensorflow"] == "2.16.2"
    too_new = {name: replace(part, driver="595.10") for name, part in site().partitions.items()}
    with pytest.raises(MissingPrerequisite, match="no set of versions fits"):
        environment_for(site(partitions=too_new), "k80")


def test_a_pmix_that_spack_cannot_build_has_to_be_an_external():
    pi = site("pi")
    assert environment_for(pi, "k80").versions["openmpi"].startswith("4.1")
    others = tuple(one for one in pi.spack.externals if one.name != "pmix")
    bare = replace(pi, spack=SpackSettings(externals=others))
    (found,) = Resolver(bare).resolve("k80", "spack")
    assert not found.fits, "it was said to fit, and the build refused it"
    with pytest.raises(MissingPrerequisite, match="no set of versions fits") as caught:
        environment_for(bare, "k80")
    assert "spack.externals may name Slurm's own" in caught.value.details[0]


def test_a_sites_folder_stands_alone(tmp_path):
    root = tmp_path / "here"
    write_files(root, files_of(site(), environment_for(site(), "p100"), root, "p100"))
    for name in ("site.yaml", "spack_repo/hpcdl/repo.yaml", "environments/p100/spack.yaml"):
        assert (root / name).is_file()


def test_a_lock_whose_versions_are_not_the_resolutions_says_where(tmp_path):
    lock = read_lock(SPACK / "environments" / "p100")
    specs = {
        key: {**spec, "version": "2.29.3-1"} if spec["name"] == "nccl" else spec
        for key, spec in lock.specs.items()
    }
    other = Lock(tmp_path, lock.roots, specs)
    assert differences(environment("p100"), other) == ("nccl: 2.29.3-1, not 2.29.7",)


LOCKED = [one for one in COMPILED if (SPACK / "environments" / one.name / "spack.lock").exists()]


@pytest.mark.parametrize("one", LOCKED, ids=[one.name for one in LOCKED])
def test_a_committed_lock_has_the_versions_of_the_resolution(one):
    lock = read_lock(SPACK / "environments" / one.name)
    assert differences(one, lock) == ()
    every = {"tensorflow", "horovod", "cuda", "cudnn", "nccl", "keras", "openmpi", "ucx"}
    assert every <= set(lock.versions)
    for name in ("py-tensorflow", "py-horovod", "nccl"):
        (spec,) = [spec for spec in lock.specs.values() if spec["name"] == name]
        arch = spec["parameters"]["cuda_arch"]
        assert set(arch if isinstance(arch, list) else [arch]) == set(one.archs), name
    for name, version in lock.versions.items():
        assert Range(",".join(facts.load("spack")["solved"][name])).allows(version), name


def test_the_environment_from_wheels_is_the_list_of_wheels_and_so_is_its_lock():
    one, lock = environment("p100-wheels"), read_lock(SPACK / "environments" / "p100-wheels")
    packages = yaml.safe_load(render(one))["spack"]["packages"]
    assert packages["py-tensorflow-cuda-wheels"] == {"require": [f"@{one.versions['tensorflow']}"]}
    assert packages["python"] == {"require": [f"@{one.versions['python']}"]}
    assert one.specs == ("py-horovod-wheels +cuda cuda_arch=60,70",)
    assert one.variant == lock.variant == "cuda12.9-sm60-sm70"
    assert (differences(one, lock), lock.archs) == ((), one.archs)
    outside = {spec["name"] for spec in lock.specs.values() if "external" in spec}
    assert {"cuda", "gcc", "openmpi", "python", "cmake"} <= outside


def test_slurm_is_the_machines_and_pmix_is_built_only_for_a_site_that_names_no_other():
    packages = scope(site())["packages"]
    slurm = {"spec": f"slurm@{site().slurm.version}", "prefix": "/usr"}
    assert packages["slurm"] == {"buildable": False, "externals": [slurm]}
    own = SpackSettings(externals=(External("pmix", "4.2.9", Path("/opt/pmix")),))
    assert scope(site(spack=own))["packages"]["pmix"]["buildable"] is False
    defaults = yaml.safe_load((SPACK / "defaults" / "packages.yaml").read_text())["packages"]
    assert defaults["slurm"] == defaults["pmix"] == {"buildable": False}
