"""A job's script as a person gets it: from `hpcdl job render` on a command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from hpcdl.jobs.spec import JobSpec, Module
from hpcdl.site import Site
from hpcdl.system.python import module_argv
from hpcdl.system.run import run

_SECONDS = 60


def rendered(site: Site, spec: JobSpec, module: Module) -> str:
    """What `hpcdl job render` prints for a request.

    Raises:
        CommandFailed: it refuses.
    """
    argv = [*module_argv(sys.executable, "hpcdl"), "job", "render", *to_argv(site, spec, module)]
    return run(argv, timeout=_SECONDS).stdout


def to_argv(site: Site, spec: JobSpec, module: Module) -> list[str]:
    """The request as a person types it."""
    return [*_options(site, spec, module), "--", *spec.program]


def _options(site: Site, spec: JobSpec, module: Module) -> Iterator[str]:
    shape = {
        "--partition": spec.partition,
        "--gpu-model": spec.gpu_model,
        "--nodes": spec.nodes,
        "--gpus-per-node": spec.gpus_per_node,
        "--tasks-per-node": spec.tasks_per_node,
        "--time": spec.minutes,
        "--name": spec.name,
        "--job-dir": spec.job_dir,
        "--site": site.source,
    }
    for option, value in shape.items():
        if value is not None:
            yield from (option, str(value))
    if not module.names:
        yield "--no-module"
