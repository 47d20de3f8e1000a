"""Which modules a job loads: the site's published release, joined with what the user asks."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdl.jobs.spec import Module
from hpcdl.site import Site
from hpcdl.stack.release import current_release, planned_module, release_for
from hpcdl.system.errors import BadInput, MachineLacks


def module_for(
    site: Site,
    names: Sequence[str] = (),
    *,
    partition: str | None = None,
    none: bool = False,
    published: bool = False,
) -> Module:
    """The modules of a job.

    Args:
        site: where it runs.
        names: modules named by the user, instead of the release's.
        partition: the one it runs on; partitions may be served by different stacks.
        none: load no module at all.
        published: refuse where nothing is published yet.

    Raises:
        MachineLacks: no release is published and `published` is asked for.
    """
    if none:
        return Module(())
    for name in names:
        if not name or name.startswith("-") or any(c.isspace() or ord(c) < 32 for c in name):
            raise BadInput(f"--module {name!r} is no name of a module", hint="write NAME/VERSION")
    release = release_for(site, partition) if partition else current_release(site)
    if release is not None:
        return Module(tuple(names) or (release.module,), release.modules, release.id)
    if published:
        raise MachineLacks(
            f"the site '{site.name}' has no published release for the job to load",
            hint="`hpcdl stack build` and `hpcdl stack publish` make one; or give --no-module",
        )
    return Module(tuple(names) or (planned_module(site),))
