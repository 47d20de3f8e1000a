"""Counts of GPUs, what they give, and what to take; bad questions are one clear error."""

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from hpcdl.predict.machine import kept_bytes, network, of_partition
from hpcdl.predict.request import ScalingRequest, answer, choose, expand
from hpcdl.predict.show import forecast_text
from hpcdl.predict.start import one_gpu_rows, read_result
from hpcdl.predict.step import ModelSplit, SharedCores, StepTime, Workload, feed, pace
from hpcdl.results.gpus import gpu_named
from hpcdl.system.errors import BadInput

RESULT = {
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
def k80(pi):
    return pi.partition("k80")


@pytest.fixture(scope="module")
def p100(pi):
    return pi.partition("p100")


def ask(partition, **more):
    return answer(ScalingRequest(partition, **{"model": "resnet50", "gpus": "1-64", **more}))


def test_more_gpus_give_more_images_at_less_efficiency(k80):
    points = ask(k80).points
    rates = [point.images_per_second for point in points]
    assert rates == sorted(rates)
    assert (points[0].efficiency, rates[0]) == (pytest.approx(1), pytest.approx(51.9, rel=0.03))
    assert all(0.5 < point.efficiency <= 1 for point in points)
    step = ask(k80, real=True).points[-1].step
    assert step.seconds == pytest.approx(step.compute + sum(step.losses.values()))
    assert min(step.losses.values()) >= 0


def chosen(found):
    """The recommended points by name."""
    return {name: one and one[1] for name, one in choose([found]).items()}


def test_choices_take_the_fastest_the_cheapest_and_the_last_below_the_loss(k80):
    """Of counts within the partition: those beyond are marked."""
    found = ask(k80, gpus="1-4096")
    size = k80.nodes * k80.gpus_per_node
    assert all(point.beyond == (point.gpus > size) for point in found.points)
    real = [point for point in found.points if not point.beyond]
    assert chosen(found)["fastest"] == max(real, key=lambda p: p.images_per_second)
    assert chosen(found)["cheapest"] == min(real, key=lambda p: p.gpu_hours)
    assert chosen(found)["efficient"].efficiency >= 0.9
    assert all(p.efficiency < 0.9 for p in real if p.gpus > chosen(found)["efficient"].gpus)
    one_node = answer(ScalingRequest(replace(k80, nodes=1), "vgg16"))
    assert one_node.points[-1].gpus == k80.gpus_per_node


def test_the_cheapest_is_chosen_of_those_in_time(k80):
    one, two = ask(k80).points[:2]
    deadline = (one.seconds + two.seconds) / 2 / 3600
    assert chosen(ask(k80, deadline_hours=deadline))["cheapest"] == two
    assert chosen(ask(k80, deadline_hours=1e-3))["cheapest"] is None


def test_nothing_is_chosen_that_does_not_fit_or_cannot_be_asked_for(modern):
    h100 = replace(modern.partition("a100"), gpu=gpu_named("H100-SXM5")._replace(per_node=8))
    asked = {"model": "llama3_70b", "size": 8192, "plan": ModelSplit(zero=3)}
    found = ask(h100, **asked, gpus="8-64")
    assert set(chosen(found).values()) == {None}
    first = forecast_text([found]).splitlines()[0]
    assert "nothing fits: no batch fits: split it" in first
    found = ask(h100, **{**asked, "plan": ModelSplit(zero=3, checkpointing="full")}, gpus="8-16")
    assert "nothing fits: the smallest that would fit is 32 GPUs" in forecast_text([found])
    small = replace(h100, nodes=1)
    assert chosen(ask(small, gpus="16-64"))["fastest"] is None
    assert "none: the partition has 1 node" in forecast_text([ask(small, gpus="16-64")])
    mixed = ask(h100, model="vgg16", batch=10_000)
    assert all(not point.fits for point in mixed.points)
    assert "the largest batch that fits is" in forecast_text([mixed])


def test_the_first_three_lines_answer_and_say_what_limits(k80):
    lines = forecast_text([ask(k80)]).splitlines()[:3]
    for line, word in zip(lines, ("fastest", "cheapest", "largest below 10% loss"), strict=True):
        assert line.startswith(word)
        assert "limited by" in line


def test_epochs_images_and_tokens_say_how_much_is_trained(k80, modern):
    one, three = ask(k80, images=1000.0), ask(k80, images=1000.0, epochs=3)
    assert three.points[0].seconds == pytest.approx(3 * one.points[0].seconds)
    bert = ask(modern.partition("a100"), model="bert_base", tokens=512e6)
    assert bert.images == 1e6
    assert ask(modern.partition("a100"), model="bert_base").images == pytest.approx(1e9 / 512)
    with pytest.raises(BadInput, match="--tokens are of a transformer"):
        ask(k80, tokens=5.0)


def test_records_and_their_decoding_bound_the_input(p100):
    """CheXNet's radiographs have 1,024 pixels: 400 kB each, 40 a second and core."""
    asked = {"model": "chexnet", "gpus": "1-16", "record_bytes": 4e5, "decode_rate": 40.0}
    for more in ({"ahead": False}, {"storage_gbs": 0.1}):
        last = ask(p100, **asked, **more).points[-1]
        assert last.step.limit == "input"
        assert last.speedup < 0.5 * 16


def test_alexnet_on_four_p100_is_not_limited_by_input(p100):
    """TSUBAME 3.0 (2019): time grows with the data set and has no knee."""
    node = replace(p100, gpu=p100.gpu._replace(per_node=4))
    (point,) = ask(node, model="alexnet", real=True, gpus="4").points
    assert point.step.limit != "input"


def test_ranks_that_share_one_machines_cores_gain_no_more_than_it_has(p100, tmp_path):
    assert SharedCores(2, 1).stretch(8) == 4
    assert SharedCores(8, 1, ranks=4).stretch(8) == 1
    run = a_run(tmp_path)
    alone = answer(ScalingRequest(p100, result=run, gpus="8")).points[0]
    shared = answer(ScalingRequest(p100, result=run, gpus="8", cores=2)).points[0]
    assert alone.speedup > 4
    assert shared.speedup <= 2


@pytest.mark.parametrize("storage_gbs", [None, 0.02])
def test_the_old_pipeline_adds_all_of_reading_and_decoding_to_every_step(k80, storage_gbs):
    plain = ask(k80, gpus="1,8").points
    slow = ask(k80, gpus="1,8", real=True, storage_gbs=storage_gbs, ahead=False).points
    decode = 1 / feed(of_partition(k80), network("resnet50")).one_core
    for gpus, one, other in zip((1, 8), plain, slow, strict=True):
        read = gpus * 115129 / (storage_gbs * 1e9) if storage_gbs else 0.0
        added = other.step.seconds - one.step.seconds
        assert added == pytest.approx(64 * (decode + read))
        assert other.step.limit == "input"


@pytest.mark.parametrize(
    ("asked", "limit"),
    [
        ({"real": True, "storage_gbs": 0.02, "gpus": "64"}, "input"),
        ({"measured_gbs": 0.05, "gpus": "64"}, "communication"),
        ({"gpus": "4096"}, "stragglers"),
    ],
)
def test_what_limits_a_step_is_named(k80, asked, limit):
    asked = dict(asked)
    rate = asked.pop("measured_gbs", None)
    k80 = replace(k80, interconnect=replace(k80.interconnect, measured_gbs=rate))
    assert ask(k80, **asked).points[0].step.limit == limit


@pytest.mark.parametrize(
    ("text", "per_node", "counts"),
    [
        ("8", 4, (8,)),
        ("1-20", 4, (1, 2, 4, 8, 16, 20)),
        ("1-24", 6, (1, 2, 4, 6, 12, 24)),
        ("3-10", 8, (3, 4, 8)),
        ("5-15", 4, (8, 12)),
        (" 1, 2 ,4 - 8 ", 4, (1, 2, 4, 8)),
    ],
)
def test_counts_fill_nodes(text, per_node, counts):
    assert expand(text, per_node) == counts


@pytest.mark.parametrize(
    ("said", "texts"),
    [
        ("is not a count of GPUs", ["", "x", "-4", "1-", "1e3", "1;2", "\u0661", "1 2", "1-6 4"]),
        ("is not between 1 and 65536 GPUs", ["0", "3-1", "70000"]),
        ("fill whole nodes of 4: take 4 or 8", ["6", "5-7"]),
    ],
)
def test_a_count_that_is_none_is_refused(said, texts):
    for text in texts:
        with pytest.raises(BadInput) as caught:
            expand(text, 4)
        assert said in f"{caught.value.message}: {caught.value.hint}"


def test_a_result_of_this_site_is_the_surest_start(pi, tmp_path):
    (tmp_path / "result.json").write_text(json.dumps(RESULT))
    found = ask(pi.partition("cpu"), model=None, result=tmp_path / "result.json", gpus="1-8")
    assert (found.work.net.name, found.work.batch) == ("mlp", 32)
    assert found.calibration.proof == "run"
    # 4 ranks x 32 images at 1280 images/s: 0.1 s, of which 60 % are the rank's own work.
    assert found.calibration.seconds == pytest.approx(0.06)


def a_run(folder, **changes):
    """A result.json of one P100 of the partition p100, changed."""
    layout = {"ranks": 1, "gpu": "Tesla P100-PCIE-16GB", "gpu_per_rank": 1}
    run = {
        **RESULT,
        "model": "resnet50",
        "job": {"partition": "p100"},
        "layout": layout,
        "precision": "fp32",
        **changes,
    }
    path = folder / "run.json"
    path.write_text(json.dumps(run))
    return path


def test_a_run_outside_of_slurm_is_known_by_its_gpu_alone(p100, tmp_path):
    """Within Slurm the partition says it: its GPUs may be emulated."""
    emulated = {"ranks": 1, "gpu": None, "gpu_per_rank": 0}
    for changes in ({"job": {"partition": None}}, {"layout": emulated}):
        run = a_run(tmp_path, **changes)
        assert answer(ScalingRequest(p100, result=run)).calibration.proof == "run"
    for gpu in ("NVIDIA RTX 4090", None):
        other = a_run(tmp_path, job={}, layout={**emulated, "gpu": gpu})
        with pytest.raises(BadInput, match=f"measured on {'RTX-4090' if gpu else 'CPU'}"):
            answer(ScalingRequest(p100, result=other))


def test_a_run_of_images_of_another_size_is_refused(p100, tmp_path):
    with pytest.raises(BadInput, match="measured images of 224 pixels, not 448"):
        answer(ScalingRequest(p100, result=a_run(tmp_path), size=448))


@pytest.mark.parametrize(
    ("precision", "options", "meant"),
    [
        ("fp32", {}, "fp32"),
        ("fp16", {}, "amp"),
        ("bf16", {}, "amp"),
        ("fp16", {"compress": True}, "fp16"),
    ],
)
def test_only_compressed_gradients_of_a_run_are_halves(p100, tmp_path, precision, options, meant):
    run = a_run(tmp_path, precision=precision, options=options)
    assert answer(ScalingRequest(p100, result=run)).work.precision == meant


def test_float32_is_tf32_where_the_gpu_multiplies_it_so(p100, modern, tmp_path):
    a100 = modern.partition("a100")
    old, new = answer(ScalingRequest(p100, "resnet50")), answer(ScalingRequest(a100, "resnet50"))
    assert (old.work.precision, new.work.precision) == ("fp32", "tf32")
    assert new.points[0].images_per_second > 900  # 953 on the PCIe card, in TF32
    layout = {"ranks": 1, "gpu": "NVIDIA A100-SXM4-40GB", "gpu_per_rank": 1}
    run = a_run(tmp_path, job={"partition": "a100"}, layout=layout)
    assert answer(ScalingRequest(a100, result=run)).work.precision == "tf32"
    assert answer(ScalingRequest(p100, "resnet50", precision="bf16")).work.precision == "amp"


def test_a_batch_beyond_the_memory_of_the_gpu_is_reported(p100, tmp_path):
    assert ask(p100, model="vgg16", batch=64).notes == ()
    note = ask(p100, model="vgg16", batch=65_536).notes[-1]
    assert "not likely to fit" in note
    fits = int(note.rpartition("the P100-PCIe has 16 GB; the largest batch that fits is ")[2])
    assert not any("not likely" in text for text in ask(p100, model="vgg16", batch=fits).notes)
    assert "not likely" in ask(p100, model="vgg16", batch=fits + 1).notes[-1]
    assert any("not likely" in text for text in ask(p100, model="mpt_7b", batch=1).notes)
    # What a run had in its memory fits into it, whatever an estimate says.
    ran = a_run(tmp_path, model="vgg16", batch_per_rank=4096)
    assert answer(ScalingRequest(p100, result=ran)).notes == ()


def test_no_published_row_is_reported_as_one_that_cannot_have_fitted():
    for row in one_gpu_rows():
        work = Workload(network(row.model, row.size), row.batch or 1, row.precision)
        kept = kept_bytes(work.net, work.batch, work.activation_bytes)
        memory = gpu_named(row.gpu).memory_gb * 1e9
        assert kept < memory * (2 if row.gpu == "V100-SXM2" else 1)  # of 32 GB, some of them


ABSURD = {"batch": (10**9, 10**400), "images": (0.0, -(10**400)), "deadline_hours": (-1.0,)}
ABSURD |= {"model": (None,), "images_per_second": (float("inf"), float("nan"))}


@pytest.mark.parametrize("field", ABSURD)
def test_an_absurd_question_is_one_clear_error(k80, field):
    for value in ABSURD[field]:
        with pytest.raises(BadInput) as caught:
            ask(k80, **{field: value})
        assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "change",
    [
        {"schema": None},
        {"batch_per_rank": None},
        {"summary": {"images_per_second": 5, "phases": {"compute": 7}}},
        {"batch_per_rank": -1},
        {"batch_per_rank": 10**400},
        {"batch_per_rank": 1e308},
        {"layout": {"ranks": float("inf")}},
        {"layout": {"ranks": float("nan")}},
        {"summary": {"images_per_second": 10**400}},
        {"summary": {"images_per_second": 5e-324}},
        "",
        '{"schema": ' + "9" * 5000,
    ],
)
def test_a_result_that_measured_nothing_is_refused(tmp_path, change):
    path = tmp_path / "result.json"
    path.write_text(change if isinstance(change, str) else json.dumps({**RESULT, **change}))
    with pytest.raises(BadInput, match=r"result\.json"):
        read_result(path)


def test_the_command_starts_from_the_partition_of_the_run(hpcdl, tmp_path):
    run = ("--calibrate", str(a_run(tmp_path)))
    found = json.loads(hpcdl("predict", "--site", "pi", *run, "--gpus=1-8", "--json").out)
    assert (found["schema"], found["partition"], found["precision"]) == (2, "p100", "fp32")
    assert [point["gpus"] for point in found["points"]] == [1, 2, 4, 8]
    assert set(found["choices"]) == {"fastest", "cheapest", "efficient"}
    other = ("predict", "--site", "p100-v100-k80", "--partition", "v100", *run)
    assert "leave --partition out" in hpcdl(*other, code=2).err


def test_a_figure_is_written_whole(hpcdl, tmp_path):
    path, words = tmp_path / "figure.svg", ("predict", "--site=pi", "--partition=k80")
    hpcdl(*words, "--model=resnet50", f"--plot={path}")
    found = ElementTree.parse(path)
    assert "k80 (K80)" in "".join(found.getroot().itertext())


def of_several(folder, *rates):
    """Runs of 8 GPUs on 4 nodes of p100 whose ranks work 0.2 s of a step of 64 images."""
    layout = {
        "ranks": 8,
        "nodes": [f"n{number}" for number in range(4)],
        "gpu": "Tesla P100-SXM2-16GB",
    }
    paths = []
    for number, rate in enumerate(rates):
        own = 0.2 * rate / (64 * 8)
        summary = {"images_per_second": rate, "phases": {"compute": own, "communication": 1 - own}}
        run = a_run(folder, batch_per_rank=64, layout=layout, summary=summary)
        paths.append(run.rename(folder / f"{number}.json"))
    return paths


def test_a_run_that_lost_much_lowers_every_other_count(p100, tmp_path):
    runs = of_several(tmp_path, 800.0, 2400.0)
    slow, fast = (answer(ScalingRequest(p100, result=run, gpus="4,16,32")) for run in runs)
    for one, two in zip(slow.points, fast.points, strict=True):
        assert one.images_per_second < 0.7 * two.images_per_second
        assert one.step.seconds == pytest.approx(one.step.compute + sum(one.step.losses.values()))
    assert slow.points[1].efficiency == pytest.approx(800 / (8 * 320), rel=0.25)


def test_time_and_money_of_an_epoch_follow_from_the_rate(p100):
    found = replace(ask(p100, gpus="4", images=10_000.0), price=2.0)
    (point,) = found.points
    assert point.seconds == pytest.approx(10_000 / point.images_per_second)
    assert point.gpu_hours == pytest.approx(4 * point.seconds / 3600)
    assert found.cost(point) == pytest.approx(2 * point.gpu_hours)
    assert replace(found, price=None).cost(point) is None


COMPARED = ("predict", "--site", "pi", "--compare", "k80,p100", "--model", "resnet50")


def test_partitions_are_compared_with_a_verdict_in_one_table(hpcdl):
    priced = ("--gpus", "2", "--price", "k80=0.2", "--price", "p100=2")
    lines = hpcdl(*COMPARED, *priced).out.splitlines()
    assert lines[0].split()[:2] == ["fastest", "p100,"]
    assert lines[1].split()[:4] == ["cheapest", "by", "money", "k80,"]
    assert "GB/GPU" in lines[3]
    assert [line.split()[0] for line in lines[4:6]] == ["k80", "p100"]
    found = json.loads(hpcdl(*COMPARED, *priced, "--json").out)
    assert (found["schema"], found["verdict"]["cheapest"]["partition"]) == (2, "k80")
    assert found["verdict"]["cheapest"]["gpus"] in {
        point["gpus"] for point in found["partitions"][0]["points"]
    }
    assert all(one["points"][0]["cost"] > 0 for one in found["partitions"])
    late = hpcdl(*COMPARED, "--gpus=2", "--deadline=0.97").out.splitlines()[1]
    assert late.startswith("cheapest by GPU-hours within 0.97 h  p100")


def test_cores_that_slurm_keeps_for_the_system_decode_no_images(p100):
    """The model once counted the cores of the sockets, which jobs may not all have."""
    kept = replace(p100, usable_cpus=8 * p100.threads_per_core)
    assert of_partition(kept).cores == 8 < of_partition(p100).cores
    rates = [ask(one, real=True, gpus="4").points[0].step.losses["input"] for one in (kept, p100)]
    assert rates[0] > rates[1]


def test_input_that_is_as_fast_as_computing_costs_and_slower_input_costs_more():
    """A queue M/M/1/2: two thirds of the pace at equal rates."""
    assert pace(1.0, 1.0) == pytest.approx(2 / 3)
    rates = [pace(1.0, supply) for supply in (0.5, 1.0, 2.0, 100.0)]
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(1.0, abs=1e-3)


def test_a_step_without_losses_is_limited_by_computing():
    assert StepTime(1, 1, 1.0, {"input": 0.0}).limit == "compute"
