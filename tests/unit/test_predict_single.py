"""How fast one GPU is where nobody measured it: judged by hiding what was measured."""

import math
import statistics
from functools import cache

import pytest

from hpcdl import facts
from hpcdl.predict.calibrate import Effects, seconds, traits
from hpcdl.predict.hardware import of_host
from hpcdl.predict.network import network
from hpcdl.predict.records import read_records
from hpcdl.predict.request import Request, answer
from hpcdl.predict.step import Training
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
