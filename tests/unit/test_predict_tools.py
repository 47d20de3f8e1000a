"""What predictions ship is what the tools fit, and how far left-out sources are off."""

import math

import pytest

from hpcdl import facts
from tools import language, validate
from tools.published import errors, form_of, machine_of, pairs, rows


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


@pytest.mark.parametrize(
    ("update", "form"),
    [
        ("tf.distribute", "no_overlap"),
        ("multi_gpu wrapper, CPU", "no_overlap"),
        ("ddp", "ddp"),
        ("replicated (no NCCL)", "parameter_server"),
        ("replicated", "horovod"),
        ("horovod", "horovod"),
    ],
)
def test_the_form_of_exchange_is_what_the_row_names(update, form):
    from dataclasses import replace

    assert form_of(replace(rows()[0], update=update)) == form


@pytest.mark.parametrize(
    ("words", "link", "network"),
    [
        ("PCIe, 10 GbE", "pcie3", "ethernet 10 Gb/s"),
        ("NVLink; 2x EDR InfiniBand", "nvlink", "infiniband 200 Gb/s"),
        ("NVLink 300 GB/s, RoCE 25Gb/s", "nvlink", "roce 25 Gb/s"),
        ("AWS, 25 Gb/s", "nvlink", "cloud 25 Gb/s"),
        ("", "nvlink", "infiniband 100 Gb/s"),
    ],
)
def test_an_unknown_host_has_the_links_that_its_row_names(words, link, network):
    from dataclasses import replace

    row = replace(rows()[0], gpu="V100-SXM2", hardware="a box", interconnect=words, nodes=1)
    machine = machine_of(row, 4)
    assert (machine.inside.name, machine.network.name) == (link, network)


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
