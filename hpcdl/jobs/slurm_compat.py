"""Options that a step needs and variables it must not see, by release of Slurm. Pure.

The decisions are rows of facts/slurm_steps.yaml; the template never asks for a version. A
script thus means the same on every release, whatever the submitting shell's environment.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from hpcdl import facts
from hpcdl.site import Site, SlurmDialect
from hpcdl.slurm.rules import Release, known_release, mpi_plugins, span
from hpcdl.system.errors import BadInput
from hpcdl.system.resources import cached
from hpcdl.system.text import did_you_mean

_IN_EVERY_RELEASE = frozenset({"none", "pmi2", "pmix"})


def steps(slurm: SlurmDialect, what: str) -> list[dict[str, Any]]:
    """The facts about steps that hold on this release.

    `what` is a key of facts/slurm_steps.yaml: `options` that a step needs beyond those it always
    has, those of ranks that fill the sockets one after the other (`by_socket`), the `environment`
    that a launcher needs, why the step too has the CPUs of a rank (`cpus_per_task`), and the
    variables that sbatch itself sets among those that srun reads as options (`set_by_sbatch`).
    """
    release = Release.parse(slurm.version)
    return [row for row in _steps()[what] if span(row).holds(release)]


def own_variables(slurm: SlurmDialect, *, gpus: bool) -> list[str]:
    """What sbatch sets for a job; `gpus` is whether it asks for GPUs, as `slurm` takes it."""
    form = slurm.gpu_request if gpus else None
    return [row["name"] for row in steps(slurm, "set_by_sbatch") if row.get("form") in {None, form}]


def variables(slurm: SlurmDialect, launcher: str, nodes: int) -> list[dict[str, Any]]:
    """The variables that steps of a launcher need on so many nodes."""
    return [
        row for row in steps(slurm, "environment")
        if launcher in row["launchers"]
        and ("plugin" not in row or (nodes > 1 and slurm.mpi.startswith(row["plugin"])))
    ]  # fmt: skip


def check_mpi(site: Site) -> None:
    """Raise BadInput for an MPI plug-in that the site's release of Slurm cannot have."""
    plugin = site.slurm.mpi
    if plugin not in _IN_EVERY_RELEASE and plugin not in mpi_plugins(site.slurm.version):
        said = f"Slurm {site.slurm.version} has no MPI plug-in '{plugin}'"
        raise BadInput(said, hint=did_you_mean(plugin, mpi_plugins(site.slurm.version)))


def with_version(site: Site, version: str) -> Site:
    """The site as if its Slurm were of another release; BadInput for one that is not known."""
    return replace(site, slurm=replace(site.slurm, version=str(known_release(version))))


@cache
def _steps() -> dict[str, Any]:
    """The facts about steps; YAML is read only when they have changed."""
    name = "slurm_steps"
    found: dict[str, Any] = cached("facts", [facts.path(name)], lambda: facts.load(name))
    return found
