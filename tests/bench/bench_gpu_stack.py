"""A stack for P100 and V100 in a Debian 13 with clang: built, built again, published, loaded, read.

The wheels are in the cache before anything is measured; the root is that of `make test-gpu-build`.
"""

import json
import shutil
from statistics import median

import pytest

from hpcdl.system.resources import cache
from tests.bench import middle, report, timed
from tests.gpu_roots import CASES, PYTHON, install_hpcdl, root_of, write_site

RUNS = 5
FETCH = """
from hpcdl.site import find_site_file, load_site
from hpcdl.stack.plans import plan_stack
from hpcdl.stack.wheelhouse import fetch
for plan in plan_stack(load_site(find_site_file()))[0]:
    fetch(plan.recipe, plan.python, print)
"""
# Seconds of an empty module and of ours, in turn, in one shell.
LOADS = """
mkdir -p /tmp/empty/none && touch /tmp/empty/none/1.lua
module use /tmp/empty {modules}
module load tensorflow && module unload tensorflow
for run in 1 2 3 4 5 6 7; do
  for name in none tensorflow; do
    start=$EPOCHREALTIME
    module load $name && module unload $name
    echo $name $start $EPOCHREALTIME
  done
done
"""


def main():
    """Measure in a root; where none can be made, every figure is skipped."""
    try:
        root = root_of(CASES[0].suite, CASES[0].compiler)
    except pytest.skip.Exception as lack:
        report("GPU stacks", None, "s", note=str(lack))
        return
    install_hpcdl(root)
    shutil.rmtree(root.prefix, ignore_errors=True)
    write_site(root, CASES[0])
    root.run(PYTHON, "-c", FETCH, HPCDL_SITE="/etc/site.yaml")
    try:
        figures(root)
    finally:
        shutil.rmtree(root.prefix)


def figures(root):
    for wheel in (cache() / "wheels").glob(f"horovod-*-tf{CASES[0].module.split('/')[1][:6]}-*"):
        shutil.rmtree(wheel)
    build = ("stack", "build", "--json")
    tell("GPU stack, wheels cached, Horovod compiled", timed(lambda: root.hpcdl(*build)), 300)
    release = json.loads(root.hpcdl(*build).stdout)["id"]
    shutil.rmtree(f"{root.prefix}/releases/{release}")
    tell("GPU stack, wheels and Horovod cached", timed(lambda: root.hpcdl(*build)), 60)
    tell("GPU stack, built already", middle(RUNS, lambda: root.hpcdl(*build)), 3)
    root.hpcdl("stack", "publish", release, "--local")
    again = middle(RUNS, lambda: root.hpcdl("stack", "publish", release, "--local"))
    found = json.loads(root.hpcdl("stack", "verify", "--integrity", "--json").stdout)
    files = f"{found['files']:,} files, {found['bytes'] / 1e9:.1f} GB"
    tell("publish of a GPU release again", again, 1, files)
    tell("integrity of a GPU release, every byte", found["seconds"], 10, files)
    loads(root)


def loads(root):
    said = root.shell(LOADS.format(modules=f"{root.prefix}/current/modules"))
    rows = [line.split() for line in said.splitlines() if line.startswith(("none", "tensorflow"))]
    empty, full = (
        median(float(end) - float(start) for name, start, end in rows if name == wanted)
        for wanted in ("none", "tensorflow")
    )
    beyond = (full - empty) * 1000
    report(
        "module load and unload of a GPU release",
        beyond,
        "ms",
        most=100,
        yardstick=f"an empty module: {empty * 1000:.0f} ms",
    )


def tell(name, seconds, goal, note=""):
    report(name, seconds, "s", most=goal, note=note)
