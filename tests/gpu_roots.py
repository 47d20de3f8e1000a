"""Minimal Debians where stacks for GPUs are built and loaded without one, by clang or by nvcc.

With clang there is no package of NVIDIA's. Debian's non-free part has nvcc 12.4 in 13 (trixie) and
11.8 in 12 (bookworm), the last one for a K80; unstable (sid) has bazel 7.7 beside nvcc 12.4.
debootstrap makes a root below the cache once; commands run in it with namespaces of their own, and
see the cache at its own path, and what else is shared. Needs root, debootstrap, 10 GB and a mirror
of Debian.
"""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from hpcdl.cluster.rootfs import KEYRING, own_mirror
from hpcdl.system.resources import cache

PACKAGES = (
    "ca-certificates",
    "cmake",
    "libopenmpi-dev",
    "lmod",
    "make",
    "openmpi-bin",
    "python3-dev",
    "python3-venv",
)
COMPILERS = {
    ("trixie", "clang"): ("clang-19", "g++"),
    ("bookworm", "clang"): ("clang-19", "g++"),
    ("trixie", "nvcc"): ("nvidia-cuda-toolkit", "g++", "g++-13"),
    ("bookworm", "nvcc"): ("nvidia-cuda-toolkit", "g++", "g++-11"),
    ("sid", "nvcc"): (
        "nvidia-cuda-toolkit",
        "bazel-bootstrap",
        "g++-13",
        "libcupti-dev",
        "libnccl-dev",
    ),
}
PYTHON = "/opt/hpcdl/bin/python"
_CHECKOUT = Path(__file__).resolve().parents[1]
_DONE = "root.json"
_ROOT_GB, _STACK_GB = {"clang": 3.0, "nvcc": 10.0}, 13.0
_ALONE = ("--mount", "--pid", "--fork", "--kill-child")
_ENTER = """
root=$1 shared=$2; shift 2
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
for path in $shared; do
  mkdir -p "$root$path"
  mount --bind "$path" "$root$path"
done
exec chroot "$root" /usr/bin/env -i "$@"
"""


PARTITION = (
    "{{nodes: 2, gpu: {{model: {model}, per_node: 4}}, sockets: 2, cores_per_socket: 8, "
    "memory_gb: 120, driver: '{driver}', stack: tensorflow}}"
)
SITE = """
schema: 1
name: {name}
slurm: {{version: "{slurm}"}}
paths: {{prefix: {prefix}, work: /work, datasets: /data}}
private: true
agreements: {{cuda: the tests, cudnn: the tests}}
partitions:
{partitions}
stacks:
  tensorflow: {{backend: wheels{cuda_home}}}
"""
_CUDA_HOME = ", cuda_home: /usr/lib/nvidia-cuda-toolkit"


@dataclass(frozen=True)
class Case:
    """A root, the GPUs of its site with their drivers, and what the stack must be."""

    suite: str
    slurm: str
    gpus: tuple[tuple[str, str, str], ...]
    module: str
    codes: frozenset[int]
    nccl: int
    compiler: str = "clang"


_CLANG = (
    Case(
        "trixie",
        "24.11.5",
        (("p100", "P100-PCIe", "535.183.06"), ("v100", "V100-SXM2", "550.54.14")),
        "tensorflow/2.21.0-cuda12.9-sm60-sm70",
        frozenset({60, 70}),
        23203,
    ),
    Case(
        "bookworm",
        "22.05.8",
        (("k80", "K80", "470.256.02"),),
        "tensorflow/2.14.1-cuda11.8-sm37",
        frozenset({37}),
        21605,
    ),
)
CASES = (*_CLANG, *(replace(case, compiler="nvcc") for case in _CLANG))


@dataclass(frozen=True)
class Root:
    """A root, and the environment that commands in it get; `shared` have the same path inside."""

    directory: Path
    suite: str
    compiler: str
    shared: tuple[Path, ...] = ()

    @property
    def prefix(self):
        """Of its site; below the cache, so that the tree can share files with uv's."""
        return f"{cache()}/tests/{self.compiler}/prefix-{self.suite}"

    def run(self, *argv, check=True, seconds=3600, **env):
        """Run a command in it; its output, both parts apart.

        Raises:
            AssertionError: it failed and `check`.
        """
        kept = {
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HPCDL_HOME": "/var/hpcdl",
            "HPCDL_CACHE": str(cache()),
            "PIP_CACHE_DIR": str(cache() / "pip"),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        pairs = [f"{name}={value}" for name, value in {**kept, **env}.items()]
        alone = ["unshare", *_ALONE, "--propagation", "private"]
        shared = " ".join(map(str, (cache(), *self.shared)))
        enter = ["bash", "-ec", _ENTER, "enter", str(self.directory), shared]
        done = subprocess.run(
            [*alone, *enter, *pairs, *argv],
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
        assert not check or done.returncode == 0, f"{argv}\n{done.stdout[-3000:]}\n{done.stderr}"
        return done

    def shell(self, script, *, check=True, **env):
        """What a script prints, with bash and Lmod's `module`."""
        init = f". /usr/share/lmod/lmod/init/bash; {script}"
        return self.run("bash", "-c", init, check=check, **env).stdout

    def hpcdl(self, *argv, check=True, **env):
        """Run hpcdl in it, installed there as a site would."""
        named = {"HPCDL_SITE": "/etc/site.yaml", **env}
        return self.run(PYTHON, "-m", "hpcdl", *argv, check=check, **named)


def root_of(suite, compiler, stack_gb=_STACK_GB):
    """The root of a suite, made now where it is not there; the test is skipped where it cannot.

    `stack_gb` is the room that the test itself needs, in gigabytes.
    """
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip("a root needs root and debootstrap")
    place = cache() / "tests" / compiler / suite
    place.mkdir(parents=True, exist_ok=True)
    made = (place / _DONE).is_file()
    needed = stack_gb if made else stack_gb + _ROOT_GB[compiler]
    if shutil.disk_usage(place).free < needed * 1e9:
        pytest.skip(f"a build in a root with {compiler} needs {needed:.0f} GB below {place}")
    root = Root(place, suite, compiler)
    if not made:
        _make(root)
    return root


def install_hpcdl(root):
    """The checkout as it is now, into a virtual environment of the root."""
    copy = root.directory / "tmp" / "checkout"
    shutil.rmtree(copy, ignore_errors=True)
    others = (".git", ".venv", "build", "dist", "__pycache__", "*.egg-info")
    shutil.copytree(_CHECKOUT, copy, symlinks=True, ignore=shutil.ignore_patterns(*others))
    root.run("python3", "-m", "venv", "--clear", "/opt/hpcdl")
    root.run(PYTHON, "-m", "pip", "install", "--quiet", "/tmp/checkout[records]", "uv")


def write_site(root, case, more=""):
    """Its site file, with the GPUs of a case and `more`; NVIDIA's agreements are accepted."""
    rows = (
        f"  {name}: " + PARTITION.format(model=model, driver=driver)
        for name, model, driver in case.gpus
    )
    text = SITE.format(
        name=case.suite,
        slurm=case.slurm,
        prefix=root.prefix,
        partitions="\n".join(rows),
        cuda_home=_CUDA_HOME if case.compiler == "nvcc" else "",
    )
    (root.directory / "etc" / "site.yaml").write_text(text + more)


def _make(root):
    """Let debootstrap and apt fill it; what the mirror lacks skips the test."""
    shutil.rmtree(root.directory)
    alone = ["unshare", *_ALONE, "--mount-proc"]
    make = (
        "debootstrap",
        "--variant=minbase",
        f"--components={'main' if root.compiler == 'clang' else 'main,contrib,non-free'}",
        f"--keyring={KEYRING}",
        root.suite,
        root.directory,
        own_mirror(),
    )
    done = subprocess.run([*alone, *make], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"debootstrap cannot make {root.suite}: {done.stdout[-200:]}")
    for name in ("etc/resolv.conf", "etc/pip.conf"):
        if Path("/", name).is_file():
            shutil.copy(Path("/", name), root.directory / name)
    names = " ".join((*PACKAGES, *COMPILERS[root.suite, root.compiler]))
    script = (
        f"apt-get update -q && apt-get install -qy --no-install-recommends {names} && apt-get clean"
    )
    installed = root.run("bash", "-c", script, check=False, DEBIAN_FRONTEND="noninteractive")
    if installed.returncode != 0:
        pytest.skip(
            f"apt cannot install {root.compiler} in {root.suite}: {installed.stderr[-200:]}"
        )
    # The machine's own certificates: a site's proxy may have one of its own.
    bundle = "etc/ssl/certs/ca-certificates.crt"
    if Path("/", bundle).is_file():
        shutil.copy(Path("/", bundle), root.directory / bundle)
    (root.directory / _DONE).write_text(json.dumps({"suite": root.suite}))
