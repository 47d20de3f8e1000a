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

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpcdl.jobs.layout import Layout, plan_on
from hpcdl.jobs.spec import JobSpec, is_train
from hpcdl.jobs.submission import asked as asked_for
from hpcdl.jobs.submission import index
from hpcdl.regress.references import fingerprint, read_references, site_file
from hpcdl.regress.training import SIZES, SMALL_SIZES, metric_name
from hpcdl.results.records import DATASET, EXPECTATION, RESULT, at
from hpcdl.site import Partition, Site
from hpcdl.slurm.execution import current_or_cluster
from hpcdl.system.errors import BadInput, HpcdlError
from hpcdl.system.text import duration
from hpcdl.train.options import SYNTHETIC, TrainOptions, facts_of, global_batch, parse, steps_of

if TYPE_CHECKING:
    from hpcdl.predict.request import ScalingRequest
    from hpcdl.predict.start import Exchange

_CASE = re.compile(r"horovod-(?P<nodes>[0-9]{1,4})x(?P<local>[0-9]{1,4})")
MARGIN = 0.05
"""What two runs of the same job may differ by, as a part of the expected rate."""
_RECENT_JOBS = 30
_FEWEST_STEPS = 10
# Below this, launching kernels takes longer than the arithmetic that estimates go by.
_SHORTEST_ESTIMATE = 0.005


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
    batch: int
    data: str


def expect(site: Site, spec: JobSpec) -> Expectation | None:
    """Return what a job should reach; None if that is unknown.

    Never fails: what is wrong with a data set, or with files of other jobs, is not this job's.
    """
    with suppress(Exception):
        nodes, layout = plan_on(site, spec)
        training = training_of(spec.program, layout.world_size, spec.data)
        if training is not None and training.options.delay_ms == 0:
            return _expectation(site, spec, nodes, layout, training)
    return None


def why_none(site: Site, spec: JobSpec) -> str:
    """Return what the site file lacks for an expectation, in one line; '' if nothing."""
    from hpcdl.predict.machine import NETWORK_HINT

    nodes, layout = plan_on(site, spec)
    if layout.nodes < 2 or nodes.interconnect.bandwidth_gbps is not None:
        return ""
    if training_of(spec.program, layout.world_size, spec.data) is None:
        return ""
    return f"no expectation: the network of '{nodes.name}' is not known; {NETWORK_HINT}"


def _expectation(
    site: Site, spec: JobSpec, partition: Partition, layout: Layout, training: TrainingRun
) -> Expectation | None:
    from hpcdl.predict.request import answer

    images, jpeg = data_of(training)
    asked = _request(partition, layout, training, images, jpeg=jpeg)
    asked = from_site(site, partition, asked, training.options, layout.cpus_per_task)
    if not asked.result and current_or_cluster().shared_cores:
        return None  # published GPUs say nothing of nodes that one machine emulates
    found = answer(asked)
    (point,) = found.points
    source, proof = found.calibration.source, found.calibration.proof
    if proof == "doubtful" and point.step.seconds < _SHORTEST_ESTIMATE:
        return None
    if asked.result:
        source = f"job {asked.result.parent.name}, {source}"
    if asked.exchanges and layout.world_size > 1:
        source += ", links by the site's all-reduce check"
    per_epoch = images // (training.batch * layout.world_size) if images else 0
    steps = steps_of(training.options, facts_of(training.options.model), per_epoch)
    return Expectation(
        model=training.options.model,
        precision=training.options.precision,
        batch_per_rank=training.batch,
        ranks=layout.world_size,
        images_per_second=point.images_per_second,
        low=point.low,
        high=point.high,
        limit=point.step.limit,
        epoch_images=images,
        epoch_seconds=point.seconds if images else None,
        run_seconds=steps * point.step.seconds,
        walltime_seconds=layout.minutes * 60.0,
        lives=(1 + spec.requeues) * spec.chain,
        source=source,
        proof=proof,
    )


def _request(
    partition: Partition, layout: Layout, training: TrainingRun, images: int | None, *, jpeg: bool
) -> ScalingRequest:
    """The question of a job: its training, on its partition as the job sees it.

    That has as many ranks and cores per node as the job has.
    """
    from hpcdl.predict.request import ScalingRequest

    ranks = layout.tasks_per_node
    seen = replace(partition, usable_cpus=ranks * layout.cpus_per_task, sockets=ranks)
    if partition.gpu is not None:
        gpu = partition.gpu._replace(per_node=ranks)
        seen = replace(seen, gpu=gpu, sockets=partition.sockets)
    return ScalingRequest(
        partition=seen,
        model=training.options.model,
        gpus=str(layout.world_size),
        batch=training.batch,
        size=training.options.image_size,
        precision=_precision(training.options, partition),
        real=jpeg,
        images=images,
    )


def _precision(options: TrainOptions, partition: Partition) -> str:
    from hpcdl.predict.start import trained_precision

    compute = partition.gpu and partition.gpu.compute
    return trained_precision(options.precision, compute, compress=options.compress)


# ---- what the site measured ----


def from_site(
    site: Site,
    place: Partition,
    asked: ScalingRequest,
    job: TrainOptions | None = None,
    cpus: int | None = None,
) -> ScalingRequest:
    """The request with the site's last run like it, and with its all-reduce checks.

    `place` is its partition in the site file. Of a job its options count, too, and that a rank has
    as many `cpus`.
    """
    gpu = asked.partition.gpu
    asked = replace(
        asked,
        result=None if asked.plan else last_result(site, place, asked, job, cpus),
        exchanges=measured_links(site, place, gpu.per_node if gpu else asked.partition.sockets),
    )
    return on_shared_cores(asked)


def on_shared_cores(asked: ScalingRequest) -> ScalingRequest:
    """The request with the cores of the machine that emulates all nodes, if one does."""
    shared = asked.result and current_or_cluster().shared_cores
    return replace(asked, cores=os.cpu_count()) if shared else asked


def last_result(
    site: Site,
    place: Partition,
    asked: ScalingRequest,
    job: TrainOptions | None = None,
    cpus: int | None = None,
) -> Path | None:
    """The result of the newest job that trained like a request.

    Of a job's, which is of one number of ranks, the nearest in ranks comes first.
    """
    candidates: list[tuple[int, Path]] = []
    for folder in _recent_jobs(site):
        with suppress(Exception):
            record = asked_for(folder)
            shape = record["layout"]
            ranks = int(shape["nodes"]) * int(shape["tasks_per_node"])
            there = (record["partition"], record.get("gpu_model"))
            here = (place.name, place.gpu_asked_for)
            run = training_of(tuple(record["program"]), ranks)
            if run is None or there != here or cpus not in (None, int(shape["cpus_per_task"])):
                continue
            result = RESULT.find(folder)
            enough = (at(result, "summary", "steps_measured") or 0) >= _FEWEST_STEPS
            if enough and _alike(run, asked, job):
                far = abs(ranks - int(asked.gpus or ranks)) if job else 0
                candidates.append((far, folder / RESULT.name))
    return min(candidates, key=lambda one: one[0], default=(0, None))[1]


def _alike(run: TrainingRun, asked: ScalingRequest, job: TrainOptions | None) -> bool:
    """Whether a step of a run predicts the time of a step of a request."""
    from hpcdl.predict.start import units_of

    options = run.options
    usual = _precision(replace(options, precision="fp32"), asked.partition)
    wanted = "amp" if asked.precision == "bf16" else asked.precision or usual
    batch = asked.batch or run.batch
    return (
        options.delay_ms == 0
        and (options.model, options.image_size) == (asked.model, asked.size)
        and (job is None or options.xla == job.xla)
        and units_of(wanted) == units_of(_precision(options, asked.partition))
        and run.batch <= 2 * batch <= 4 * run.batch
    )


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
    verdict, more = "as expected", ""
    if measured < expectation.low * (1 - MARGIN):
        verdict = "slower"
        more = "; its shares above show where the time went; `hpcdl check run` tests the nodes"
        if expectation.proof == "doubtful":
            more = "; but no similar run was known, so the expectation was rough"
    elif measured > expectation.high * (1 + MARGIN):
        verdict = "faster"
        more = "; the next jobs are expected to be like this one"
    phrase = verdict if verdict == "as expected" else f"{verdict} than expected"
    text = f"expected {_rate(expectation)}: {phrase}, {ratio:.0%} of it{more}"
    return Comparison(measured, ratio, verdict, text)


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
        batch=whole // ranks,
        data=options.data if options.data != SYNTHETIC or not data else data,
    )


def data_of(training: TrainingRun) -> tuple[int | None, bool]:
    """Return the images of an epoch, None without end, and whether they are JPEG."""
    if training.data == SYNTHETIC:
        return None, False
    described = DATASET.read(Path(training.data, DATASET.name)).values
    return int(described["splits"]["train"]["examples"]), described["encoding"] == "jpeg"


def measured_links(site: Site, partition: Partition, local: int) -> tuple[Exchange, ...]:
    """Return the site's measurements of links within a node and between nodes.

    Of several numbers of ranks per node, the one nearest to `local` counts. References of
    another machine that emulated the cluster are none of this one.
    """
    known: list[Exchange] = []
    with suppress(Exception):  # references that cannot be read cost the links only
        known = sorted(
            _exchanges(site, partition), key=lambda one: (abs(one.local - local), one.nodes)
        )
    # Those within a node first, as requests have them.
    near, far = ([one for one in known if (one.nodes > 1) is wide] for wide in (False, True))
    return (*near[:1], *far[:1])


def _exchanges(site: Site, partition: Partition) -> Iterator[Exchange]:
    from hpcdl.predict.start import Exchange, bus_rate

    path = site_file(site, partition.reference_set)
    here, sizes = {None, fingerprint()}, {metric_name(size): size for size in SIZES + SMALL_SIZES}
    rows = [
        row
        for row in read_references(path)
        if (row.check, row.partition) == ("allreduce", partition.label) and row.machine in here
    ]
    for case, group in groupby(sorted(rows, key=lambda row: row.case), lambda row: row.case):
        match = _CASE.fullmatch(case)
        if not match:
            continue
        nodes, local = int(match["nodes"]), int(match["local"])
        rates = [(sizes[row.metric], row.value) for row in group if row.metric in sizes]
        rate = bus_rate(rates) if rates else None
        if nodes * local > 1 and rate:
            yield Exchange(str(path), nodes, local, rate)
