"""Device code that nvcc really made, found by our reader.

NVIDIA's own reader, cuobjdump, and a library of theirs come from PyPI (6 MB, kept in the cache);
`make test-long` takes nvcc from there too where none is on PATH (100 MB).
"""

import re
import shutil
import subprocess
import sys
import zipfile

import pytest

from hpcdl.stack.linked import read_device_code
from hpcdl.system.resources import cache

KERNEL = """
__global__ void scale(float *x, float a) { x[threadIdx.x] *= a; }
extern "C" void run(float *x, float a) { scale<<<1, 32>>>(x, a); }
"""
LIBRARY = ("nvidia-nvjpeg-cu12==12.4.0.76",)
READER = ("nvidia-cuda-cuobjdump==13.2.51",)
COMPILER = (
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
)
WANTED = ["sm_75", "sm_80", "compute_90"]


def from_pypi(*wheels):
    """The unpacked content of wheels, fetched once per machine; skips where it cannot be had."""
    place = cache() / "tests" / "nvidia" / "-".join(wheels).replace("==", "-")
    if not place.is_dir():
        fetched = place.with_name(f"{place.name}.part")
        shutil.rmtree(fetched, ignore_errors=True)
        words = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        done = subprocess.run(
            [sys.executable, *words, "--dest", fetched, *wheels],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            pytest.skip(f"PyPI has no {wheels[0]} for this machine")
        for wheel in list(fetched.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(fetched)
            wheel.unlink()
        for program in (*fetched.rglob("bin/*"), *fetched.rglob("nvvm/bin/*")):
            program.chmod(0o755)
        fetched.rename(place)
    return place


def compile_kernel(nvcc, folder, *options):
    """A shared object for sm_75 and sm_80, with PTX for compute_90."""
    (folder / "k.cu").write_text(KERNEL)
    targets = [f"-gencode=arch=compute_{name.partition('_')[2]},code={name}" for name in WANTED]
    # Nothing is run, so nothing of CUDA needs to be linked.
    words = ["-shared", "-cudart", "none", "-cudadevrt", "none", "-Xcompiler", "-fPIC"]
    done = subprocess.run(
        [nvcc, *words, *options, *targets, "k.cu", "-o", "libk.so"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"this nvcc cannot compile for {', '.join(WANTED)}: {done.stderr[:80]}")
    return folder / "libk.so"


def by_cuobjdump(cuobjdump, library):
    """The device code in a file, as NVIDIA's own tool lists it."""
    told = subprocess.run(
        [cuobjdump, "--list-elf", "--list-ptx", library], capture_output=True, text=True, check=True
    ).stdout
    machine = re.findall(r"\.sm_(\d+)[af]?\.cubin", told)
    ptx = re.findall(r"\.sm_(\d+)[af]?\.ptx", told)
    return {f"sm_{sm}" for sm in machine} | {f"compute_{sm}" for sm in ptx}


def test_a_library_of_nvidia_s_has_what_cuobjdump_says():
    (cuobjdump,) = from_pypi(*READER).rglob("cuobjdump")
    (library,) = from_pypi(*LIBRARY).rglob("libnvjpeg.so.*")
    ours = set(read_device_code(library))
    assert {"sm_60", "sm_90", "compute_121"} <= ours
    assert ours == by_cuobjdump(cuobjdump, library)


@pytest.mark.long
@pytest.mark.parametrize("option", ["-rdc=false", "-rdc=true", "-Xfatbin=-compress-all"])
def test_what_nvcc_makes_has_what_cuobjdump_says(tmp_path, option):
    (cuobjdump,) = from_pypi(*READER).rglob("cuobjdump")
    (nvcc,) = from_pypi(*COMPILER).rglob("bin/nvcc")
    library = compile_kernel(nvcc, tmp_path, option)
    ours = set(read_device_code(library))
    assert ours == set(WANTED) == by_cuobjdump(cuobjdump, library)
