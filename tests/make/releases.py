"""Releases: the one build of a stack; small ones, the real record and folders, no software."""

import dataclasses
import sys
from pathlib import Path

from hpcdl.stack.build import plan_stack
from hpcdl.stack.publish import publish
from hpcdl.stack.release import Release
from hpcdl.stack.tree import record_release
from hpcdl.stack.verify import Check, new_proof

LMOD = Path("/usr/share/lmod/lmod/init/bash")


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


def plan_build(site, name=None, partition=None):
    """The one build of a stack, or of one of its partitions; what keeps it from one is raised."""
    plans, blocked = plan_stack(site, name, partition=partition)
    for refused in blocked:
        raise refused.fault
    (plan,) = plans
    return plan
