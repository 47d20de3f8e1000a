"""GPU stacks, built with a real nvcc and shown to load: no GPU is needed for that.

`make test-gpu-build`: in a Debian 13 with nvcc 12.4 the stack for P100 and V100, in a Debian 12
with nvcc 11.8 the one for a K80, each as an admin would: site file, build, publish, load.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcdl.stack.fatbin import read_device_code
from hpcdl.system.resources import cache
from tests.gpu_roots import Root, install_hpcdl, root_of

pytestmark = [pytest.mark.gpu_build, pytest.mark.timeout(5400)]

PARTITION = ("{{nodes: 2, gpu: {{model: {model}, per_node: 4}}, sockets: 2, cores_per_socket: 8, "
             "memory_gb: 120, driver: '{driver}', stack: tensorflow}}")  # fmt: skip
SITE = """
schema: 1
name: {name}
slurm: {{version: "{slurm}"}}
paths: {{prefix: {prefix}, work: /work, datasets: /data}}
partitions:
{partitions}
stacks:
  tensorflow: {{backend: venv}}
"""
SUM = """
import horovod.tensorflow as hvd, tensorflow as tf
hvd.init()
total = hvd.allreduce(tf.constant([1.0 + hvd.rank()]), op=hvd.Sum)
maps = {line.split()[-1] for line in open("/proc/self/maps") if "libnccl.so" in line}
print("SEEN", hvd.size(), float(total[0]), hvd.nccl_built(), hvd.cuda_built(), *maps)
"""


@dataclass(frozen=True)
class Case:
    """A root, the GPUs of its site with their drivers, and what the stack must be."""

    suite: str
    slurm: str
    gpus: tuple[tuple[str, str, str], ...]
    module: str
    codes: frozenset[int]
    nccl: int


CASES = (
    Case("trixie", "24.11.5",
         (("p100", "P100-PCIe", "535.183.06"), ("v100", "V100-SXM2", "550.54.14")),
         "tensorflow/2.21.0-cuda12.9-sm60-sm70", frozenset({60, 70}), 23203),
    Case("bookworm", "22.05.8", (("k80", "K80", "470.256.02"),),
         "tensorflow/2.14.1-cuda11.8-sm37", frozenset({37}), 21605),
)  # fmt: skip


@dataclass(frozen=True)
class Built:
    """A published GPU release in its root; `record` is its release.json, `proof` its proof."""

    case: Case
    root: Root
    record: dict[str, object]
    proof: dict[str, object]

    @property
    def stack(self) -> str:
        """The tree's path inside the root."""
        return f"{_prefix(self.root)}/releases/{self.record['id']}/stack"

    def packages(self) -> Path:
        """Its Python packages: the cache has the same path inside the root and outside."""
        return next(iter(Path(self.stack).glob("lib/python3*/site-packages")))

    def loaded(self, script: str, *, check: bool = True, **env: str) -> str:
        """What a script prints after a plain `module load tensorflow`."""
        use = f"module use {_prefix(self.root)}/current/modules && module load tensorflow"
        return self.root.shell(f"{use} && {script}", check=check, **env)


def _prefix(root: Root) -> str:
    """Below the cache, so that the tree can share files with uv's."""
    return f"{cache()}/tests/nvcc/prefix-{root.suite}"


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.suite)
def built(request: pytest.FixtureRequest) -> Built:
    """Built and published by hpcdl's own commands."""
    case: Case = request.param
    root = root_of(case.suite)
    install_hpcdl(root)
    # A prefix of an earlier run may hold releases of other formats.
    shutil.rmtree(_prefix(root), ignore_errors=True)
    rows = (f"  {name}: " + PARTITION.format(model=model, driver=driver)
            for name, model, driver in case.gpus)  # fmt: skip
    text = SITE.format(name=case.suite, slurm=case.slurm, prefix=_prefix(root),
                       partitions="\n".join(rows))  # fmt: skip
    (root.directory / "etc" / "site.yaml").write_text(text)
    for agreement in ("cuda", "cudnn"):
        root.hpcdl("stack", "accept-eula", agreement, "--by", "the tests")
    record = json.loads(root.hpcdl("stack", "build", "--json").stdout)
    published = root.hpcdl("stack", "publish", str(record["id"]), "--local", "--json").stdout
    return Built(case, root, record, json.loads(published)["proof"])


def test_it_is_what_resolve_plan_and_list_say(built: Built) -> None:
    assert built.record["module"] == built.case.module
    versions = built.record["versions"]
    assert isinstance(versions, dict)
    resolved = json.loads(built.root.hpcdl("stack", "resolve", "--json").stdout)["resolutions"]
    wanted = [one["versions"] for one in resolved if one["wanted"]]
    assert len(wanted) == len(built.case.gpus)
    for one in wanted:
        for name in ("tensorflow", "horovod", "cuda", "cudnn", "nccl", "keras"):
            assert one[name] == versions[name], name
        assert versions["python"].startswith(f"{one['python']}.")
    planned = json.loads(built.root.hpcdl("stack", "build", "--dry-run", "--json").stdout)
    assert planned["exists"]
    assert planned["versions"] == versions
    listed = json.loads(built.root.hpcdl("stack", "list", "--json").stdout)["releases"]
    assert [row["current"] for row in listed if row["id"] == built.record["id"]] == [True]


def test_the_gate_looked_at_links_and_device_code(built: Built) -> None:
    checks = {check["name"]: check for check in built.proof["checks"]}  # type: ignore[attr-defined]
    assert all(check["ok"] for check in checks.values())
    for name in ("import", "all-reduce of 2 ranks", "libraries", "device code",
                 "device code of Horovod"):  # fmt: skip
        assert not checks[name]["skipped"], name
    assert built.proof["level"] == "compiled"


def test_two_ranks_agree_on_a_sum_with_one_nccl_of_the_release(built: Built) -> None:
    (built.root.directory / "tmp" / "sum.py").write_text(SUM)
    launch = "mpirun --allow-run-as-root --oversubscribe -np 2 python /tmp/sum.py"
    said = built.loaded(launch)
    lines = re.findall(r"SEEN (\d+) ([\d.]+) (\d+) (\w+) (.*)", said)
    assert len(lines) == 2, said
    for size, total, nccl, cuda, maps in lines:
        assert (size, total, int(nccl), cuda) == ("2", "3.0", built.case.nccl, "True")
        assert maps.split() == [str(_inside(built, "nvidia/nccl/lib/libnccl.so.2"))]


def _inside(built: Built, name: str) -> Path:
    """A package's file, by its path inside the root."""
    return Path(built.stack, "lib", built.packages().parent.name, "site-packages", name)


def test_what_horovod_needs_comes_from_the_release_but_for_mpi_and_glibc(built: Built) -> None:
    (library,) = built.packages().glob("horovod/tensorflow/mpi_lib*.so")
    told = built.loaded(f"ldd {_inside(built, f'horovod/tensorflow/{library.name}')}")
    assert "not found" not in told
    places = dict(re.findall(r"(\S+) => (\S+)", told))
    for name in ("libnccl.so.2", "libtensorflow_framework.so.2", "libtensorflow_cc.so.2"):
        assert str(Path(places[name]).resolve()).startswith(built.stack), name
    assert "libcudart" not in told


def test_the_device_code_of_horovod_is_the_list_of_capabilities_and_others_contain_it(
    built: Built,
) -> None:
    (library,) = built.packages().glob("horovod/tensorflow/mpi_lib*.so")
    inside = _inside(built, f"horovod/tensorflow/{library.name}")
    listed = built.root.run("cuobjdump", "--list-elf", str(inside)).stdout
    assert {int(sm) for sm in re.findall(r"\.sm_(\d+)\.cubin", listed)} == built.case.codes
    assert {code.sm for code in read_device_code(library) if code.machine} == built.case.codes
    majors = {sm // 10 for sm in built.case.codes}
    for pattern in (
        "tensorflow/libtensorflow_cc.so.2",
        "nvidia/cudnn/lib/libcudnn_cnn*.so.*",
        "nvidia/nccl/lib/libnccl.so.2",
        "nvidia/cublas/lib/libcublas.so.*",
    ):
        for path in built.packages().glob(pattern):
            have = {code.sm // 10 for code in read_device_code(path) if code.machine}
            assert majors <= have or not have, path


def test_ptxas_and_libdevice_come_from_the_wheels_and_flags_come_back(built: Built) -> None:
    script = 'echo "FLAGS $XLA_FLAGS"; module unload tensorflow; echo "AFTER $XLA_FLAGS"'
    said = built.loaded(script, XLA_FLAGS="--xla_mine=1")
    flags = re.findall(r"FLAGS (.*)", said)[0]
    assert flags.startswith("--xla_mine=1 ")
    assert "AFTER --xla_mine=1\n" in said
    home = flags.partition("--xla_gpu_cuda_data_dir=")[2]
    assert "release" in built.root.run(f"{home}/bin/ptxas", "--version").stdout
    built.root.run("test", "-s", f"{home}/nvvm/libdevice/libdevice.10.bc")


def test_the_guard_names_the_missing_driver_in_a_job(built: Built) -> None:
    use = f"module use {_prefix(built.root)}/current/modules"
    told = built.root.shell(f"{use}; module load tensorflow 2>&1; echo CODE $?", check=False,
                            SLURMD_NODENAME="p100-01")  # fmt: skip
    assert "does not fit this machine: this node has no NVIDIA driver" in " ".join(told.split())
    assert "CODE 0" not in told


def test_building_it_again_does_nothing(built: Built) -> None:
    again = json.loads(built.root.hpcdl("stack", "build", "--json").stdout)
    assert again["id"] == built.record["id"]
    assert again["built"] is False


def test_without_horovod_the_same_stack_needs_no_compiler_and_says_so(built: Built) -> None:
    shown = json.loads(
        built.root.hpcdl("stack", "build", "--without-horovod", "--dry-run", "--json").stdout
    )
    assert "horovod" not in shown["versions"]
    assert "leave Horovod out: the stack is for tf.distribute" in shown["steps"]
    assert not any(step.startswith("build Horovod") for step in shown["steps"])
