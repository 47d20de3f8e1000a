"""Counts of GPUs, what they give, and what to take; bad questions are one clear error."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcdl.cli import main
from hpcdl.predict.calibrate import from_images_per_second
from hpcdl.predict.forecast import Forecast, choose, expand, forecast, memory_bytes
from hpcdl.predict.hardware import of_host, of_partition
from hpcdl.predict.network import kept_bytes, names, network
from hpcdl.predict.records import read_records
from hpcdl.predict.request import Request, answer, prepare
from hpcdl.predict.results import read_result
from hpcdl.predict.step import (
    IMAGENET,
    Training,
    constants,
    feed,
    largest_of,
    predict_step,
    profile,
)
from hpcdl.site import Partition, Site, find_site_file
from hpcdl.system.errors import BadInput, MissingPrerequisite

RESULT: dict[str, Any] = {
    "schema": 2,
    "model": "mlp",
    "batch_per_rank": 32,
    "precision": "float32",
    "layout": {"ranks": 4},
    "summary": {
        "images_per_second": 1280.0,
        "phases": {"input": 0.2, "compute": 0.5, "communication": 0.2, "update": 0.1},
    },
}


@pytest.fixture(scope="module")
def k80(pi: Site) -> Partition:
    return pi.partition("k80")


@pytest.fixture(scope="module")
def p100(pi: Site) -> Partition:
    return pi.partition("p100")


@pytest.fixture(scope="module")
def cpu(pi: Site) -> Partition:
    return pi.partition("cpu")


def ask(partition: Partition, **more: Any) -> Forecast:
    return answer(Request(partition, **{"model": "resnet50", "gpus": "1-64", **more}))


def test_more_gpus_give_more_images_at_less_efficiency(k80: Partition) -> None:
    points = ask(k80).points
    rates = [point.images_per_second for point in points]
    assert rates == sorted(rates)
    assert points[0].efficiency == pytest.approx(1)
    assert all(0.5 < point.efficiency <= 1 for point in points)
    assert points[0].images_per_second == pytest.approx(51.9)


def test_the_parts_of_a_step_add_up(k80: Partition) -> None:
    step = ask(k80, data=IMAGENET).points[-1].step
    parts = (step.compute, step.straggler, step.exposed, step.contention, step.input_wait)
    assert step.seconds == pytest.approx(sum(parts))
    assert all(part >= 0 for part in parts)


def test_choices_take_the_fastest_the_cheapest_and_the_last_below_the_loss(k80: Partition) -> None:
    found = ask(k80, gpus="1-4096", loss=0.05)
    real = [point for point in found.points if not point.beyond]
    assert found.choices.fastest == max(real, key=lambda p: p.images_per_second)
    assert found.choices.cheapest == min(real, key=lambda p: p.gpu_hours)
    assert found.choices.efficient is not None
    assert found.choices.efficient.efficiency >= 0.95
    assert all(p.efficiency < 0.95 for p in real if p.gpus > found.choices.efficient.gpus)


def test_the_cheapest_is_chosen_of_those_in_time(k80: Partition) -> None:
    free = ask(k80)
    one, two = free.points[0], free.points[1]
    deadline = (one.epoch_seconds + two.epoch_seconds) / 2 / 3600
    chosen = choose(free.points, 0.1, deadline).cheapest
    assert chosen is not None
    assert chosen.gpus == two.gpus
    assert choose(free.points, 0.1, 1e-9).cheapest is None


def test_counts_beyond_the_partition_are_marked_and_not_chosen(k80: Partition) -> None:
    found = ask(k80, gpus="1-4096")
    size = k80.nodes * k80.gpus_per_node
    assert [p.gpus for p in found.points if p.beyond] == [
        p.gpus for p in found.points if p.gpus > size
    ]
    assert found.choices.fastest is not None
    assert found.choices.fastest.gpus <= size


def test_slow_storage_and_few_cores_limit_by_input(k80: Partition) -> None:
    point = ask(k80, data=IMAGENET, storage_gbs=0.02, gpus="64").points[0]
    assert point.step.limit == "input"
    assert point.images_per_second <= 0.02e9 / 115129


@pytest.mark.parametrize("storage_gbs", [None, 0.02])
def test_the_old_pipeline_adds_all_of_reading_and_decoding_to_every_step(
    k80: Partition, storage_gbs: float | None
) -> None:
    plain = ask(k80, gpus="1,8").points
    slow = ask(k80, gpus="1,8", data=IMAGENET, storage_gbs=storage_gbs, pipeline="old").points
    decode = 1 / feed(of_partition(k80), network("resnet50")).one_core
    for gpus, one, other in zip((1, 8), plain, slow, strict=True):
        read = gpus * 115129 / (storage_gbs * 1e9) if storage_gbs else 0.0
        added = other.step.seconds - one.step.seconds
        assert added == pytest.approx(64 * (decode + read))
        assert other.step.limit == "input"


def test_a_slow_network_limits_by_communication_and_many_ranks_by_stragglers(
    k80: Partition,
) -> None:
    assert ask(k80, network_gbs=0.05, gpus="64").points[0].step.limit == "communication"
    assert ask(k80, gpus="4096").points[0].step.limit == "stragglers"


def test_a_tiny_network_is_limited_by_latency_and_helped_by_a_shorter_cycle(
    k80: Partition,
) -> None:
    machine, training, base = prepare(Request(k80, "mlp", images_per_second=1e5))
    slow, fast = (
        predict_step(machine, training, profile(machine, training, base.seconds, known),
                     64, 64 // machine.per_node, known)
        for known in (replace(constants(), cycle=cycle) for cycle in (0.005, 0.0005))
    )  # fmt: skip
    assert slow.limit == "latency"
    assert fast.seconds < slow.seconds


def test_a_larger_buffer_sends_fewer_messages(k80: Partition) -> None:
    def messages(buffer: float) -> int:
        machine, training, base = prepare(Request(k80, "vgg16"))
        known = replace(constants(), fusion_bytes=buffer, cycle=0.05)
        return len(profile(machine, training, base.seconds, known).packed)

    assert messages(1e6) > messages(1e9)


@pytest.mark.parametrize("slower", ["no_overlap", "parameter_server"])
def test_other_forms_are_slower_than_the_overlapped_all_reduce(k80: Partition, slower: str) -> None:
    def rate(form: str) -> float:
        found = ask(k80, model="vgg16", form=form, gpus="64", network_gbs=0.5)
        return found.points[0].images_per_second

    assert rate(slower) < rate("horovod")


def test_all_counts_from_1_to_4096_take_less_than_a_tenth_of_a_second(k80: Partition) -> None:
    machine, net = of_partition(k80), network("resnet50")
    training = Training(net, 64)
    base = from_images_per_second(51.9, training)
    counts = expand("1-4096", machine.per_node, every=True)
    assert len(counts) == 4 + 1023
    times = []
    for _ in range(5):
        start = time.process_time()
        forecast(machine, training, base, counts)
        times.append(time.process_time() - start)
    assert min(times) <= 0.1


def test_the_largest_of_many_deviates_grows_slowly() -> None:
    # Blom's formula against the known expectations of order statistics.
    assert [largest_of(n) for n in (1, 2, 8, 100)] == pytest.approx([0, 0.56, 1.42, 2.51], abs=0.03)


@pytest.mark.parametrize(
    ("text", "per_node", "counts"),
    [("8", 4, (8,)), ("1-20", 4, (1, 2, 4, 8, 16, 20)), ("1-24", 6, (1, 2, 4, 6, 12, 24)),
     ("3-10", 8, (3, 4, 8)), ("5-15", 4, (8, 12)), (" 1, 2 ,4 - 8 ", 4, (1, 2, 4, 8))],
)  # fmt: skip
def test_counts_fill_nodes(text: str, per_node: int, counts: tuple[int, ...]) -> None:
    assert expand(text, per_node) == counts


@pytest.mark.parametrize(
    ("said", "texts"),
    [("is not a count of GPUs", ["", "x", "-4", "1-", "1e3", "1;2", "\u0661", "1 2", "1-6 4"]),
     ("is not between 1 and 65536 GPUs", ["0", "3-1", "70000"]),
     ("fill whole nodes of 4: take 4 or 8", ["6"]), ("fills whole nodes of 4", ["5-7"])],
)  # fmt: skip
def test_a_count_that_is_none_is_refused(said: str, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(BadInput) as caught:
            expand(text, 4)
        assert said in f"{caught.value.message}: {caught.value.hint}"


def test_a_result_of_this_site_is_the_surest_start(cpu: Partition, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps(RESULT))
    found = ask(cpu, model=None, result=tmp_path / "result.json", gpus="1-8")
    assert (found.training.net.name, found.training.batch) == ("mlp", 32)
    assert found.calibration.proof == "run"
    # 4 ranks x 32 images at 1280 images/s: 0.1 s, of which 60 % are the rank's own work.
    assert found.calibration.seconds == pytest.approx(0.06)


def a_run(folder: Path, **changes: Any) -> Path:
    """A result.json of one P100 of the partition p100, changed."""
    layout = {"ranks": 1, "gpu": "Tesla P100-PCIE-16GB", "gpu_per_rank": 1}
    run = {**RESULT, "model": "resnet50", "job": {"partition": "p100"}, "layout": layout,
           "precision": "fp32", **changes}  # fmt: skip
    path = folder / "run.json"
    path.write_text(json.dumps(run))
    return path


EMULATED = {"ranks": 1, "gpu": None, "gpu_per_rank": 0}


def test_a_run_of_another_machine_is_refused(pi: Site, modern: Site, tmp_path: Path) -> None:
    run = a_run(tmp_path)
    assert answer(Request(pi.partition("p100"), result=run)).training.net.name == "resnet50"
    with pytest.raises(BadInput, match="measured the partition 'p100', not 'k80'"):
        answer(Request(pi.partition("k80"), result=run))
    with pytest.raises(BadInput, match="measured on P100-PCIe, but 'a100' is of A100"):
        answer(Request(modern.partition("a100"), result=a_run(tmp_path, job={})))


def test_a_run_outside_of_slurm_is_known_by_its_gpu_alone(pi: Site, tmp_path: Path) -> None:
    run = a_run(tmp_path, job={"partition": None})
    assert answer(Request(pi.partition("p100"), result=run)).calibration.proof == "run"
    for gpu in ("NVIDIA RTX 4090", None):
        other = a_run(tmp_path, job={}, layout={**EMULATED, "gpu": gpu})
        with pytest.raises(BadInput, match=f"measured on {gpu or 'CPU'}"):
            answer(Request(pi.partition("p100"), result=other))


def test_emulated_gpus_of_a_partition_calibrate_that_partition(
    p100: Partition, tmp_path: Path
) -> None:
    run = a_run(tmp_path, layout=EMULATED)
    assert answer(Request(p100, result=run)).calibration.proof == "run"


@pytest.mark.parametrize(
    ("asked", "said"),
    [({"model": "vgg16"}, "measured 'resnet50', not 'vgg16'"),
     ({"precision": "amp"}, "measured the precision 'fp32', not 'amp'"),
     ({"size": 448}, "measured images of 224 pixels, not 448"),
     ({"images_per_second": 60.0}, "a run and a stated rate both say")],
)  # fmt: skip
def test_a_run_of_something_else_than_is_asked_is_refused(
    p100: Partition, tmp_path: Path, asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadInput, match=said):
        answer(Request(p100, result=a_run(tmp_path), **asked))


@pytest.mark.parametrize(
    ("precision", "options", "meant"),
    [("fp32", {}, "fp32"), ("fp16", {}, "amp"), ("bf16", {}, "amp"),
     ("fp16", {"compress": True}, "fp16")],
)  # fmt: skip
def test_only_compressed_gradients_of_a_run_are_halves(
    pi: Site, tmp_path: Path, precision: str, options: dict[str, Any], meant: str
) -> None:
    run = a_run(tmp_path, precision=precision, options=options)
    assert answer(Request(pi.partition("p100"), result=run)).training.precision == meant


def test_float32_is_tf32_where_the_gpu_multiplies_it_so(
    pi: Site, modern: Site, tmp_path: Path
) -> None:
    found = {
        name: answer(Request(site.partition(name), "resnet50"))
        for site, name in ((pi, "p100"), (modern, "a100"))
    }
    assert {name: one.training.precision for name, one in found.items()} == {
        "p100": "fp32", "a100": "tf32",
    }  # fmt: skip
    assert found["a100"].points[0].images_per_second > 900  # 953 on the PCIe card, in TF32
    layout = {"ranks": 1, "gpu": "NVIDIA A100-SXM4-40GB", "gpu_per_rank": 1}
    run = a_run(tmp_path, job={"partition": "a100"}, layout=layout)
    assert answer(Request(modern.partition("a100"), result=run)).training.precision == "tf32"
    mixed = answer(Request(pi.partition("p100"), "resnet50", precision="bf16"))
    assert mixed.training.precision == "amp"


def test_a_batch_beyond_the_memory_of_the_gpu_is_reported(pi: Site, tmp_path: Path) -> None:
    p100 = pi.partition("p100")
    assert ask(p100, model="vgg16", batch=64).notes == ()
    note = ask(p100, model="vgg16", batch=65_536).notes[-1]
    assert "not likely to fit" in note
    fits = int(note.rpartition("the P100-PCIe has 16 GB, enough for ")[2])
    assert not any("not likely" in text for text in ask(p100, model="vgg16", batch=fits).notes)
    assert "not likely" in ask(p100, model="vgg16", batch=fits + 1).notes[-1]
    # What a run had in its memory fits into it, whatever an estimate says.
    ran = a_run(tmp_path, model="vgg16", batch_per_rank=4096)
    assert answer(Request(p100, result=ran)).notes == ()


def test_no_published_row_is_reported_as_one_that_cannot_have_fitted() -> None:
    rows = [row for row in read_records() if row.batch and row.model in names()]
    for row in rows:
        if row.model.startswith(("mpt", "llama")):
            continue  # their activations are computed again, not kept
        machine = of_host(row.gpu, row.hardware, 1)
        training = Training(network(row.model, row.size), row.batch or 1, row.precision)
        kept = kept_bytes(training.net, training.batch, training.activation_bytes)
        assert machine is None or kept < machine.memory


def test_a_gpu_without_rows_of_its_network_borrows_and_says_so(k80: Partition) -> None:
    base = ask(k80, model="densenet121").calibration
    assert base.proof == "doubtful"
    assert base.low < 0.8 < 1.2 < base.high


def test_a_cpu_partition_needs_a_measured_step(cpu: Partition) -> None:
    with pytest.raises(BadInput) as caught:
        ask(cpu)
    assert "--calibrate" in caught.value.hint


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", "resnet5O"), ("model", None), ("batch", 0), ("batch", 10**9),
        ("batch", 10**400), ("images", -(10**400)),
        ("precision", "fp8"), ("form", "horovad"), ("data", "cifar"), ("images", 0),
        ("loss", float("nan")), ("loss", 1.0), ("deadline_hours", -1.0), ("storage_gbs", 1.0),
        ("pipeline", "old"), ("pipeline", "newest"),
        ("images_per_second", float("inf")), ("images_per_second", float("nan")),
        ("network_gbs", 0.0), ("link_gbs", -1.0),
        ("result", Path("/nowhere/result.json")),
    ],
)  # fmt: skip
def test_an_absurd_question_is_one_clear_error(k80: Partition, field: str, value: Any) -> None:
    with pytest.raises(BadInput) as caught:
        ask(k80, **{field: value})
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 3}, {"schema": None}, {"summary": {}}, {"summary": {"images_per_second": 0}},
        {"layout": None}, {"batch_per_rank": None}, {"batch_per_rank": -1},
        {"summary": {"images_per_second": 5, "phases": {"compute": 7}}}, {"precision": "int8"},
        {"precision": ["fp32"]}, {"batch_per_rank": 10**400}, {"batch_per_rank": 1e308},
        {"layout": {"ranks": float("inf")}}, {"layout": {"ranks": float("nan")}},
        {"summary": {"images_per_second": 10**400}}, {"summary": {"images_per_second": 5e-324}},
    ],
)  # fmt: skip
def test_a_result_that_measured_nothing_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({**RESULT, **change}))
    with pytest.raises(BadInput, match=r"result\.json"):
        read_result(path)


@pytest.mark.parametrize("text", ["", "[", "[1]", '{"schema": 1', "\udcff", "[" * 100_000,
                                  '{"schema": ' + "9" * 5000])  # fmt: skip
def test_a_broken_result_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(BadInput):
        read_result(path)


def test_a_result_is_a_file_that_ends(k80: Partition) -> None:
    with pytest.raises(BadInput, match="no regular file"):
        ask(k80, result=Path("/dev/zero"))


# ---- the commands ----


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["predict", *words])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_the_command_prints_a_table_and_what_to_take(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--site", "pi", "--partition", "k80", "--model", "resnet50")
    assert code == 0
    assert "best below 10% loss" in out
    assert "tf2017-gce-resnet50-b64-synthetic-1" in out


def test_the_command_starts_from_the_partition_of_the_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run_file = str(a_run(tmp_path))
    words = ("--calibrate", run_file, "--calibrate", run_file, "--gpus", "1-8", "--json")
    code, out, _ = run(capsys, "--site", "pi", *words)
    found = json.loads(out)
    assert (code, found["partition"], found["precision"]) == (0, "p100", "fp32")
    assert [point["gpus"] for point in found["points"]] == [1, 2, 4, 8]
    assert set(found["choices"]) >= {"fastest", "cheapest", "best_below_loss"}
    code, _, err = run(capsys, "--site", "p100-v100-k80", "--partition", "v100",
                       "--calibrate", run_file)  # fmt: skip
    assert (code, "leave --partition out" in err) == (2, True)


def test_validate_prints_rows_for_machines_and_errors_by_source_and_model_for_people(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = run(capsys, "validate")
    assert code == 0
    for word in ("by source", "by model", "median", "bias", "not compared"):
        assert word in out
    code, out, _ = run(capsys, "validate", "--json")
    found = json.loads(out)
    assert {"id", "measured", "predicted", "relative_error"} <= set(found["rows"][0])
    for row in found["rows"]:
        assert row["relative_error"] == pytest.approx(row["predicted"] / row["measured"] - 1)


@pytest.mark.parametrize(
    "words",
    [
        ("--site", "pi", "--partition", "k8O", "--model", "resnet50"),
        ("--site", "pi", "--partition", "k80", "--model", "resnet50", "--gpus", "6"),
        ("--site", "pi", "--partition", "k80", "--model", "resnet50", "--plot", "figure.txt"),
        ("validate", "--data", "/nowhere.yaml"),
        ("valdate",),
    ],
)
def test_bad_usage_exits_2_with_one_error(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert "Traceback" not in err


def test_a_figure_is_written_whole(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "figure.png"
    words = ("--site", "pi", "--partition", "k80", "--model", "resnet50", "--plot", str(path))
    assert run(capsys, *words)[0] == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_command_says_what_to_install(
    k80: Partition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpcdl.predict.show import write_plot

    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(MissingPrerequisite) as caught:
        write_plot(ask(k80), tmp_path / "figure.png")
    assert "hpcdl[plots]" in caught.value.hint


def test_a_partition_of_one_node_is_enough(k80: Partition) -> None:
    assert answer(Request(replace(k80, nodes=1), "vgg16")).points[-1].gpus == k80.gpus_per_node


# ---- runs of several GPUs ----


def of_several(folder: Path, name: str, ranks: int, nodes: int, rate: float) -> Path:
    """A result.json of a run of p100 whose ranks work 0.2 s of a step of 64 images."""
    own = 0.2 * rate / (64 * ranks)
    value = {
        "schema": 2, "model": "resnet50", "batch_per_rank": 64, "precision": "fp32",
        "job": {"partition": "p100"},
        "layout": {"ranks": ranks, "hosts": [f"n{rank % nodes}" for rank in range(ranks)],
                   "gpu": "Tesla P100-SXM2-16GB"},
        "summary": {"images_per_second": rate,
                    "phases": {"compute": own, "communication": 1 - own}},
    }  # fmt: skip
    path = folder / name
    path.write_text(json.dumps(value))
    return path


def test_an_identical_job_is_told_its_last_rate(p100: Partition, tmp_path: Path) -> None:
    run = of_several(tmp_path, "a.json", 8, 4, 1600.0)
    (point,) = answer(Request(p100, result=run, gpus="8")).points
    assert point.images_per_second == pytest.approx(1600)
    assert point.low < 1600 < point.high
    assert point.high / point.low < 1.15


def test_a_run_that_lost_much_lowers_every_other_count(p100: Partition, tmp_path: Path) -> None:
    slow, fast = (
        answer(Request(p100, result=of_several(tmp_path, "a.json", 8, 4, rate), gpus="4,16,32"))
        for rate in (800.0, 2400.0)
    )
    for one, two in zip(slow.points, fast.points, strict=True):
        assert one.images_per_second < 0.7 * two.images_per_second
        parts = one.step
        assert parts.seconds == pytest.approx(
            parts.compute + parts.straggler + parts.exposed + parts.contention + parts.input_wait
        )
    assert slow.points[1].efficiency == pytest.approx(800 / (8 * 320), rel=0.25)


def test_repeated_runs_narrow_the_range(p100: Partition, tmp_path: Path) -> None:
    runs = [of_several(tmp_path, f"{i}.json", 8, 4, rate)
            for i, rate in enumerate((1600.0, 1604.0, 1598.0, 1601.0))]  # fmt: skip
    widths = []
    for count in (1, 2, 4):
        request = Request(p100, result=runs[0], repeats=tuple(runs[1:count]), gpus="8")
        (point,) = answer(request).points
        widths.append(point.high / point.low - 1)
    assert widths == sorted(widths, reverse=True)
    assert widths[2] < 0.7 * widths[0]


def test_runs_that_differ_much_widen_it_again(p100: Partition, tmp_path: Path) -> None:
    runs = [
        of_several(tmp_path, f"{i}.json", 8, 4, rate) for i, rate in enumerate((1600.0, 1200.0))
    ]
    (point,) = answer(Request(p100, result=runs[0], repeats=(runs[1],), gpus="8")).points
    assert point.low < 1250
    assert point.high > 1550


# ---- what a planner asks ----


def test_time_energy_and_money_of_an_epoch_follow_from_the_rate(p100: Partition) -> None:
    found = replace(ask(p100, gpus="4", images=10_000), price=2.0)
    (point,) = found.points
    assert point.epoch_seconds == pytest.approx(10_000 / point.images_per_second)
    assert point.gpu_hours == pytest.approx(4 * point.epoch_seconds / 3600)
    assert found.kilowatt_hours(point) == pytest.approx(point.gpu_hours * 0.25)
    assert found.cost(point) == pytest.approx(2 * point.gpu_hours)
    assert replace(found, price=None).cost(point) is None


def test_partitions_are_compared_in_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    site = str(find_site_file("pi"))
    words = ["--model", "resnet50", "--gpus", "2", "--price", "1"]
    assert main(["predict", "--site", site, "--compare", "k80,p100", *words]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown[1:3]] == ["k80", "p100"]
    assert main(["predict", "--site", site, "--compare", "k80,p100", "--json", *words]) == 0
    both = json.loads(capsys.readouterr().out)["partitions"]
    assert [one["points"][0]["cost_per_epoch"] > 0 for one in both] == [True, True]
    assert main(["predict", "--site", site, "--compare", "k80,p100", "--one", "9", *words]) != 0


def test_the_state_of_the_weights_needs_memory_that_fsdp_shards() -> None:
    whole = Training(network("mpt_7b", 2048), 1, "amp", "ddp")
    assert memory_bytes(whole, 8) > 6.6e9 * 16
    sharded = replace(whole, form="fsdp")
    assert memory_bytes(whole, 8) - memory_bytes(sharded, 8) == pytest.approx(6.66e9 * 14, rel=0.01)


def test_a_network_that_is_too_large_is_said(p100: Partition) -> None:
    assert any("not likely to fit" in note for note in ask(p100, model="mpt_7b", batch=1).notes)


@pytest.mark.parametrize(
    "change", [{"model": "vgg16"}, {"precision": "bf16"}, {"options": {"image_size": 64}}]
)
def test_a_repeat_of_another_training_is_none(
    p100: Partition, tmp_path: Path, change: dict[str, Any]
) -> None:
    run, other = (of_several(tmp_path, name, 8, 4, 1600.0) for name in ("a.json", "b.json"))
    other.write_text(json.dumps({**json.loads(other.read_text()), **change}))
    with pytest.raises(BadInput, match=r"b\.json measured '\w+' at batch 64, .*, and .* did not"):
        answer(Request(p100, result=run, repeats=(other,)))
