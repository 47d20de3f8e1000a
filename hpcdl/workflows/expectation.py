"""A job's expected rate, predicted when it is queued and compared with the measured one.

`expect` asks the scaling model about a job that runs `hpcdl train` with a network it knows; it
starts from a recent run of this site where one is alike, else from published rows, and prices
what ranks exchange by the site's references of the all-reduce check where it has them. Where
nothing says how fast the partition is, there is no expectation, and never an error: no job
fails for the lack of one. `keep` writes it beside the job's script, after the job was queued,
so that nothing waits for it; `compare` compares the job's result with it.

What a job trains is read from the arguments of its program, only what matters for speed. They are
those of `hpcdl train`; another program, or a network that facts/models.yaml does not have, gives
None.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcdl.jobs.layout import Layout, plan_on
from hpcdl.jobs.spec import JobSpec, is_train
from hpcdl.jobs.submission import asked, index
from hpcdl.regress.bandwidth import measured_links
from hpcdl.results.records import EXPECTATION, RESULT, at
from hpcdl.site import Partition, Site
from hpcdl.slurm.execution import current_or_cluster
from hpcdl.system.errors import BadInput, HpcdlError
from hpcdl.system.safe_read import read_regular
from hpcdl.system.text import duration
from hpcdl.train.options import SYNTHETIC, TrainOptions, facts_of, global_batch, parse
from hpcdl.train.options import steps_of as planned_steps

if TYPE_CHECKING:
    from hpcdl.predict.request import Forecast, ScalingRequest
    from hpcdl.predict.results import Exchange

MARGIN = 0.05
"""What two runs of the same job may differ by, as a part of the expected rate."""
_LARGEST_DESCRIPTION = 20_000_000
_RECENT_JOBS = 30
_MOST_REPEATS = 5
_FEWEST_STEPS = 10
# Below this, launching kernels takes longer than the arithmetic that estimates go by.
_SHORTEST_ESTIMATE = 0.005
# What may be wrong with the files of other jobs and with data sets: not this job's fault.
_UNUSABLE = (
    HpcdlError,
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


@dataclass(frozen=True)
class Expectation:
    """The expected performance of a job. Rates in images/s of the whole job, times in seconds.

    The true rate is between `low` and `high` eight times in ten; `limit` is what bounds a step;
    `source` says what the number starts from, `proof` its level of evidence. Nothing is said of an
    epoch (None) where the data have no end. `lives` is how often the job may start.
    """

    model: str
    precision: str
    batch_per_rank: int
    ranks: int
    images_per_second: float
    low: float
    high: float
    limit: str
    epoch_images: int | None
    epoch_seconds: float | None
    run_seconds: float
    walltime_seconds: float
    lives: int
    source: str
    proof: str


class Comparison(NamedTuple):
    """A result and its expectation. `ratio` is measured / expected; `description` the verdict."""

    measured: float
    ratio: float
    verdict: str
    description: str


class TrainingRun(NamedTuple):
    """A run of `hpcdl train`. `batch` is images per rank and step; `data` a directory or SYNTHETIC.

    `options` are those of its program.
    """

    options: TrainOptions
    model: str
    batch: int
    data: str

    @property
    def slowed(self) -> bool:
        """Return whether the run is slowed down on purpose."""
        return self.options.delay_ms > 0

    def like(self, other: TrainingRun) -> bool:
        """Return whether a step of the other predicts the time of a step of this one."""
        keys = ("model", "precision", "xla", "image_size", "accumulate")
        same = all(getattr(self.options, key) == getattr(other.options, key) for key in keys)
        return same and not other.slowed and other.batch <= 2 * self.batch <= 4 * other.batch


class Data(NamedTuple):
    """The data of a run: images of an epoch, None without end, and whether they are JPEG."""

    images: int | None
    jpeg: bool


def expect(site: Site, spec: JobSpec) -> Expectation | None:
    """Return what a job should reach; None if that is unknown. Never fails."""
    with suppress(*_UNUSABLE):
        nodes, layout = plan_on(site, spec)
        training = training_of(spec.program, layout.world_size, spec.data)
        if training is not None and not training.slowed:
            return _expectation(site, spec, nodes, layout, training)
    return None


def why_none(site: Site, spec: JobSpec) -> str:
    """Return what the site file lacks for an expectation, in one line; '' if nothing."""
    from hpcdl.predict.hardware import NETWORK_HINT

    nodes, layout = plan_on(site, spec)
    if layout.nodes < 2 or nodes.interconnect.bandwidth_gbps is not None:
        return ""
    if training_of(spec.program, layout.world_size, spec.data) is None:
        return ""
    return f"no expectation: the network of '{nodes.name}' is not known; {NETWORK_HINT}"


def _expectation(
    site: Site, spec: JobSpec, partition: Partition, layout: Layout, training: TrainingRun
) -> Expectation | None:
    own = _own_results(site, spec, layout, training)
    if not own and current_or_cluster().shared_cores:
        return None  # published GPUs say nothing of nodes that one machine emulates
    links: tuple[Exchange, ...] = ()
    with suppress(*_UNUSABLE):
        if layout.world_size > 1:
            links = measured_links(site, partition, "horovod", layout.tasks_per_node)
    data = data_of(training)
    images = data.images
    found = _predicted(partition, layout, training, data, own, links)
    (point,) = found.points
    source, proof = found.calibration.source, found.calibration.proof
    if proof == "doubtful" and point.step.seconds < _SHORTEST_ESTIMATE:
        return None
    if own:
        several = f"{len(own)} runs, the last one " if own[1:] else ""
        source = f"{several}job {own[0].parent.name}, {source}"
    return Expectation(
        model=training.model,
        precision=training.options.precision,
        batch_per_rank=training.batch,
        ranks=layout.world_size,
        images_per_second=point.images_per_second,
        low=point.low,
        high=point.high,
        limit=point.step.limit,
        epoch_images=images,
        epoch_seconds=point.seconds if images else None,
        run_seconds=steps_of(training, layout.world_size, images) * point.step.seconds,
        walltime_seconds=layout.minutes * 60.0,
        lives=(1 + spec.requeues) * spec.chain,
        source=source + (", links by the site's all-reduce check" if links else ""),
        proof=proof,
    )


def _predicted(
    partition: Partition,
    layout: Layout,
    training: TrainingRun,
    data: Data,
    own: Sequence[Path],
    links: tuple[Exchange, ...],
) -> Forecast:
    from hpcdl.predict.request import ScalingRequest, answer
    from hpcdl.predict.results import trained_precision

    compute = partition.gpu and partition.gpu.compute
    return answer(
        ScalingRequest(
            partition=_shaped(partition, layout),
            model=training.model,
            gpus=str(layout.world_size),
            batch=training.batch,
            size=training.options.image_size,
            precision=trained_precision(
                training.options.precision, compute, compress=training.options.compress
            ),
            data="imagenet" if data.jpeg else SYNTHETIC,
            images=data.images,
            result=next(iter(own), None),
            repeats=tuple(own[1:]),
            exchanges=links,
        )
    )


def _shaped(partition: Partition, layout: Layout) -> Partition:
    """The partition as the job sees it: as many ranks and cores per node as the job has."""
    cores = layout.tasks_per_node * layout.cpus_per_task // partition.threads_per_core
    if partition.gpu is None:
        each = max(1, cores // layout.tasks_per_node)
        return replace(partition, sockets=layout.tasks_per_node, cores_per_socket=each)
    return replace(
        partition,
        gpu=partition.gpu._replace(per_node=layout.tasks_per_node),
        cores_per_socket=max(1, cores // partition.sockets),
    )


def _own_results(
    site: Site, spec: JobSpec, layout: Layout, training: TrainingRun
) -> tuple[Path, ...]:
    """The results of recent jobs of this site that are alike, of the nearest number of ranks.

    A rank of theirs did what a rank of this one will do. The newest is the first; others count
    where they are repeats of it, and its batch is this one's.
    """
    alike = [one for folder in _recent_jobs(site) for one in _alike(folder, spec, layout, training)]
    nearest = min((distance for distance, _, _ in alike), default=0)
    near = [(run, path) for distance, run, path in alike if distance == nearest]
    most = _MOST_REPEATS if near and near[0][0][0] == training.batch else 1
    return tuple(path for run, path in near if run == near[0][0])[:most]


def _alike(
    folder: Path, spec: JobSpec, layout: Layout, training: TrainingRun
) -> Iterator[tuple[int, tuple[object, ...], Path]]:
    """A job's distance in ranks, what repeats of it have in common, its result; if it is alike."""
    with suppress(*_UNUSABLE):
        record = asked(folder)
        shape = record["layout"]
        ranks = int(shape["nodes"]) * int(shape["tasks_per_node"])
        other = training_of(tuple(record["program"]), ranks)
        there = (record["partition"], record.get("gpu_model"), int(shape["cpus_per_task"]))
        here = (spec.partition, spec.gpu_model, layout.cpus_per_task)
        if there != here or other is None or not training.like(other):
            return
        result = RESULT.find(folder)
        if (at(result, "summary", "steps_measured") or 0) >= _FEWEST_STEPS:
            run = (
                at(result, "batch_per_rank"),
                at(result, "layout", "ranks"),
                at(result, "precision"),
            )
            yield abs(ranks - layout.world_size), run, folder / RESULT.name


def last_results(site: Site, request: ScalingRequest) -> tuple[Path, ...]:
    """The result of the newest job of a partition that trained like a request, and of its repeats.

    None where nothing is like it.
    """
    from hpcdl.predict.results import alike, trained_precision

    results: list[tuple[object, Path]] = []
    compute = request.partition.gpu and request.partition.gpu.compute
    for folder in _recent_jobs(site):
        with suppress(*_UNUSABLE):
            record = asked(folder)
            there = record["partition"], record.get("gpu_model")
            if there != (request.partition.name, request.partition.gpu_asked_for):
                continue
            ranks = int(record["layout"]["nodes"]) * int(record["layout"]["tasks_per_node"])
            run = training_of(tuple(record["program"]), ranks)
            if run is None or run.slowed or run.model != request.model:
                continue
            options = run.options
            if options.image_size != request.size:
                continue
            precision = trained_precision(options.precision, compute, compress=options.compress)
            wanted = "amp" if request.precision == "bf16" else request.precision
            far = request.batch and not run.batch <= 2 * request.batch <= 4 * run.batch
            if far or not alike(wanted or trained_precision("fp32", compute), precision):
                continue
            result = RESULT.find(folder)
            if (at(result, "summary", "steps_measured") or 0) >= _FEWEST_STEPS:
                results.append(((run, ranks), folder / RESULT.name))
    return tuple(path for run, path in results if run == results[0][0])[:_MOST_REPEATS]


def links_of(site: Site, partition: Partition) -> tuple[Exchange, ...]:
    """Return the site's all-reduce measurements of a partition's links, if any."""
    with suppress(*_UNUSABLE):
        return measured_links(site, partition, "horovod", partition.gpus_per_node or 1)
    return ()


def _recent_jobs(site: Site) -> Sequence[Path]:
    with suppress(OSError):
        links = [link for link in index(site).iterdir() if link.name.isdecimal()]
        return sorted(links, key=lambda link: -int(link.name))[:_RECENT_JOBS]
    return ()


def keep(expectation: Expectation, folder: Path) -> None:
    """Write the expectation into the job's directory; a full disk is no reason to fail here."""
    with suppress(HpcdlError):
        EXPECTATION.write(folder / EXPECTATION.name, asdict(expectation))


def kept(folder: Path) -> Expectation | None:
    """The expectation of a job's directory; None where there is none, or one with faults."""
    with suppress(HpcdlError):
        record = EXPECTATION.read(folder / EXPECTATION.name)
        if not record.faults:
            return Expectation(**{one.name: record.values[one.name] for one in fields(Expectation)})
    return None


def compare(
    expectation: Expectation, measured: float | None, ranks: int | None
) -> Comparison | None:
    """A job's rate beside what was expected; None where it measured none, or ran otherwise."""
    if not measured or ranks != expectation.ranks:
        return None
    ratio = measured / expectation.images_per_second
    verdict = phrase = "as expected"
    more = ""
    if measured < expectation.low * (1 - MARGIN):
        verdict, phrase = "slower", "slower than expected"
        more = "; its shares above show where the time went; `hpcdl check run` tests the nodes"
        if expectation.proof == "doubtful":
            more = "; but no similar run was known, so the expectation was rough"
    elif measured > expectation.high * (1 + MARGIN):
        verdict, phrase = "faster", "faster than expected"
        more = "; the next jobs are expected to be like this one"
    return Comparison(measured, ratio, verdict, f"{phrase}, {ratio:.0%} of it{more}")


def as_lines(expectation: Expectation) -> list[str]:
    """An expectation as text, two or three lines."""
    e = expectation
    times = [f"the run takes about {duration(e.run_seconds)}"]
    if e.epoch_seconds is not None:
        times.insert(0, f"an epoch of {e.epoch_images:,} images {duration(e.epoch_seconds)}")
    too_long, limit = "", duration(e.walltime_seconds)
    if e.run_seconds > e.walltime_seconds * e.lives:
        too_long = f": more than {e.lives} starts of {limit} give"
        too_long += "; ask for a longer --time or a --chain"
    elif e.run_seconds > e.walltime_seconds:
        too_long = f": longer than the {limit} of one start; it will be requeued and resume"
    return [
        f"expected {_rate(e)}, limited by {e.limit}",
        f"         {', '.join(times)}{too_long}",
        f"         based on {e.source} [{e.proof}]",
    ]


def comparison_line(expectation: Expectation, comparison: Comparison) -> str:
    """A comparison as text."""
    return f"expected {_rate(expectation)}: {comparison.description}"


def _rate(e: Expectation) -> str:
    digits = 0 if e.images_per_second >= 100 else 1
    rate, low, high = (f"{one:,.{digits}f}" for one in (e.images_per_second, e.low, e.high))
    return f"{rate} images/s (likely {low} to {high})"


def training_of(program: Sequence[str], ranks: int, data: str | None = None) -> TrainingRun | None:
    """Return the training of a job's program on so many ranks; `data` is the job's own data set."""
    if program and not is_train(program):
        return None
    try:
        options = parse(program[2:])
        row = facts_of(options.model)
        whole = global_batch(options, row, ranks)
    except BadInput:
        return None
    # A model of the user's has no facts, other data no known size, and no epochs train nothing.
    if ":" in options.model or options.dataset or options.epochs == 0:
        return None
    return TrainingRun(
        options=options,
        model=options.model,
        batch=whole // ranks,
        data=options.data if options.data != SYNTHETIC or not data else data,
    )


def data_of(training: TrainingRun) -> Data:
    """Return the amount of data of the run, by its dataset.json; unknown sizes are infinite."""
    path = Path(training.data, "dataset.json")
    if training.data == SYNTHETIC or path.stat().st_size > _LARGEST_DESCRIPTION:
        return Data(None, jpeg=False)
    described: dict[str, Any] = json.loads(read_regular(path, _LARGEST_DESCRIPTION))
    return Data(int(described["splits"]["train"]["examples"]), described["encoding"] == "jpeg")


def steps_of(training: TrainingRun, ranks: int, images: int | None) -> int:
    """Steps of the whole run."""
    per_epoch = images // (training.batch * ranks) if images else 0
    return planned_steps(training.options, facts_of(training.model), per_epoch)
