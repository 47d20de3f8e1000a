"""Layer facts come from real networks, and a roofline shares a measured step among them."""

import pytest

from hpcdl import facts
from hpcdl.predict.network import network, roofline, scaled

# Trainable parameters and multiply-adds as torchvision and Keras publish them.
PUBLISHED = {
    "alexnet": (61_100_840, 0.714e9), "resnet50_v1.5": (25_557_032, 4.089e9),
    "inception_v3": (23_817_352, 5.713e9), "googlenet": (6_624_904, 1.498e9),
    "vgg16": (138_357_544, 15.47e9), "vgg19": (143_667_240, 19.63e9),
    "densenet121": (7_978_856, 2.834e9), "resnet152": (60_268_520, 11.3e9),
    "mlp": (104_938, 104_768),
}  # fmt: skip


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
    "mpt_7b": 6658859008, "mpt_70b": 64862437376, "bert_base": 110e6, "bert_large": 336e6,
    "llama3_8b": 8.03e9,
}  # fmt: skip


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
