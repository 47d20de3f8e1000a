"""Training, as users get it: the job of `hpcdl job submit`, on the site's release.

Throughput by model x nodes x GPUs x data x precision, and what many GPUs give of many times
one, both measured in the same night.
"""

import time
from dataclasses import replace

import reframe as rfm
from reframe.core.builtins import fixture, parameter, run_after
from trainings import (
    BEST_IMAGES_PER_SECOND,
    IMAGES_PER_SECOND,
    TrainingCase,
    best_images_per_second,
    images_per_second,
    training_faults,
)

from hpcdl.predict.machine import network, of_partition
from hpcdl.predict.request import ScalingRequest, answer
from hpcdl.predict.start import trained_precision
from hpcdl.regress.checkbase import HpcdlCheck, Metric
from hpcdl.regress.references import Reference
from hpcdl.regress.training import ALL, ranks_on
from hpcdl.system.errors import HpcdlError

SMALL = [
    TrainingCase("mlp", 2, 2, steps=400, batch=64, tags=("smoke", "nightly")),
    TrainingCase("mlp", 1, 1, steps=2000, batch=512, tags=("nightly", "node")),
    TrainingCase("mlp", 1, 2, steps=400, batch=64, data="synthetic"),
]
"""Seconds on any machine: they prove the way, and judge machines that emulate their nodes."""
LARGE = [
    TrainingCase(
        model,
        nodes,
        ranks,
        steps=100,
        batch=64,
        data=data,
        precision=precision,
        real=True,
        tags=(tag,),
        minutes=30,
    )
    for model, tag in (("resnet50", "nightly"), ("inception_v3", "weekly"), ("vgg16", "weekly"))
    for nodes, ranks in ((1, 1), (1, ALL), (2, ALL), (4, ALL))
    for precision in ("fp32", "fp16")
    for data in ("synthetic", "imagenet")
]
"""What references are published for. Data other than synthetic must be there."""


SHAPES = ((1, 2), (2, 2), (1, ALL), (2, ALL), (4, ALL))
"""Nodes and ranks per node that scaling is measured at."""
YARDSTICKS = {
    # 1,440 digits are to be a global batch of four nodes of eight GPUs, too.
    "small": TrainingCase("mlp", 1, 1, steps=1000, batch=16),
    "fp32": TrainingCase(
        "resnet50", 1, 1, steps=100, batch=64, data="synthetic", real=True, minutes=30
    ),
    "fp16": TrainingCase(
        "resnet50",
        1,
        1,
        steps=100,
        batch=64,
        data="synthetic",
        precision="fp16",
        real=True,
        minutes=30,
    ),
}
BANDS, WIDEST = 2.0, 0.9
FAST_CONVOLUTIONS = 4.0
UNITS = {"fp32": ("fp32", "tf32"), "tf32": ("fp32", "tf32")}


def most_images_per_second(machine, net, precision, gpus):
    """Images (or sequences) per second beyond which a rate is no measurement, not what is expected.

    Arithmetic alone, at the peak of the fastest units that a precision may use (TF32 where float32
    is computed so). Fast convolutions do less of it, at most four times less (Winograd's
    F(4x4, 3x3): Lavin and Gray 2016, arXiv:1509.09308). No published row passes it. None where a
    peak of the GPU, or the work of the network, is not known.
    """
    units = UNITS.get(precision, ("fp32", "tf32", "fp16"))
    if not net.macs or any(machine.lacks(unit) for unit in units):
        return None
    # Forward, and the gradients of weights and of inputs, which the first layer does not need.
    work = 2.0 * (3.0 * net.macs - net.first_macs)
    return FAST_CONVOLUTIONS * gpus * max(machine.flops[: len(units)]) / work


def expected_efficiency(case, partition, single, check):
    """The efficiency that the model of scaling expects, None where it knows nothing.

    `single` is images per second of one rank the same night, which calibrates the model. Its band
    holds eight times in ten; a bound twice as far away is beyond what the model's own uncertainty
    explains (2.6 standard deviations of a normal one).
    """
    whole = case.nodes == 1 or case.ranks == partition.gpus_per_node
    if partition.gpu is None or not case.real or not single or not whole:
        return None
    try:
        precision = trained_precision(case.precision, partition.gpu.compute)
        request = ScalingRequest(
            partition,
            case.model,
            str(case.nodes * case.ranks),
            case.batch,
            precision,
            images_per_second=single,
        )
        (point,) = answer(request).points
    except HpcdlError:
        return None
    uncertainty = 1 - point.low / point.images_per_second
    lower, date = -min(WIDEST, round(BANDS * uncertainty, 3)), time.strftime("%Y-%m-%d")
    return Reference(
        check=check,
        case=str(case),
        partition=partition.label,
        metric="efficiency",
        value=round(point.efficiency, 4),
        unit="of ideal",
        lower=lower,
        date=date,
        proof="doubtful",
        source="hpcdl predict, from one GPU's rate of the same night",
    )


def most(case, partition):
    """Images per second that no GPUs of a partition can compute, None if that is unknown.

    Only of images whose size is the network's own.
    """
    if partition.gpu is None or not case.real or case.data != "synthetic":
        return None
    try:
        net, machine = network(case.model), of_partition(partition)
    except HpcdlError:
        return None
    gpus = case.nodes * ranks_on(partition, case.ranks)
    return most_images_per_second(machine, net, case.precision, gpus)


class Training(HpcdlCheck):
    """A training with its rate; subclasses say which."""

    @property
    def case(self):
        """The training of this variant."""
        return self.training

    @property
    def case_name(self):
        _, partition = self.place()
        return str(self.case.on(partition))

    def request(self, site, partition):
        return self.case.request(site, partition, self.check_name)

    def suits(self, site, partition, execution):
        return execution.full_size or not self.case.real

    def rate(self, measured):
        """The rate that is judged."""
        best = self.execution.judges_best
        return (best_images_per_second if best else images_per_second)(measured)

    def most(self, metric):
        if metric.unit != "images/s" or self.settings or not self.real_gpus:
            return None
        return most(self.case, self.place()[1])

    def faults(self, measured):
        return [*super().faults(measured), *training_faults(measured)]


@rfm.simple_test
class throughput(Training):
    """Images per second of synchronous training."""

    training = parameter([*SMALL, *LARGE], fmt=lambda case: str(case))

    @run_after("init")
    def take_tags(self):
        self.tags = set(self.training.tags)

    def metrics(self):
        best = self.execution.judges_best
        return [
            Metric(BEST_IMAGES_PER_SECOND, "images/s", best_images_per_second, judged=best),
            Metric(IMAGES_PER_SECOND, "images/s", images_per_second, judged=not best),
        ]


class alone(Training):
    """One rank on one GPU: what scaling is measured against."""

    training = parameter([*YARDSTICKS.values()], fmt=lambda case: str(case))

    def metrics(self):
        return [Metric(IMAGES_PER_SECOND, "images/s", self.rate, judged=False)]


class Scaling(Training):
    """The rate of many ranks, as a part of so many times one rank's of the same night."""

    tags = {"nightly"}

    def suits(self, site, partition, execution):
        fits = execution.full_size or self.case.ranks != ALL
        return fits and super().suits(site, partition, execution)

    def metrics(self):
        return [
            # On shared cores it says nothing of the software.
            Metric(
                "efficiency", "of ideal", self.efficiency, judged=not self.execution.shared_cores
            ),
            Metric(IMAGES_PER_SECOND, "images/s", self.rate, judged=False),
        ]

    def efficiency(self, measured):
        """What the ranks give of as many times one rank, None where a rate is missing."""
        rate, single = self.rate(measured), self.single_rate()
        return rate / (self.num_tasks * single) if rate and single else None

    def single_rate(self):
        """Images per second of one rank this night."""
        return self.single.evidence["metrics"][IMAGES_PER_SECOND]["value"]

    def expected(self, metric, site, partition):
        if self.execution.shared_cores:
            return None
        return expected_efficiency(
            self.case.on(partition), partition, self.single_rate(), self.check_name
        )


def cases_of(series):
    """The yardstick's training on more ranks: the same batch on every rank."""
    single = YARDSTICKS[series]
    return parameter(
        [replace(single, nodes=nodes, ranks=ranks) for nodes, ranks in SHAPES],
        fmt=lambda case: str(case),
    )


def single_of(series):
    """The yardstick of a series, run once however many checks need it."""
    return fixture(
        alone, scope="environment", variants={"training": lambda case: case == YARDSTICKS[series]}
    )


@rfm.simple_test
class scaling_small(Scaling):
    """On any machine."""

    training = cases_of("small")
    single = single_of("small")


@rfm.simple_test
class scaling_fp32(Scaling):
    """ResNet-50 in single precision."""

    training = cases_of("fp32")
    single = single_of("fp32")


@rfm.simple_test
class scaling_fp16(Scaling):
    """ResNet-50 in half precision."""

    training = cases_of("fp16")
    single = single_of("fp16")
