"""What feeds a training: the input pipeline by itself, and the file systems below it."""

import re
from pathlib import Path
from statistics import median

import reframe as rfm
from reframe.core.builtins import parameter, run_after
from trainings import (
    BEST_IMAGES_PER_SECOND,
    IMAGES_PER_SECOND,
    best_images_per_second,
    images_per_second,
)

from hpcdl.regress.checkbase import LOG, HpcdlCheck, Metric
from hpcdl.regress.result import Measured, reads
from hpcdl.regress.training import job_on
from hpcdl.results.faults import FaultKind, JobFault
from hpcdl.system.errors import BadInput

INPUT_ALONE = (
    'python -m hpcdl.examples.photographs photos --count "$1" --shards 8 >/dev/null '
    "&& exec hpcdl train --model hpcdl.examples.input_alone:network --data photos "
    '--batch-per-rank "$2" --steps "$3" --checkpoint-every 0'
)
# Four readers, past the page cache where the file system can; dd says nothing and date counts.
READ = """\
file=$(mktemp -p . hpcdl-read-XXXXXX) || exit
trap 'rm -f "$file"' EXIT
dd if=/dev/urandom of="$file" bs=4M count="$1" conv=fsync status=none || exit
how=direct
dd if="$file" of=/dev/null iflag=direct bs=4M count=1 status=none 2>/dev/null || how=nocache
for pass in $(seq 0 "$2"); do
  readers="" part=$(($1 / 4)) begun=$(date +%s%6N)
  for reader in 0 1 2 3; do
    dd if="$file" of=/dev/null iflag=$how bs=4M skip=$((reader * part)) count=$part status=none &
    readers="$readers $!"
  done
  for reader in $readers; do wait "$reader" || exit; done
  echo "read $(($1 * 4194304 / ($(date +%s%6N) - begun))) MB/s"
done
"""


@rfm.simple_test
class input_pipeline(HpcdlCheck):
    """Images per second of reading, decoding and augmenting JPEGs, with next to no training."""

    tags = {"nightly", "node"}
    needs_gpus = False

    def request(self, site, partition):
        sizes = ("1280", "32", "300") if self.execution.full_size else ("64", "8", "80")
        program = ("bash", "-c", INPUT_ALONE, "train", *sizes)
        return job_on(partition, self.check_name, program)

    def metrics(self):
        """The best steps are judged, or the typical one, as for trainings."""
        best = self.execution.judges_best
        return [
            Metric(BEST_IMAGES_PER_SECOND, "images/s", best_images_per_second, judged=best),
            Metric(IMAGES_PER_SECOND, "images/s", images_per_second, judged=not best),
        ]


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
        # Blocks of 4 MiB. Where the best pass counts: many small ones, spread over seconds.
        blocks, passes = ("16", "50") if self.execution.judges_best else ("512", "5")
        if self.where == "scratch" and partition.scratch is None:
            raise BadInput(f"'{partition.name}' has no scratch")
        place = "$HPCDL_JOB_DIR" if self.where == "work" else partition.scratch.path
        script = f'mkdir -p "{place}" && cd "{place}" || exit\n{READ}'
        program = ("bash", "-c", script, "read", blocks, passes)
        return job_on(partition, f"{self.check_name}-{self.where}", program)

    def measured(self):
        """The passes but the first."""
        log = Path(self.stagedir) / LOG
        text = log.read_text(errors="replace") if log.exists() else ""
        rates = [float(rate) for rate in re.findall(r"^read (\d+) MB/s$", text, re.M)][1:]
        if not rates:
            none = JobFault(FaultKind.NO_RESULT, "missing result: nothing was read")
            return Measured({}, (none,))
        return Measured({"summary": {"read_mbs": median(rates), "best_read_mbs": max(rates)}})

    def faults(self, measured):
        """Why there is no rate."""
        return measured.faults

    def metrics(self):
        best = self.execution.judges_best
        return [
            Metric(name, "MB/s", reads("summary", name), judged=judged)
            for name, judged in (("best_read_mbs", best), ("read_mbs", not best))
        ]
