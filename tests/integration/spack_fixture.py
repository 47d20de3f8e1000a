"""What Spack's own runs share: Spack with settings of its own, and a small set of packages.

The small packages have nothing to download or compile, so that what is tested is how they are
built: `works` and `above` do, `waits` does when a file is there, and says something before.
"""

import os
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from hpcdl.stack.spack_backend.environment import SpackEnvironment, find_spack
from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.resources import cache, folder

PACKAGES = Path(os.environ.get("HPCDL_SPACK_PACKAGES", "")) / "repos" / "spack_repo" / "builtin"
BOOTSTRAP = "bootstrap:\n  enable: true\n  sources:: []\n  trusted:: {}\n"
SMALL = SpackEnvironment("small", "Small", ("nobody",), (), {}, "")


def why_not():
    """Why Spack cannot be run here; empty where it can."""
    try:
        find_spack()
    except MissingPrerequisite:
        return "Spack is not here (HPCDL_SPACK_ROOT)"
    if not os.environ.get("HPCDL_SPACK_PACKAGES") or not PACKAGES.is_dir():
        return "Spack's packages are not here (HPCDL_SPACK_PACKAGES)"
    return ""


def gcc(version, prefix):
    paths = {"c": "gcc", "cxx": "g++", "fortran": "gfortran"}
    return {
        "spec": f"gcc@{version} languages:='c,c++,fortran'",
        "prefix": prefix,
        "extra_attributes": {"compilers": {k: f"{prefix}/bin/{v}" for k, v in paths.items()}},
    }


@pytest.fixture(scope="session")
def spack_cache():
    """Spack's index of its packages takes a minute to make: kept for the next run, too."""
    return cache() / "tests" / "spack"


@pytest.fixture
def spack_home(tmp_path, monkeypatch, spack_cache):
    """Spack's settings of its own: nothing of the user's, two compilers, no network."""
    return own_spack(tmp_path, spack_cache, monkeypatch.setenv)


def own_spack(tmp_path, spack_cache, setenv):
    settings = tmp_path / "settings"
    settings.mkdir()
    compilers = [gcc("12.2.0", "/usr"), gcc("11.3.0", "/opt/gcc-11")]
    slurm = {"externals": [{"spec": "slurm@24.11.5", "prefix": "/usr"}]}
    pmix = {"externals": [{"spec": "pmix@5.0.7", "prefix": "/usr"}]}
    gccs = {"buildable": False, "externals": compilers}
    packages = {"packages": {"gcc": gccs, "slurm": slurm, "pmix": pmix}}
    (settings / "packages.yaml").write_text(yaml.safe_dump(packages))
    (settings / "repos.yaml").write_text(f"repos::\n  builtin: {PACKAGES}\n")
    (settings / "bootstrap.yaml").write_text(BOOTSTRAP)
    setenv("SPACK_PYTHON", os.environ.get("SPACK_PYTHON", sys.executable))
    setenv("SPACK_USER_CONFIG_PATH", str(settings))
    setenv("SPACK_SYSTEM_CONFIG_PATH", str(tmp_path / "none"))
    setenv("SPACK_USER_CACHE_PATH", str(spack_cache))
    skip = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(folder("spack"), tmp_path / "spack", ignore=skip))


RECIPE = '''
import os
from spack_repo.builtin.build_systems.generic import Package
from spack.package import *

class {name}(Package):
    """A small package."""
    homepage = "https://example.org"
    has_code = False
    license("MIT")
    version("1.0")
    {more}

    def install(self, spec, prefix):
        Executable("sh")("-c", "{command}")
        mkdirp(prefix.share)
        touch(join_path(prefix.share, self.name))
'''
_WAIT = "echo the compiler speaks; test -e $SMALL_FILE || exit 7"
_SLEEP = "touch $SMALL_STARTED; while ! test -e $SMALL_FILE; do sleep 0.1; done"
_FILL = "mkdir -p $SMALL_TREE/fill && head -c 50000000 /dev/zero > $SMALL_TREE/fill/file"


@pytest.fixture
def small(spack_home):
    """A folder as `hpcdl stack build` makes it, with small packages instead of TensorFlow."""
    return small_packages(spack_home)


def small_packages(spack_home):
    recipes = {
        "works": ("", "true"),
        "above": ('depends_on("works")', "true"),
        "waits": ('depends_on("works")', _WAIT),
        "sleeps": ('depends_on("works")', _SLEEP),
        "fills": ('depends_on("works")', _FILL),
    }
    for name, (more, command) in recipes.items():
        where = spack_home / "spack_repo" / "hpcdl" / "packages" / name
        where.mkdir()
        text = RECIPE.format(name=name.capitalize(), more=more, command=command)
        (where / "package.py").write_text(text)
    want(spack_home, "above", "waits")
    return spack_home


def want(home, *specs, tree="tree"):
    """Write the small environment's spack.yaml, with its install tree beside `home`; its folder."""
    where = home / "environments" / "small"
    where.mkdir(exist_ok=True)
    settings = {
        "repos": {"hpcdl": "$env/../../spack_repo/hpcdl"},
        "specs": list(specs),
        "packages": {"all": {"require": ["target=x86_64_v3"]}},
        "concretizer": {
            "unify": True,
            "reuse": False,
            "static_analysis": True,
            "targets": {"host_compatible": False},
        },
        "config": {"install_tree": {"root": str(home.parent / tree), "padded_length": 128}},
        "view": {"default": {"root": "view", "link": "run"}},
    }
    (where / "spack.yaml").write_text(yaml.safe_dump({"spack": settings}))
    return where
