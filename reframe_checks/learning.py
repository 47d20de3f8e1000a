"""Whether training still learns, survives, and runs the way that users start it."""

import math
import shutil
from pathlib import Path
from statistics import mean

import reframe as rfm
from reframe.core.builtins import fixture, parameter, run_after
from trainings import BEST_IMAGES_PER_SECOND, best_images_per_second, losses, training_faults

from hpcdl import facts
from hpcdl.regress.checkbase import HpcdlCheck, Metric, rendered
from hpcdl.regress.references import rule
from hpcdl.regress.result import Measured, reads
from hpcdl.regress.training import job_on
from hpcdl.results.faults import FaultKind, JobFault

DIGITS, DIGITS_ACCURACY = "mlp-digits-95", 0.95
"""A training to the end, whose loss curve is known, and the accuracy that it must reach."""
CURVE = facts.load("loss_curves")["curves"][DIGITS]
STEPS_AFTER, CHECKPOINT_EVERY = 300, 100
"""Steps that a run which was interrupted goes on for after its newest checkpoint, however far it
came: nothing depends on how fast a machine is."""
NO_IDEA = math.log(10)
"""The loss of a network of ten classes that has learnt nothing."""
WAIT = "until compgen -G 'checkpoints/step-*.ckpt' >/dev/null; do sleep 0.05; done; "
KILLED = (
    '"$@" --steps=100000000 & training=$!; '
    "if [[ $SLURM_PROCID == 0 ]]; then " + WAIT + "kill -KILL $training; fi; wait $training"
)
# The newest checkpoint's step is in its name, step-000000100.ckpt.
WARNED = (
    "if [[ ${SLURM_RESTART_COUNT:-0} == 0 ]]; then "
    "if [[ $SLURM_PROCID == 0 ]]; then "
    "(" + WAIT + "scancel --signal=USR2 --batch $SLURM_JOB_ID) & fi; "
    'exec "$@" --steps=100000000; fi; '
    "newest=$(ls checkpoints/step-*.ckpt | sort | tail -n 1); newest=${newest##*step-}; "
    f'exec "$@" --steps=$((10#${{newest%.ckpt}} + {STEPS_AFTER}))'
)


def training_of(site, *options):
    """The program of a training on the digits."""
    data = f"--data={site.paths.datasets / 'digits'}"
    return ("hpcdl", "train", "--model=mlp", data, *options)


def with_checkpoints(site, *options):
    """The same with checkpoints, for jobs that are interrupted."""
    every = f"--checkpoint-every={CHECKPOINT_EVERY}"
    return training_of(site, "--global-batch=128", every, *options)


def curve_faults(curve):
    """Where the loss curve of DIGITS leaves the band of a healthy one."""
    faults = []
    for row in CURVE["windows"]:
        window = curve[row["first"] : row["last"]]
        loss = mean(window) if len(window) == row["last"] - row["first"] else math.nan
        if not row["low"] <= loss <= row["high"]:
            band = f"{row['low']:.4g} to {row['high']:.4g}"
            steps = f"{row['first']} to {row['last']}"
            text = f"the loss of steps {steps} is {loss:.4g}, healthy is {band}"
            faults.append(JobFault(FaultKind.LOSS, text, "loss", wanted=band, got=loss))
    return faults


def newest_step(directory):
    """The step of the newest checkpoint of a job's directory, 0 where there is none."""
    found = sorted((directory / "checkpoints").glob("step-*.ckpt"))
    return int(found[-1].stem.removeprefix("step-")) if found else 0


def resume_faults(measured):
    """The faults of a training that should have gone on from a checkpoint."""
    if measured.faults:
        return []
    faults = []
    first = measured.number("samples", "first_step") or 0
    if first < CHECKPOINT_EVERY:
        text = f"the training began at step {first:.0f}, not at its checkpoint"
        faults.append(JobFault(FaultKind.CHECKPOINT, text, wanted=CHECKPOINT_EVERY, got=first))
    done, planned = measured.number("steps", "done"), measured.number("steps", "planned")
    if done is None or done != planned:
        text = f"{done or 0:.0f} of {planned or 0:.0f} steps were done"
        faults.append(JobFault(FaultKind.STEPS, text, wanted=planned, got=done))
    early = losses(measured)[:10]
    loss = mean(early) if early else math.nan
    if not loss < 0.7 * NO_IDEA:
        text = f"the checkpoint lacks what was learnt: the loss after it is {loss:.4g}"
        faults.append(JobFault(FaultKind.LOSS, text, "loss", wanted=0.7 * NO_IDEA, got=loss))
    return faults


@rfm.simple_test
class convergence(HpcdlCheck):
    """The digits to 95 %, with a loss curve within the band of healthy ones."""

    training = parameter([DIGITS])
    tags = {"nightly"}

    @property
    def case_name(self):
        return self.training

    def request(self, site, partition):
        program = training_of(site, *CURVE["options"])
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
        options = ("--steps=200", "--batch-per-rank=32", "--checkpoint-every=0")
        program = training_of(site, *options)
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
        program = ("bash", "-c", KILLED, "killed", *with_checkpoints(site))
        return job_on(partition, self.check_name, program, ranks=2)

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
        program = with_checkpoints(site, f"--steps={step + STEPS_AFTER}")
        return job_on(partition, self.check_name, program, ranks=2)

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
        program = ("bash", "-c", WARNED, "warned", *with_checkpoints(site))
        return job_on(partition, self.check_name, program, ranks=2)

    def faults(self, measured):
        restarts = self.job.record.restarts
        text = f"the job was queued again {restarts} times, not once"
        once = JobFault(FaultKind.RESTARTS, text, wanted=1, got=restarts)
        return [*super().faults(measured), *([] if restarts == 1 else [once])]
