"""Costs of an all-reduce by links and algorithms, and the input's pace."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdl.predict.hardware import Link, Machine, of_gpu
from hpcdl.predict.network import network
from hpcdl.predict.overlap import lines, parameter_server, ring, tree
from hpcdl.predict.step import feed, pace

NET = Link("net", 1e-5, 1e9)
LINK = Link("link", 1e-6, 1e10)


@pytest.fixture
def machine() -> Machine:
    return replace(of_gpu("P100-PCIe", "pcie3", 28, 2, NET), inside=LINK, per_node=4)


def test_a_ring_moves_twice_its_share_over_every_link() -> None:
    assert ring(4, LINK).seconds(4e6) == pytest.approx(6 * 1e-6 + 2 * 3 / 4 * 4e6 / 1e10)
    assert ring(1, LINK).seconds(4e6) == 0


def test_a_tree_takes_steps_that_grow_with_the_logarithm() -> None:
    assert tree(1024, NET).latency == pytest.approx(10 * tree(2, NET).latency)
    assert tree(1024, NET).latency < ring(1024, NET).latency


def test_on_one_node_only_its_link_counts(machine: Machine) -> None:
    assert lines(machine, 4, 1) == (ring(4, LINK),)


def test_the_flat_ring_is_as_slow_as_its_slowest_link(machine: Machine) -> None:
    assert lines(machine, 4, 2)[0] == pytest.approx((14 * 1e-5, 2 * 7 / 8 / 1e9))


def test_between_nodes_trees_are_the_other_candidate(machine: Machine) -> None:
    through_all, trees = lines(machine, 4, 8)
    assert trees.rate == pytest.approx(2 * 3 / 4 / 1e10 + 2 / 1e9)
    assert trees.latency < through_all.latency


def test_gpus_share_the_root_ports_to_a_parameter_server(machine: Machine) -> None:
    assert parameter_server(machine, 8, 1).rate == pytest.approx(8 / (machine.roots * machine.root))
    assert parameter_server(machine, 1, 1).rate == pytest.approx(1 / machine.root)


@settings(max_examples=40, deadline=None)
@given(st.floats(1e-3, 1e3), st.integers(1, 8))
def test_input_never_gives_more_than_either_side_can(ratio: float, buffer: int) -> None:
    kept = pace(ratio * 100, 100, buffer)
    assert 0 < kept <= 1
    assert kept * ratio <= 1 + 1e-9


def test_a_deeper_buffer_costs_less() -> None:
    assert pace(50, 100, 1) < pace(50, 100, 2) < pace(50, 100, 8)
    assert pace(50, float("inf"), 1) == 1


def test_storage_limits_all_nodes_together_and_cores_each_node(machine: Machine) -> None:
    found = feed(machine, network("resnet50"), storage_rate=115129 * 1000)
    assert found.storage == pytest.approx(1000)
    assert found.decode == pytest.approx(machine.cores * found.one_core)


def test_augmentation_and_larger_images_cost_the_cores_more(machine: Machine) -> None:
    small, large = network("efficientnet_v1_b0"), network("efficientnet_v1_b4")
    assert feed(machine, network("resnet50")).decode > feed(machine, small).decode
    assert feed(machine, small).decode > feed(machine, large).decode
