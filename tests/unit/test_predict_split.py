"""Transformers that are split over GPUs: the papers' own formulas, and their measurements."""

from dataclasses import replace

import pytest

from hpcdl.predict.machine import HALF_BYTES, Link, network, of_partition
from hpcdl.predict.request import ScalingRequest, answer, choose
from hpcdl.predict.show import forecast_text
from hpcdl.predict.step import (
    ModelSplit,
    Workload,
    activation_bytes,
    kept,
    split_step,
    state_bytes,
    utilisation,
)
from hpcdl.system.errors import BadInput

GPT3 = network("gpt3_175b", 2048)
S, H, HEADS = 2048, 12288, 96
PLAIN = ModelSplit(fused=False)


@pytest.fixture(scope="module")
def a100(modern):
    """Nodes of eight A100 with NVLink, a network port per GPU."""
    return modern.partition("a100")


def step(machine, plan, gpus):
    """Seconds of the parts of a step of GPT-3, by name."""
    return parts_of(machine, Workload(GPT3, 1, "amp", plan=plan), gpus)


def parts_of(machine, work, gpus):
    compute, losses = split_step(machine, work, gpus, utilisation(machine.gpu, work.plan)["part"])
    return {"compute": compute, **losses}


@pytest.mark.parametrize(
    ("plan", "factor"),
    [
        (PLAIN, 34 + 5 * HEADS * S / H),
        (replace(PLAIN, tensor=8), 10 + 24 / 8 + 5 * HEADS * S / (8 * H)),
        (replace(PLAIN, tensor=8, sequence=True), (34 + 5 * HEADS * S / H) / 8),
        (replace(PLAIN, tensor=8, sequence=True, checkpointing="selective"), 34 / 8),
        (replace(PLAIN, tensor=8, checkpointing="full"), 2),
        (ModelSplit(tensor=8, sequence=True), 34 / 8),
    ],
)
def test_a_block_keeps_what_the_papers_table_2_says(plan, factor):
    """Korthikanti et al. 2022."""
    assert kept(GPT3, plan, 1, HALF_BYTES) == pytest.approx(S * H * factor)


@pytest.mark.parametrize(
    ("pipeline", "of_the_whole"),
    [
        ({"stages": 8, "micro_batches": 64}, 1),  # the first stage keeps one per stage
        ({"stages": 8, "micro_batches": 2}, 1 / 4),
        ({"stages": 8, "micro_batches": 64, "interleave": 3}, 1 + 7 / (8 * 3)),
    ],
)
def test_a_pipeline_keeps_as_many_micro_batches_as_stages(pipeline, of_the_whole):
    whole = activation_bytes(GPT3, PLAIN, 1, HALF_BYTES)
    kept_by_first = activation_bytes(GPT3, replace(PLAIN, **pipeline), 1, HALF_BYTES)
    assert kept_by_first == pytest.approx(whole * of_the_whole, rel=0.01)


@pytest.mark.parametrize(
    ("zero", "of_each", "gathered", "rel"),
    [
        (0, 2 + 4 + 12, 0, 1e-6),
        (1, 2 + 4 + 12 / 64, 0, 1e-6),
        (2, 2 + 4 / 64 + 12 / 64, 0, 1e-6),
        (
            3,
            18 / 64,
            2 * HALF_BYTES * 12 * H * H,
            0.01,
        ),  # FSDP: weights too, but a block's gathered
    ],
)
def test_zero_shards_the_optimizer_then_gradients_then_weights(zero, of_each, gathered, rel):
    found = state_bytes(GPT3, ModelSplit(zero=zero), 64, HALF_BYTES)
    assert found == pytest.approx(GPT3.parameters * of_each + gathered, rel=rel)


@pytest.mark.parametrize(("micro", "stages", "pieces"), [(64, 8, 1), (64, 16, 1), (64, 8, 3)])
def test_the_bubble_of_equal_stages_is_the_papers(a100, micro, stages, pieces):
    machine = replace(of_partition(a100), network=Link("none", 0.0, 1e30))
    plan = ModelSplit(8, stages, pieces, micro)
    bare = replace(GPT3, shape=replace(GPT3.shape, vocabulary=0))
    parts = parts_of(machine, Workload(bare, 1, "amp", plan=plan), plan.gpus)
    useful = parts["compute"] + parts["tensor"] + parts["recomputing"]
    assert parts["bubble"] / useful == pytest.approx((stages - 1) / pieces / micro, rel=0.02)


def test_a_recomputed_block_costs_a_forward_pass_and_two_all_reduces(a100):
    machine = of_partition(a100)
    plain = replace(PLAIN, tensor=8, micro_batches=100)  # of which one update is little
    none = step(machine, plain, 8)
    full = step(machine, replace(plain, checkpointing="full"), 8)
    assert full["recomputing"] == pytest.approx(none["compute"] / 3, rel=0.03)
    assert full["tensor"] == pytest.approx(1.5 * none["tensor"])
    some = step(machine, replace(plain, checkpointing="selective"), 8)
    assert 0 < some["recomputing"] < full["recomputing"] / 3


def test_tensor_parallelism_across_nodes_is_worse_than_in_one(a100):
    machine = of_partition(a100)
    inside = step(machine, ModelSplit(tensor=8), 8)
    across = step(machine, ModelSplit(tensor=16), 16)
    assert across["tensor"] > inside["tensor"]
    assert across["compute"] < 0.55 * inside["compute"]


def test_a_measured_step_stretches_computing_and_nothing_else(a100):
    plan = ModelSplit(tensor=8, checkpointing="full")
    asked = ScalingRequest(a100, "gpt_18b", gpus="8", batch=1, size=2048, plan=plan)
    fast, slow = (
        answer(replace(asked, images_per_second=rate)).points[0].step for rate in (2.0, 1.0)
    )
    assert slow.compute == pytest.approx(2 * fast.compute)
    assert slow.losses["recomputing"] == pytest.approx(2 * fast.losses["recomputing"])
    assert slow.losses["tensor"] == pytest.approx(fast.losses["tensor"])


def test_counts_are_whole_replicas_and_efficiency_is_the_part_that_computes(a100):
    found = answer(
        ScalingRequest(a100, "gpt_76b", gpus="32-128", size=2048, plan=ModelSplit(8, 4, 1, 32))
    )
    assert [point.gpus for point in found.points] == [32, 64, 128]
    for point in found.points:
        assert point.efficiency == point.step.compute / point.step.seconds
        assert point.low < point.images_per_second < point.high
    assert found.points[1].images_per_second < 2 * found.points[0].images_per_second


def test_a_plan_that_does_not_fit_is_told_with_a_batch_that_does_or_what_to_do(a100):
    asked = ScalingRequest(
        a100, "gpt_18b", gpus="8", size=2048, batch=64, plan=ModelSplit(8, checkpointing="full")
    )
    (note,) = answer(asked).notes
    assert "batch 64 is not likely to fit" in note
    assert "the largest batch that fits is" in note
    asked = replace(asked, model="gpt_145b", batch=1)
    (note,) = answer(asked).notes
    assert "split it, such as --split tensor=8" in note
    (note,) = answer(replace(asked, plan=ModelSplit(8, zero=3, checkpointing="full"))).notes
    assert "the smallest that would fit is" in note


def test_a_count_that_does_not_hold_it_is_not_chosen_while_others_do(a100):
    slow = replace(a100, interconnect=replace(a100.interconnect, measured_gbs=0.5))
    asked = ScalingRequest(
        slow, "gpt_39b", gpus="8-16", size=2048, plan=ModelSplit(zero=3, checkpointing="full")
    )
    found = answer(asked)
    assert [found.work.memory_bytes(n) <= 80e9 for n in (8, 16)] == [False, True]
    assert found.points[0].gpu_hours < found.points[1].gpu_hours
    assert choose([found])["cheapest"] == (found, found.points[1])
    assert choose([answer(replace(asked, gpus="8"))])["cheapest"] is None


@pytest.mark.parametrize(("wide", "odd"), [(2, 0), (3, 1), (8, 0), (12, 1), (16, 0)])
def test_tensor_parallelism_that_fills_no_nodes_is_noted(a100, wide, odd):
    notes = answer(ScalingRequest(a100, "gpt_18b", gpus="48", plan=ModelSplit(tensor=wide))).notes
    assert sum("do not divide the 8 of a node" in note for note in notes) == odd


def test_few_sequences_per_second_are_no_zero(a100):
    found = answer(ScalingRequest(a100, "gpt_18b", gpus="8", size=8192, plan=ModelSplit(tensor=8)))
    assert 0.3 < found.points[0].images_per_second < 1.4
    shown = forecast_text([found]).splitlines()[7].split()
    assert float(shown[3]) == pytest.approx(found.points[0].images_per_second, rel=0.06)
    assert float(shown[4].partition("-")[0]) > 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "resnet50"}, "no transformer"),
        ({"plan": ModelSplit(tensor=7)}, "cannot share 48 heads"),
        ({"plan": ModelSplit(tensor=0)}, "tensor.*minimum"),
        ({"plan": ModelSplit(micro_batches=0)}, "micro-batches.*minimum"),
        ({"plan": ModelSplit(zero=4)}, "zero.*maximum"),
        ({"plan": ModelSplit(stages=41)}, "too few"),
        ({"plan": ModelSplit(stages=8, interleave=3)}, "virtual stages"),
        ({"plan": ModelSplit(interleave=2)}, "virtual stages"),
        ({"plan": ModelSplit(checkpointing="some")}, "checkpointing"),
        ({"plan": ModelSplit(tensor=8, stages=2)}, "multiple of the 16 GPUs"),
        ({"real": True}, "reads no images"),
    ],
)
def test_what_cannot_be_split_is_refused(a100, changes, said):
    asked = ScalingRequest(a100, "gpt_18b", gpus="8", plan=ModelSplit(tensor=8))
    with pytest.raises(BadInput, match=said):
        answer(replace(asked, **changes))
