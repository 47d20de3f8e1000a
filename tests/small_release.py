"""Small releases for tests: the real record, folders and modulefiles around no software."""

import dataclasses
import sys
from pathlib import Path

from hpcdl.site import find_site_file, load_site
from hpcdl.stack.publish import publish
from hpcdl.stack.release import Release
from hpcdl.stack.tree import record_release
from hpcdl.stack.verify import Check, new_proof

LMOD = Path("/usr/share/lmod/lmod/init/bash")


def small_site(prefix, *, lmod=False):
    """The embedded site with its software below `prefix`.

    Without `lmod` it is a site where Lmod is elsewhere: quick, for nothing asks Lmod then.
    """
    site = load_site(find_site_file("embedded"))
    init = site.paths.lmod_init if lmod else prefix / "lmod" / "init" / "bash"
    paths = dataclasses.replace(site.paths, prefix=prefix, lmod_init=init)
    return dataclasses.replace(site, paths=paths)


def mixed_site(prefix):
    """A private site whose partitions have nodes with several GPU models."""
    site = load_site(Path(__file__).parent / "golden" / "mixed.yaml")
    paths = dataclasses.replace(site.paths, prefix=prefix)
    return dataclasses.replace(site, paths=paths, private=True)


def make_release(site, name, version="2.21.0", created="2026-01-01T00:00:00Z", **changes):
    """A finished release `name` whose stack is one Python that does nothing but exist."""
    root = site.paths.prefix / "releases" / name
    versions = {
        "tensorflow": version,
        "horovod": "0.28.1",
        "mpi": "Open MPI 4.1.4",
        "python": "3.11.7",
    }
    wheel = {"name": "tensorflow-cpu", "version": version, "file": "t.whl", "sha256": "0" * 64}
    release = Release(
        id=name,
        stack="tensorflow",
        backend="wheels",
        root=root,
        module=f"tensorflow/{version}-cpu",
        versions=versions,
        partitions=(),
        proof="run",
        created=created,
        hpcdl="0.1.0+00000000",
        lock=(wheel,),
    )
    release = dataclasses.replace(release, **changes)
    (root / "stack" / "bin").mkdir(parents=True)
    (root / "stack" / "bin" / "python").symlink_to(sys.executable)
    # As everybody needs it, whatever the mask of whoever runs the tests.
    for made in (root, *root.rglob("*")):
        if made.is_dir():
            made.chmod(0o755)
    return record_release(release)


def passing(site, release):
    """A gate that always opens."""
    return new_proof(release, "test", "here", [Check("always", True, "yes", 0.0)])


def make_current(site, name, **changes):
    """A finished release that was published."""
    release = make_release(site, name, **changes)
    publish(site, name, passing, say=silent)
    return release


def failing(site, release):
    """A gate that never opens."""
    return new_proof(release, "test", "here", [Check("never", False, "the ops differ", 0.0)])


def silent(what):
    """A listener to progress that says nothing."""
