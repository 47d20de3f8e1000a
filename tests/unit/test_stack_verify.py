"""The gate: what its program and its jobs saw, judged; and which proof spares it."""

import json
import shutil
import struct
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdl import facts
from hpcdl.jobs.submission import Submission
from hpcdl.jobs.watch import Snapshot
from hpcdl.stack.linked import read_device_code, runs_on, survey
from hpcdl.stack.publish import overview, publish, serves, verify
from hpcdl.stack.release import seal
from hpcdl.stack.resolve import Resolver
from hpcdl.stack.verify import (
    Check,
    GateRun,
    check_device_code,
    judge,
    new_proof,
    read_proof,
    samples_of,
    store_proof,
)
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.workflows import gate
from hpcdl.workflows.gate import choose_gate
from tests.make.releases import failing, make_release, passing, silent
from tests.make.sites import mixed_site, shipped, small_site
from tests.strangers import STRANGER, as_root


@pytest.fixture
def release(site):
    return make_release(site, "a")


@pytest.fixture
def for_gpus(release):
    """As its record would be if it were for GPUs."""
    return replace(release, versions={**release.versions, "cuda": "12.9.1"}, partitions=("p100",))


def seen(release, **changes):
    """What two ranks of a CPU build see; `import_gpus=2` changes the step `import`'s `gpus`."""
    found = {
        "import": {
            "tensorflow": "2.21.0",
            "horovod": "0.28.1",
            "mpi": True,
            "cuda": False,
            "gpus": 0,
            "release": release.id,
            "took": 3.0,
        },
        "kernel": {"device": "device:CPU:0", "model": None, "wrong": 0.0, "took": 0.1},
        "ranks": {
            "size": 2,
            "mean": 1.5,
            "losses": [8.0, 0.1],
            "seconds": [0.1, 0.1],
            "differ": 0.0,
            "took": 1.0,
        },
        "libraries": {"mapped": [], "not_found": {}, "took": 0.1},
    }
    for name, value in changes.items():
        step, _, key = name.partition("_")
        found[step][key] = value
    return found


def elf_with_code(path, sm=0, kind=2, header=b""):
    """The least shared object with device code for one SM, as nvcc lays it out."""
    size = 2048  # less is a placeholder without any kernel
    header = header or struct.pack("<HHIQIIHHI", kind, 0, 64, size, 0, 0, 0, 0, sm)
    entry = header.ljust(64, b"\0").ljust(64 + size, b"\0")
    code = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry)) + entry
    names = b"\0.nv_fatbin\0"
    table = 64 + len(names) + len(code)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01", 3, 62, 1, 0, 0, table, 0, 64, 0, 0, 64, 2, 0
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(header + names + code)
        for name, start, length in ((0, 64, len(names)), (1, 64 + len(names), len(code))):
            file.write(struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, start, length, 0, 0, 1, 0))
    return path


def faults(checks):
    return [check.name for check in checks if not check.ok]


def test_what_is_as_it_should_be_passes(site, release):
    checks = judge(release, seen(release), site.partition("p100"))
    assert faults(checks) == []
    assert "this build has no code for GPUs" in checks[1].detail
    assert samples_of(seen(release))["losses"] == [8.0, 0.1]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"import_tensorflow": "2.20.0"}, "import"),
        ({"libraries_mapped": ["/root/.local/tensorflow/libtensorflow_cc.so.2"]}, "libraries"),
        ({"import_release": "another"}, "import"),
        ({"import_horovod": None}, "import"),
        ({"import_mpi": False}, "import"),
        ({"kernel_wrong": 0.5}, "device kernel"),
        ({"ranks_mean": 1.0}, "all-reduce of 2 ranks"),
        ({"ranks_losses": [8.0, 7.9]}, "training of 2 ranks"),
        ({"ranks_losses": [8.0, float("nan")]}, "training of 2 ranks"),
        ({"ranks_differ": 0.1}, "training of 2 ranks"),
    ],
)
def test_each_thing_that_is_wrong_fails_its_own_check(site, release, change, name):
    assert faults(judge(release, seen(release, **change), site.partition("p100"))) == [name]


def test_a_build_for_gpus_must_find_one_on_a_partition_that_has_some(site, release, for_gpus):
    blind = seen(release, import_cuda=True)
    assert faults(judge(release, blind, site.partition("p100"))) == ["device kernel"]
    assert faults(judge(release, blind, site.partition("cpu"))) == []
    assert faults(judge(release, blind, None)) == []
    # What the release says of itself counts, not only what its TensorFlow turned out to be.
    lost = judge(for_gpus, seen(for_gpus), None)
    assert faults(lost) == ["device kernel"]
    assert "built without CUDA" in lost[1].detail
    found = seen(release, import_cuda=True, import_gpus=2, kernel_model="Tesla P100-PCIE-16GB")
    check = judge(release, found, site.partition("p100"))[1]
    assert check.ok
    assert "Tesla P100-PCIE-16GB" in check.detail


def test_one_rank_alone_skips_what_needs_two(site, release):
    checks = judge(release, seen(release, ranks_size=1), None, ranks=1)
    assert [check.skipped for check in checks] == [False, False, True, True, False]


@pytest.mark.parametrize("size", [1, 4])
def test_ranks_that_do_not_meet_are_a_fault_however_well_each_is_by_itself(site, release, size):
    checks = judge(release, seen(release, ranks_size=size), site.partition("p100"), ranks=2)
    assert faults(checks) == ["all-reduce of 2 ranks", "training of 2 ranks"]
    assert f"2 ranks were started, and Horovod sees {size}" in checks[2].detail


def test_spack_s_view_is_looked_through_by_its_links(site, for_gpus):
    """Folders and files are links, some twice; libraries of profilers are nobody's code."""
    store = site.paths.prefix / "store" / "nccl" / "lib"
    library = elf_with_code(store / "libnccl.so.2", sm=80)
    prefix = for_gpus.prefix
    prefix.mkdir(parents=True, exist_ok=True)
    (prefix / "lib").symlink_to(store)
    (prefix / "lib64").symlink_to("lib")
    (store / "libnccl.so").symlink_to(library.name)
    (store / "again").symlink_to(store)
    elf_with_code(prefix / "nsight" / "libprofiler.so", sm=90)
    (found,) = survey(prefix / "lib", prefix / "lib64")
    assert found.samefile(library)
    refused = check_device_code(site, for_gpus)
    assert not refused.ok
    assert "p100 (6.0): libnccl.so has sm_80" in refused.detail


def test_the_models_of_a_mixed_partition_that_a_release_is_for_are_looked_at(tmp_path):
    """Of T4 and A40, the lowest is not the only one, nor one that another release serves."""
    mixed = mixed_site(tmp_path)
    made = make_release(mixed, "gpu", partitions=("untyped",))
    library = elf_with_code(made.prefix / "lib" / "libk.so", sm=75)

    def check(*models):
        found = check_device_code(mixed, replace(made, needs={"gpus": list(models)}))
        return found.ok, found.detail

    assert check("T4") == (True, "untyped:T4 (7.5): machine code in all of 1 files")
    assert check("T4", "A40") == (False, "untyped:A40 (8.6): libk.so has sm_75")
    elf_with_code(library, sm=86)
    assert check("A40")[0]
    assert check("P100") == (False, "untyped: the release is for none of its GPUs")


def test_a_release_for_cuda_without_any_device_code_is_refused(site, release, for_gpus):
    assert check_device_code(site, release).skipped
    refused = check_device_code(site, for_gpus)
    assert (refused.ok, refused.skipped) == (False, False)
    assert "it is for CUDA 12.9.1" in refused.detail


def test_a_stack_for_gpus_that_was_only_loaded_on_a_login_node_is_compiled(release, for_gpus):
    checks = [Check("import", True, "", 1.0)]
    assert new_proof(for_gpus, "login", "here", checks).level == "compiled"
    assert new_proof(for_gpus, "job", "p100", checks).level == "run"
    assert new_proof(release, "login", "here", checks).level == "run"


def proof_by_jobs(release, *partitions):
    runs = [
        GateRun(name, 7, f"{name}-01", "2026-01-01T00:00:00Z", "/log", {"losses": [8.0, 0.1]})
        for name in partitions
    ]
    return new_proof(release, "job", ", ".join(partitions), [Check("x", True, "", 1.0)], runs)


def test_a_proof_comes_back_as_it_was_stored(site, release):
    proof = proof_by_jobs(release, "p100", "cpu")
    store_proof(release, proof)
    assert read_proof(release) == proof
    assert overview(site)[0]["proof"] == "run in jobs on p100, cpu"


@pytest.fixture
def pascal(tmp_path):
    """A site with P100, V100 and K80 whose stacks Spack compiles."""
    return shipped("p100-v100-k80", prefix=tmp_path)


@pytest.fixture
def elsewhere(pascal, release):
    """The proof of another site, which compiled for a P100 what resolves here; its place here."""
    (found,) = Resolver(pascal).resolve("p100", "spack")
    row = {"name": "py-tensorflow", "version": "2", "hash": "abc", "compilers": "gcc@12.2.0 -O3"}
    made = replace(release, backend="spack", lock=(row,), needs={"compute": ["6.0"]})
    store_proof(release, proof_by_jobs(replace(made, versions=found.versions), "p100"))
    place = pascal.paths.prefix / "evidence" / "lab.json"
    place.parent.mkdir()
    (release.root / "proof.json").rename(place)
    return place


def test_a_proof_of_another_site_is_evidence_for_the_same_versions_and_gpus(pascal, elsewhere):
    (found,) = Resolver(pascal).resolve("p100", "spack")
    assert found.proof == "run"
    assert "py-tensorflow by gcc@12.2.0 -O3" in found.tried.source
    for way in (("v100", "spack"), ("k80", "spack"), ("p100", "wheels")):
        assert "lab.json" not in str([one.tried for one in Resolver(pascal).resolve(*way)])
    elsewhere.unlink()
    assert Resolver(pascal).resolve("p100", "spack")[0].proof == "published"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("abc", "abd", "its seal is another"),
        ('"6.0"', '"7.0"', "its seal is another"),
        ('"seal"', '"deal"', "it has no 'seal'"),
        ("{", "", "Extra data"),
    ],
)
def test_evidence_that_was_changed_is_refused(pascal, elsewhere, old, new, why):
    elsewhere.write_text(elsewhere.read_text().replace(old, new, 1))
    with pytest.raises(BadInput, match=f"lab.json is no evidence: {why}") as caught:
        Resolver(pascal)
    assert "proof.json" in caught.value.hint


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"level": "sure"}, "it has the level 'sure'"),
        ({"passed": "no"}, "did not pass"),
        ({"build": {"versions": {}}}, "does not name the versions"),
        ({"build": {"versions": {"tensorflow": ":"}}}, "does not name the versions"),
        ({"where": "\x1b[31m"}, ""),
    ],
)
def test_evidence_that_somebody_made_up_is_refused_or_is_inert(pascal, elsewhere, changes, why):
    """The seal is no signature: whoever writes a proof can seal it."""
    known = json.loads(elsewhere.read_text())
    build = {**known["build"], **changes.get("build", {})}
    proof = {**known, **changes, "build": build}
    elsewhere.write_text(json.dumps({**proof, "seal": seal(proof)}))
    if why:
        with pytest.raises(BadInput, match=why):
            Resolver(pascal)
    else:
        (found,) = Resolver(pascal).resolve("p100", "spack")
        assert found.tried.source.isprintable()


@as_root
def test_evidence_of_another_user_is_refused(pascal, elsewhere):
    shutil.chown(elsewhere, STRANGER)
    with pytest.raises(MissingPrerequisite, match=f"it belongs to {STRANGER}"):
        Resolver(pascal)


def test_evidence_of_a_gate_that_failed_is_refused(site, pascal, release, elsewhere):
    store_proof(release, failing(site, release))
    elsewhere.write_text((release.root / "proof.json").read_text())
    with pytest.raises(BadInput, match="did not pass"):
        Resolver(pascal)


def test_jobs_are_spared_by_a_proof_of_jobs_on_all_partitions_served(site, release):
    assert set(serves(site, release)) == set(site.partitions)
    _, enough = choose_gate(site, release, silent)
    assert not enough(passing(site, release))
    assert not enough(proof_by_jobs(release, "p100", "cpu"))
    assert enough(proof_by_jobs(release, *site.partitions))
    _, enough = choose_gate(site, release, silent, partitions=["p100"])
    assert enough(proof_by_jobs(release, "p100", "cpu"))
    _, enough = choose_gate(site, release, silent, local=True)
    assert enough(passing(site, release))


def test_a_proof_that_is_not_enough_is_made_anew(site, release):
    publish(site, "a", passing, say=silent)
    better = proof_by_jobs(release, *site.partitions)
    publish(site, "a", lambda *_: better, say=silent, enough=lambda proof: proof.gate == "job")
    assert read_proof(release) == better
    publish(site, "a", failing, say=silent, enough=lambda proof: proof.gate == "job")


def test_a_narrower_proof_that_passed_does_not_replace_a_wider_one(site, release):
    wide, narrow = proof_by_jobs(release, "p100", "cpu"), proof_by_jobs(release, "p100")
    verify(site, "a", lambda *_: narrow)
    assert verify(site, "a", lambda *_: wide) == read_proof(release) == wide
    assert verify(site, "a", lambda *_: narrow) == narrow
    verify(site, "a", passing)
    assert read_proof(release) == wide
    verify(site, "a", failing)
    assert read_proof(release) != wide


def test_a_release_that_would_serve_nobody_is_told_so(site, release):
    publish(site, "a", passing, say=silent)
    other = make_release(site, "other", partitions=("gone",))
    with pytest.raises(BadInput, match="serve no partition"):
        choose_gate(site, other, silent)[0](site, other)


def test_without_slurm_the_gate_says_how_to_do_without(site, release, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(MissingPrerequisite, match="needs jobs") as caught:
        choose_gate(site, release, silent)[0](site, release)
    assert "--local" in caught.value.hint


def test_a_gate_on_this_machine_and_on_a_partition_is_a_contradiction(site, release):
    with pytest.raises(BadInput, match="no partition"):
        choose_gate(site, release, silent, local=True, partitions=["p100"])
    with pytest.raises(BadInput, match="has no partition"):
        choose_gate(site, release, silent, partitions=["p10"])


@pytest.mark.parametrize(
    ("names", "compute", "verdict"),
    [
        (["sm_60"], "6.0", "machine"),
        (["sm_60"], "6.1", "machine"),
        (["sm_61"], "6.0", "no"),
        (["sm_60"], "7.0", "no"),
        (["compute_60"], "7.0", "foreign"),
        (["compute_70"], "6.0", "no"),
        (["sm_37", "compute_60"], "3.7", "machine"),
        (["sm_90"], "8.0", "no"),
        ([], "8.0", "no"),
        # PTX of another generation is no proof; suffixes: one GPU alone, one family.
        (["compute_60"], "6.1", "ptx"),
        (["sm_80", "compute_90"], "12.0", "foreign"),
        (["sm_90a"], "9.0", "machine"),
        (["compute_90a"], "10.0", "no"),
        (["compute_90a"], "12.0", "no"),
        (["sm_100a"], "10.3", "no"),
        (["sm_100f"], "10.3", "machine"),
        (["compute_100f"], "10.3", "ptx"),
        (["compute_100f"], "12.0", "no"),
    ],
)
def test_code_runs_within_its_major_number_and_plain_ptx_on_newer_ones(names, compute, verdict):
    assert runs_on(names, compute) == verdict


@pytest.mark.parametrize(
    ("entry", "name"),
    [  # what ptxas and fatbinary of CUDA 13.5 made: the first 64 bytes of each header
        ("02000101 40000000 700d0000 00000000 00000000 00000000 08000100 5a000000", "sm_90"),
        ("02000101 40000000 700d0000 00000000 00000000 00000000 08000100 5a000000", "sm_90a"),
        ("01000101 40000000 e8000000 00000000 e2000000 40000000 08000800 64000000", "compute_100f"),
        ("01000101 40000000 e8000000 00000000 e2000000 40000000 08000800 78000000", "compute_120a"),
    ],
)
def test_the_suffix_of_an_architecture_is_read_from_its_entry(tmp_path, entry, name):
    flags = {"a": "11001000", "f": "11002000"}.get(name[-1], "11000000")
    header = bytes.fromhex(f"{entry} 00000000 00000000 {flags} 00000000") + bytes(16)
    library = elf_with_code(tmp_path / "libk.so", header=header)
    assert read_device_code(library) == (name,)


def rounded(values, bits):
    """float32 values rounded to so many bits of mantissa, as matrix units take them."""
    np = pytest.importorskip("numpy")
    step = np.uint32(1 << (23 - bits))
    raw = values.view(np.uint32)
    return ((raw + step // 2) & ~(step - 1)).view(np.float32)


def test_a_right_product_passes_on_every_gpu_and_a_wrong_one_on_none(site, release):
    """TF32 is on from compute capability 8.0: no A100 or H100 release could be published."""
    np = pytest.importorskip("numpy")
    from hpcdl.stack.probe import matrices

    left, right = matrices()
    exact = left.astype(np.float64) @ right.astype(np.float64)
    for model, row in facts.load("gpus")["gpus"].items():
        bits = 10 if float(row["compute"]) >= 8 else 23
        product = rounded(left, bits) @ rounded(right, bits)
        for result, passes in ((product, True), (product + (np.eye(64) > 0), False)):
            wrong = float(np.abs(result - exact).max())
            assert (
                faults(judge(release, seen(release, kernel_wrong=wrong), None)) == []
            ) is passes, model
    fractions = np.random.default_rng(1).random((2, 64, 64), dtype=np.float32)
    off = rounded(fractions[0], 10) @ rounded(fractions[1], 10) - fractions[0] @ fractions[1]
    assert np.abs(off).max() > 1e-3, "what the gate once compared"


def test_ptx_of_an_older_generation_is_no_proof_without_a_job(tmp_path):
    mixed = mixed_site(tmp_path)
    made = make_release(mixed, "gpu", partitions=("untyped",), needs={"gpus": ["A40"]})
    elf_with_code(made.prefix / "lib" / "libk.so", sm=75, kind=1)
    refused = check_device_code(mixed, made)
    assert not refused.ok
    assert "only PTX of an older generation" in refused.detail
    assert check_device_code(mixed, made, run_there=True).ok


def test_host_code_has_none():
    import _ctypes

    assert read_device_code(Path(_ctypes.__file__)) == ()


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_after_an_elf_header_are_no_crash(tmp_path_factory, noise):
    path = tmp_path_factory.mktemp("noise") / "x.so"
    header = b"\x7fELF\x02\x01" + struct.pack(
        "<10xHHIQQQIHHHHHH", 3, 62, 1, 0, 0, 64, 0, 64, 0, 0, 64, 3, 1
    )
    path.write_bytes(header + noise)
    read_device_code(path)


JOB = Submission(7, Path("/nonexistent"))
AWAY = MissingPrerequisite("Slurm does not answer")


def ended(state="COMPLETED"):
    return Snapshot(7, state, state.lower(), 0, "p100-01", 0, None)


@pytest.fixture
def told():
    return []


def test_a_job_that_waits_too_long_keeps_no_other_from_its_end(monkeypatch):
    """One that has its nodes may run to its end, whatever the clock says."""
    seen = {7: [ended("PENDING"), ended("PENDING")], 8: [ended("RUNNING"), ended()]}
    monkeypatch.setattr(gate, "follow", lambda job: iter(seen[job.job_id]))
    jobs = [JOB, replace(JOB, job_id=8)]
    assert [one.state for one in gate._ended(jobs, -1).values()] == ["PENDING", "COMPLETED"]


def test_jobs_that_cannot_be_cancelled_are_named(told, monkeypatch):
    monkeypatch.setattr(gate, "look", Mock(side_effect=AWAY))
    gate._cancel([JOB], told.append)
    assert told == ["note: the gate's jobs may still be queued (Slurm does not answer): scancel 7"]


def test_a_mixed_partition_that_no_job_can_try_is_said_in_the_result(told, tmp_path, monkeypatch):
    mixed = shipped("mixed")
    site = replace(mixed, paths=small_site(tmp_path).paths)
    made = make_release(site, "r", needs={"gpus": ["P100"]}, partitions=("untyped",))
    monkeypatch.setattr(gate, "_require_slurm", lambda: None)
    monkeypatch.setattr(gate, "check_files", lambda *_, **__: [])
    proof = gate.JobGate(told.append, ("untyped",))(site, made)
    assert not proof.passed
    (said,) = (one.describe() for one in proof.checks if not one.ok)
    lack = "no job was started: the release has device code for none of its GPUs, A40, T4"
    assert said == f"untyped: job: {lack}"
