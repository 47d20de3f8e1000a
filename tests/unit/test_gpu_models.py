"""GPU models that a site describes, and partitions of several: read, asked for, refused."""

import json
import re
import runpy
import sys
from collections import defaultdict
from dataclasses import replace

import pytest
from trainings import TrainingCase

from hpcdl import facts
from hpcdl.cli.site import as_data, as_text
from hpcdl.jobs import JobSpec, Module, render_script
from hpcdl.jobs.layout import cluster_of, plan_on
from hpcdl.jobs.lint import lint
from hpcdl.jobs.sweep import plan
from hpcdl.predict.machine import of_partition
from hpcdl.predict.request import ScalingRequest, answer
from hpcdl.regress.reframe_adapter.settings import render_settings
from hpcdl.regress.training import job_on
from hpcdl.results.gpus import find_row, gpu_named, matches, may_be, one_group, out_of_scope
from hpcdl.site import StackRequest, load_site
from hpcdl.stack.resolve import Resolver, why_not
from hpcdl.stack.resolve_facts import models, serves
from hpcdl.stack.resolve_solution import as_text as resolution_text
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.resources import folder
from hpcdl.workflows.expectation import expect, why_none
from hpcdl.workflows.site_plan import targets
from tests.make.sites import MIXED, refused_site, shipped
from tests.make.specs import script
from tests.unit.conftest import environment_for

OWN = "gpus:\n  X1: {compute: 8.9, memory_gb: 16}\n"
GROUPS = MIXED.read_text()


def refused(tmp_path, old, new):
    return refused_site(tmp_path / "site.yaml", GROUPS, (old, new))


@pytest.fixture(scope="module")
def mixed():
    return shipped("mixed")


def alone(site, model, name="x", **changes):
    """The site with one partition only, of one model."""
    part = replace(site.partition("sizes").groups[0], gpu=gpu_named(model), fellows=(), **changes)
    return replace(site, partitions={name: replace(part, name=name)}, default_partition=name)


@pytest.mark.parametrize("model", ["MI250", "mi300x", "AMD-Instinct-MI100", "gfx90a", "PVC"])
def test_other_vendors_are_out_of_scope_and_cpu_partitions_still_work(tmp_path, model):
    shown = refused(tmp_path, "model: A40", f"model: {model}")
    assert "does not serve" in shown
    assert "leave out `gpu`" in shown


@pytest.mark.parametrize("model", ["MIG-1g.5gb", "M60", "A30", "max-model", "Maxwell"])
def test_nvidias_models_are_not_taken_for_others(model):
    assert out_of_scope(model) == ""


@pytest.mark.parametrize(
    ("model", "cards"),
    [
        ("H100", "H100-SXM5, H100-PCIe or H100-NVL"),
        ("a100", "A100-PCIe-40GB, A100-SXM4-40GB, A100-SXM4-80GB or A100-PCIe-80GB"),
        ("A100-80GB", "A100-SXM4-80GB or A100-PCIe-80GB"),
        ("A100-PCIe", "A100-PCIe-40GB or A100-PCIe-80GB"),
        ("P100", "P100-PCIe or P100-SXM2"),
        ("V100-32GB", "V100-PCIe-32GB, V100-SXM2-32GB or V100-SXM3-32GB"),
    ],
)
def test_a_name_of_several_cards_is_refused_with_them(tmp_path, model, cards):
    assert f"the GPU model '{model}' may be {cards}" in refused(tmp_path, "A40", model)
    assert f"may be {cards}" in refused(tmp_path, "X1: {", f"{model}: {{")


def test_a_name_of_several_groups_is_no_choice_of_one():
    site = shipped("mixed")
    groups = site.partition("sizes").groups
    cards = ("H100-PCIe", "H100-NVL")
    several = [replace(one, gpu=gpu_named(m)) for one, m in zip(groups, cards, strict=True)]
    part = replace(site.partition("sizes"), groups=tuple(several))
    with pytest.raises(BadInput, match="'sizes' has several GPU models") as caught:
        one_group(part, "H100")
    assert "--gpu-model H100-PCIe" in caught.value.hint
    assert one_group(part, "H100-NVL").gpu.memory_gb == 94


@pytest.mark.parametrize("model", ["V100-SXM2", "p100-pcie", "H200", "H100-SXM", "2080Ti", "GH200"])
def test_a_name_of_one_card_is_taken(model):
    assert may_be(model) == []
    assert gpu_named(model).memory_gb > 0


def test_what_the_site_says_goes_before_the_facts_key_by_key():
    row = find_row("a100", {"A100-SXM4-40GB": {"memory_gb": 96, "tdp_w": 300}})
    assert (row["model"], row["memory_gb"], row["tdp_w"]) == ("A100-SXM4-40GB", 96, 300)
    assert row["memory_gbs"] == 1555


def test_every_row_of_the_facts_can_be_used():
    known = set(facts.load("gpus")["capabilities"]["known"])
    for name, row in facts.load("gpus")["gpus"].items():
        gpu = gpu_named(name)
        assert gpu.compute in known
        assert row["sm"] == f"sm_{gpu.compute.replace('.', '')}"
        assert row["proof"] in facts.PROOFS
        assert gpu.figures.memory_gbs * gpu.figures.fp32_tflops > 0


def test_the_guard_knows_the_models_of_the_site_and_tells_like_names_apart():
    named = models(("80", "89"), [gpu_named("T4")._replace(model="X9", compute="8.9")])
    assert {"X9", "L4", "L40S", "RTX 6000 Ada", "A100"} <= set(named)
    assert not {"B200", "P100", "RTX"} & set(named)


def test_a_model_that_hpcdl_never_saw_is_resolved_rendered_and_predicted(mixed):
    (_, x1) = mixed.partition("named").groups
    assert (x1.gpu.model, x1.gpu.compute, x1.gpu.gres_type) == ("X1", "8.9", None)
    (found,) = [one for one in Resolver(mixed).resolve("named", "wheels") if one.gpu == "X1"]
    assert found.fits
    assert serves(["sm_80"], found.setting.compute or "")
    with pytest.raises(BadInput, match="tf32_tflops and memory_gbs of the X1 are not known"):
        answer(ScalingRequest(x1, "resnet50", gpus="1"))
    forecast = answer(ScalingRequest(x1, "resnet50", gpus="2", images_per_second=100.0))
    assert 150 < forecast.points[0].images_per_second < 200
    assert 100 < forecast.points[0].images_per_second <= 200


def test_a_measured_half_of_a_gpu_without_that_figure_is_not_guessed(mixed):
    p4, _ = mixed.partition("named").groups
    ada = replace(p4, gpu=gpu_named("RTX-6000-Ada")._replace(per_node=2))
    assert of_partition(ada).lacks("fp32") == ()
    assert of_partition(ada).lacks("amp") == ("half_tflops",)
    with pytest.raises(BadInput, match="half_tflops of the RTX-6000-Ada"):
        answer(ScalingRequest(ada, "resnet50", gpus="1", precision="amp"))
    assert answer(ScalingRequest(ada, "resnet50", gpus="1", precision="fp32")).points


def test_an_unknown_network_is_needed_beyond_a_node_only(mixed):
    a100, _ = mixed.partition("typed").groups
    assert (a100.interconnect.fabric, a100.interconnect.bandwidth_gbps) == ("unknown", None)
    assert answer(ScalingRequest(a100, "resnet50", gpus="4")).points[0].gpus == 4
    everything = answer(ScalingRequest(a100, "resnet50"))
    assert everything.points[-1].gpus == 4
    assert "interconnect: {fabric" in everything.notes[-1]
    for gpus in ("8", "4,8"):
        with pytest.raises(BadInput, match="network between the nodes of 'typed' is not known"):
            answer(ScalingRequest(a100, "resnet50", gpus=gpus))
    told = replace(a100, interconnect=replace(a100.interconnect, measured_gbs=5.0))
    assert answer(ScalingRequest(told, "resnet50", gpus="8")).points[0].step.nodes == 2


def test_whoever_expects_something_of_an_unknown_network_says_so(mixed):
    program = ("hpcdl", "train", "--model", "resnet50", "--data", "synthetic", "--steps", "50")
    spec = JobSpec("typed", gpus=8, gpu_model="a100", program=program)
    assert expect(mixed, spec) is None
    assert "the network of 'typed' is not known; say it in the site file" in why_none(mixed, spec)
    assert why_none(mixed, replace(spec, gpus=4)) == ""
    assert why_none(mixed, replace(spec, program=("python", "x.py"))) == ""
    a100, _ = mixed.partition("typed").groups
    case = TrainingCase("resnet50", 2, 4, steps=100, batch=64, data="synthetic", real=True)
    checks = runpy.run_path(str(folder("reframe_checks") / "training.py"))
    assert checks["expected_efficiency"](case, a100, 300.0, "scaling") is None


def selected(site, partition, model, **asked):
    """The directives that choose GPUs."""
    words = ("--gpus", "--gres", "--constraint", "--exclude", "--nodes")
    found = script(site, partition, gpu_model=model, **asked)
    return [one for one in found.directives if one.startswith(words)]


@pytest.mark.parametrize(
    ("partition", "model", "gpus", "expected"),
    [
        ("typed", "l40s", 8, ["--nodes=1", "--gpus-per-node=l40s:8"]),
        ("typed", "A100", 8, ["--nodes=2", "--gpus-per-node=a100:4"]),
        ("typed", "a100-pcie", 1, ["--nodes=1", "--gpus-per-node=a100:1"]),
        ("typed", None, 4, ["--nodes=1", "--gpus-per-node=4"]),
        ("untyped", "T4", 4, ["--nodes=1", "--gpus-per-node=4", "--constraint=t4"]),
        ("untyped", None, 8, ["--nodes=2", "--gpus-per-node=4", '--constraint="[a40|t4]"']),
        ("named", "P4", 2, ["--nodes=1", "--gpus-per-node=2", "--exclude=n3"]),
        ("named", "x1", 2, ["--nodes=1", "--gpus-per-node=2", '--exclude="n[1-2]"']),
        ("sizes", "v100", 4, ["--nodes=2", "--gpus-per-node=v100:2", "--exclude=s3"]),
        ("sizes", None, 8, ["--nodes=1", "--gpus-per-node=v100:8", '--exclude="s[1-2]"']),
    ],
)
def test_slurm_is_told_by_type_by_feature_or_by_name(mixed, partition, model, gpus, expected):
    assert selected(mixed, partition, model, gpus=gpus) == expected


@pytest.mark.parametrize(
    ("partition", "asked", "said"),
    [
        ("typed", {"gpus": 8}, "would train together"),
        ("typed", {"gpus": 999}, "no GPU model of 'typed' can hold this job"),
        ("typed", {"gpus": 5}, "not every GPU model of 'typed' can hold this job"),
        ("typed", {"gpus": 9, "gpu_model": "l40s"}, "do not fill whole nodes"),
        ("typed", {"gpus": 8, "gpu_model": "h100"}, "no node of 'typed' has the GPU model 'h100'"),
        ("typed", {"gpus": 8, "gpu_model": ""}, "no node of 'typed' has the GPU model ''"),
        ("typed", {"gpus": 8, "gpu_model": "l40"}, "no node of 'typed' has the GPU model 'l40'"),
        ("named", {"gpus": 4, "nodes": 2}, "not every GPU model"),
    ],
)
def test_what_no_node_can_hold_is_refused_with_what_would(mixed, partition, asked, said):
    with pytest.raises(BadInput) as caught:
        plan_on(mixed, JobSpec(partition, **asked))
    assert said in caught.value.message
    assert "ask for" in caught.value.hint


def test_a_job_that_any_model_may_run_takes_what_the_smallest_node_has(mixed):
    nodes, layout = plan_on(mixed, JobSpec("typed", gpus=4))
    assert nodes is mixed.partition("typed")
    assert (layout.cpus_per_task, layout.memory_mb, layout.exclusive) == (8, 250000, False)


def test_a_job_that_any_model_may_run_expects_nvlink_of_none(tmp_path):
    (tmp_path / "site.yaml").write_text(GROUPS.replace("A100-PCIe-40GB", "A100-SXM4-80GB"))
    site = load_site(tmp_path / "site.yaml")
    common = site.partition("typed").gpu
    assert (common.model, common.memory_gb, common.nvlink) == ("A100-SXM4-80GB", 48, False)
    text = GROUPS.replace("gres_type: v100, per_node: 8", "typed: false, per_node: 8")
    (tmp_path / "site.yaml").write_text(text)
    (alike, _) = load_site(tmp_path / "site.yaml").partition("sizes").groups
    assert alike.gpu.gres_type == "v100", "two groups of one model, by type and by name"


def test_a_users_constraint_does_not_undo_the_choice(mixed):
    spec = JobSpec("untyped", gpus=1, gpu_model="t4", sbatch=("constraint=ib",))
    with pytest.raises(BadInput, match="which GPU model the job is for"):
        render_script(mixed, spec, Module(()))
    typed = replace(spec, partition="typed", gpu_model="l40s")
    assert "--constraint=ib" in render_script(mixed, typed, Module(())).directives


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("nodes: 6\n", "nodes: 7\n", "the groups have 6 nodes, but 'nodes' of 'typed' is 7"),
        ('hostlist: "g[05-06]"', 'hostlist: "h[05-06]"', "does not name h05, h06"),
        ('hostlist: "g[05-06]"', 'hostlist: "g[05-07]"', "names 3 nodes, but 'nodes' is 2"),
        ('hostlist: "g[05-06]"', 'hostlist: "g[06-05]"', "runs backwards"),
        ("    groups:\n", "    gpu: {model: T4, per_node: 1}\n    groups:\n", "each group says"),
        ('nodes: 2, hostlist: "g[05-06]", ', "", "lacks the key 'nodes'"),
        ("gres_type: l40s, per_node: 8}, memory_gb: 500", "max_time: '1'}", "key 'max_time'"),
        (
            'hostlist: "n[1-2]", ',
            "",
            "Slurm cannot distinguish these nodes from the partition's others",
        ),
        ("X1: {compute: 8.9,", "X1: {compute: 8.4,", "there is no compute capability 8.4"),
        ("X1: {compute: 8.9, memory_gb: 16}", "X1: {compute: 8.9}", "'X1' lacks 'memory_gb'"),
        ("X1: {compute: 8.9,", "X1: {", "'X1' lacks 'compute'"),
        ("X1: {compute: 8.9, memory_gb: 16}", "X1:", "'X1' has no value"),
        ("compute: 8.9", "compute: eight", "'compute' is 'eight'"),
        ("memory_gb: 16}", "memory_gb: 16, driver_name: 'a\"b'}", "driver_name"),
        ("memory_gb: 16}", "memory_gb: 16, vendor: amd}", "is a GPU of AMD"),
        ("X1: {compute: 8.9,", "MI250X: {compute: 9.0,", "is a GPU of AMD"),
        (OWN, "gpus: []\n", "'gpus' must be a mapping"),
    ],
)
def test_groups_and_models_that_cannot_be_are_shown_with_a_caret(tmp_path, old, new, said):
    shown = refused(tmp_path, old, new)
    assert said in shown
    assert "^" in shown


def test_the_site_is_shown_group_by_group(mixed):
    assert "8 x L40S" in as_text(mixed)
    assert "GPU X1: sm_89, 16 GB" in as_text(mixed)
    groups = json.loads(json.dumps(as_data(mixed)))["partitions"]["typed"]["groups"]
    assert [one["gpu"]["model"] for one in groups] == ["A100-PCIe-40GB", "L40S"]


def test_the_resolution_of_a_mixed_partition_has_each_model_the_oldest_first(mixed):
    """And tells the other backend once for each."""
    assert [one.gpu for one in Resolver(mixed).resolve("untyped", "wheels")] == ["T4", "A40"]
    text = resolution_text(Resolver(mixed).resolve("typed"))
    told = re.findall(r"^(.*) instead:", text, re.M)
    models, ways = ("A100-PCIe-40GB", "L40S"), ("Spack", "Spack with wheels")
    assert told == [f"typed ({model}) by {way}" for way in ways for model in models]


def test_wheels_beside_other_cpus_are_refused_with_their_source(mixed):
    site = alone(mixed, "GH200", "gh")
    wheels, spack = (
        Resolver(site).resolve("gh", "wheels")[0],
        Resolver(site).resolve("gh", "spack")[0],
    )
    assert not wheels.fits
    assert "121157" in wheels.problems[0][0].source
    assert spack.fits
    assert "aarch64" in spack.notes[-1]
    (answer,) = why_not(site, "tensorflow@2.21", "gh", "wheels")
    assert "aarch64" in answer.problems[-1][0].why, "as the resolution says"
    beside = resolution_text([spack, replace(wheels, wanted=False)])
    assert "gh (GH200) by wheels instead: GH200 is in nodes with aarch64" in beside


def test_a_gpu_beside_other_cpus_is_never_part_of_a_build_for_x86(mixed):
    site = alone(mixed, "H100-SXM5", "h100")
    stack = StackRequest("tensorflow", "wheels", (), {})
    parts = site.partitions | alone(mixed, "GH200", "gh").partitions
    site = replace(site, partitions=parts, stacks={stack.name: stack})
    assert Resolver(site).groups(stack) == (("h100",), ("gh",))
    found = {one.partitions: one.blocked for one in targets(site)}
    assert "aarch64" in found["gh",]
    assert "aarch64" not in found["h100",]


def test_a_name_means_a_model_and_no_part_of_it(mixed):
    (_, l40s) = mixed.partition("typed").groups
    names = ("L4", "l40s", "L40S", "a100", "L", "")
    assert [name for name in names if matches(l40s.gpu, name)] == ["l40s", "L40S"]


def test_the_command_line_predicts_one_model_of_several(hpcdl):
    words = ["predict", "--site", str(MIXED), "--partition", "typed", "--model", "resnet50"]
    assert "--gpu-model L40S (2 nodes x 8)" in hpcdl(*words, "--gpus", "1", code=2).err
    said = hpcdl(*words, "--gpus", "1", "--gpu-model", "l40s").out
    assert "L40S, 8 per node, network unknown" in said


def test_checks_are_of_one_model_each(mixed):
    labels = [part.label for part in mixed.by_groups()]
    assert labels == [
        "typed:A100-PCIe-40GB",
        "typed:L40S",
        "untyped:A40",
        "untyped:T4",
        "named:P4",
        "named:X1",
        "sizes:V100-PCIex2",
        "sizes:V100-PCIex8",
    ]
    assert [mixed.partition(label).label for label in labels] == labels
    for wrong in ("typed:", "typed:H100", "other:L40S", ":", "typed:l40s:"):
        with pytest.raises(BadInput, match="has no partition"):
            mixed.partition(wrong)


def test_a_check_asks_for_the_nodes_of_its_model(mixed):
    spec = job_on(mixed.partition("untyped:T4"), "throughput", ("true",), nodes=2, ranks=4)
    found = selected(mixed, spec.partition, spec.gpu_model, nodes=2, gpus_per_node=4)
    assert found == ["--nodes=2", "--gpus-per-node=4", "--constraint=t4"]
    text = render_settings(
        mixed, defaultdict(lambda: Module(())), partitions=["untyped", "typed:L40S"]
    )
    values = {}
    exec("\n".join(line for line in text.splitlines() if "reframe_adapter" not in line), values)
    parts = values["site_configuration"]["systems"][0]["partitions"]
    assert [part["name"] for part in parts] == ["untyped_A40", "untyped_T4", "typed_L40S"]
    assert parts[1]["access"] == ["--partition=untyped", "--constraint=t4"]
    assert parts[1]["extras"]["reference_set"] == "t4"
    assert parts[2]["resources"][0]["options"] == ["--gpus-per-node=l40s:{num_gpus_per_node}"]


def test_one_build_by_spack_has_code_for_every_model_of_its_partition(mixed):
    assert environment_for(mixed, "typed").archs == ("80", "89")
    assert environment_for(mixed, "typed:L40S").archs == ("89",)
    kepler, newer = (alone(mixed, model).partitions["x"] for model in ("K80", "B200"))
    both = (replace(kepler, fellows=(newer,)), replace(newer, fellows=(kepler,)))
    site = replace(mixed, partitions={"x": replace(kepler, groups=both)})
    with pytest.raises(MissingPrerequisite, match="with all its GPU models"):
        environment_for(site, "x")


def test_a_sweep_goes_over_models(mixed):
    base = JobSpec("typed", gpus=8, program=("python", "x.py"))
    found = plan(mixed, base, {"gpu-model": ("a100", "l40s", "h100")})
    assert [bool(one.problem) for one in found] == [False, False, True]


def test_the_linter_takes_the_largest_node_of_a_type(mixed):
    refused = []
    for one in ("gpus-per-node=l40s:8", "gpus-per-node=8", "gpus-per-node=a100:8", "gres=gpu:9"):
        text = f"#!/bin/bash\n#SBATCH --partition=typed\n#SBATCH --{one}\nsrun true\n"
        rows = lint(text, name="x", version="24.05", cluster=cluster_of(mixed))
        refused += [one for row in rows if row.rule.id == "partition-limit"]
    assert refused == ["gpus-per-node=a100:8", "gres=gpu:9"]


TO_PYTHON_3_12 = pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="TensorFlow 2.16 has no wheels for this Python"
)


@pytest.mark.parametrize(
    ("model", "tensorflow", "cuda"),
    [
        pytest.param("M60", "2.16.2", "12.", marks=TO_PYTHON_3_12),
        ("B200", "2.21.0", "12.9"),
        *((model, "2.21.0", "12.") for model in ("P4", "T4", "A10", "L4", "L40S", "RTX-4090")),
    ],
)
def test_each_newer_model_has_a_set_from_wheels(mixed, model, tensorflow, cuda):
    (found,) = Resolver(alone(mixed, model)).resolve("x", "wheels")
    assert found.fits
    assert found.versions["tensorflow"] == tensorflow
    assert found.versions["cuda"].startswith(cuda)


def test_a_driver_older_than_blackwell_is_in_the_way(mixed):
    (found,) = Resolver(alone(mixed, "B200", driver="550.54.14")).resolve("x", "wheels")
    assert not found.fits
    why = {rule.why for chain in found.problems for rule in chain}
    assert "Blackwell came with CUDA 12.8 and its driver" in why
