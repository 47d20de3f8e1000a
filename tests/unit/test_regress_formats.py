"""Verdicts for other programs are well formed, whatever a reason holds."""

import re
import shutil
import subprocess
import xml.etree.ElementTree as ET

import pytest

from hpcdl.regress.formats import FORMATS, as_junit, as_markdown, as_prometheus, read_run
from hpcdl.system.errors import BadInput
from tests.make.results import METRIC, run_file, verdict
from tests.make.sites import shipped

ODD = 'loss "nan" <b> | \x00\x1b[31m & \\ back\nslash'


def keep(folder, *verdicts):
    """A run's verdicts where a command looks for them."""
    run_file(folder, *verdicts, **{key: RUN[key] for key in RUN.keys() - {"verdicts"}})


RUN = {
    "schema": 2,
    "seconds": 12.0,
    "verdicts": [
        verdict("PASS"),
        verdict("FAIL", ODD),
        verdict("ERROR", ODD, metrics=[]),
        verdict("STALE", waived=True, ok=True),
        verdict("NO-REFERENCE", job={"nodes": ODD}),
    ],
}


def test_junit_counts_failures_and_errors_apart():
    suite = ET.fromstring(as_junit(RUN))
    assert [suite.get(key) for key in ("tests", "failures", "errors")] == ["5", "2", "1"]
    assert [len(suite.findall(f".//{kind}")) for kind in ("failure", "error")] == [2, 1]
    assert 'loss "nan" <b>' in str(suite.find(".//failure").get("message"))


def test_a_markdown_table_has_one_line_per_verdict_and_six_cells():
    lines = as_markdown(RUN).splitlines()
    assert len(lines) == 2 + 5
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 7 for line in lines)


def test_prometheus_lines_have_the_form_of_its_text_format():
    sample = re.compile(r'[a-z_]+\{([a-z]+="(?:[^"\\\n]|\\.)*",?)+\} -?[0-9.e+-]+\Z')
    each = [{**verdict, "case": f"mlp-{n}"} for n, verdict in enumerate(RUN["verdicts"])]
    text = as_prometheus({"verdicts": each})
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(sample.match(line) for line in lines)
    assert sum(line.startswith("hpcdl_check_status") for line in lines) == 5


def test_promtool_finds_nothing_wrong():
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (apt-get install prometheus)")
    words, text = ["promtool", "check", "metrics"], as_prometheus({"site": "here", **RUN})
    done = subprocess.run(words, input=text, text=True, capture_output=True, check=False)
    assert done.returncode in {0, 3}, done.stderr
    assert "error while linting" not in done.stderr


def series(run):
    """What Prometheus's file says of each series; none may be there twice."""
    lines = [line for line in as_prometheus(run).split("\n") if line and not line.startswith("#")]
    found = dict(line.rsplit(" ", 1) for line in lines)
    assert len(found) == len(lines)
    return found


def test_series_of_several_nodes_stay_apart_in_prometheus_file():
    each = [verdict("PASS", job={"nodes": f"p100-0{node}"}) for node in (1, 2)]
    found = series({"verdicts": [*each, verdict("ERROR", job=None), verdict("ERROR", job={})]})
    labels = 'site="",check="throughput",case="mlp",partition="p100",environment="",node="{}"'
    assert [
        found[f'hpcdl_check_status{{{labels.format(node)},waived="false"}}']
        for node in ("p100-01", "p100-02", "")
    ] == ["0", "0", "2"]


def test_of_repeats_on_one_node_the_last_counts_with_what_it_measured():
    slow, lost = verdict("FAIL", metrics=[METRIC | {"value": 50.0}]), verdict("ERROR", metrics=[])
    for last, told in ((slow, ["1", "50.0", "100.0", "80.0"]), (lost, ["2"])):
        assert [*series({"verdicts": [verdict("PASS"), last]}).values()] == told


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1, 2",
        '{"verdicts": 3}',
        '{"verdicts": {}}',
        "[" * 100_000,
        '{"verdicts": ' * 100_000,
    ],
)
def test_a_run_without_verdicts_is_said_so(tmp_path, hpcdl, text):
    (tmp_path / "verdicts.json").write_text(text)
    assert "no verdicts" in hpcdl("check", "report", str(tmp_path), code=2).err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metrics": 5}, ".metrics must be a list, not '5'"),
        ({"metrics": [{}]}, ".metrics[0] lacks the key 'name'"),
        ({"metrics": [3]}, ".metrics[0] must be a mapping, not '3'"),
        ({"metrics": [METRIC | {"value": True}]}, ".metrics[0].value must be a number, not 'True'"),
        (
            {"metrics": [METRIC | {"low": 10**400}]},
            ".metrics[0].low must be a number, not 'a number too large'",
        ),
        ({"seconds": None}, ".seconds has no value"),
        ({"seconds": float("nan")}, ".seconds must be a number, not 'nan'"),
        ({"reason": None}, ".reason has no value"),
        *(
            ({key: "lacks"}, f" lacks the key '{key}'")
            for key in ("seconds", "metrics", "partition", "waived")
        ),
        ({"ok": "no"}, ".ok must be true or false, not 'no'"),
        ({"status": "SLOW"}, ".status is 'SLOW', not PASS, FAIL, NO-REFERENCE"),
        ({"job": [7]}, ".job must be a mapping, not a list"),
        ({"job": {"nodes": ["a"]}}, ".job.nodes must be text, not a list"),
    ],
)
def test_a_verdict_that_cannot_be_told_is_named_with_its_fault(tmp_path, changes, message):
    odd = {key: value for key, value in (verdict("PASS") | changes).items() if value != "lacks"}
    keep(tmp_path, verdict("PASS"), odd)
    with pytest.raises(BadInput, match=re.escape(f"verdicts[1]{message}")):
        read_run(tmp_path)


def test_a_check_that_measured_no_number_is_told_all_the_same(tmp_path):
    no_number = METRIC | {"value": float("nan"), "high": float("inf")}
    keep(tmp_path, verdict("ERROR", metrics=[no_number]))
    assert all(write(read_run(tmp_path)) for write in FORMATS.values())


@pytest.mark.parametrize("name", FORMATS)
def test_half_a_character_in_a_text_can_be_written(tmp_path, name):
    keep(tmp_path, verdict("FAIL", "why", check="half \ud800 of it"))
    assert b"half ? of it" in FORMATS[name](read_run(tmp_path), None).encode()


def test_without_a_folder_the_newest_run_is_told(hpcdl):
    latest = shipped().paths.work / "checks" / "latest"
    latest.mkdir(parents=True)
    keep(latest, *RUN["verdicts"])
    assert "| throughput/mlp | p100 | PASS |" in hpcdl("check", "report", "--site", "embedded").out
