"""What the unit tests share: hypothesis's pace, a home of their own, the shipped sites."""

import os
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import HealthCheck, settings

from tests.make.sites import shipped, small_site

settings.register_profile(
    "fast",
    max_examples=40,
    deadline=None,
    # In CI the same examples each time: a red run can be run again.
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", parent=settings.get_profile("fast"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


@pytest.fixture(scope="session")
def homes(tmp_path_factory):
    """Directories that are made in no time, which thousands of tests need."""
    place = tmp_path_factory.mktemp("homes")
    return (place / str(number) for number in count())


@pytest.fixture(autouse=True)
def own_home(homes, monkeypatch):
    """No test reads or writes what a person keeps."""
    home = next(homes)
    home.mkdir()
    monkeypatch.setenv("HPCDL_HOME", str(home / "hpcdl"))
    monkeypatch.setenv("HPCDL_CACHE", str(home / "cache"))
    monkeypatch.delenv("HPCDL_SITE", raising=False)


@pytest.fixture
def site(tmp_path):
    """The embedded site with its software in the test's directory; many files have their own."""
    return small_site(tmp_path)


def environment_for(site, partition):
    """The Spack environment that compiles for one partition of a site."""
    from hpcdl.stack.resolve import find_request
    from hpcdl.stack.spack_backend.environment import environment_of

    stack = site.stack_for(partition) or find_request(site)
    request = replace(stack, backend="spack", packages=())
    return environment_of(site, request, (partition,), partition)


@pytest.fixture(scope="session")
def three_generations():
    """K80 (4 nodes x 8), P100 (8 x 4), V100 (6 x 8); Slurm 22.05."""
    return shipped("p100-v100-k80")


@pytest.fixture(scope="session")
def modern():
    """A100 (16 nodes x 8), H100 (8 x 8) and CPU nodes; Slurm 24.11."""
    return shipped("a100-h100")


@pytest.fixture(scope="session")
def pi():
    """CPU nodes, K20, K80, two P100; Slurm 20.11 that wants --gres."""
    return shipped("pi")


def commands():
    """Every command of the command line, by the words that call it."""
    from hpcdl.cli import GROUPS, load_group

    found = {}
    for name, entry in ((name, load_group(name)) for name in GROUPS):
        for one in getattr(entry, "commands", (entry,)):
            found[name if one is entry else f"{name} {one.name}"] = one
    return found


@pytest.fixture
def hpcdl(capsys):
    """Runs a command in this process, which ends with `code`; gives what it prints."""

    def run(*words, code=0):
        from hpcdl.cli import main

        capsys.readouterr()
        assert main([*words]) == code
        return capsys.readouterr()

    return run
