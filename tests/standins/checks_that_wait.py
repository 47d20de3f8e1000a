"""Checks whose job lasts until somebody ends it; their pattern is printed at once."""

import reframe as rfm
from reframe.core.meta import make_test

from hpcdl.jobs.spec import JobSpec
from hpcdl.regress.checkbase import HpcdlCheck


class Waits(HpcdlCheck):
    """One rank that prints, writes its result and then goes on."""

    seconds, minutes = 600, 1

    def request(self, site, partition):
        line = f"echo '{{}}' > result.json; echo measured; touch started; sleep {self.seconds}"
        return JobSpec(
            partition=partition.name,
            gpus=1,
            minutes=self.minutes,
            name=self.check_name,
            program=("bash", "-c", line),
        )


CHECKS = {
    "until_cancelled": {},
    "lasting": {"minutes": 10},
    "silent": {"silence_seconds": 6.0},
    "impatient": {"patience_seconds": 3.0},
}
for name, body in CHECKS.items():
    rfm.simple_test(make_test(name, (Waits,), body))
