"""Training, as users get it: the job of `hpcdl job submit`, on the site's release."""

import reframe as rfm
from reframe.core.builtins import parameter

from hpcdl.regress.checkbase import HpcdlCheck, Metric
from hpcdl.regress.training import (
    BEST_IMAGES_PER_SECOND,
    IMAGES_PER_SECOND,
    TrainingCase,
    best_images_per_second,
    images_per_second,
    training_faults,
)


@rfm.simple_test
class throughput(HpcdlCheck):
    """Images per second of synchronous training."""

    training = parameter(
        [TrainingCase("mlp", nodes=2, ranks=2, steps=400, batch=64)], fmt=lambda case: str(case)
    )
    tags = {"smoke", "nightly"}

    @property
    def case_name(self):
        return str(self.training)

    def request(self, site, partition):
        return self.training.request(site, partition, self.check_name)

    def metrics(self):
        noisy = self.one_machine
        return [
            Metric(BEST_IMAGES_PER_SECOND, "images/s", best_images_per_second, judged=noisy),
            Metric(IMAGES_PER_SECOND, "images/s", images_per_second, judged=not noisy),
        ]

    def faults(self, measured):
        return training_faults(measured, self.evidence["layout"], self.evidence["release"])
