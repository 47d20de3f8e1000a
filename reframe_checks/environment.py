"""What a job finds before it computes: its modules, its ranks, its GPUs and CPUs."""

import json
from collections import Counter
from pathlib import Path

import reframe as rfm

from hpcdl.jobs.preflight import ExpectedAllocation, judge, read_probes
from hpcdl.regress.checkbase import LOG, HpcdlCheck, Metric
from hpcdl.regress.result import Measured, reads
from hpcdl.regress.training import ALL, job_on
from hpcdl.results.faults import FaultKind, JobFault
from hpcdl.stack import verify
from hpcdl.stack.release import release_for

PROBED = "probe.json"


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
    sentences = [*judge(probes, expected).values()]
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
    """The module is what its release says: by the program and the judgement of `stack verify`."""

    tags = {"smoke", "nightly", "node"}

    def request(self, site, partition):
        return job_on(partition, self.check_name, ("python", "-m", "hpcdl.stack.probe", PROBED))

    def measured(self):
        try:
            self.seen = json.loads((Path(self.stagedir) / PROBED).read_text())
        except (OSError, ValueError) as fault:
            none = JobFault(FaultKind.NO_RESULT, f"missing result: {PROBED} of the job: {fault}")
            return Measured({}, (none,))
        return Measured({"startup_seconds": sum(step["took"] for step in self.seen.values())})

    def metrics(self):
        return [Metric("startup_seconds", "s", reads("startup_seconds"), judged=False)]

    def faults(self, measured):
        """What `stack verify` would say, if the jobs load a release."""
        site, partition = self.place()
        release = release_for(site, partition.name, partition.gpu and partition.gpu.model)
        if measured.faults or release is None or release.id != self.evidence["release"]:
            return measured.faults
        checks = verify.judge(release, self.seen, partition if self.real_gpus else None, 1)
        return [JobFault(FaultKind.VERSION, one.detail) for one in checks if not one.ok]


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
