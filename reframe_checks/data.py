"""What feeds a training: the input pipeline by itself, and the file systems below it."""

from functools import partial

import reframe as rfm
from reframe.core.builtins import parameter, run_after

from hpcdl.regress.checkbase import HpcdlCheck, Metric
from hpcdl.regress.input_metrics import image_rate, of_bench, place_to_read, read_rate
from hpcdl.regress.training import job_on

MAKE_AND_BENCH = (
    'hpcdl data make photos photos --count "$1" --shards 8 >/dev/null '
    '&& hpcdl data bench photos --seconds "$2" --json >measured.json '
    "&& mv measured.json result.json"
)


@rfm.simple_test
class input_pipeline(HpcdlCheck):
    """Images per second of reading, decoding and augmenting JPEGs, with no training behind."""

    tags = {"nightly", "node"}
    needs_gpus = False

    def request(self, site, partition):
        count, seconds = ("1280", "15") if self.execution.full_size else ("64", "4")
        program = ("bash", "-c", MAKE_AND_BENCH, "bench", count, seconds)
        return job_on(partition, self.check_name, program)

    def measured(self):
        return of_bench(super().measured())

    def metrics(self):
        """The best second is judged, or the typical one, as for trainings."""
        best = self.execution.judges_best
        return [
            Metric("best_images_per_second", "images/s", partial(image_rate, best=True),
                   judged=best),
            Metric("images_per_second", "images/s", image_rate, judged=not best),
        ]  # fmt: skip


@rfm.simple_test
class storage(HpcdlCheck):
    """MB per second that one node reads, past its cache."""

    where = parameter(["work", "scratch"])
    needs_gpus = False

    @run_after("init")
    def take_tags(self):
        self.tags = {"nightly", "node", *(["smoke"] if self.where == "work" else [])}

    @property
    def case_name(self):
        return self.where

    def request(self, site, partition):
        # Where the best pass counts: many small ones, spread over seconds.
        size, passes = (64, 50) if self.execution.judges_best else (2048, 5)
        program = ("python", "-m", "hpcdl.measure.storage",
                   place_to_read(site, partition, self.where),
                   f"--megabytes={size}", f"--passes={passes}")  # fmt: skip
        return job_on(partition, f"{self.check_name}-{self.where}", program)

    def metrics(self):
        best = self.execution.judges_best
        return [
            Metric("best_read_mbs", "MB/s", partial(read_rate, best=True), judged=best),
            Metric("read_mbs", "MB/s", read_rate, judged=not best),
        ]
