"""Options that a step needs and variables it must not see, by release of Slurm. Pure.

The decisions are rows of facts/slurm_steps.yaml; the template never asks for a version. A
script thus means the same on every release, whatever the submitting shell's environment.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from hpcdl import facts
from hpcdl.site import Site, SlurmDialect
from hpcdl.slurm.rules import Release, known_release, mpi_plugins, span
from hpcdl.system.disk_cache import cached
from hpcdl.system.errors import BadInput
from hpcdl.system.text import did_you_mean

_IN_EVERY_RELEASE = frozenset({"none", "pmi2", "pmix"})


def step_options(slurm: SlurmDialect) -> tuple[str, ...]:
    """Options that a step needs on this release beyond those it always has."""
    return tuple(str(row["option"]) for row in _holding(slurm, _steps()["options"]))


def by_socket(slurm: SlurmDialect) -> tuple[tuple[str, ...], str]:
    """Options of a step whose ranks fill the sockets one after the other, and why."""
    rows = _holding(slurm, _steps()["by_socket"])
    return tuple(str(row["option"]) for row in rows), "; ".join(str(r["reason"]) for r in rows)


def launcher_environment(slurm: SlurmDialect, launcher: str) -> list[dict[str, Any]]:
    """Variables that a launcher needs on this release: `name`, `value`, `reason` and `rule`."""
    return [row for row in _holding(slurm, _steps()["environment"]) if row["launcher"] == launcher]


def cpus_note(slurm: SlurmDialect) -> str:
    """Why the step too has the CPUs of a rank, on this release."""
    rows = _holding(slurm, _steps()["cpus_per_task"])
    return str(rows[0]["note"])


def own_variables(slurm: SlurmDialect, *, gpus: bool) -> list[str]:
    """Variables that sbatch itself sets for a job, among those that srun reads as options.

    `gpus` is whether the job asks for GPUs, as `slurm` takes it.
    """
    form = slurm.gpu_request if gpus else None
    rows = _holding(slurm, _steps()["set_by_sbatch"])
    return [str(row["name"]) for row in rows if row.get("form") in {None, form}]


def check_mpi(site: Site) -> None:
    """Refuse an MPI plug-in that the site's release of Slurm cannot have.

    Raises:
        BadInput: names the plug-ins of the release.
    """
    plugin = site.slurm.mpi
    if plugin in _IN_EVERY_RELEASE:
        return
    known = mpi_plugins(site.slurm.version)
    if plugin not in known:
        raise BadInput(
            f"Slurm {site.slurm.version} has no MPI plug-in '{plugin}'",
            hint=did_you_mean(plugin, known),
        )


def with_version(site: Site, version: str) -> Site:
    """The site as if its Slurm were of another release.

    Raises:
        BadInput: `version` is not a release, or older than all known ones.
    """
    from dataclasses import replace

    release = known_release(version)
    return replace(site, slurm=replace(site.slurm, version=str(release)))


@cache
def _steps() -> dict[str, Any]:
    """The facts about steps; YAML is read only when they have changed."""
    name = "slurm_steps"
    found: dict[str, Any] = cached("facts", [facts.path(name)], lambda: facts.load(name))
    return found


def _holding(slurm: SlurmDialect, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that hold in the release."""
    release = Release.parse(slurm.version)
    return [row for row in rows if span(row).holds(release)]
