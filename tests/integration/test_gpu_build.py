"""GPU stacks, built with clang and with a real nvcc and shown to load: no GPU is needed for that.

`make test-gpu-build`: in a Debian 13 the stack for P100 and V100, in a Debian 12 the one for a K80,
each as an admin would: site file, build, publish, load. Once by clang, without any package of
NVIDIA's, and once by nvcc 12.4 and 11.8. Kernels of ours are compiled on the GPU headers of the
TensorFlow of each stack by clang. Where Spack is (HPCDL_SPACK_ROOT, HPCDL_SPACK_PACKAGES) the first
one by Spack as well: TensorFlow and NVIDIA's libraries from wheels, Horovod compiled by Spack.
"""

import json
import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from hpcdl.stack.linked import is_machine, read_device_code
from hpcdl.stack.spack_backend.environment import find_spack
from hpcdl.system.resources import cache
from tests.gpu_roots import CASES, PYTHON, Case, Root, install_hpcdl, root_of, write_site
from tests.integration.spack_fixture import BOOTSTRAP, PACKAGES, why_not

pytestmark = [pytest.mark.gpu_build, pytest.mark.timeout(5400)]

SUM = """
import horovod.tensorflow as hvd, tensorflow as tf
hvd.init()
total = hvd.allreduce(tf.constant([1.0 + hvd.rank()]), op=hvd.Sum)
maps = {line.split()[-1] for line in open("/proc/self/maps") if "libnccl.so" in line}
print("SEEN", hvd.size(), float(total[0]), hvd.nccl_built(), hvd.cuda_built(), *maps)
"""


NO_COMPILERS = """
mkdir -p /tmp/plain
for file in /usr/bin/*; do
  case ${file##*/} in
    *gcc* | *g++* | *c++* | cc | CC | nvcc* | mpic* | mpiCC | cmake | make) ;;
    *) ln -sf "$file" /tmp/plain/ ;;
  esac
done
"""
DISTRIBUTED = """
import importlib.util, tensorflow as tf
ranks = tf.distribute.MirroredStrategy(["CPU:0"]).num_replicas_in_sync
print("SEEN", tf.test.is_built_with_cuda(), ranks, importlib.util.find_spec("horovod"))
"""


@dataclass(frozen=True)
class Built:
    """A published GPU release in its root; `record` is its release.json, `proof` its proof."""

    case: Case
    root: Root
    record: dict[str, object]
    proof: dict[str, object]

    @property
    def stack(self):
        return f"{self.root.prefix}/releases/{self.record['id']}/stack"

    def packages(self):
        """Its Python packages: the cache has the same path inside the root and outside."""
        return next(iter(Path(self.stack).glob("lib/python3*/site-packages")))

    def loaded(self, script, *, check=True, **env):
        """What a script prints after a plain `module load tensorflow`."""
        use = f"module use {self.root.prefix}/current/modules && module load tensorflow"
        return self.root.shell(f"{use} && {script}", check=check, **env)


def build(case, root, more, *options, **env):
    """Built and published by hpcdl's own commands; removed at the end."""
    install_hpcdl(root)
    # A prefix of an earlier run may hold releases of other formats.
    shutil.rmtree(root.prefix, ignore_errors=True)
    write_site(root, case, more)
    record = json.loads(root.hpcdl("stack", "build", *options, "--json", **env).stdout)
    publish = ("stack", "publish", str(record["id"]), "--local", "--json")
    yield Built(case, root, record, json.loads(root.hpcdl(*publish, **env).stdout)["proof"])
    shutil.rmtree(root.prefix)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case.suite}-{case.compiler}")
def built(request):
    yield from build(request.param, root_of(request.param.suite, request.param.compiler), "")


def test_it_is_what_resolve_plan_and_list_say(built):
    assert built.record["module"] == built.case.module
    assert built.record["proof"] == "compiled"
    versions = built.record["versions"]
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


def test_the_gate_looked_at_links_and_device_code(built):
    checks = {check["name"]: check for check in built.proof["checks"]}
    assert all(check["ok"] for check in checks.values())
    for name in (
        "import",
        "all-reduce of 2 ranks",
        "libraries",
        "device code",
        "device code of Horovod",
    ):
        assert not checks[name]["skipped"], name
    assert built.proof["level"] == "compiled"


def nccl_of_two_ranks(built):
    """Where two ranks, which agree on a sum, have loaded their NCCL from."""
    (built.root.directory / "tmp" / "sum.py").write_text(SUM)
    said = built.loaded("mpirun --allow-run-as-root --oversubscribe -np 2 python /tmp/sum.py")
    lines = re.findall(r"SEEN (\d+) ([\d.]+) (\d+) (\w+) (.*)", said)
    assert len(lines) == 2, said
    for size, total, nccl, cuda, _ in lines:
        assert (size, total, int(nccl), cuda) == ("2", "3.0", built.case.nccl, "True")
    return {place for *_, maps in lines for place in maps.split()}


def test_two_ranks_agree_on_a_sum_with_one_nccl_of_the_release(built):
    assert nccl_of_two_ranks(built) == {str(_inside(built, "nvidia/nccl/lib/libnccl.so.2"))}


def _inside(built, name):
    """A package's file, by its path inside the root."""
    return Path(built.stack, "lib", built.packages().parent.name, "site-packages", name)


def test_what_horovod_needs_comes_from_the_release_but_for_mpi_and_glibc(built):
    (library,) = built.packages().glob("horovod/tensorflow/mpi_lib*.so")
    told = built.loaded(f"ldd {_inside(built, f'horovod/tensorflow/{library.name}')}")
    assert "not found" not in told
    places = dict(re.findall(r"(\S+) => (\S+)", told))
    for name in ("libnccl.so.2", "libtensorflow_framework.so.2", "libtensorflow_cc.so.2"):
        assert str(Path(places[name]).resolve()).startswith(built.stack), name
    runtime = [name for name in places if name.startswith("libcudart")]
    if built.case.compiler == "nvcc":  # it links its static runtime
        assert runtime == []
    for name in runtime:
        assert str(Path(places[name]).resolve()).startswith(built.stack), name


def test_the_compiler_is_the_one_meant_and_no_package_of_nvidia_is_there_beside_clang(built):
    record = json.loads(Path(built.stack).with_name("release.json").read_text())
    lock = {row["name"]: row for row in record["lock"]}
    assert built.case.compiler in lock["horovod"]["compilers"].split(" ")[0]
    packages = built.root.run("dpkg-query", "-W", "-f", "${Package}\\n").stdout.split()
    nvidia = [name for name in packages if re.match(r"nvidia|libcu(?!rl)|cuda", name)]
    assert bool(nvidia) == (built.case.compiler == "nvcc")


@pytest.mark.parametrize("kernel", ["launch", "half"])
def test_kernels_compile_on_the_gpu_headers_of_its_tensorflow(built, kernel):
    if built.case.compiler != "clang":
        pytest.skip("compiled by clang")
    gpus = [f"{code // 10}.{code % 10}" for code in sorted(built.case.codes)]
    cuda = built.record["versions"]["cuda"]
    told = built.root.run(
        *("bash", "-c", 'cd /tmp/checkout && exec "$@"', "in"),
        *(PYTHON, "-m", "tools.compile_evidence", built.stack),
        *("--cuda", cuda, "--gpu", *gpus, "--kernels", kernel),
    ).stdout
    assert f"{kernel}: compiled" in told
    assert "failed: {}" in told


def _machine(library):
    """The numbers of its machine code, such as 60."""
    codes = filter(is_machine, read_device_code(library))
    return {int(code.removeprefix("sm_").rstrip("af")) for code in codes}


def test_the_device_code_of_horovod_is_the_list_of_capabilities_and_others_contain_it(built):
    (library,) = built.packages().glob("horovod/tensorflow/mpi_lib*.so")
    inside = _inside(built, f"horovod/tensorflow/{library.name}")
    if built.case.compiler == "nvcc":
        listed = built.root.run("cuobjdump", "--list-elf", str(inside)).stdout
        assert {int(sm) for sm in re.findall(r"\.sm_(\d+)\.cubin", listed)} == built.case.codes
    assert _machine(library) == built.case.codes
    majors = {sm // 10 for sm in built.case.codes}
    patterns = (
        "tensorflow/libtensorflow_cc.so.2",
        "nvidia/cudnn/lib/libcudnn_cnn*.so.*",
        "nvidia/nccl/lib/libnccl.so.2",
        "nvidia/cublas/lib/libcublas.so.*",
    )
    for pattern in patterns:
        for path in built.packages().glob(pattern):
            have = {sm // 10 for sm in _machine(path)}
            assert majors <= have or not have, path


def test_ptxas_and_libdevice_come_from_the_wheels_and_flags_come_back(built):
    script = 'echo "FLAGS $XLA_FLAGS"; module unload tensorflow; echo "AFTER $XLA_FLAGS"'
    said = built.loaded(script, XLA_FLAGS="--xla_mine=1")
    flags = re.findall(r"FLAGS (.*)", said)[0]
    assert flags.startswith("--xla_mine=1 ")
    assert "AFTER --xla_mine=1\n" in said
    home = flags.partition("--xla_gpu_cuda_data_dir=")[2]
    assert "release" in built.root.run(f"{home}/bin/ptxas", "--version").stdout
    built.root.run("test", "-s", f"{home}/nvvm/libdevice/libdevice.10.bc")


def test_the_guard_names_the_missing_driver_in_a_job(built):
    use = f"module use {built.root.prefix}/current/modules"
    told = built.root.shell(
        f"{use}; module load tensorflow 2>&1; echo CODE $?", check=False, SLURMD_NODENAME="p100-01"
    )
    assert "does not fit this machine: this node has no NVIDIA driver" in " ".join(told.split())
    assert "CODE 0" not in told


@pytest.mark.parametrize("built", CASES[:1], indirect=True, ids=["trixie-clang"])
def test_without_horovod_it_is_built_without_any_compiler_and_loads(built):
    built.root.run("bash", "-c", NO_COMPILERS)
    text = (built.root.directory / "etc" / "site.yaml").read_text()
    plain = text.replace("backend: wheels", "backend: wheels, horovod: none")
    (built.root.directory / "etc" / "plain.yaml").write_text(plain)
    build = ("stack", "build", "--site", "/etc/plain.yaml", "--json")
    made = json.loads(built.root.hpcdl(*build, PATH="/tmp/plain").stdout)
    root = Path(built.root.prefix, "releases", made["id"])
    try:
        assert made["built"]
        assert "horovod" not in made["versions"]
        verify = ("stack", "verify", made["id"], "--local", "--json")
        proof = json.loads(built.root.hpcdl(*verify).stdout)
        assert proof["passed"]
        left = {(one["name"], one["detail"]) for one in proof["checks"] if one["skipped"]}
        why = "the release has no Horovod"
        assert left == {("all-reduce of 2 ranks", why), ("training of 2 ranks", why)}
        load = f"module use {root}/modules && module load tensorflow && python -c '{DISTRIBUTED}'"
        assert "SEEN True 1 None" in built.root.shell(load)
    finally:
        shutil.rmtree(root)


_STACK_GB = 22.0
_EXTERNALS = """
spack:
  externals:
    - {spec: python@3.13.5, prefix: /usr}
    - {spec: gcc@13.3.0, prefix: /usr}
    - {spec: cuda@12.4.131, prefix: /usr/lib/nvidia-cuda-toolkit}
    - {spec: openmpi@5.0.7, prefix: /usr}
    - {spec: cmake@3.31.6, prefix: /usr}
    - {spec: gmake@4.4.1, prefix: /usr}
"""


def with_spack(root):
    """A root that sees this machine's Spack and has what it starts, and the variables for it."""
    spack, packages = find_spack().parents[1], Path(os.environ["HPCDL_SPACK_PACKAGES"])
    install = "apt-get install -qy --no-install-recommends make patch"
    root.run("bash", "-c", f"apt-get update -q && {install}", DEBIAN_FRONTEND="noninteractive")
    root.run("python3", "-m", "venv", "--clear", "/opt/spack-python")
    root.run("/opt/spack-python/bin/python", "-m", "pip", "install", "--quiet", "clingo")
    settings = root.directory / "etc" / "spack-user"
    settings.mkdir(exist_ok=True)
    (settings / "repos.yaml").write_text(f"repos::\n  builtin: {PACKAGES}\n")
    (settings / "bootstrap.yaml").write_text(BOOTSTRAP)
    return replace(root, shared=(spack, packages)), {
        "HPCDL_SPACK_ROOT": str(spack),
        "HPCDL_SPACK_PACKAGES": str(packages),
        "SPACK_PYTHON": "/opt/spack-python/bin/python",
        "SPACK_USER_CONFIG_PATH": "/etc/spack-user",
        "SPACK_SYSTEM_CONFIG_PATH": "/etc/none",
        "SPACK_USER_CACHE_PATH": str(cache() / "tests" / "spack"),
    }


@pytest.fixture(scope="module")
def by_spack():
    if why_not():
        pytest.skip(why_not())
    case = next(case for case in CASES if case.compiler == "nvcc")
    root, env = with_spack(root_of(case.suite, case.compiler, _STACK_GB))
    for made in build(case, root, _EXTERNALS, "--backend", "spack-wheels", **env):
        yield made, env


@pytest.mark.spack
def test_a_stack_by_spack_is_of_its_packages_and_the_same_when_adopted(by_spack):
    built, env = by_spack
    assert built.record["module"] == built.case.module
    checks = {one["name"]: one for one in built.proof["checks"]}
    assert all(one["ok"] for one in checks.values())
    said = "all that the release has are its own"
    assert checks["libraries"]["detail"].endswith(said)
    assert checks["device code of Horovod"]["detail"] == "sm_60, sm_70, as the release is for"
    (place,) = nccl_of_two_ranks(built)
    assert place.startswith(f"{built.root.prefix}/spack/store/")
    where = f"{built.root.prefix}/spack/tensorflow/environments/tensorflow"
    told = json.loads(built.root.hpcdl("stack", "adopt", where, "--json", **env).stdout)
    assert (told["id"], told["built"]) == (built.record["id"], False)
