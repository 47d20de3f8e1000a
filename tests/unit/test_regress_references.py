"""References: bounds from measured spread, files that a team can review."""

import re
from dataclasses import replace

import pytest

from hpcdl.regress.propose import rows_of
from hpcdl.regress.references import from_runs, read_references, render_references, spread_of
from hpcdl.regress.reframe_adapter.settings import reframe_name
from hpcdl.regress.training import losses_fall
from hpcdl.system.errors import BadInput, MissingPrerequisite
from tests.make import reference

ROW = reference(
    case="mlp",
    metric="images_per_second",
    value=1.0,
    lower=-0.1,
    runs=0,
    spread=0.0,
    nodes=("n1", "n2"),
)


@pytest.mark.parametrize(
    ("values", "value", "spread", "lower"),
    [
        ([100.0, 104.0, 102.0], 102.0, 0.0291, -0.1454),  # the bound follows the spread
        ([100.0, 100.0, 100.1], 100.0, 0.0006, -0.1),  # ten percent for a quiet machine, too
        ([100.0, 300.0, 900.0], 300.0, 1.5751, -0.4),  # never half for a noisy one
    ],
)
def test_a_reference_is_the_median_with_a_bound_by_the_spread(values, value, spread, lower):
    row = from_runs(ROW, values)
    assert (row.value, row.runs) == (value, 3)
    assert (row.spread, row.lower) == pytest.approx((spread, lower), abs=0.0005)
    time = from_runs(replace(ROW, unit="us", upper=0.4), values)
    assert (time.lower, time.upper) == (None, -row.lower), "a time is bounded above"


@pytest.mark.parametrize("values", [[], [1.0, 2.0], [1.0, 2.0, float("nan")], [0.0, -1.0, 5.0]])
def test_too_few_good_runs_are_no_reference(values):
    with pytest.raises(MissingPrerequisite, match="no reference"):
        from_runs(ROW, values)


def test_one_wild_run_does_not_hide_in_the_median():
    assert spread_of([100.0, 101.0, 99.0, 100.0, 40.0]) > 0.2


def refused(path, text):
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        read_references(path)
    return caught.value.render()


def test_a_row_that_hides_another_is_a_fault(tmp_path):
    text = render_references("set", [ROW, replace(ROW, value=2.0)])
    assert "a second reference of" in refused(tmp_path / "set.yaml", text)


@pytest.mark.parametrize(
    "change",
    [
        ("lower: -0.1", "lower: -1.0"),
        ("lower: -0.1\n", "\n"),
        ("value: 1.0", "value: -3"),
        ("value: 1.0", "value: fast"),
        ("proof: run", "proof: maybe"),
        ("metric:", "metrik:"),
        ("schema: 1", "schema: 2"),
        ("set: set", "set: another"),
    ],
)
def test_a_broken_file_is_refused_with_its_place(tmp_path, change):
    text = render_references("set", [ROW]).replace(*change)
    assert "set.yaml" in refused(tmp_path / "set.yaml", text)


@pytest.mark.parametrize(
    ("losses", "word"),
    [
        ([2.3, 2.0, 1.0, 0.5], None),
        ([], "missing"),
        ([2.3, float("nan")], "finite"),
        ([1.0, 1.0, 1.0], "fall"),
        ([0.5, 1.0, 2.0, 3.0], "fall"),
    ],
)
def test_a_training_must_learn(losses, word):
    fault = losses_fall(losses)
    assert fault is None if word is None else word in str(fault)


@pytest.mark.parametrize("text", ["gpu.a100", "8gpu", "naïve", "a b"])
def test_names_become_what_reframe_takes(text):
    assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", reframe_name(text))


@pytest.mark.parametrize(
    ("unit", "better", "above"),
    [("us", "", True), ("us", "lower", True), ("score", "lower", True), ("images/s", "", False)],
)
def test_a_draft_knows_on_which_side_its_bound_is(unit, better, above):
    metric = {"name": "m", "value": 1.0, "unit": unit, "wanted": True, "better": better}
    verdict = {
        "check": "c",
        "case": "",
        "partition": "p",
        "metrics": [metric],
        "release": "r",
        "job": {},
    }
    (row,) = rows_of([verdict], None, "2026-01-01", "a test")
    assert (row.upper is not None) is above
