"""Whether training still learns, survives, and runs the way that users start it."""

import shutil
from pathlib import Path

import reframe as rfm
from reframe.core.builtins import fixture, parameter, run_after

from hpcdl.regress.checkbase import HpcdlCheck, Metric, rendered
from hpcdl.regress.references import rule
from hpcdl.regress.result import Measured, reads
from hpcdl.regress.training import (
    BEST_IMAGES_PER_SECOND,
    DIGITS,
    DIGITS_ACCURACY,
    best_images_per_second,
    curve_faults,
    digits_options,
    job_on,
    killed_program,
    losses,
    newest_step,
    resume_faults,
    resumed_program,
    training_faults,
    warned_program,
)
from hpcdl.results.faults import FaultKind, JobFault


@rfm.simple_test
class convergence(HpcdlCheck):
    """The digits to 95 %, with a loss curve within the band of healthy ones."""

    training = parameter([DIGITS])
    tags = {"nightly"}

    @property
    def case_name(self):
        return self.training

    def request(self, site, partition):
        program = ("hpcdl", "train", *digits_options(site.paths.datasets / "digits"))
        return job_on(partition, self.check_name, program, nodes=min(2, partition.nodes), ranks=2)

    def metrics(self):
        return [Metric("accuracy", "", reads("summary", "metrics", "accuracy"))]

    def expected(self, metric, site, partition):
        return rule(self.check_name, self.case_name, partition.label, metric.name, DIGITS_ACCURACY)

    def faults(self, measured):
        found = [*super().faults(measured), *training_faults(measured)]
        return found or curve_faults(losses(measured))


@rfm.simple_test
class users_job(HpcdlCheck):
    """A job as a user makes it: what `hpcdl job render` prints on a command line."""

    tags = {"smoke", "nightly"}

    def request(self, site, partition):
        data = site.paths.datasets / "digits"
        program = (
            "hpcdl",
            "train",
            "--model=mlp",
            f"--data={data}",
            "--steps=200",
            "--batch-per-rank=32",
            "--checkpoint-every=0",
        )
        return job_on(partition, self.check_name, program, ranks=2)

    def script(self, site, spec, module):
        return rendered(site, spec, module)

    def metrics(self):
        return [Metric(BEST_IMAGES_PER_SECOND, "images/s", best_images_per_second, judged=False)]

    def faults(self, measured):
        return [*super().faults(measured), *training_faults(measured)]


class killed(HpcdlCheck):
    """A training whose rank 0 is killed once a checkpoint is there; it leaves that."""

    def request(self, site, partition):
        return job_on(
            partition, self.check_name, killed_program(site.paths.datasets / "digits"), ranks=2
        )

    def measured(self):
        return Measured({"step": newest_step(Path(self.stagedir))})

    def ended(self, exit_code):
        if exit_code:
            return []
        text = "the job ended well, though one of its ranks was killed"
        return [JobFault(FaultKind.EXIT_CODE, text, got=exit_code)]

    def faults(self, measured):
        none = JobFault(FaultKind.CHECKPOINT, "no checkpoint was left")
        return [] if measured.number("step") else [none]


class Resumed(HpcdlCheck):
    """A training that must have gone on from a checkpoint."""

    tags = {"nightly"}

    def metrics(self):
        return [Metric("resumed_at", "steps", reads("samples", "first_step"), judged=False)]

    def faults(self, measured):
        return [*super().faults(measured), *resume_faults(measured)]


@rfm.simple_test
class resume_after_kill(Resumed):
    """Started again after a crash, a training resumes from the checkpoint of before."""

    before = fixture(killed, scope="environment")

    def request(self, site, partition):
        step = newest_step(Path(self.before.stagedir)) if self.current_partition else 0
        return job_on(
            partition,
            self.check_name,
            resumed_program(site.paths.datasets / "digits", step),
            ranks=2,
        )

    @run_after("setup")
    def take_checkpoints(self):
        source = Path(self.before.stagedir) / "checkpoints"
        if source.is_dir():
            shutil.copytree(source, Path(self.stagedir) / "checkpoints")


@rfm.simple_test
class resume_after_requeue(Resumed):
    """Warned before its time is up, a training is requeued and resumes by itself."""

    restarts = 1

    def request(self, site, partition):
        return job_on(
            partition, self.check_name, warned_program(site.paths.datasets / "digits"), ranks=2
        )

    def faults(self, measured):
        restarts = self.job.record.restarts
        text = f"the job was queued again {restarts} times, not once"
        once = JobFault(FaultKind.RESTARTS, text, wanted=1, got=restarts)
        return [*super().faults(measured), *([] if restarts == 1 else [once])]
