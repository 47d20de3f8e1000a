"""The drill of `stack adopt`: a Spack of its own, with packages that have nothing to compile."""

import os
import shutil
import sys
from functools import partial

from hpcdl.stack.release import read_release, release_ids
from hpcdl.stack.spack_backend.environment import concretize, open_spack
from hpcdl.stack.tree import check_integrity
from hpcdl.system.resources import cache
from tests.drill.harness import Drill
from tests.drill.stacks import ACT
from tests.integration.spack_fixture import RECIPE, SMALL, own_spack, small_packages, want, why_not
from tests.make.releases import silent
from tests.make.sites import small_site


def killed_adopts(bench):
    """Kill an adoption at a change, or at a program's start or end; the next one completes."""
    if why_not():
        bench.tally.note = why_not()
        return
    names = [name for name in os.environ if name.startswith(("HPCDL_SPACK", "SPACK_"))]
    before = {name: os.environ[name] for name in names}
    try:
        environment = _installed(bench)
        bench.extra |= {name: value for name, value in os.environ.items() if "SPACK" in name}
        _adopt(bench, environment)
    finally:
        for name in [name for name in os.environ if name.startswith("SPACK_")]:
            del os.environ[name]
        os.environ.update(before)


def _installed(bench):
    """An environment whose TensorFlow is an empty package, installed."""
    home = own_spack(bench.home, cache() / "tests" / "spack", os.environ.__setitem__)
    home = small_packages(home)
    recipe = home / "spack_repo" / "hpcdl" / "packages" / "py_tensorflow_wheels" / "package.py"
    made = f"{sys.executable} -m venv --without-pip " + "' + prefix + '"
    text = RECIPE.format(name="PyTensorflowWheels", more="", command="COMMAND")
    recipe.write_text(text.replace('"COMMAND"', f"'{made}'"))
    where = want(home, "py-tensorflow-wheels", "above")
    concretize(home, SMALL, silent)
    spack = open_spack(home, bench.home / "scope")
    spack.run("-e", where, "install", "--only-concrete", timeout=600)
    return str(where)


def _adopt(bench, environment):
    site = small_site(bench.home / "prefix")
    act = [*ACT, "adopt", str(site.paths.prefix), environment]
    releases = site.paths.prefix / "releases"
    for name, turn in bench.turns("adopt"):
        empty = partial(shutil.rmtree, releases, ignore_errors=True)
        at = bench.strike(name, turn, act, site.paths.prefix, empty, 300)
        bench.must((done := bench.run(act, seconds=300)).ok, f"adopt again after {at}: {done}")
        for made in release_ids(site):
            bench.must(check_integrity(read_release(site, made)).ok, f"half a release at {at}")
        bench.kept(len(release_ids(site)) == 1, f"the release, killed at {at}")


DRILLS = (
    Drill("adopt-kill", "adopt", "SIGKILL", 30, "the next one completes", 3600, killed_adopts),
)
