"""What a job is expected to reach when it is queued, and what is said when it ended."""

import json
import os
from dataclasses import replace

import pytest

from hpcdl.jobs import JobSpec
from hpcdl.predict.request import ScalingRequest, answer
from hpcdl.regress.references import edits_of, site_file
from hpcdl.regress.training import metric_name
from hpcdl.slurm.execution import SINGLE_NODE
from hpcdl.workflows.expectation import (
    as_lines,
    compare,
    expect,
    keep,
    kept,
    last_result,
    measured_links,
    training_of,
)
from tests.make.results import reference

TRAIN = ("hpcdl", "train", "--model")
RESNET = (*TRAIN, "resnet50", "--batch-per-rank", "64")
TINY = JobSpec(
    "cpu",
    nodes=1,
    tasks_per_node=1,
    cpus_per_task=2,
    program=(*TRAIN, "mlp", "--global-batch", "256"),
)


def expected(site, spec):
    found = expect(site, spec)
    assert found is not None
    return found


def test_a_job_of_a_known_network_is_expected_to_reach_what_predict_says(three_generations):
    one, many = (
        expected(three_generations, JobSpec("p100", gpus=gpus, program=RESNET)) for gpus in (1, 16)
    )
    assert one.images_per_second == pytest.approx(219, rel=0.02)
    assert 14 < many.images_per_second / one.images_per_second < 16
    assert many.low < many.images_per_second < many.high
    assert (one.proof, one.limit) == ("published", "compute")
    assert "219 images/s" in one.source


def test_the_layout_of_the_job_counts_not_the_number_of_gpus_alone(modern):
    program = (*TRAIN, "vgg16", "--batch-per-rank", "8")
    near = expected(modern, JobSpec("a100", gpus=4, program=program))
    far = expected(modern, JobSpec("a100", nodes=4, gpus_per_node=1, program=program))
    assert near.ranks == far.ranks == 4
    assert far.images_per_second < near.images_per_second


@pytest.mark.parametrize(
    "program",
    [
        ("python", "my_train.py"),
        ("hpcdl",),
        TRAIN,
        (*TRAIN, "mlp"),
        (*TRAIN, "my.package:network"),
        (*TRAIN, "resnet50", "--batch-per-rank", "many"),
        (*TRAIN, "resnet50", "--data", "/no/such/data"),
        (*TRAIN, "resnet50", "--delay-ms", "20"),
        (*TRAIN, "resnet50", "--global-batch", "0"),
    ],
)
def test_where_nothing_is_known_nothing_is_said(three_generations, program):
    assert expect(three_generations, JobSpec("p100", gpus=4, program=program)) is None


def test_a_program_is_read_as_the_training_program_reads_it():
    training = training_of(("hpcdl", "train", "--model=mlp"), ranks=48)
    assert training is not None
    assert training.batch == 2, "96 images, the next that 48 ranks share"
    for words in ("--epochs=0", "--dataset=mine:data", "--global-batch=100", "--lr=fast", "--help"):
        assert training_of(("hpcdl", "train", words), ranks=8) is None, words


def test_the_last_of_an_option_counts_however_it_is_written():
    training = training_of((*TRAIN, "vgg16", "--model=resnet50", "--global-batch=104"), ranks=8)
    assert (training.options.model, training.batch) == ("resnet50", 13)


def test_epochs_are_those_of_the_data_set(three_generations, tmp_path):
    described = {"encoding": "jpeg", "splits": {"train": {"examples": 128_000}}}
    (tmp_path / "dataset.json").write_text(json.dumps(described))
    spec = JobSpec("p100", gpus=4, program=(*RESNET, "--epochs", "10"), data=str(tmp_path))
    found = expected(three_generations, spec)
    assert found.epoch_images == 128_000
    assert found.epoch_seconds == pytest.approx(128_000 / found.images_per_second)
    assert found.run_seconds == pytest.approx(10 * found.epoch_seconds)
    assert "an epoch of 128,000 images" in as_lines(found)[1]


@pytest.mark.parametrize("text", [None, "[" * 100_000, '{"splits": 5}'])
def test_a_data_set_of_others_never_stops_a_submit(three_generations, tmp_path, text):
    """A pipe in the place of its description held the command up after the job was queued."""
    if text is None:
        os.mkfifo(tmp_path / "dataset.json")
    else:
        (tmp_path / "dataset.json").write_text(text)
    spec = JobSpec("p100", gpus=1, program=RESNET, data=str(tmp_path))
    assert expect(three_generations, spec) is None


def test_a_run_longer_than_its_time_is_said_before_it_waits(three_generations):
    def time_line(steps):
        program = (*RESNET, "--steps", str(steps))
        return as_lines(expected(three_generations, JobSpec("p100", gpus=4, program=program)))[1]

    assert "requeued" not in time_line(100)
    assert "longer than the 1 h 00 min of one start" in time_line(15_000)
    assert "ask for a longer --time" in time_line(1_000_000)


def earlier_job(site, number, rate=5000.0, tasks=1, **changes):
    folder = site.paths.work / "jobs" / "by-id" / str(number)
    folder.mkdir(parents=True)
    layout = {"nodes": 1, "tasks_per_node": tasks, "cpus_per_task": 2}
    record = {"partition": "cpu", "program": list(TINY.program), "layout": layout}
    (folder / "job.json").write_text(json.dumps({**record, **changes}))
    result = {
        "schema": 2,
        "model": "mlp",
        "batch_per_rank": 256 // tasks,
        "precision": "fp32",
        "layout": {"ranks": tasks},
        "summary": {
            "images_per_second": rate,
            "steps_measured": 50,
            "phases": {"compute": 0.9, "update": 0.1},
        },
    }
    (folder / "result.json").write_text(json.dumps(result))


@pytest.fixture
def busy(modern, tmp_path):
    return replace(modern, paths=replace(modern.paths, work=tmp_path))


def test_an_earlier_run_of_the_site_is_what_the_next_starts_from(busy):
    spec = replace(TINY, tasks_per_node=2)
    assert expect(busy, spec) is None
    for number in (12, 13):
        earlier_job(busy, number, rate=5000.0 + number, tasks=2)
        found = expected(busy, spec)
        assert found.low < found.images_per_second < found.high
        assert (found.images_per_second, found.proof) == (pytest.approx(5000 + number), "run")
        assert found.source.startswith(f"job {number}, ")


def test_a_prediction_starts_from_the_site_s_last_run_like_it(busy):
    for number, rate in ((12, 5000.0), (15, 4000.0)):
        earlier_job(busy, number, rate)
    earlier_job(busy, 16, program=[*TRAIN, "alexnet"])
    asked = ScalingRequest(busy.partition("cpu"), "mlp", gpus="1", batch=256)
    run = last_result(busy, asked.partition, asked)
    assert run.parent.name == "15"
    (point,) = answer(replace(asked, result=run)).points
    assert point.step.compute == pytest.approx(256 / 4000)
    for other in ({"model": "resnet50"}, {"batch": 16}, {"precision": "amp"}, {"size": 64}):
        assert last_result(busy, asked.partition, replace(asked, **other)) is None


def test_published_gpus_say_nothing_of_emulated_nodes(three_generations, monkeypatch):
    spec = JobSpec("p100", gpus=4, program=RESNET)
    assert expect(three_generations, spec) is not None
    monkeypatch.setattr("hpcdl.workflows.expectation.current_or_cluster", lambda: SINGLE_NODE)
    assert expect(three_generations, spec) is None


def test_ranks_that_share_one_machine_are_expected_to_share_its_cores(busy, monkeypatch):
    """Twice the ranks were expected to be twice as fast, so that every such job was too slow."""
    earlier_job(busy, 12)
    monkeypatch.setattr("hpcdl.workflows.expectation.current_or_cluster", lambda: SINGLE_NODE)
    for cores, most in ((1, 1.0), (2, 2.0)):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        program = (*TRAIN, "mlp", "--global-batch", "512")
        found = expected(busy, replace(TINY, tasks_per_node=2, program=program))
        assert 0.6 * most < found.images_per_second / 5000 <= most


@pytest.mark.parametrize(
    "changes",
    [
        {"partition": "h100"},
        {"program": 7},
        {"program": [*TINY.program, "--delay-ms", "50"]},
        {"program": [*TRAIN, "alexnet"]},
        {"layout": None},
        {"layout": {"nodes": 1, "tasks_per_node": 1, "cpus_per_task": 8}},
    ],
)
def test_a_run_of_another_kind_says_nothing(busy, changes):
    earlier_job(busy, 12, **changes)
    assert expect(busy, TINY) is None


@pytest.mark.parametrize("name", ["job.json", "result.json"])
@pytest.mark.parametrize("text", ["", "[]", '{"schema": 1, "summary": 3}', "\x00"])
def test_damaged_files_of_other_jobs_never_stop_a_submit(busy, name, text):
    earlier_job(busy, 12)
    (busy.paths.work / "jobs" / "by-id" / "12" / name).write_text(text)
    assert expect(busy, TINY) is None


def allreduce_of(case, rates, **changes):
    """References of a case of the check: bus bandwidth in GB/s by bytes."""
    plain = reference(check="allreduce", case=case, unit="GB/s", lower=-0.1, date="2026-05-01")
    return [
        replace(plain, metric=metric_name(size), value=rate, **changes)
        for size, rate in rates.items()
    ]


@pytest.fixture
def checked(three_generations, tmp_path):
    paths = replace(three_generations.paths, prefix=tmp_path, work=tmp_path)
    site = replace(three_generations, paths=paths)
    slow = {1 << 24: 0.2, 1 << 26: 0.25}
    rows = [
        *allreduce_of("horovod-2x1", slow, partition="v100"),
        *allreduce_of("horovod-2x2", slow, machine="another one, 2 CPUs, 8 GB"),
        *allreduce_of("multiworker-2x4", slow),
        *allreduce_of("horovod-4x1", {1 << 16: 0.1, 1 << 24: 0.05, 1 << 26: 0.05}),
        *allreduce_of("horovod-2x4", {1 << 16: 0.3, 1 << 24: 1.0, 1 << 26: 1.1}),
    ]
    edits_of(site, rows).write()
    return site


def big(gpus):
    return JobSpec("p100", gpus=gpus, program=(*TRAIN, "vgg16", "--batch-per-rank", "32"))


def test_several_nodes_are_priced_by_the_site_s_own_links(checked, three_generations):
    published, measured = expected(three_generations, big(16)), expected(checked, big(16))
    assert measured.images_per_second < 0.7 * published.images_per_second
    assert measured.source == f"{published.source}, links by the site's all-reduce check"


def test_the_check_of_horovod_nearest_in_ranks_counts(checked):
    for local, nodes, of_check in ((4, 2, 4), (1, 4, 1)):
        (found,) = measured_links(checked, checked.partition("p100"), local)
        assert (found.nodes, found.local) == (nodes, of_check)
    assert measured_links(checked, checked.partition("k80"), 4) == ()


def test_a_job_of_one_rank_and_references_that_cannot_be_read_cost_the_links_only(checked):
    assert "all-reduce" not in expected(checked, big(1)).source
    assert "all-reduce" in expected(checked, big(16)).source
    site_file(checked, checked.partition("p100").reference_set).write_text("schema: 7")
    assert "all-reduce" not in expected(checked, big(16)).source


@pytest.fixture
def hoped(three_generations):
    return expected(three_generations, JobSpec("p100", gpus=4, program=RESNET))


def test_an_expectation_is_kept_with_its_job_and_one_of_another_format_left_alone(hoped, tmp_path):
    assert kept(tmp_path) is None
    keep(hoped, tmp_path)
    assert kept(tmp_path) == hoped
    for text in ("{}", '{"schema": 2}', '{"schema": 1, "model": "x"}', "nonsense"):
        (tmp_path / "expectation.json").write_text(text)
        assert kept(tmp_path) is None


def test_the_verdict_says_whether_it_was_as_expected(hoped):
    rates = {"slower": hoped.low * 0.9, "as expected": hoped.low * 0.97, "faster": hoped.high * 1.1}
    for verdict, rate in rates.items():
        found = compare(hoped, rate, ranks=4)
        assert (found.verdict, found.ratio) == (verdict, rate / hoped.images_per_second)
        assert (
            f"images/s (likely {hoped.low:,.0f} to {hoped.high:,.0f}): {verdict}"
            in found.description
        )
    for rate, ranks in ((None, 4), (0.0, 4), (100.0, 2)):
        assert compare(hoped, rate, ranks) is None, "nothing was measured, or otherwise"
