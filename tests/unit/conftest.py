"""What the unit tests share: hypothesis's pace, a home of their own, the shipped sites."""

import os

import pytest
from hypothesis import HealthCheck, settings

from hpcdl.site import Site, load_site
from hpcdl.system.resources import folder

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


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes what a person keeps."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HPCDL_HOME", str(home / "hpcdl"))
    monkeypatch.setenv("HPCDL_CACHE", str(home / "cache"))
    monkeypatch.delenv("HPCDL_SITE", raising=False)


def shipped(name: str) -> Site:
    return load_site(folder("templates") / "sites" / f"{name}.yaml")


@pytest.fixture(scope="session")
def three_generations() -> Site:
    """K80 (4 nodes x 8), P100 (8 x 4), V100 (6 x 8); Slurm 22.05."""
    return shipped("p100-v100-k80")


@pytest.fixture(scope="session")
def modern() -> Site:
    """A100 (16 nodes x 8), H100 (8 x 8) and CPU nodes; Slurm 24.11."""
    return shipped("a100-h100")


@pytest.fixture(scope="session")
def pi() -> Site:
    """CPU nodes, K20, K80, two P100; Slurm 20.11 that wants --gres."""
    return shipped("pi")
