"""What must hold of every job before its numbers count. Pure, but for what a release records.

World size, release, device and nodes as its layout says; a training beside that ends by itself
with finite, falling losses. A number of a job that ran as something else is no number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcdl.jobs.preflight import Expectation, Probe, judge
from hpcdl.regress.result import Measured
from hpcdl.results.faults import Fault, FaultKind, as_fault
from hpcdl.results.records import at
from hpcdl.site import Partition, Site
from hpcdl.stack.release import release_for


def faults_of(
    measured: Measured, layout: Mapping[str, Any], release: str | None, *, real_gpus: bool = False
) -> list[Fault]:
    """What is wrong with any measuring job's result.

    `layout` is the job's as plain values, `release` the id of the one that it must have used;
    `real_gpus` says whether its ranks must have had a GPU each.
    """
    if measured.faults:
        return [as_fault(said) for said in measured.faults]
    return [*_of_any_job(measured, layout, release, real_gpus)]


def _of_any_job(
    measured: Measured, layout: Mapping[str, Any], release: str | None, real_gpus: bool
) -> Iterator[Fault]:
    """Another size, other nodes or another release than promised; no GPU; no end of its own."""
    nodes, names = int(layout["nodes"]), at(measured.values, "layout", "nodes")
    ranks, world = nodes * int(layout["tasks_per_node"]), measured.number("layout", "ranks")
    if world != ranks:
        text = f"the program ran on {world or 0:.0f} ranks, not on the {ranks} of its layout"
        yield Fault(FaultKind.RANKS, text, wanted=ranks, got=world)
    if isinstance(names, list) and len(names) != nodes:
        named = ", ".join(map(str, names[:8]))
        text = f"its ranks were on {len(names)} nodes, not on {nodes}: {named}"
        yield Fault(FaultKind.NODES, text, wanted=nodes, got=len(names))
    ran = measured.text("release")
    if release is not None and ran != release:
        text = f"the job used release '{ran or 'unknown'}', not the site's '{release}'"
        yield Fault(FaultKind.RELEASE, text, wanted=release, got=ran)
    gpus = measured.number("layout", "gpu_per_rank")
    if real_gpus and gpus != 1:
        text = "the ranks saw no GPU of their own: it ran on CPUs"
        yield Fault(FaultKind.GPU, text, wanted=1, got=gpus)
    status = measured.text("outcome", "status") or "unknown"
    if status != "completed":
        text = f"the program ended as '{status}'"
        yield Fault(FaultKind.OUTCOME, text, wanted="completed", got=status)


def binding_faults(
    probes: Sequence[Probe], layout: Mapping[str, Any], release: str | None, *, bound: bool
) -> list[Fault]:
    """What is wrong with where ranks are and what each has.

    `probes` are what every rank saw; `bound` says whether Slurm binds CPUs here.
    """
    nodes, tasks = int(layout["nodes"]), int(layout["tasks_per_node"])
    expected = Expectation(
        world=nodes * tasks,
        tasks_per_node=tasks,
        cpus_per_task=int(layout["cpus_per_task"]),
        gpus_per_node=int(layout["gpus_per_node"]),
        release=release or "",
    )
    found = [problem.sentence for problem in judge(probes, expected)]
    crowds: dict[str, int] = {}
    for probe in probes:
        crowds[probe.host] = crowds.get(probe.host, 0) + 1
        if bound and probe.affinity < expected.cpus_per_task:
            found.append(
                f"rank {probe.rank} on {probe.host} may run on {probe.affinity} CPUs, "
                f"not on the {expected.cpus_per_task} it was promised"
            )
    found += [
        f"{count} ranks are on {host}, not {tasks}"
        for host, count in crowds.items()
        if count != tasks
    ]
    return [Fault(FaultKind.BINDING, text) for text in found]


def version_faults(measured: Measured, promised: Mapping[str, str]) -> list[Fault]:
    """Versions that differ from what the release's record promises."""
    found = []
    for name in ("tensorflow", "horovod", "python"):
        ran, wanted = measured.text("versions", name), promised.get(name)
        if wanted and ran != wanted:
            text = f"the module brings {name} {ran or 'unknown'}, the release says {wanted}"
            found.append(Fault(FaultKind.VERSION, text, wanted=wanted, got=ran))
    return found


def promised_versions(site: Site, partition: Partition, release: str | None) -> Mapping[str, str]:
    """Versions in the record of the release that a partition's jobs load, by component.

    Nothing where no release is published, or where the jobs load another one.
    """
    found = (
        release_for(site, partition.name, partition.gpu and partition.gpu.model)
        if release
        else None
    )
    return found.versions if found is not None and found.id == release else {}
