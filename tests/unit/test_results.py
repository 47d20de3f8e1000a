"""Files that say what came out: what any program may have written is taken as it should be, or not.

One schema, one reader and one writer for each of them; other versions are refused.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hpcdl.jobs.submission import find
from hpcdl.jobs.watch import Snapshot, as_line, as_text, report_of
from hpcdl.regress.result import read_result
from hpcdl.results.faults import FaultKind
from hpcdl.results.records import DATASET, EXPECTATION, JOB, PROGRESS, RESULT, VERDICTS, at, outcome
from hpcdl.system.errors import BadInput

FORMATS = (RESULT, PROGRESS, VERDICTS, EXPECTATION, JOB, DATASET)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
DONE = Snapshot(7, "COMPLETED", "it is done", 0, "n1", 0, None)
KEYS = (
    "layout",
    "samples",
    "summary",
    "phases",
    "seconds",
    "ranks",
    "images_per_second",
    "images_per_second_p05",
    "images_per_second_p95",
    "input",
    "outcome",
)
KEY = st.sampled_from(KEYS)
RESULTS = st.dictionaries(KEY, st.dictionaries(KEY, JSON) | JSON)


def parts(schema, place=""):
    """Every value that a schema describes, by its place."""
    inner = [(f"{place}.{name}", part) for name, part in schema.get("properties", {}).items()]
    inner += [(f"{place}[]", schema[key]) for key in ("items",) if key in schema]
    return {place: schema} | {k: v for name, part in inner for k, v in parts(part, name).items()}


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_a_schema_is_one_and_describes_every_value_with_its_unit(kind):
    jsonschema.Draft202012Validator.check_schema(kind.schema)
    assert kind.schema["$id"].endswith(f"-{kind.version}.json")
    for place, part in parts(kind.schema).items():
        assert part.get("description") or place.endswith("[]"), place
        counted = ("seconds", "_per_second", "_gbs", "_mbs", "started", "ended", "time")
        if place.rpartition(".")[2].endswith(counted):
            assert part.get("unit"), place


NAMES = {place.rpartition(".")[2] for kind in FORMATS for place in parts(kind.schema)}
FLAT = st.dictionaries(st.sampled_from(sorted(NAMES - {""})), JSON)


@given(FLAT | JSON, st.sampled_from(FORMATS))
def test_every_value_has_a_reading_that_the_schema_allows(value, kind):
    try:
        record = kind.of(value)
    except BadInput:
        return
    if not record.faults:
        jsonschema.validate(record.values, {**kind.schema, "if": {}, "then": {}})
        assert kind.of(record.values).values == record.values


@pytest.mark.parametrize(
    ("part", "name", "given", "taken"),
    [
        ("summary", "images_per_second", [1, 0.5], [1.0, 0.5]),
        ("summary", "images_per_second", [True, "1", float("nan"), None, 10**400], [None] * 5),
        ("layout", "ranks", [3, 3.0], [3, 3]),
        ("layout", "ranks", [0, -1, 2.5, "3", 1e308], [None] * 5),
    ],
)
def test_only_what_is_right_is_taken(part, name, given, taken):
    found = [RESULT.of({part: {name: value}}).values for value in given]
    assert [at(values, part, name) for values in found] == taken
    assert JOB.of({"name": "\x1b[31mred\n"}).values["name"] == "\\u001b[31mred "


@pytest.mark.parametrize(
    ("values", "faulty"),
    [
        ([1.0] * 5, []),
        ([1.0, None, 2.0], []),
        ([1.0, float("nan")], []),
        ([1.0, "2"], ["[1]"]),
        ([10**400, 1.0], ["[0]"]),
        ([True], ["[0]"]),
        ("12", [""]),
        ([], []),
    ],
)
def test_a_column_is_looked_at_as_a_whole_and_its_faults_are_found(values, faulty):
    record = RESULT.of({"samples": {"loss": values}})
    found = [place for place in record.faults if place.startswith("samples.loss")]
    assert found == [f"samples.loss{place}" for place in faulty]


def test_after_many_faults_nothing_counts_as_sound_that_is_not():
    samples = {"seconds": ["x"] * 1000, "loss": [1.0, "x"]}
    record = RESULT.of({"schema": 2, "samples": samples, "model": 7})
    assert len(record.faults) < 100 + len(RESULT.schema["properties"])
    for place in ("samples", "samples.seconds", "samples.loss", "model"):
        with pytest.raises(BadInput):
            record.need(place)
    with pytest.raises(BadInput, match="the file lacks the key 'summary'"):
        record.need("summary")
    record.need("schema")


@given(RESULTS)
def test_no_result_json_makes_a_report_fail(result):
    report = report_of(DONE, RESULT.of(result).values)
    assert "\x1b" not in as_text(report)
    json.dumps(report, allow_nan=False)


@example({"step": 3, "steps": 5, "loss": 0.5, "seconds_left": 9.0})
@given(st.dictionaries(st.sampled_from(["step", "steps", "loss", "seconds_left"]), JSON))
def test_no_progress_json_makes_watching_fail(progress):
    as_line(Snapshot(7, "RUNNING", "it runs", 0, "n1", 0, PROGRESS.of(progress).values))


@pytest.mark.parametrize(
    "record",
    [
        "",
        "[]",
        "null",
        "7",
        '{"job_id": null}',
        '{"job_id": "7"}',
        '{"job_id": -7}',
        '{"job_id": 7, "chain": [1e308]}',
        '{"job_id": 7, "chain": 7}',
        "[" * 100_000,
    ],
)
def test_a_folder_of_anything_else_is_no_job(modern, tmp_path, record):
    (tmp_path / "job.json").write_text(record)
    with pytest.raises(BadInput, match="there is no job in"):
        find(modern, str(tmp_path))


def test_a_result_nested_without_end_counts_as_none(modern, tmp_path):
    (tmp_path / "job.json").write_text('{"job_id": 7}')
    (tmp_path / "result.json").write_text("[" * 100_000)
    assert RESULT.find(find(modern, str(tmp_path)).folder) is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "progress.json is empty"),
        (b'{"schema": 2, "classes": 7, "features": {}}', "other keys, such as 'classes'"),
        (b'{"a": 1', "progress.json:1:8: not JSON"),
        (b"\xff", "is not UTF-8 text"),
        (b'{"a": "\xed\xa0\x80"}', "is not UTF-8 text"),
        (b"[]", "it holds no mapping"),
        (b"[" * 100_000, "too deep"),
        (b'{"schema": ' + b"9" * 5000 + b"}", "too large a number"),
        (b" " * 1_000_001, "larger than 1 MB"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_such_file_says_why(tmp_path, content, said):
    path = tmp_path / PROGRESS.name
    path.write_bytes(content)
    with pytest.raises(BadInput, match=said):
        PROGRESS.read(path)
    assert PROGRESS.find(tmp_path) is None


def test_what_is_no_regular_file_is_refused_and_nothing_waits(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path, tmp_path / "loop"):
        with pytest.raises(BadInput, match=str(path)):
            RESULT.read(path)


@pytest.mark.parametrize("half", ["\\ud800", "\\uDFFF"])
def test_half_a_character_becomes_a_question_mark(tmp_path, half):
    (tmp_path / "r.json").write_text(f'{{"model": "a{half}b", "own": "{half}"}}')
    values = RESULT.read(tmp_path / "r.json").values
    assert (values["model"], values["own"]) == ("a?b", "?")


@pytest.mark.parametrize("version", [0, -1, 1, 3, 10**400, True, "2", None, 2.5])
def test_a_version_that_nobody_wrote_is_a_fault(version):
    with pytest.raises(BadInput):
        RESULT.of({"schema": version}).need("schema")


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("schema", "it is of version 9; this hpcdl reads version 2"),
        ("layout.ranks", "layout.ranks is 0, below its minimum of 1"),
        ("layout.nodes", "layout.nodes[1] must be text, not '3'"),
        ("layout.gpu", "it lacks layout.gpu"),
        ("model", "model has no value"),
        ("summary.metrics", "the file lacks the key 'summary'"),
    ],
)
def test_a_place_that_is_needed_is_named_with_its_fault(place, said):
    record = RESULT.of({"schema": 9, "layout": {"ranks": 0, "nodes": ["a", 3]}, "model": None})
    with pytest.raises(BadInput) as caught:
        record.need(place)
    assert caught.value.message.endswith(said)


def test_a_file_says_its_version_and_the_units_of_its_numbers(tmp_path):
    path = tmp_path / "result.json"
    RESULT.write(
        path,
        {
            "samples": {"seconds": [0.5], "loss": [float("nan")]},
            "ended": 1.0,
            "summary": {"bus_gbs": {"64": 1.0}},
            "options": {"name": "\udcff"},
        },
    )
    found = json.loads(path.read_text())
    assert found["schema"] == 2
    assert found["samples"]["loss"] == [None]
    assert found["units"] == {
        "samples.seconds": "s",
        "samples.loss": "1",
        "ended": "s",
        "summary.bus_gbs": "GB/s",
    }
    run = VERDICTS.data({"seconds": 1.0, "verdicts": [{"seconds": 2.0, "job": {}}]})
    assert run["units"] == {"seconds": "s", "verdicts[].seconds": "s"}


def test_a_result_that_is_not_there_is_a_fault_of_its_kind(tmp_path):
    (gone,) = read_result(tmp_path / "result.json").faults
    assert str(gone) == "missing result: the program wrote no result.json"
    (tmp_path / "result.json").write_text("{")
    (cut,) = read_result(tmp_path / "result.json").faults
    assert "result.json cannot be read" in str(cut)
    assert gone.kind is cut.kind is FaultKind.NO_RESULT


def test_a_measuring_program_writes_what_the_schema_says(tmp_path):
    program = (
        "from hpcdl.measure import write_measurement; write_measurement('copies', ['n'], 0, {}, "
    )
    program += "options={}, samples={}, summary={'host_to_host_gbs': 9.5})"
    where = {**os.environ, "HPCDL_JOB_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=where, check=True)
    values = json.loads((tmp_path / "result.json").read_text())
    jsonschema.validate(values, RESULT.schema)
    record = RESULT.read(tmp_path / "result.json")
    assert (record.faults, record.values) == ({}, values)
    assert values["units"]["summary.host_to_host_gbs"] == "GB/s"
    assert values["outcome"] == outcome("completed")


def test_a_command_prints_each_schema(hpcdl):
    names = ("result", "progress", "verdicts", "expectation", "request", "dataset")
    printed = [json.loads(hpcdl("schema", name).out) for name in names]
    assert printed == [kind.schema for kind in FORMATS]


def test_writing_needs_nothing_but_python():
    """Programs on compute nodes import it beside a TensorFlow of whatever age."""
    program = "import sys; from hpcdl.results.records import RESULT; RESULT.data({}); "
    program += "sys.exit(not {'yaml', 'jinja2', 'jsonschema'}.isdisjoint(sys.modules))"
    subprocess.run([sys.executable, "-c", program], check=True)
