"""What a job finds before it computes: its modules, its ranks, its GPUs and CPUs."""

from pathlib import Path

import reframe as rfm

from hpcdl.jobs.preflight import read_probes
from hpcdl.regress.checkbase import LOG, HpcdlCheck, Metric
from hpcdl.regress.result import Measured, binding_faults, promised_versions, reads, version_faults
from hpcdl.regress.training import ALL, job_on
from hpcdl.results.faults import FaultKind, JobFault


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
        promised = promised_versions(site, partition, self.evidence["release"])
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
