"""Which modules a job loads: the site's published release, joined with what the user asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpcdl.jobs.spec import JobSpec, Module
from hpcdl.results.gpus import ask_for, groups_for
from hpcdl.site import Partition, Site
from hpcdl.system.errors import BadInput, MissingPrerequisite

if TYPE_CHECKING:
    from hpcdl.stack.release import Release

UNPUBLISHED = "tensorflow"
"""What a job loads before any release is published: a module of the site, whatever its version."""


def module_for(
    site: Site,
    partition: str,
    names: Sequence[str] = (),
    *,
    gpu_model: str | None = None,
    published: bool = False,
) -> Module:
    """The modules of a job on a partition.

    `names` are the user's, instead of the release's; partitions, and GPU models of one, may be
    served by different stacks. With `published` it is refused (MissingPrerequisite) where nothing
    is published yet.
    """
    for name in names:
        if not name or name.startswith("-") or any(c.isspace() or ord(c) < 32 for c in name):
            raise BadInput(f"--module {name!r} is not a module name", hint="write NAME/VERSION")
    from hpcdl.stack.release import release_for

    nodes = site.partition(partition)
    if gpu_model is None and not nodes.fellows:
        release = _release_for_any(site, nodes, named=bool(names))
    else:
        group = groups_for(nodes, gpu_model)[0]
        release = release_for(site, nodes.name, group.gpu.model if group.gpu else None)
    if release is not None:
        return Module(tuple(names) or (release.module,), release.modules, release.id)
    if published:
        raise MissingPrerequisite(
            f"the site '{site.name}' has no published release for the job to load",
            hint="`hpcdl stack build` and `hpcdl stack publish` make one; "
            "a job that needs none takes --no-module, in Python `modules=()`",
        )
    return Module(tuple(names) or (UNPUBLISHED,))


def modules_of_job(
    site: Site, spec: JobSpec, partitions: Sequence[str] = (), *, published: bool
) -> dict[str, Module]:
    """The module of a job on each of these partitions, its own by default: each may have a stack.

    A job's own modules are loaded instead of the release's, () for none. A container brings its own
    software: without a name it loads none. For `published` see `module_for`; BadInput then also for
    a named module that is not there.
    """
    named, model, partitions = spec.modules, spec.gpu_model, partitions or (spec.partition,)
    if spec.container is not None if named is None else not named:
        return dict.fromkeys(partitions, Module(()))
    modules = {
        name: module_for(site, name, named or (), gpu_model=model, published=published)
        for name in partitions
    }
    if published and named:
        for module in dict.fromkeys(modules.values()):
            check_available(site, module)
    return modules


def _release_for_any(site: Site, partition: Partition, *, named: bool) -> Release | None:
    """The release of a job that names no GPU model: it must serve all that the partition has."""
    from hpcdl.stack.modules import has_code_for
    from hpcdl.stack.release import release_for

    groups = partition.gpu_groups if partition.groups else ()
    releases = [
        release_for(site, partition.name, group.gpu and group.gpu.model) for group in groups
    ]
    for release, group in zip(releases, groups, strict=True):
        first = releases[0]
        if release is None or first is None or named:
            break
        if release.id != first.id or (group.gpu and not has_code_for(first, group.gpu)):
            raise BadInput(
                f"no one release serves all GPU models of '{partition.name}'", hint=ask_for(groups)
            )
    return releases[0] if releases else release_for(site, partition.name)


def modules_by_partition(
    site: Site, partitions: Sequence[str] = (), *, published: bool = False
) -> dict[str, Module]:
    """The module of every partition, as its jobs load it; all partitions by default.

    A partition of several GPU models has one for each group of nodes, by its label, too. For
    `published` see `module_for`.
    """
    modules: dict[str, Module] = {}
    for group in site.by_groups(partitions):
        module = module_for(site, group.name, gpu_model=group.gpu_asked_for, published=published)
        modules[group.label] = module
        modules.setdefault(group.name, module)
    return modules


def check_available(site: Site, module: Module) -> None:
    """BadInput where Lmod does not find a module, before anything is queued.

    Where Lmod is not installed here, only the job itself finds that out.
    """
    from hpcdl.system.run import run

    init = site.paths.lmod_init
    if not module.names or not init.is_file():
        return
    use = 'module use "$directory"; ' if module.folder else ""
    script = (
        f'unset LMOD_QUIET; source "$init" || exit 0; {use}'
        'for name; do module is-avail "$name" || printf "%s\\0" "$name"; done'
    )
    # With LMOD_QUIET, `is-avail` says yes to everything (Lmod 8.6).
    env = {"init": str(init), "directory": str(module.folder or "")}
    answer = run(["bash", "-c", script, "bash", *module.names], env=env, check=False, timeout=60)
    missing = [name for name in answer.stdout.split("\0") if name in module.names]
    if missing:
        hint = "`module avail` and `module spider NAME` show what there is"
        raise BadInput(f"there is no module {', '.join(missing)}", hint=hint)
