"""What a job finds before it computes: its modules, its ranks, its GPUs and CPUs."""

from collections import Counter
from pathlib import Path

import reframe as rfm

from hpcdl.jobs.preflight import ExpectedAllocation, judge, read_probes
from hpcdl.regress.checkbase import LOG, HpcdlCheck, Metric
from hpcdl.regress.result import Measured, reads
from hpcdl.regress.training import ALL, job_on
from hpcdl.results.faults import FaultKind, JobFault
from hpcdl.stack.release import release_for


def version_faults(measured, promised):
    """Versions that differ from what the release's record promises."""
    faults = []
    for name in ("tensorflow", "horovod", "python"):
        ran, wanted = measured.text("versions", name), promised.get(name)
        if wanted and ran != wanted:
            text = f"the module brings {name} {ran or 'unknown'}, the release says {wanted}"
            faults.append(JobFault(FaultKind.VERSION, text, wanted=wanted, got=ran))
    return faults


def binding_faults(probes, layout, release, *, bound):
    """The faults of what every rank saw of its place; `bound` says whether Slurm binds CPUs."""
    nodes, tasks, cpus = (layout[of] for of in ("nodes", "tasks_per_node", "cpus_per_task"))
    expected = ExpectedAllocation(
        world=nodes * tasks,
        tasks_per_node=tasks,
        cpus_per_task=cpus,
        gpus_per_node=layout["gpus_per_node"],
        release=release or "",
    )
    sentences = [problem.sentence for problem in judge(probes, expected)]
    sentences += [
        f"rank {probe.rank} on {probe.host} may run on {probe.affinity} CPUs, "
        f"not on the {cpus} it was promised"
        for probe in probes
        if bound and probe.affinity < cpus
    ]
    sentences += [
        f"{count} ranks are on {host}, not {tasks}"
        for host, count in Counter(probe.host for probe in probes).items()
        if count != tasks
    ]
    return [JobFault(FaultKind.BINDING, text) for text in sentences]


@rfm.simple_test
class modules(HpcdlCheck):
    """The module loads, brings the versions of its release, and computes on the device."""

    tags = {"smoke", "nightly", "node"}

    def request(self, site, partition):
        return job_on(partition, self.check_name, ("python", "-m", "hpcdl.measure.versions"))

    def metrics(self):
        read = reads("summary", "startup_seconds")
        return [Metric("startup_seconds", "s", read, judged=False)]

    def faults(self, measured):
        site, partition = self.place()
        model, release = partition.gpu and partition.gpu.model, self.evidence["release"]
        found = release_for(site, partition.name, model) if release else None
        # Nothing is promised where no release is published, or where the jobs load another one.
        promised = found.versions if found is not None and found.id == release else {}
        return [*super().faults(measured), *version_faults(measured, promised)]


@rfm.simple_test
class binding(HpcdlCheck):
    """Every rank has the node, the CPUs and the GPU of its own that its layout promises."""

    tags = {"smoke", "nightly"}

    def request(self, site, partition):
        return job_on(
            partition,
            self.check_name,
            ("hpcdl", "preflight", "probe"),
            nodes=min(2, partition.nodes),
            ranks=ALL,
        )

    def measured(self):
        log = Path(self.stagedir) / LOG
        self.probes = read_probes(log.read_text(errors="replace") if log.exists() else "")
        none = JobFault(FaultKind.NO_RESULT, "missing result: no rank reported its CPUs and GPUs")
        return Measured({"ranks": len(self.probes)}, () if self.probes else (none,))

    def metrics(self):
        return [Metric("ranks", "ranks", reads("ranks"), judged=False)]

    def faults(self, measured):
        if measured.faults:
            return measured.faults
        return binding_faults(
            self.probes, self.layout, self.evidence["release"], bound=self.execution.binds_cpus
        )
