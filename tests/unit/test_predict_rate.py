"""One GPU's rate: the right GPU, published rows near in batch and framework, no jumps."""

import math
from dataclasses import replace

import pytest

from hpcdl import facts
from hpcdl.predict.machine import (
    Link,
    allreduce,
    names,
    network,
    network_link,
    of_gpu,
    of_partition,
    roofline,
    usual_link,
)
from hpcdl.predict.request import ScalingRequest, answer
from hpcdl.predict.start import Exchange, bus_rate, from_facts, one_gpu_rows, reached, with_exchange
from hpcdl.predict.step import Workload, predict_step
from hpcdl.results.gpus import gpu_named
from hpcdl.system.errors import BadInput
from tools import language, validate
from tools.published import errors, form_of, gpu_of, machine_of, pairs, rows

GPUS = ("K80", "P100-PCIe", "V100-SXM2", "A100-SXM4-80GB", "H100-SXM5", "T4")


def machine(gpu):
    return of_gpu(gpu, usual_link(gpu_named(gpu)), 32, network_link("infiniband", 100))


def usual(gpu):
    return "tf32" if float(gpu_named(gpu).compute) >= 8 else "fp32"


def rate(gpu, model, batch, precision=None):
    work = Workload(network(model), batch, precision or usual(gpu))
    return batch / from_facts(machine(gpu), work).seconds


def test_a_gpu_of_a_table_is_a_row_or_refused_with_the_candidates():
    meant = ("K80 (one GK210 die)", "V100 32GB (SXM3 log)", "A100 80GB PCIe", "Z9")
    assert [*map(gpu_of, meant)] == ["K80", "V100-SXM3-32GB", "A100-PCIe-80GB", None]
    with pytest.raises(BadInput, match="may be A100-SXM4-80GB or A100-PCIe-80GB"):
        gpu_of("A100 80GB")


@pytest.mark.parametrize("gpu", GPUS)
def test_the_rate_has_no_jump_from_one_batch_to_the_next(gpu):
    """Below 20 a step of one image more may be a twentieth more work; time never falls."""
    for model in names():
        for precision in (usual(gpu), *(() if usual(gpu) == "fp32" and gpu == "K80" else ("amp",))):
            batches = [*range(1, 140), 255, 256, 257, 1023, 1024]
            rates = {batch: rate(gpu, model, batch, precision) for batch in batches}
            for batch in batches[:-1]:
                if batch + 1 not in rates:
                    continue
                step = batch / rates[batch], (batch + 1) / rates[batch + 1]
                assert step[0] < step[1], (model, batch)
                if batch >= 20:
                    assert rates[batch + 1] / rates[batch] == pytest.approx(1, abs=0.05)


def test_the_rate_has_no_jump_between_sizes():
    for size in range(64, 512):
        here, there = (Workload(network("resnet50", edge), 64, "tf32") for edge in (size, size + 1))
        seconds = [from_facts(machine("A100-SXM4-40GB"), work).seconds for work in (here, there)]
        assert 1 < seconds[1] / seconds[0] < 1.05


def test_the_same_framework_counts_first_and_a_row_without_a_batch_last():
    rows, a100 = one_gpu_rows(), machine("A100-SXM4-40GB")
    row = next(r for r in rows if r.gpu == "A100-SXM4-40GB" and r.batch and not r.xla)
    work = Workload(network(row.model, row.size), row.batch, row.precision)
    name = row.framework.partition(" ")[0]
    other = row._replace(framework="Other", part=row.part + 1)
    vague = row._replace(batch=None, part=row.part + 1)
    part, nearest = reached(a100, work, name, (row, other, vague))
    assert nearest == row
    assert part == pytest.approx(row.part, abs=0.15)
    near = row._replace(batch=2 * row.batch, part=row.part - 1)
    assert reached(a100, work, name, (vague, near))[1] == near


@pytest.mark.parametrize("model", ["inception_v3", "resnet50"])
def test_p100_with_pcie_is_within_12_percent_of_sxm2_on_one_gpu_and_two(model):
    """Wang and Wei 2017."""
    work = Workload(network(model), 64)
    for gpus in (1, 2):
        pcie, sxm = (
            predict_step(one, work, from_facts(one, work).seconds, gpus, 1).seconds
            for one in (replace(machine(gpu), per_node=2) for gpu in ("P100-PCIe", "P100-SXM2"))
        )
        assert sxm / pcie == pytest.approx(1, abs=0.12)


@pytest.mark.parametrize(
    ("model", "batch", "published"),
    [("alexnet", 1024, 14.65), ("googlenet", 128, 14.25), ("resnet50", 32, 15.34)],
)
def test_sixteen_p40_speed_up_as_published(model, batch, published):
    """Caffe-MPI 2.0, 4 nodes of 4 over 56 Gb/s; its rows are not among those of the fit."""
    p40, work = (
        of_gpu("P40", "pcie3", 28, network_link("infiniband", 56)),
        Workload(network(model), batch),
    )
    one = from_facts(p40, work).seconds
    step = predict_step(p40, work, one, 16, 4)
    assert 16 * one / step.seconds == pytest.approx(published, rel=0.07)


def test_where_no_row_joins_gpu_and_network_the_range_is_wider(pi):
    joined, borrowed, unseen = (
        answer(ScalingRequest(pi.partition("k80"), model, gpus="1")).calibration
        for model in ("resnet50", "bert_base", "swin_t")
    )
    assert (joined.proof, borrowed.proof, unseen.proof) == ("published", "doubtful", "doubtful")
    assert joined.high / joined.low < borrowed.high / borrowed.low < unseen.high / unseen.low


def test_rows_whose_work_is_not_stated_are_none():
    bert = [row for row in one_gpu_rows() if (row.model, row.size) == ("bert_large", 512)]
    assert bert
    assert not any(row.framework.startswith(("PyTorch", "Paddle")) for row in bert)


@pytest.mark.parametrize("name", facts.load("networks")["networks"])
def test_sums_scale_with_the_image(name):
    small, large = network(name), network(name, 2 * network(name).height)
    assert small.parameters == large.parameters
    assert small.macs <= large.macs <= 4.001 * small.macs
    assert roofline(small, 8, 1e13, 1e12) <= roofline(large, 8, 1e13, 1e12)


@pytest.mark.parametrize(
    ("name", "parameters", "macs"),
    [
        ("resnet50", 25.6e6, 3.86e9),
        ("vit_b16", 86.6e6, 17.6e9),
        ("convnext_tiny", 28.6e6, 4.46e9),
        ("swin_t", 28.3e6, 4.5e9),
        ("bert_large", 336e6, None),
        ("llama3_8b", 8.03e9, None),
    ],
)
def test_networks_are_as_large_as_their_papers_say(name, parameters, macs):
    found = network(name)
    assert found.parameters == pytest.approx(parameters, rel=0.03)
    assert macs is None or found.macs == pytest.approx(macs, rel=0.03)


@pytest.mark.parametrize(
    ("fabric", "gbps", "gbs"),
    [
        ("ethernet", 10, 1.175),
        ("ethernet", 25, 1.72),
        ("roce", 25, 2.56),
        ("cloud", 25, 1.41),
        ("infiniband", 100, 10.25),
    ],
)
def test_tcp_reaches_less_of_a_faster_network_than_rdma(fabric, gbps, gbs):
    assert network_link(fabric, gbps).bandwidth / 1e9 == pytest.approx(gbs, rel=0.01)
    faster = network_link(fabric, 2 * gbps).bandwidth
    assert network_link(fabric, gbps).bandwidth < faster <= 2 * network_link(fabric, gbps).bandwidth


# A site's own all-reduce check as the links of the model.

SIZES = (1 << 16, 1 << 20, 1 << 24, 1 << 26)
SLOW = Link("slow", 40e-6, 0.5e9)


def took(machine, local, nodes, size):
    """Seconds of a message by the model."""
    return allreduce(machine, local, nodes, size)


def a_check(machine, local, nodes, wait=0.0):
    """What the check finds where its messages take as long as on `machine`, and `wait` each."""
    passes = 2 * (local * nodes - 1) / (local * nodes)
    times = {size: wait + took(machine, local, nodes, size) for size in SIZES}
    rates = [(size, size / seconds * passes / 1e9) for size, seconds in times.items()]
    return Exchange("set.yaml", nodes, local, bus_rate(rates))


@pytest.fixture
def p100(three_generations):
    return of_partition(three_generations.partition("p100"))


@pytest.mark.parametrize(("local", "nodes"), [(2, 1), (4, 1), (1, 2), (2, 2), (4, 2), (4, 8)])
def test_the_model_says_of_large_messages_what_was_measured(p100, local, nodes):
    """What every message waits for, such as Horovod's cycle, is not bandwidth."""
    truth = replace(p100, network=SLOW, inside=SLOW._replace(bandwidth=2e9))
    start = p100 if nodes == 1 else replace(truth, network=p100.network)
    found = with_exchange(start, a_check(truth, local, nodes, wait=1e-3))
    if nodes > 1:
        assert found.network.latency == p100.network.latency
    expected = took(truth, local, nodes, SIZES[-1])
    assert took(found, local, nodes, SIZES[-1]) == pytest.approx(expected, rel=0.02)


def test_a_largest_message_that_took_no_longer_than_the_next_says_nothing():
    assert bus_rate([(65536, 1.0), (131072, 4.0)]) is None


def test_a_slow_network_that_was_measured_slows_the_forecast(three_generations, p100):
    near, far = a_check(p100, 4, 1), a_check(replace(p100, network=SLOW), 4, 2)
    request = ScalingRequest(three_generations.partition("p100"), "vgg16", gpus="16")
    plain, slow = answer(request), answer(replace(request, exchanges=(near, far)))
    assert slow.points[0].images_per_second < plain.points[0].images_per_second
    assert "8 ranks on 2 nodes" in slow.request.exchanges[1].describe
    assert "measured" in slow.machine.network.name


# What predictions ship is what the tools fit, and how far left-out sources are off.


@pytest.fixture(scope="module")
def law_pairs():
    return [validate.law_pair(pair) for pair in pairs(rows())[0]]


@pytest.fixture(scope="module")
def losses(law_pairs):
    return validate.losses_left_out(law_pairs)


def off(found, losses):
    return errors([math.exp(p.loss - loss) - 1 for p, loss in zip(found, losses, strict=True)])


def test_rows_of_a_source_that_was_left_out_are_met(law_pairs, losses):
    found = off(law_pairs, losses)
    assert found.rows > 900
    assert found.median <= 0.034
    assert found.ninetieth <= 0.155


def test_the_law_beats_the_constant_one_overall(law_pairs, losses):
    simple = [
        math.log((1 + 0.03 * math.log2(p.gpus[0])) / (1 + 0.03 * math.log2(p.gpus[1])))
        for p in law_pairs
    ]
    assert off(law_pairs, losses).median < 0.76 * off(law_pairs, simple).median
    assert off(law_pairs, losses).ninetieth < off(law_pairs, simple).ninetieth


def test_three_quarters_or_more_lie_in_the_range_of_eight_in_ten(law_pairs, losses):
    parts = validate._ranges_left_out(law_pairs, losses)
    assert 0.75 <= parts["all"] <= 0.85
    assert all(0.75 <= part <= 0.87 for part in parts.values())


def test_what_is_shipped_is_what_is_fitted(law_pairs, losses):
    shipped = facts.load("predict")
    fitted = validate.fit_law(law_pairs)
    assert tuple(shipped["law"].values()) == pytest.approx(fitted, abs=0.001)
    assert shipped["ranges"] == validate.ranges_of(law_pairs, losses)
    assert shipped["effects"] == validate.fit_effects(validate.single_rows())
    assert shipped["utilisation"] == language.fitted()


def test_the_rows_of_the_product_are_those_of_the_data():
    beside, table = validate.shipped_rows()
    assert facts.path("throughput").read_text() == beside
    assert facts.rows_path("throughput").read_text() == table


def test_facts_at_run_time_are_small():
    names = ("networks", "transformers", "predict", "links", "throughput", "gpus")
    sizes = [facts.path(name).stat().st_size for name in names]
    assert sum(sizes) + facts.rows_path("throughput").stat().st_size <= 80_000


def test_every_row_of_several_gpus_is_compared_or_has_a_reason():
    found, unfit = pairs(rows())
    named = sorted([*(pair.row.id for pair in found), *unfit])
    assert named == sorted(row.id for row in rows() if row.gpus != 1)
    assert all(unfit.values())


FORMS = {"tf.distribute": "no_overlap", "multi_gpu wrapper, CPU": "no_overlap", "ddp": "ddp"}
FORMS |= {"replicated (no NCCL)": "parameter_server", "replicated": "horovod"}
LINKS = {
    "PCIe, 10 GbE": ("pcie3", "ethernet 10 Gb/s"),
    "NVLink; 2x EDR InfiniBand": ("nvlink", "infiniband 200 Gb/s"),
    "NVLink 300 GB/s, RoCE 25Gb/s": ("nvlink", "roce 25 Gb/s"),
    "AWS, 25 Gb/s": ("nvlink", "cloud 25 Gb/s"),
    "": ("nvlink", "infiniband 100 Gb/s"),
}


def test_forms_and_links_are_those_that_a_row_names():
    box = replace(rows()[0], gpu="V100-SXM2", hardware="a box", nodes=1)
    assert {update: form_of(replace(box, update=update)) for update in FORMS} == FORMS
    hosts = {words: machine_of(replace(box, interconnect=words), 4) for words in LINKS}
    assert {words: (one.inside.name, one.network.name) for words, one in hosts.items()} == LINKS


def test_language_models_are_as_near_as_the_docs_say():
    known = language.rows()
    found = language.grouped(language.left_out(known))
    assert errors(found[" all with fused attention"]).median < 0.094
    assert errors(found[" all with fused attention"]).ninetieth < 0.25
    kept = errors([off for row, off in language.left_out(known) if not row.late])
    assert (kept.rows, kept.median < 0.09, kept.ninetieth < 0.25) == (463, True, True)
    memory = language.memory_errors(known)
    assert errors(memory["activations"]).ninetieth < 0.05
    assert len(memory["in all"]) == 116
