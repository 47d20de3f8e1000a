"""How fast one GPU is where nobody measured it, judged by hiding rows; and what none can do."""

import math
import statistics
from functools import cache

import pytest

from hpcdl import facts
from hpcdl.predict.calibrate import Effects, seconds, traits
from hpcdl.predict.hardware import of_host, of_partition
from hpcdl.predict.network import names, network, roofline, scaled
from hpcdl.predict.records import read_records
from hpcdl.predict.request import Request, answer
from hpcdl.predict.step import Training
from hpcdl.regress.scaling import most, most_images_per_second
from hpcdl.regress.training import TrainingCase
from hpcdl.site import find_site_file, load_site
from hpcdl.system.errors import BadInput


@pytest.fixture(scope="module")
def rows():
    return tuple(traits(read_records()))


@pytest.fixture(scope="module")
def p100():
    return load_site(find_site_file("pi")).partition("p100")


@cache
def left_out(rows, key):
    """Errors (predicted / measured, in logarithms) of rows, by the rows of other keys alone."""
    parts = {key(row) for row in rows}
    fitted = {part: Effects([row for row in rows if key(row) != part]) for part in parts}
    return [fitted[key(row)].expected(row) - row.reached for row in rows]


def pair(trait):
    """GPU, precision and network: what is hidden to see how well others tell of it."""
    return trait.family, trait.precision, trait.model


def test_a_hidden_pair_is_met_within_a_seventh_at_the_median(rows):
    sizes = sorted(abs(math.expm1(error)) for error in left_out(rows, pair))
    assert len(sizes) > 300
    assert statistics.median(sizes) < 0.14
    assert sizes[9 * len(sizes) // 10] < 0.36


@pytest.mark.parametrize(("name", "key"), [("borrowed", pair), ("unseen", lambda row: row.model)])
def test_the_stated_factors_are_those_of_hidden_rows(rows, name, key):
    errors = sorted(-error for error in left_out(rows, key))
    tenth, ninetieth = (math.exp(errors[i]) for i in (len(errors) // 10, -1 - len(errors) // 10))
    known = facts.load("links")["uncertainty"][name]
    assert (known["low"], known["high"]) == pytest.approx((tenth, ninetieth), abs=0.02)


def test_rows_of_another_source_lie_in_the_range_of_a_foreign_row(rows):
    known = facts.load("links")["uncertainty"]["foreign"]
    inside = []
    for row in rows:
        of_the_kind = [o for o in rows if (pair(o), o.card) == (pair(row), row.card)]
        if others := [o.reached for o in of_the_kind if o.source != row.source]:
            factor = math.exp(row.reached - statistics.median(others))
            inside.append(known["low"] <= factor <= known["high"])
    assert len(inside) > 100
    assert 0.75 <= statistics.fmean(inside) <= 0.85


def test_sibling_cards_are_told_of_each_other():
    training = Training(network("resnet50"), 64, "amp")
    big, small = (of_host(f"A100-SXM4-{size}GB", "a box", 1) for size in (80, 40))
    assert 0.6 < seconds(big, training) / seconds(small, training) < 1.05


@pytest.mark.parametrize("size", [64, 448])
def test_a_size_of_images_scales_a_published_row(p100, size):
    usual, other = (answer(Request(p100, "resnet50", "1", size=s)).points[0] for s in (None, size))
    ratio = other.images_per_second / usual.images_per_second
    assert ratio == pytest.approx((224 / size) ** 2, rel=0.4)
    assert other.low < other.images_per_second < other.high


def test_a_transformer_is_predicted_by_the_length_of_its_sequence(p100):
    short, long = (answer(Request(p100, "bert_base", "1-4", size=s)).points for s in (128, 512))
    assert short[0].images_per_second > 3.5 * long[0].images_per_second
    assert all(point.efficiency <= 1 for point in short)


def test_a_size_out_of_bounds_is_refused(p100):
    with pytest.raises(BadInput, match="pixels"):
        answer(Request(p100, "resnet50", size=3))


RESNET = TrainingCase("resnet50", 2, 4, steps=100, batch=64, data="synthetic", real=True)


def test_nothing_that_was_published_is_too_fast_and_some_of_it_is_near():
    parts = []
    for row in read_records():
        machine = of_host(row.gpu, row.hardware, 1)
        if machine and row.model in names() and row.rate and row.gpus:
            net = network(row.model, row.size)
            bound = most_images_per_second(machine, net, row.precision, row.gpus)
            parts += [row.rate / bound] if bound else []
    assert len(parts) > 500
    assert max(parts) < 1
    assert max(parts) > 0.1, "a bound that far away would find nothing"


def test_the_bound_is_that_of_all_gpus_of_a_case(three_generations):
    partition = three_generations.partition("p100")
    one = most_images_per_second(of_partition(partition), network("resnet50"), "fp32", 1)
    assert most(RESNET, partition) == pytest.approx(8 * one)
    assert 219 < one < 219 * 15, "219 is what one of them really does"


@pytest.mark.parametrize(
    "case",
    [
        TrainingCase("mlp", 1, 1, steps=10, batch=8),
        TrainingCase("resnet50", 1, 1, steps=10, batch=8, data="imagenet", real=True),
    ],
)
def test_nothing_is_said_of_images_whose_size_is_not_known(three_generations, case):
    assert most(case, three_generations.partition("p100")) is None


# Trainable parameters and multiply-adds as torchvision and Keras publish them.
PUBLISHED = {
    "alexnet": (61_100_840, 0.714e9),
    "resnet50_v1.5": (25_557_032, 4.089e9),
    "inception_v3": (23_817_352, 5.713e9),
    "googlenet": (6_624_904, 1.498e9),
    "vgg16": (138_357_544, 15.47e9),
    "vgg19": (143_667_240, 19.63e9),
    "densenet121": (7_978_856, 2.834e9),
    "resnet152": (60_268_520, 11.3e9),
    "mlp": (104_938, 104_768),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_network_has_its_published_size_and_work(name):
    parameters, macs = PUBLISHED[name]
    assert network(name).parameters == parameters
    assert network(name).macs == pytest.approx(macs, rel=0.005)


@pytest.mark.parametrize("name", facts.load("layers")["models"])
def test_every_layer_has_gradients_and_the_totals_are_those_of_the_file(name):
    found, row = network(name), facts.load("layers")["models"][name]
    assert all(layer.tensors and layer.parameters for layer in found.layers)
    assert (found.parameters, found.macs) == (row["parameters"], row["macs"])


# Of the sources that transformers.yaml names: llm-foundry's table, BERT's papers (about).
TRANSFORMERS = {
    "mpt_7b": 6658859008,
    "mpt_70b": 64862437376,
    "bert_base": 110e6,
    "bert_large": 336e6,
    "llama3_8b": 8.03e9,
}


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_transformer_has_its_published_size(name):
    assert network(name).parameters == pytest.approx(TRANSFORMERS[name], rel=0.02)


def test_a_longer_sequence_costs_more_than_in_proportion():
    assert network("bert_large", 1024).macs > 2 * network("bert_large", 512).macs


def test_a_smaller_image_costs_in_proportion_but_for_the_dense_layer():
    usual, small = network("resnet50"), network("resnet50", 112)
    assert small.macs == pytest.approx(usual.macs / 4, rel=0.01)
    assert (small.parameters, small.pixels) == (usual.parameters, 112 * 112)


@pytest.mark.parametrize("name", facts.load("models")["models"])
def test_a_network_that_can_be_trained_can_be_predicted_at_the_same_size(name):
    row = facts.load("models")["models"][name]
    assert network(name).parameters == row["params"]
    assert [network(name).height, network(name).width, network(name).channels] == row["input"]


def test_a_layer_takes_the_longer_of_arithmetic_and_memory():
    net = network("vgg16")
    busy = roofline(net, 64, flops=1e12, bandwidth=1e15)
    starved = roofline(net, 64, flops=1e18, bandwidth=1e9)
    dense = next(i for i, layer in enumerate(net.layers) if layer.name == "fc1")
    assert busy.forward[dense] == pytest.approx(2 * 64 * net.layers[dense].macs / 1e12)
    assert starved.forward[dense] > 4 * net.layers[dense].parameters / 1e9


def test_only_the_first_layer_needs_no_gradient_of_its_input():
    times = roofline(network("resnet50"), 32, 1e13, 1e12)
    assert times.backward[0] == pytest.approx(times.forward[0])
    assert times.backward[5] == pytest.approx(2 * times.forward[5])


def test_a_measured_step_scales_all_layers_alike():
    times = roofline(network("resnet50"), 32, 1e13, 1e12)
    found = scaled(times, 0.5)
    assert found.total == pytest.approx(0.5)
    assert found.forward[3] / found.forward[9] == pytest.approx(times.forward[3] / times.forward[9])
