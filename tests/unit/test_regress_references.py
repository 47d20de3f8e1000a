"""References: published, or measured by runs for them; files that a team can review."""

import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from hpcdl import facts
from hpcdl.jobs.spec import Module
from hpcdl.regress.references import (
    OWN_DEMAND,
    edits_of,
    from_runs,
    load_references,
    published,
    read_references,
    render_references,
    site_file,
    spread_of,
)
from hpcdl.regress.reframe_adapter.settings import reframe_name
from hpcdl.regress.run_directory import RunDirectory
from hpcdl.regress.runner import CheckOutcome, derive
from hpcdl.regress.verdict import MetricVerdict, Verdict
from hpcdl.results.faults import Status
from hpcdl.system.errors import BadInput, MissingPrerequisite
from tests.make.results import reference
from tests.make.sites import shipped

KEY = ("throughput", "mlp", "p100", "images_per_second")
OLD = reference(
    case="mlp",
    metric=KEY[-1],
    value=90.0,
    lower=-0.1,
    source="before",
    date="2025-01-01",
    release="r0",
)


@pytest.fixture
def site(tmp_path):
    return shipped(prefix=tmp_path / "prefix", work=tmp_path / "work")


@pytest.mark.parametrize("old", [[], [OLD, replace(OLD, case="other")]])
@pytest.mark.parametrize("tool", [["git", "apply"], ["patch", "-p1", "-i"]])
def test_the_diff_is_one_that_tools_take(site, old, tool):
    if shutil.which(tool[0]) is None:
        pytest.skip(f"{tool[0]} is not installed")
    site.paths.prefix.mkdir()
    if old:
        edits_of(site, old).write()
    (edit,) = edits_of(site, [replace(OLD, value=100.0)]).files
    (site.paths.prefix / "change").write_text(edit.diff)
    subprocess.run([*tool, "change"], cwd=site.paths.prefix, check=True, capture_output=True)
    assert {row.key for row in read_references(edit.path)} == {KEY, *(row.key for row in old)}
    assert edit.path.read_text() == edit.after


def test_published_references_name_records_with_a_source():
    rows = facts.load("throughput")["records"]
    records = {record["id"]: record for record in rows if "id" in record}
    for name, groups in facts.load("references")["sets"].items():
        rows = published(name)
        assert len(rows) == len({row.key for row in rows}), "a case stands twice"
        assert len(rows) == sum(len(group["records"]) for group in groups)
        for group in groups:
            assert group["why"]
            assert all(
                name.split("-")[0].upper() in records[one]["gpu"] for one in group["records"]
            )
        assert all(row.source and row.proof in {"published", "doubtful"} for row in rows)


@pytest.mark.parametrize(
    ("site_name", "gpu", "case", "value"),
    [
        ("p100-v100-k80", "k80", "resnet50-1x1-synthetic-fp32", 51.9),
        ("p100-v100-k80", "p100", "resnet50-1x1-synthetic-fp32", 219.0),
        ("p100-v100-k80", "v100", "resnet50-1x1-synthetic-fp32", 432.0),
        ("p100-v100-k80", "p100", "resnet50-1x4-synthetic-fp32", None),
        ("a100-h100", "a100", None, None),
    ],
)
def test_gpus_have_published_references_under_the_checks_own_cases(site_name, gpu, case, value):
    site = shipped(site_name)
    rows = load_references(site, [gpu])
    assert rows
    assert case is None or value in {None, rows["throughput", case, gpu, KEY[3]].value}


def test_a_file_whose_last_line_has_no_end_still_gives_a_diff(site):
    edits_of(site, [OLD]).write()
    path = site_file(site, "embedded")
    path.write_text(path.read_text().rstrip("\n"))
    (edit,) = edits_of(site, [replace(OLD, value=100.0)]).files
    assert "\\ No newline at end of file\n" in edit.diff


def test_what_was_measured_becomes_references_of_the_release_that_jobs_load(site):
    verdicts = tuple(
        Verdict(
            *KEY[:3],
            Status.PASS,
            release="r1",
            driver="580.1",
            job={"nodes": node},
            metrics=(
                MetricVerdict(KEY[3], value, "images/s"),
                MetricVerdict("shown_only", value, "", wanted=False),
                MetricVerdict("latency", value, "us"),
                MetricVerdict("demanded", value, "", source=OWN_DEMAND),
            ),
        )
        for value, node in ((100.0, "p100-02"), (104.0, "p100-01"), (102.0, "p100-01"))
    )
    outcome = CheckOutcome(RunDirectory(site.paths.work), verdicts, 1.0, machine="a box")
    (row, time) = derive(site, {"p100": Module((), None, "r2")}, outcome)
    assert (time.metric, time.lower, time.upper) == ("latency", None, 0.4), "a time: bounded above"
    assert (row.key, row.value, row.runs, row.release) == (KEY, 102.0, 3, "r2")
    assert (row.driver, row.machine) == ("580.1", "a box")
    assert row.nodes == ("p100-01", "p100-02")


def test_a_dry_run_of_a_measurement_says_what_would_run(hpcdl):
    where = ("--site", "embedded", "--partition", "p100", "--name", "throughput", "--dry-run")
    said = "would run throughput 5 times on p100, and write the references\n"
    assert hpcdl("check", "references", "measure", *where).out == said


# References: bounds from measured spread, files that a team can review.

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


@pytest.mark.parametrize("text", ["gpu.a100", "8gpu", "naïve", "a b"])
def test_names_become_what_reframe_takes(text):
    assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", reframe_name(text))
