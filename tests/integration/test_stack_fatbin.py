"""Device code that nvcc really made: found by our reader, judged by the gate."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path

import pytest

from hpcdl.site import Site
from hpcdl.stack.fatbin import read_device_code, survey
from hpcdl.stack.release import Release
from hpcdl.stack.verify import check_device_code
from tests.small_release import make_release, small_site

KERNEL = """
__global__ void scale(float *x, float a) { x[threadIdx.x] *= a; }
extern "C" void run(float *x, float a) { scale<<<1, 32>>>(x, a); }
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared object that nvcc made for sm_75 and sm_80, with PTX for compute_90."""
    if shutil.which("nvcc") is None:
        pytest.skip("there is no nvcc")
    folder = tmp_path_factory.mktemp("cuda")
    (folder / "k.cu").write_text(KERNEL)
    wanted = [("75", "sm_75"), ("80", "sm_80"), ("90", "compute_90")]
    targets = [f"-gencode=arch=compute_{virtual},code={real}" for virtual, real in wanted]
    command = ["nvcc", "-shared", "-Xcompiler", "-fPIC", *targets, "k.cu", "-o", "libk.so"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"this nvcc cannot compile for sm_75, sm_80 and compute_90: {done.stderr[:80]}")
    return folder / "libk.so"


def test_what_nvcc_was_asked_for_is_found(compiled: Path) -> None:
    assert [str(code) for code in read_device_code(compiled)] == ["sm_75", "sm_80", "compute_90"]
    assert [found.path for found in survey(compiled.parent)] == [compiled]


def test_a_truncated_object_is_no_crash(compiled: Path, tmp_path: Path) -> None:
    whole = compiled.read_bytes()
    for part in (10, 64, 4000, len(whole) // 2, len(whole) - 1000):
        (tmp_path / "cut.so").write_bytes(whole[:part])
        assert set(read_device_code(tmp_path / "cut.so")) <= set(read_device_code(compiled))


def small_gpu_release(prefix: Path, compiled: Path) -> tuple[Site, Release]:
    """A release whose only shared object has the compiled kernel."""
    site = small_site(prefix)
    release = make_release(site, "gpu", partitions=("p100",))
    (release.prefix / "lib").mkdir()
    shutil.copy(compiled, release.prefix / "lib")
    return site, release


def test_the_gate_refuses_code_for_other_gpus(compiled: Path, tmp_path: Path) -> None:
    check = check_device_code(*small_gpu_release(tmp_path, compiled))
    assert not check.ok
    assert "p100 (6.0): libk.so has sm_75, sm_80, compute_90" in check.detail


def test_the_gate_takes_code_for_the_partition_s_gpu(compiled: Path, tmp_path: Path) -> None:
    site, release = small_gpu_release(tmp_path, compiled)
    gpu = site.partitions["p100"].gpu._replace(model="T4", compute="7.5")
    p100 = dataclasses.replace(site.partitions["p100"], gpu=gpu)
    site = dataclasses.replace(site, partitions={"p100": p100})
    check = check_device_code(site, release)
    assert check.ok
    assert check.detail == "p100 (7.5): machine code in all of 1 files"


def test_a_release_without_device_code_has_nothing_to_check(tmp_path: Path) -> None:
    site = small_site(tmp_path)
    assert check_device_code(site, make_release(site, "cpu")).skipped
