"""How fast ranks average tensors, which synchronous training waits for, and the copies below."""

from dataclasses import replace

import reframe as rfm
from reframe.core.builtins import parameter, run_after

from hpcdl import facts
from hpcdl.predict.machine import usual_link
from hpcdl.regress.checkbase import HpcdlCheck, Metric
from hpcdl.regress.result import faults_of, reads
from hpcdl.regress.training import ALL, SIZES, SMALL_SIZES, job_on, metric_name, shape_name
from hpcdl.results.faults import FaultKind, JobFault
from hpcdl.results.records import at

REPEATS, SHARED_REPEATS = 20, 200
"""Iterations of each size. On a single node the best of many seconds counts: another program may
keep its CPUs for longer than 20 iterations take."""
SHAPES = [(1, 2), (2, 2), (1, ALL), (2, ALL)]
"""Nodes, and ranks on each."""


def copies_of(gpus):
    """The ways that data are copied on a node with so many GPUs."""
    if not gpus:
        return ("host_to_host",)
    return ("host_to_device", "device_to_host", *(("device_to_device",) if gpus > 1 else ()))


def most_gbs(partition):
    """GB/s each way of what joins a GPU to others (facts/links.yaml, gpus.yaml), None if unknown.

    No copy to or from it passes that. Bus bandwidth may be twice as much where switches add, so
    that data cross once.
    """
    if partition.gpu is None:
        return None
    row = facts.load("links")["links"].get(usual_link(partition.gpu)) or {}
    both_ways = partition.gpu.figures.nvlink_gbs
    return row.get("gbs") or (both_ways / 2 if both_ways else None)


def nccl_faults(measured):
    """What is wrong with the way that GPUs were joined."""
    if at(measured.values, "versions", "nccl_built") is not False:
        return []
    text = "Horovod was built without NCCL: GPUs wait for MPI through the host's memory"
    return [JobFault(FaultKind.NCCL, text)]


@rfm.simple_test
class allreduce(HpcdlCheck):
    """Bus bandwidth by message size, of Horovod (NCCL on GPUs)."""

    shape = parameter(SHAPES, fmt=lambda shape: f"horovod-{shape_name(*shape)}")

    @run_after("init")
    def take_tags(self):
        self.tags = {"nightly", *(["smoke"] if self.shape == (2, 2) else [])}

    @property
    def case_name(self):
        return f"horovod-{shape_name(self.shape[0], self.num_tasks_per_node)}"

    @property
    def sizes(self):
        """Bytes of the messages."""
        return SIZES if self.execution.full_size else SMALL_SIZES

    def suits(self, site, partition, execution):
        return execution.full_size or self.shape[1] != ALL

    def request(self, site, partition):
        nodes, ranks = self.shape
        repeats = SHARED_REPEATS if self.execution.judges_best else REPEATS
        program = (
            "python",
            "-m",
            "hpcdl.measure.allreduce",
            f"--sizes={','.join(map(str, self.sizes))}",
            f"--repeats={repeats}",
        )
        return job_on(partition, f"{self.check_name}-horovod", program, nodes=nodes, ranks=ranks)

    def metrics(self):
        """All sizes are judged; by the best iteration, only the largest."""
        best = self.execution.judges_best
        rates = "best_bus_gbs" if best else "bus_gbs"
        return [
            Metric(
                metric_name(size),
                "GB/s",
                reads("summary", rates, str(size)),
                judged=not best or size == self.sizes[-1],
            )
            for size in self.sizes
        ]

    def most(self, metric):
        rate = most_gbs(self.place()[1]) if self.real_gpus else None
        return rate and 2 * rate

    def faults(self, measured):
        more = nccl_faults(measured) if self.real_gpus else []
        return [*super().faults(measured), *more]


@rfm.simple_test
class copies(HpcdlCheck):
    """GB/s between host memory and the GPUs of a node, and between GPUs; of the slowest of them.

    Where there is no GPU, of host memory.
    """

    tags = {"nightly", "node"}

    def request(self, site, partition):
        repeats = SHARED_REPEATS if self.execution.judges_best else REPEATS
        program = ("python", "-m", "hpcdl.measure.copies", f"--repeats={repeats}")
        asked = job_on(partition, self.check_name, program, ranks=ALL)
        return replace(asked, tasks_per_node=None, launcher="single")

    def metrics(self):
        """The best copy is judged where the machine is shared, else the median one."""
        best = "best_" if self.execution.judges_best else ""
        gpus = self.layout["gpus_per_node"] if self.real_gpus else 0
        return [
            Metric(f"{way}_gbs", "GB/s", reads("summary", f"{best}{way}_gbs"))
            for way in copies_of(gpus)
        ]

    def most(self, metric):
        return most_gbs(self.place()[1]) if self.real_gpus else None

    def faults(self, measured):
        """As of any job; that its one process has all GPUs is no fault."""
        return faults_of(measured, self.layout, self.evidence["release"])
