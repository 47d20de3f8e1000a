"""What any program may have written is taken as it should be, or not at all."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdl.jobs.job_report import as_text, summarize
from hpcdl.jobs.submission import find
from hpcdl.jobs.untrusted import count, mapping, number, numbers, positive, text
from hpcdl.jobs.watch import Snapshot, as_line, result_of
from hpcdl.site import Site
from hpcdl.system.errors import BadInput

JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
DONE = Snapshot(7, "COMPLETED", "it is done", 0, "n1", 0, None)


@given(JSON)
def test_every_value_has_a_reading(value: object) -> None:
    for read in (count, mapping, number, numbers, positive, text):
        read(value)


def test_only_what_is_right_is_taken() -> None:
    assert [number(one) for one in (1, 0.5, True, "1", float("nan"), None)] == [
        1.0, 0.5, None, None, None, None,
    ]  # fmt: skip
    assert [count(one) for one in (3, 3.0, 0, -1, 2.5, "3", 1e308)] == [3, 3] + [None] * 5
    assert numbers([1, 2]) == [1.0, 2.0]
    assert numbers([1, "2"]) == numbers("12") == []
    assert text("\x1b[31mred\n") == "\\x1b[31mred "


KEYS = ("layout", "samples", "summary", "phases", "seconds", "ranks", "images_per_second",
        "images_per_second_p05", "images_per_second_p95", "input", "outcome")  # fmt: skip
RESULTS = st.dictionaries(
    st.sampled_from(KEYS), st.dictionaries(st.sampled_from(KEYS), JSON) | JSON
)


@given(RESULTS, RESULTS)
def test_no_result_json_makes_a_report_fail(result: dict[str, Any], asked: dict[str, Any]) -> None:
    report = summarize(DONE, result, asked)
    assert "\x1b" not in as_text(report)
    json.dumps(asdict(report), allow_nan=False)


@given(st.dictionaries(st.sampled_from(["step", "steps", "loss", "seconds_left"]), JSON))
def test_no_progress_json_makes_watching_fail(progress: dict[str, Any]) -> None:
    as_line(Snapshot(7, "RUNNING", "it runs", 0, "n1", 0, progress))


@pytest.mark.parametrize(
    "record",
    ["", "[]", "null", "7", '{"job_id": null}', '{"job_id": "7"}', '{"job_id": -7}',
     '{"job_id": 7, "chain": [1e308]}', '{"job_id": 7, "chain": 7}', "[" * 100_000],
)  # fmt: skip
def test_a_folder_of_anything_else_is_no_job(modern: Site, tmp_path: Path, record: str) -> None:
    (tmp_path / "job.json").write_text(record)
    with pytest.raises(BadInput, match="there is no job in"):
        find(modern, str(tmp_path))


def test_a_result_nested_without_end_counts_as_none(modern: Site, tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text('{"job_id": 7}')
    (tmp_path / "result.json").write_text("[" * 100_000)
    assert result_of(find(modern, str(tmp_path))) is None
