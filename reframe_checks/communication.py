"""How fast ranks average tensors: the operation that synchronous training waits for."""

from functools import partial

import reframe as rfm
from reframe.core.builtins import parameter, run_after

from hpcdl.regress.bandwidth import SIZES, SMALL_SIZES, bandwidth, nccl_faults, size_name
from hpcdl.regress.checkbase import HpcdlCheck, Metric
from hpcdl.regress.training import ALL, job_on, shape_name

SHAPES = [(1, 2), (2, 2), (1, ALL), (2, ALL)]


@rfm.simple_test
class allreduce(HpcdlCheck):
    """Bus bandwidth by message size: Horovod, and TensorFlow's own collectives (NCCL on GPUs)."""

    way = parameter(["horovod", "multiworker"])
    shape = parameter(SHAPES, fmt=lambda shape: shape_name(*shape))

    @run_after("init")
    def take_tags(self):
        smoke = (self.way, self.shape) == ("horovod", (2, 2))
        self.tags = {"nightly", *(["smoke"] if smoke else [])}

    @property
    def case_name(self):
        return f"{self.way}-{shape_name(self.shape[0], self.num_tasks_per_node)}"

    @property
    def sizes(self):
        """Bytes of the messages."""
        return SMALL_SIZES if self.one_machine else SIZES

    def suits(self, site, partition, *, one_machine):
        return not (one_machine and ALL in self.shape)

    def request(self, site, partition):
        program = ("python", "-m", "hpcdl.train.allreduce", f"--strategy={self.way}",
                   f"--sizes={','.join(map(str, self.sizes))}")  # fmt: skip
        nodes, ranks = self.shape
        return job_on(partition, f"{self.check_name}-{self.way}", program, nodes=nodes, ranks=ranks)

    def metrics(self):
        """All sizes are judged; on one machine the largest, by its best iteration."""
        best = self.one_machine
        return [
            Metric(f"bus_gbs_{size_name(size)}", "GB/s", partial(bandwidth, size=size, best=best),
                   judged=not best or size == self.sizes[-1])
            for size in self.sizes
        ]  # fmt: skip

    def faults(self, measured):
        more = nccl_faults(measured) if self.real_gpus else []
        return [*super().faults(measured), *more]
