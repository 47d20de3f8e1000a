"""What the shipped checks think, without ReFrame and without a cluster."""

import json
import math
import runpy
import subprocess
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from trainings import TrainingCase, losses_fall

from hpcdl import facts
from hpcdl.jobs.layout import plan_on
from hpcdl.jobs.preflight import Probe
from hpcdl.measure import copies
from hpcdl.predict.request import ScalingRequest, answer
from hpcdl.regress.checkbase import LOG
from hpcdl.regress.result import Measured, faults_of
from hpcdl.regress.training import ALL, job_on, metric_name
from hpcdl.results.faults import FaultKind
from hpcdl.site import load_site
from hpcdl.slurm.execution import CLUSTER
from hpcdl.system.errors import BadInput
from hpcdl.system.resources import folder

TRAINING = runpy.run_path(str(folder("reframe_checks") / "training.py"))
SHAPES, YARDSTICKS = TRAINING["SHAPES"], TRAINING["YARDSTICKS"]
expected_efficiency = TRAINING["expected_efficiency"]
LAYOUT = {"nodes": 2, "tasks_per_node": 2, "cpus_per_task": 4, "gpus_per_node": 2}
GOOD = {
    "outcome": {"status": "completed"},
    "release": "r1",
    "layout": {"ranks": 4, "nodes": ["a", "b"], "gpu_per_rank": 1},
}
RESUMED = {
    "samples": {"first_step": 200, "loss": [0.2] * 20},
    "steps": {"done": 500, "planned": 500},
}


@pytest.fixture(scope="module")
def p100(three_generations):
    return three_generations.partition("p100")


def changed(**changes):
    return Measured({**GOOD, **changes})


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({}, ""),
        ({"layout": {**GOOD["layout"], "ranks": 1}}, "1 ranks, not on the 4"),
        ({"layout": {**GOOD["layout"], "nodes": ["a"]}}, "on 1 nodes, not on 2"),
        ({"layout": {**GOOD["layout"], "gpu_per_rank": 0}}, "it ran on CPUs"),
        ({"release": "r0"}, "used release 'r0', not the site's 'r1'"),
        ({"release": None}, "release 'unknown'"),
        ({"outcome": {"status": "failed"}}, "ended as 'failed'"),
        ({"outcome": None}, "ended as 'unknown'"),
    ],
)
def test_a_number_of_a_job_that_ran_otherwise_is_no_number(change, word):
    found = faults_of(changed(**change), LAYOUT, "r1", real_gpus=True)
    assert [word in one.text for one in found] == [True] * bool(word)


def probes(count=4, **changes):
    row = Probe(0, 0, "a", count, 4, 4, ("0", "1"), "r1", None, None)
    return [
        replace(row, rank=rank, local_rank=rank % 2, host="ab"[rank // 2], **changes)
        for rank in range(count)
    ]


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (probes(), ""),
        (probes()[:3], "1 of 4 ranks did not answer"),
        (probes(gpus=("0",)), "share GPU 0"),
        (probes(gpus=()), "sees no GPU"),
        (probes(cpus=2), "has 2 CPUs, not 4"),
        (probes(affinity=1), "may run on 1 CPUs"),
        (probes(release="r0"), "release r0 loaded, not r1"),
        ([replace(probe, host="a") for probe in probes()], "4 ranks are on a, not 2"),
    ],
)
def test_a_rank_out_of_place_is_named(found, word):
    binding_faults = check_of("environment", "binding_faults")
    told = binding_faults(found, LAYOUT, "r1", bound=True)
    assert any(word in fault.text for fault in told) == bool(word)
    if "may run on" in word:
        assert binding_faults(found, LAYOUT, "r1", bound=False) == [], "Slurm binds nothing there"


def test_a_module_is_judged_as_stack_verify_judges_it(three_generations, tmp_path, monkeypatch):
    check = check_of("environment", "modules")
    release = SimpleNamespace(id="r1", versions={"tensorflow": "2.20.0"}, prefix=tmp_path, lock=())
    monkeypatch.setitem(check.faults.__globals__, "release_for", lambda *_: release)
    place = lambda: (three_generations, three_generations.partition("p100"))  # noqa: E731
    job = SimpleNamespace(
        stagedir=tmp_path, place=place, real_gpus=False, evidence={"release": "r1"}
    )
    assert check.measured(job).faults[0].kind is FaultKind.NO_RESULT
    inside = {"tensorflow": "2.21.0", "horovod": None, "place": str(tmp_path), "release": "r1"}
    kernel = {"device": "CPU:0", "model": None, "wrong": 0.0, "took": 1.0}
    seen = {"import": {**inside, "gpus": 0, "cuda": False, "took": 2.0}, "kernel": kernel}
    seen["libraries"] = {"mapped": [], "not_found": {}, "took": 0.5}
    (tmp_path / "probe.json").write_text(json.dumps(seen))
    measured = check.measured(job)
    assert measured.number("startup_seconds") == 3.5
    (fault,) = check.faults(job, measured)
    assert (fault.kind, str(fault)) == (FaultKind.VERSION, "tensorflow is 2.21.0, not 2.20.0")


def test_sizes_have_names():
    found = [metric_name(size) for size in (1 << 16, 1 << 22, 1 << 26, 12)]
    assert found == ["bus_gbs_64KiB", "bus_gbs_4MiB", "bus_gbs_64MiB", "bus_gbs_12B"]


def check_of(file, name):
    """A check's class, without a ReFrame that runs."""
    pytest.importorskip("reframe", reason="ReFrame is not installed (pip install 'hpcdl[checks]')")
    return runpy.run_path(str(folder("reframe_checks") / f"{file}.py"))[name]


@pytest.mark.parametrize(("built", "faults"), [(False, 1), (True, 0), (None, 0)])
def test_gpus_joined_without_nccl_are_a_fault(built, faults):
    found = check_of("communication", "nccl_faults")(changed(versions={"nccl_built": built}))
    assert [one.kind for one in found] == [FaultKind.NCCL] * faults


@pytest.mark.parametrize(("name", "times"), [("copies", 1), ("allreduce", 2)])
def test_nothing_is_copied_faster_than_what_joins_the_gpus(three_generations, name, times):
    most = check_of("communication", name).most
    for label, gbs in (("k80", 15.75), ("p100", 80.0), ("v100", 150.0)):
        place = (three_generations, three_generations.partition(label))
        on = SimpleNamespace(real_gpus=True, place=lambda place=place: place)
        assert most(on, None) == times * gbs
    assert most(SimpleNamespace(real_gpus=False), None) is None


@pytest.mark.parametrize(
    ("file", "name", "gpus"),
    [("data", "input_pipeline", False), ("data", "storage", False), ("training", "alone", True)],
)
def test_what_computes_nothing_misses_no_gpu(file, name, gpus):
    check = check_of(file, name)
    on_p100 = SimpleNamespace(layout=LAYOUT, execution=CLUSTER, needs_gpus=check.needs_gpus)
    assert check.real_gpus.fget(on_p100) is gpus


def test_a_node_tells_its_driver_whichever_program_ran():
    shown = SimpleNamespace(
        evidence={"driver": "1"},
        measured=lambda: Measured({"versions": {"driver": "2"}}),
        metrics=tuple,
        job=SimpleNamespace(exitcode=0, record=None),
        ended=lambda _: [],
        faults=lambda _: [],
    )
    check_of("training", "alone").gather(shown)
    assert shown.evidence["driver"] == "2", "the site file's word counts where there is none"


def test_storage_is_what_dd_read_after_the_first_pass(tmp_path):
    measured, check = check_of("data", "storage").measured, SimpleNamespace(stagedir=tmp_path)
    assert "nothing was read" in str(measured(check).faults[0])
    script = check_of("data", "READ")
    argv = ["bash", "-c", script, "read", "4", "2"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True)
    (tmp_path / LOG).write_text(f"begins\n{done.stdout}ends\n")
    found = measured(check).values["summary"]
    assert 1 < found["read_mbs"] <= found["best_read_mbs"]
    assert [path.name for path in tmp_path.iterdir()] == [LOG]


def test_storage_is_read_in_the_jobs_folder_or_in_scratch(three_generations, p100):
    request = check_of("data", "storage").request
    for where, place in (("work", "$HPCDL_JOB_DIR"), ("scratch", "/local/$SLURM_JOB_ID")):
        check = SimpleNamespace(where=where, execution=CLUSTER, check_name="storage")
        assert f'cd "{place}"' in request(check, three_generations, p100).program[2]
    with pytest.raises(BadInput, match="has no scratch"):
        request(check, three_generations, replace(p100, scratch=None))


CURVE = facts.load("loss_curves")["curves"]["mlp-digits-95"]["windows"]
HEALTHY = [row["median"] for row in CURVE for _ in range(row["first"], row["last"])]


def test_the_band_of_losses_covers_the_windows():
    assert all(row["low"] < row["median"] < row["high"] for row in CURVE)
    assert check_of("learning", "curve_faults")(HEALTHY) == []


@pytest.mark.parametrize(
    "curve",
    [
        [2.3] * 660,  # learns nothing
        [3 * loss for loss in HEALTHY],  # learns three times slower
        [loss / 3 for loss in HEALTHY],  # too good: trained on what it is tested on
        HEALTHY[:600],  # stops early
        [*HEALTHY[:-1], math.nan],
    ],
)
def test_a_loss_curve_outside_its_band_is_a_fault(curve):
    assert check_of("learning", "curve_faults")(curve)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({}, ""),
        ({"samples": {"first_step": 0, "loss": [0.2] * 20}}, "began at step 0"),
        ({"samples": {"first_step": 200, "loss": [2.3] * 20}}, "what was learnt"),
        ({"samples": {"first_step": 200, "loss": []}}, "what was learnt"),
        ({"steps": {"done": 300, "planned": 500}}, "300 of 500 steps"),
        ({"steps": {}}, "0 of 0 steps"),
    ],
)
def test_a_training_that_did_not_go_on_is_a_fault(change, word):
    measured = changed(**RESUMED | change)
    resume_faults = check_of("learning", "resume_faults")
    found = [*faults_of(measured, LAYOUT, "r1"), *resume_faults(measured)]
    assert any(word in fault.text for fault in found) == bool(word)


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


def test_the_newest_checkpoint_is_known(tmp_path):
    newest_step = check_of("learning", "newest_step")
    assert newest_step(tmp_path) == 0
    (tmp_path / "checkpoints").mkdir()
    for step in (100, 1200, 300):
        (tmp_path / "checkpoints" / f"step-{step:09d}.ckpt").touch()
    assert newest_step(tmp_path) == 1200


def test_the_model_of_scaling_expects_less_of_more_gpus(p100):
    cases = [replace(YARDSTICKS["fp32"], nodes=nodes, ranks=ALL).on(p100) for nodes in (1, 2, 4)]
    rows = [expected_efficiency(case, p100, 219.0, "s") for case in cases]
    assert 1 > rows[0].value > rows[1].value >= rows[2].value > 0.3
    assert all(-0.9 <= (row.lower or 0) < 0 for row in rows)


def test_the_bound_of_mixed_precision_counts_whole_gradients(p100):
    case = replace(YARDSTICKS["fp16"], nodes=4, ranks=ALL).on(p100)
    row = expected_efficiency(case, p100, 400.0, "s")
    asked = ScalingRequest(p100, "resnet50", "16", 64, images_per_second=400.0)
    amp, fp16 = (
        answer(replace(asked, precision=precision)).points[0].efficiency
        for precision in ("amp", "fp16")
    )
    assert row.value == pytest.approx(amp, abs=1e-4)
    assert row.value < fp16 - 1e-3


@pytest.mark.parametrize(
    ("name", "nodes", "ranks", "rate"),
    [
        ("small", 1, ALL, 1e5),
        ("fp32", 2, 2, 219.0),  # half of each node
        ("fp32", 2, ALL, None),
    ],
)
def test_where_the_model_knows_nothing_there_is_no_expectation(p100, name, nodes, ranks, rate):
    case = replace(YARDSTICKS[name], nodes=nodes, ranks=ranks).on(p100)
    assert expected_efficiency(case, p100, rate, "s") is None


@pytest.mark.parametrize(("nodes", "ranks"), SHAPES)
@pytest.mark.parametrize("name", ["p100", "v100", "k80"])
def test_every_shape_is_a_job_that_the_partition_can_hold(three_generations, name, nodes, ranks):
    partition = three_generations.partition(name)
    spec = job_on(partition, "check", ("true",), nodes=nodes, ranks=ranks)
    size = plan_on(three_generations, spec)[1].world_size
    assert size == nodes * (ranks or partition.gpus_per_node)


@pytest.mark.parametrize("path", sorted((folder("templates") / "sites").glob("*.yaml")), ids=str)
def test_scaling_on_the_digits_has_a_batch_for_the_largest_shape(path):
    for partition in load_site(path).partitions.values():
        for nodes, ranks in SHAPES:
            case = replace(YARDSTICKS["small"], nodes=nodes, ranks=ranks).on(partition)
            assert case.nodes * case.ranks * case.batch <= 1440, f"{partition.name} {case}"


def test_half_precision_needs_a_gpu_that_has_it(three_generations, p100):
    case = TrainingCase("resnet50", 1, 1, 100, 64, data="synthetic", precision="fp16", real=True)
    with pytest.raises(BadInput):
        case.request(three_generations, three_generations.partition("k80"), "throughput")
    for has_it in (p100, replace(p100, gpu=p100.gpu._replace(compute="10.0"))):
        assert case.request(three_generations, has_it, "throughput").nodes == 1


def test_every_copy_is_of_a_tensor_that_was_copied_nowhere_yet():
    """TensorFlow keeps a tensor's copies on other devices, and copies none twice."""
    made = []
    tf = SimpleNamespace(
        device=nullcontext,
        zeros=lambda _: object(),
        identity=lambda x: made.append(x) or [x],
        test=SimpleNamespace(experimental=SimpleNamespace(sync_devices=lambda: None)),
    )
    (_, _, copy), *_ = copies._between(tf, 1, 4)
    for _ in range(3):
        copy()
    copied = made[1::2]
    assert len({id(value) for value in copied}) == len(copied) == 3
