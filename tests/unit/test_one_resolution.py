"""What `stack resolve` shows is what `stack build` would make and what the module says."""

import json
import time
from dataclasses import replace
from types import MappingProxyType

import pytest

from hpcdl import facts
from hpcdl.jobs.spec import Module
from hpcdl.site import Gpu, StackRequest
from hpcdl.site.sections import BACKENDS
from hpcdl.stack.build import plan_stack
from hpcdl.stack.modules import choose, render_modules
from hpcdl.stack.resolve import Resolver, find_request
from hpcdl.workflows.modules import modules_by_partition
from hpcdl.workflows.site_plan import plan as plan_site
from hpcdl.workflows.site_plan import targets
from tests.make.sites import shipped

SITES = ("embedded", "pi", "p100-v100-k80", "a100-h100")
CASES = [
    (name, part, way) for name in SITES for part in shipped(name).partitions for way in BACKENDS
]
TITLES = {
    "tensorflow": "TensorFlow",
    "horovod": "Horovod",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "nccl": "NCCL",
}
ASKED = (*TITLES, "python", "keras", "bazel", "openmpi")


@pytest.fixture(autouse=True)
def every_python(monkeypatch):
    """A machine with every Python and an MPI, whichever runs the tests."""
    monkeypatch.setattr("hpcdl.stack.resolve.pythons", lambda: ("3.13", "3.12", "3.11", "3.10"))
    monkeypatch.setattr("hpcdl.stack.resolve.that_start", tuple)
    monkeypatch.setattr("hpcdl.stack.build.horovod.mpi_version", lambda: "Open MPI 4.1.4")
    interpreter = __import__("hpcdl.stack.recipe", fromlist=["Interpreter"]).Interpreter
    monkeypatch.setattr(
        "hpcdl.stack.build.recipes.interpreter",
        lambda minor: interpreter("/usr/bin/python3", f"{minor}.9"),
    )


def same(told, resolved):
    """Whether versions are the resolution's; of Python and Open MPI more digits may be known."""
    pairs = [(told.get(name, ""), resolved[name]) for name in ASKED if name in resolved]
    return all(have == want or have.startswith(f"{want}.") for have, want in pairs)


@pytest.mark.parametrize(("name", "partition", "backend"), CASES)
def test_the_plan_its_data_and_the_module_have_the_versions_of_resolve(name, partition, backend):
    """`backend: spack` once told 2.20.0 with gcc and bazel, and installed wheels of 2.21.0."""
    site = shipped(name)
    stack = site.stack_for(partition) or find_request(site)
    (found, *_) = Resolver(site).resolve(partition, backend)
    plans, blocked = plan_stack(site, stack.name, partition=partition, backend=backend)
    if (partition, backend) == ("p100", "spack-wheels"):
        assert found.versions["tensorflow"] == "2.21.0"
    assert found.fits == (not blocked), (found.problems, blocked)
    assert len(plans) == found.fits
    for plan in plans:
        expected, data = plan.expected(), plan.as_data()
        assert same(expected.versions, found.versions), (expected.versions, found.versions)
        assert (data["backend"], data["versions"]) == (backend, dict(expected.versions))
        assert data["proof"] == found.proof
        shown = render_modules(site, [expected], choose(site, [expected]))[f"{expected.module}.lua"]
        for component, title in TITLES.items():
            if component in found.versions:
                assert f"{title} {found.versions[component]}" in shown
        assert expected.module_version.startswith(found.versions["tensorflow"])


@pytest.mark.parametrize("name", SITES)
def test_stack_plan_shows_what_each_partition_resolves_to(name):
    site = shipped(name)
    wanted = {one.partition: one for one in Resolver(site).resolve() if one.wanted}
    planned = {part: one for one in targets(site) for part in one.partitions}
    assert planned.keys() == set(site.partitions)
    for part, target in planned.items():
        assert (target.release is None) == (not wanted[part].fits)
        assert target.release is None or same(target.release.versions, wanted[part].versions)


def test_a_dry_run_of_the_command_shows_them_too(hpcdl):
    words = ["--site", "p100-v100-k80", "--json"]
    (found,) = json.loads(
        hpcdl("stack", "resolve", *words, "--partition=p100", "--backend=spack").out
    )["resolutions"]
    told = hpcdl("stack", "build", *words, "--name=pascal", "--dry-run", code=3).out
    assert same(json.loads(told)["versions"], found["versions"])
    assert "Spack compiles TensorFlow" in told


def many(count):
    """A site with so many partitions of a few kinds of nodes, as large sites are."""
    site = shipped("p100-v100-k80")
    gpus = facts.load("gpus")["gpus"]
    models = ("P100-PCIe", "V100-PCIe", "A100-SXM4-40GB", "H100-SXM5", "T4", "K80")
    drivers = ("535.183.06", "550.54.15", "580.95.05")
    plain, parts = site.partitions["p100"], {}
    for number in range(count):
        model, driver = models[number % 6], drivers[number % 3]
        gpu = Gpu(model, "x", 4, gpus[model]["compute"], 16.0)
        driver = "470.256.02" if model == "K80" else driver
        parts[f"p{number}"] = replace(plain, name=f"p{number}", gpu=gpu, driver=driver, stack=None)
    return replace(
        site,
        partitions=MappingProxyType(parts),
        default_partition="p0",
        stacks={"tensorflow": StackRequest("tensorflow", "wheels", (), {}, horovod=False)},
    )


@pytest.mark.parametrize(("count", "budget"), [(100, 2.0), (2000, 10.0)])
def test_planning_is_linear_in_the_partitions(monkeypatch, count, budget):
    """A solve per pair of partitions took 26 s for 100, and never ended for 200."""
    monkeypatch.setattr("hpcdl.workflows.site_plan.uses", lambda _: ())
    site = many(count)
    start = time.process_time()
    found = plan_site(site)["stacks"]
    assert {name for one in found for name in one["partitions"]} == set(site.partitions)
    assert len(found) == 2, "one TensorFlow for the K80s, another one for the rest"
    modules = modules_by_partition(site)
    assert time.process_time() - start < budget
    assert set(modules.values()) == {Module(("tensorflow",))}, "no job script resolves a stack"


def test_a_plan_of_which_nothing_can_be_built_ends_with_an_error(hpcdl, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = hpcdl("stack", "build", "--site", "embedded", "--dry-run", code=3)
    assert "Debian and Ubuntu: apt install" in done.out
    assert done.err.startswith("error: nothing can be built on this machine\nhelp: ")
