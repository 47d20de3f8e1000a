"""The model against published rows: how good it is, and that it has not seen the answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl import facts
from hpcdl.predict.hardware import of_host
from hpcdl.predict.records import Bases, Record, read_records
from hpcdl.predict.step import constants
from hpcdl.predict.validate import (
    Case,
    Validation,
    case_of,
    cross_fit,
    errors,
    grouped,
    judge,
    split_sources,
    validate,
)
from hpcdl.system.errors import BadInput
from tools.anchor import solve

ROW = """records:
- id: one
  source: somebody
  hardware: NVIDIA DGX-1, 8x V100
  gpu: V100-SXM2
  gpus: 1
  model: resnet50
  batch_per_gpu: 128
  data: synthetic
  variable_update: horovod
  images_per_sec: 360
- id: eight
  source: somebody
  hardware: NVIDIA DGX-1, 8x V100
  gpu: V100-SXM2
  gpus: 8
  nodes: 1
  model: resnet50
  batch_per_gpu: 128
  data: synthetic
  variable_update: horovod
  images_per_sec: 2800
"""


@pytest.fixture(scope="module")
def records() -> tuple[Record, ...]:
    return read_records()


@pytest.fixture(scope="module")
def found(records: tuple[Record, ...]) -> Validation:
    return validate(records)


def written(folder: Path, text: str) -> Path:
    path = folder / "rows.yaml"
    path.write_text(text)
    return path


def test_published_rows_are_met_within_the_aim(found: Validation) -> None:
    overall = errors([row.error for row in found.judged])
    assert overall.rows > 200
    assert overall.median <= 0.04
    assert overall.ninetieth <= 0.12
    assert abs(overall.bias) <= 0.04


def test_constants_fitted_on_one_half_meet_the_aim_on_the_other(found: Validation) -> None:
    assert found.crossed is not None
    assert found.crossed.median <= 0.04
    assert found.crossed.ninetieth <= 0.12


def test_every_row_of_several_gpus_is_judged_or_named_with_a_reason(
    records: tuple[Record, ...], found: Validation
) -> None:
    named = [row.case.record.id for row in found.judged] + [row.record.id for row in found.unfit]
    assert sorted(named) == sorted(record.id for record in records if record.gpus != 1)
    assert all(row.reason for row in found.unfit)


def test_a_prediction_does_not_depend_on_any_measured_row_of_several_gpus(
    records: tuple[Record, ...], found: Validation
) -> None:
    wrong = tuple(
        replace(r, rate=r.rate and 3 * r.rate, speedup=r.speedup and 3 * r.speedup)
        if r.gpus != 1
        else r
        for r in records
    )
    before = {row.case.record.id: row.predicted for row in found.judged}
    cases = [case_of(r, Bases(wrong)) for r in wrong if r.gpus != 1]
    after = [judge(case, constants("early")) for case in cases if isinstance(case, Case)]
    assert before.items() <= {row.case.record.id: row.predicted for row in after}.items()


def test_a_half_is_judged_by_constants_that_its_own_rows_do_not_change(
    records: tuple[Record, ...], found: Validation
) -> None:
    half = found.halves[0]
    wrong = tuple(
        replace(r, rate=r.rate and 0.8 * r.rate) if r.gpus != 1 and r.source in half.sources else r
        for r in records
    )
    cases = [
        case
        for case in (case_of(r, Bases(wrong)) for r in wrong if "do not use" not in r.notes)
        if isinstance(case, Case) and case.record.gpus != 1
    ]
    again, _ = cross_fit(cases, constants("early"))
    assert again[0].constants == half.constants
    assert again[1].constants != found.halves[1].constants


def test_the_constants_are_those_that_horovods_own_figures_give() -> None:
    contention, straggler = solve()
    assert constants().contention == pytest.approx(contention, abs=0.005)
    assert constants().straggler == pytest.approx(straggler, abs=0.0005)


def test_no_row_of_the_constants_source_is_judged(records: tuple[Record, ...]) -> None:
    assert not [r.id for r in records if r.gpus == 512 or "sergeev" in r.source.lower()]


def test_the_stated_uncertainty_is_what_validation_finds(found: Validation) -> None:
    known = facts.load("links")["uncertainty"]
    for name, several in (("within", False), ("across", True)):
        factors = sorted(
            1 / (1 + row.error) for row in found.judged if (row.case.record.nodes > 1) == several
        )
        tenth, ninetieth = factors[len(factors) // 10], factors[9 * len(factors) // 10]
        assert known[name]["low"] == pytest.approx(tenth, abs=0.01)
        assert known[name]["high"] == pytest.approx(ninetieth, abs=0.01)


def test_a_batch_that_the_table_lacks_comes_from_the_sources_scripts_or_from_memory(
    found: Validation,
) -> None:
    rows = {row.case.record.id: row.case for row in found.judged}
    known = rows["nvdle-2109-v100-efficientnet_v1_b4-amp-8"]
    assert (known.training.batch, known.assumed) == (64, ())
    guessed = rows["dell-p100-mxnet-googlenet-16"]
    assert guessed.assumed == (f"batch {guessed.training.batch} per GPU",)


def test_a_base_shares_source_hardware_and_settings(records: tuple[Record, ...]) -> None:
    row = next(r for r in records if r.id == "tf2017-gce-resnet50-b32-real-8")
    base = Bases(records).of(row)
    assert base is not None
    assert base.id == "tf2017-gce-resnet50-b32-real-1"


def test_groups_hold_every_row_once(found: Validation) -> None:
    groups = grouped(found.judged, lambda row: row.case.record.model)
    assert sum(group.rows for group in groups.values()) == len(found.judged)


def test_sources_are_split_into_halves_of_like_size() -> None:
    assert split_sources(["a"] * 5 + ["b"] * 3 + ["c"] * 2) == (("a",), ("b", "c"))
    assert split_sources(["a", "a"]) == (("a",),)


def test_ninetieth_percentile_and_median_are_of_the_sizes() -> None:
    found = errors([-0.1 * index for index in range(1, 11)])
    assert (found.median, found.ninetieth) == (pytest.approx(0.55), pytest.approx(0.9))
    assert found.bias == pytest.approx(-0.55)


def test_a_file_of_ones_own_is_judged(tmp_path: Path) -> None:
    found = validate(read_records(written(tmp_path, ROW)))
    assert [row.case.record.id for row in found.judged] == ["eight"]
    assert found.halves == ()
    assert abs(found.judged[0].error) < 0.1


def test_an_unknown_host_is_assumed_and_said(tmp_path: Path) -> None:
    text = ROW.replace("NVIDIA DGX-1, 8x V100", "our own box")
    found = validate(read_records(written(tmp_path, text)))
    assert found.judged[0].case.assumed == ("host",)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("gpus: 8\n", "gpus: null\n", "number of GPUs"),
        ("images_per_sec: 2800", "images_per_sec: null", "no number"),
        ("nodes: 1", "nodes: 3", "spread evenly"),
        ("variable_update: horovod\n  images_per_sec: 2800",
         "variable_update: replicated\n  images_per_sec: 2800", "no single-GPU row"),
        ("images_per_sec: 2800", "images_per_sec: 2800\n  notes: do not use as scaling reference",
         "source warns"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_fit_says_why(tmp_path: Path, old: str, new: str, reason: str) -> None:
    found = validate(read_records(written(tmp_path, ROW.replace(old, new))))
    assert [row.record.id for row in found.unfit] == ["eight"]
    assert reason in found.unfit[0].reason


@pytest.mark.parametrize("word", ["model: resnet50", "gpu: V100-SXM2"])
def test_unknown_networks_and_gpus_are_named(tmp_path: Path, word: str) -> None:
    text = ROW.replace(word, word + "x9").replace("V100-SXM2x9", "Z9")
    found = validate(read_records(written(tmp_path, text)))
    assert "known" in found.unfit[0].reason or "facts" in found.unfit[0].reason


def test_all_faults_of_a_file_are_shown_with_their_lines(tmp_path: Path) -> None:
    text = (
        ROW.replace("gpus: 1\n", "gpus: none\n").replace("2800", "-5").replace("id: eight", "x: y")
    )
    with pytest.raises(BadInput) as caught:
        read_records(written(tmp_path, text))
    shown = "\n".join(caught.value.details)
    assert "rows.yaml:6:9" in shown
    assert "lacks the key 'id'" in shown
    assert "below its minimum" in shown


def test_an_id_given_twice_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="1 fault"):
        read_records(written(tmp_path, ROW.replace("id: eight", "id: one")))


def test_what_the_schema_does_not_know_is_ignored(tmp_path: Path) -> None:
    text = ROW.replace("  gpus: 8", "  colour: [red, {deep: true}]\n  gpus: 8")
    assert len(read_records(written(tmp_path, text))) == 2


def test_json_is_read_as_well(tmp_path: Path) -> None:
    import json

    import yaml

    path = tmp_path / "rows.json"
    path.write_text(json.dumps(yaml.safe_load(ROW), indent=1))
    assert [record.id for record in read_records(path)] == ["one", "eight"]


@pytest.mark.parametrize(
    ("gpu", "model", "known"),
    [
        ("Tesla V100-SXM2-32GB", "ResNet-50", ("V100-SXM2", "resnet50")),
        ("NVIDIA A100", "inception3", ("A100-SXM4-40GB", "inception_v3")),
        ("t4", "VGG-16", ("T4", "vgg16")),
        ("p100 16GB", "efficientnet-b4", ("P100-PCIe", "efficientnet_v1_b4")),
    ],
)
def test_gpus_and_networks_are_known_however_a_source_writes_them(
    tmp_path: Path, gpu: str, model: str, known: tuple[str, str]
) -> None:
    text = ROW.replace("gpu: V100-SXM2", f"gpu: {gpu}").replace(
        "model: resnet50", f"model: {model}"
    )
    (tmp_path / "rows.yaml").write_text(text)
    (one,) = validate(read_records(tmp_path / "rows.yaml")).judged
    assert (one.case.machine.gpu, one.case.record.model) == known


def test_an_unknown_precision_is_named(tmp_path: Path) -> None:
    text = ROW.replace("batch_per_gpu", "precision: int8\n  batch_per_gpu")
    (tmp_path / "rows.yaml").write_text(text)
    (row,) = validate(read_records(tmp_path / "rows.yaml")).unfit
    assert row.reason == "the precision 'int8' is not known"


def test_a_file_without_single_gpu_rows_starts_from_ours(
    records: tuple[Record, ...], found: Validation
) -> None:
    held_out = tuple(r for r in records if r.gpus != 1 and r.source.startswith("Alibaba"))
    alone = validate(held_out)
    same = {row.case.record.id: row.predicted for row in found.judged}
    assert alone.judged
    assert all(row.predicted == same[row.case.record.id] for row in alone.judged)


def test_a_file_of_many_rows_is_read(tmp_path: Path) -> None:
    (tmp_path / "rows.yaml").write_text(ROW + "# a comment\n" * 100_000)
    assert len(read_records(tmp_path / "rows.yaml")) == 2


def test_our_own_rows_are_those_of_the_facts_file() -> None:
    assert read_records() == read_records(facts.path("throughput"))


@pytest.mark.parametrize(
    ("words", "link", "network"),
    [
        ("PCIe, 10 GbE", "pcie3", "ethernet 10 Gb/s"),
        ("NVLink; 2x EDR InfiniBand", "nvlink", "infiniband 200 Gb/s"),
        ("NVLink 300 GB/s, RoCE 25Gb/s", "nvlink", "ethernet 25 Gb/s"),
        ("", "nvlink", "infiniband 100 Gb/s"),
        ("0 GbE", "nvlink", "infiniband 100 Gb/s"),
        ("PCIe, 0x EDR, 0.00000 Gb/s, 25 GbE", "pcie3", "ethernet 25 Gb/s"),
    ],
)
def test_an_unknown_host_has_the_links_that_its_row_names(
    words: str, link: str, network: str
) -> None:
    machine = of_host("V100-SXM2-32GB", "somebody's box", 4, words)
    assert machine is not None
    assert (machine.pair.name, machine.network.name) == (link, network)
