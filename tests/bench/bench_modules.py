"""Modules and publishing: a load beyond an empty module, `module avail` with 50, a publish."""

import os
import shutil
import subprocess
import tempfile
from functools import partial
from pathlib import Path

from hpcdl.stack.publish import publish
from hpcdl.stack.release import release_ids
from hpcdl.stack.sbom import CYCLONEDX_FILE
from hpcdl.system.resources import cache
from tests.bench import alternate, middle, report, timed
from tests.small_release import LMOD, make_release, passing, silent, small_site

RUNS = 7
# Loads in one shell, so that starting the shell is not what is measured.
MANY = 5


def lmod(script, modulepath, **env):
    base = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "MODULEPATH": str(modulepath), **env}
    words = ["bash", "--noprofile", "--norc", "-c", f". {LMOD}\n{script}"]
    return lambda: subprocess.run(words, env=base, capture_output=True, check=True)


def main():
    if not LMOD.is_file():
        report("module load", None, "ms", note="Lmod is not installed")
        return
    publish_built()
    with tempfile.TemporaryDirectory() as folder:
        site = small_site(Path(folder) / "prefix", lmod=True)
        for number in range(50):
            make_release(site, f"r{number:02d}", version=f"2.{number}.0")
            took = timed(partial(publish, site, f"r{number:02d}", passing, say=silent))
        report("publish: the 50th release", took, "s", most=2, note="small ones")
        measure(site.paths.prefix, Path(folder))


def publish_built():
    """A real release from its first publish on: every file's mode, bills of materials, modules."""
    figure = "publish of a built release, gate apart"
    built = small_site(cache() / "tests" / "prefix")
    names = release_ids(built)
    if not names:
        report(figure, None, "s", note="no release is built; the tests of stacks build one")
        return
    with tempfile.TemporaryDirectory(dir=cache()) as folder:
        site = small_site(Path(folder) / "prefix", lmod=True)
        (site.paths.prefix / "releases").mkdir(parents=True)
        root = site.paths.prefix / "releases" / names[-1]
        # Linked, not copied: the release of the tests stays as it is.
        shutil.copytree(
            built.paths.prefix / "releases" / names[-1], root, symlinks=True, copy_function=os.link
        )

        def anew():
            (root / CYCLONEDX_FILE).unlink(missing_ok=True)
            publish(site, names[-1], passing, say=silent)

        took = middle(RUNS, anew)
        files = sum(1 for path in root.rglob("*") if path.is_file())
    report(figure, took, "s", most=2, note=f"{files:,} files")


def measure(prefix, scratch):
    (scratch / "empty" / "none").mkdir(parents=True)
    (scratch / "empty" / "none" / "1.lua").write_text("")
    repeat = f"for i in $(seq {MANY}); do module load $1; module unload $1; done"
    modules = prefix / "current" / "modules"
    empty, full = alternate(
        RUNS,
        lmod(repeat.replace("$1", "none"), scratch / "empty"),
        lmod(repeat.replace("$1", "tensorflow"), modules),
    )
    beyond = (full - empty) / MANY * 1000
    nothing = f"an empty module: {empty / MANY * 1000:.0f} ms"
    report(
        "module load and unload beyond an empty module", beyond, "ms", most=100, yardstick=nothing
    )
    rc = {"LMOD_RC": str(prefix / "etc" / "lmodrc.lua")}
    shell, plain, listed = alternate(
        RUNS,
        lmod("true", modules),
        lmod("module avail", modules),
        lmod("module avail", modules, **rc),
    )
    avail = (listed - shell) * 1000
    report(
        "module avail with 50 releases",
        avail,
        "ms",
        most=300,
        yardstick=f"without the list: {(plain - shell) * 1000:.0f} ms",
    )
