"""Bazel with a real nvcc, a CUDA rule of TensorFlow's and exactly the options of our recipe.

`make test-gpu-build`: in a Debian sid with bazel 7.7 and nvcc 12.4. The recipe's own code gives
the options (tests/bazel_recipe.py), TensorFlow's rules for CUDA are those of a checkout that
HPCDL_CUDA_RULES names: github.com/google-ml-infra/rules_ml_toolchain at b1d6a6f, which has them as
of TensorFlow 2.20. What is compiled is one kernel. Not shown: TensorFlow's own sources, its
configure script, NCCL, and a CUDA newer than 12.4.
"""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.stack.linked import read_device_code
from hpcdl.stack.spack_backend.environment import find_spack
from hpcdl.system.resources import folder
from tests.gpu_roots import root_of
from tests.integration.spack_fixture import PACKAGES, why_not

RULES = Path(os.environ.get("HPCDL_CUDA_RULES") or "/nonexistent")
pytestmark = [
    pytest.mark.gpu_build,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
    pytest.mark.skipif(
        not (RULES / "third_party" / "gpus").is_dir(),
        reason="TensorFlow's rules for CUDA are not here (HPCDL_CUDA_RULES)",
    ),
]

# Debian's CUDA in the layout of Spack's: links, CUPTI and nvvm with directories of their own.
PREFIXES = r"""
cd /opt; rm -rf cuda nccl served
mkdir -p cuda/{include,lib64,bin,nvvm/bin,extras/CUPTI/{include,lib64}} cudnn/{include,lib}
mkdir -p nccl/{include,lib} served
own=/usr/lib/nvidia-cuda-toolkit libraries=/usr/lib/x86_64-linux-gnu
cp $own/bin/nvcc cuda/bin; cp $own/bin/cicc cuda/nvvm/bin; cp -r $own/libdevice cuda/nvvm
cat >cuda/bin/nvcc.profile <<'PROFILE'
TOP = $(_HERE_)/..
CICC_PATH = $(TOP)/nvvm/bin
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(CICC_PATH):$(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
PROFILE
packages='^(nvidia-cuda-(dev|toolkit)|nvidia-profiler|lib(cu|nv|thrust|cub|npp).*)$'
for path in $(dpkg -L $(dpkg-query -W -f '${Package}\n' | grep -E "$packages") | sort -u); do
  case $path in
    /usr/include/cupti*|/usr/include/nvperf*) ln -sfn $path cuda/extras/CUPTI/include;;
    /usr/include/*/*) ;;
    /usr/include/*) ln -sfn $path cuda/include;;
    $libraries/libcupti*) ln -sf $path cuda/extras/CUPTI/lib64;;
    $libraries/*.so*|$libraries/*.a) ln -sf $path cuda/lib64;;
    /usr/bin/nvcc) ;;
    /usr/bin/*) ln -sf $path cuda/bin;;
  esac
done
cp -r $own/bin/crt cuda/bin; ln -s /usr/include/nccl*.h nccl/include
ln -s $libraries/libnccl* nccl/lib; tar czf served/skylib.tar.gz -C /usr/share/bazel/tools/skylib .
"""
WORKSPACE = """
workspace(name = "org_tensorflow")
load("@bazel_tools//tools/build_defs/repo:http.bzl", "http_archive")
http_archive(
    name = "bazel_skylib", url = "http://127.0.0.1:8765/skylib.tar.gz", sha256 = "{sha256}",
)
local_repository(name = "rules_ml_toolchain", path = "{rules}")
load(
    "@rules_ml_toolchain//third_party/gpus/cuda/hermetic:cuda_json_init_repository.bzl",
    "cuda_json_init_repository",
)
cuda_json_init_repository()
load("@cuda_redist_json//:distributions.bzl", "CUDA_REDISTRIBUTIONS", "CUDNN_REDISTRIBUTIONS")
load(
    "@rules_ml_toolchain//third_party/gpus/cuda/hermetic:cuda_redist_init_repositories.bzl",
    "cuda_redist_init_repositories", "cudnn_redist_init_repository",
)
cuda_redist_init_repositories(cuda_redistributions = CUDA_REDISTRIBUTIONS)
cudnn_redist_init_repository(cudnn_redistributions = CUDNN_REDISTRIBUTIONS)
load(
    "@rules_ml_toolchain//third_party/gpus/cuda/hermetic:cuda_configure.bzl", "cuda_configure",
)
cuda_configure(name = "local_config_cuda")
"""
# Debian's bazel has its parts and rules here; its own /etc/bazel/bazelrc says so, which the recipe
# keeps out.
DEBIANS = ["--install_base=/usr/share/bazel", "--trust_install_base"]
# The options of TensorFlow's own .bazelrc that have to do with CUDA, and Debian's rules.
BAZELRC = """
common --noenable_bzlmod --enable_workspace
common --override_repository=platforms=/usr/share/bazel/tools/platforms
common --override_repository=rules_cc=/usr/share/bazel/rules/cc
common --override_repository=rules_java=/usr/share/bazel/rules/java
common --override_repository=rules_license=/usr/share/bazel/rules/license
common --override_repository=rules_proto=/usr/share/bazel/rules/proto
common --override_repository=rules_python=/usr/share/bazel/rules/python
build --noincompatible_enable_cc_toolchain_resolution
build:opt --copt=-O2
build:cuda --repo_env TF_NEED_CUDA=1
build:cuda --crosstool_top=@local_config_cuda//crosstool:toolchain
build:cuda --@local_config_cuda//:enable_cuda
build:cuda --repo_env=HERMETIC_CUDA_VERSION="12.5.1"
build:cuda --repo_env=HERMETIC_CUDNN_VERSION="9.3.0"
build:cuda --@local_config_cuda//cuda:include_cuda_libs=true
build:cuda_wheel --@local_config_cuda//cuda:include_cuda_libs=false
build:dynamic_kernels --define=dynamic_loaded_kernels=true
build:nogcp --define=no_gcp_support=true
build:noaws --define=no_aws_support=true
build:nohdfs --define=no_hdfs_support=true
build:v2 --define=tf_api_version=2 --action_env=TF2_BEHAVIOR=1
try-import %workspace%/.tf_configure.bazelrc
"""
BUILD = """
load("@local_config_cuda//cuda:build_defs.bzl", "cuda_library")
cuda_library(name = "wheel", srcs = ["add.cu.cc"], alwayslink = True)
"""
KERNEL = """
#include "third_party/gpus/cuda/include/cuda_runtime.h"
#include "third_party/gpus/cuda/extras/CUPTI/include/cupti.h"
__global__ void add(float *a, const float *b) { a[threadIdx.x] += b[threadIdx.x]; }
void launch(float *a, const float *b) { add<<<1, 32>>>(a, b); }
"""


CUDNN = "nvidia-cudnn-cu12==9.10.2.21"
SETTINGS = """
config: {{install_tree: {{root: /opt/tree}}, build_stage: [/opt/stage]}}
repos:: {{hpcdl: /opt/spack/spack_repo/hpcdl, builtin: {builtin}}}
bootstrap: {{enable: true, sources:: [], trusted:: {{}}}}
"""
COMPILER = "/usr/bin/gcc-13"
SERVE = "python3 -m http.server 8765 --bind 127.0.0.1 -d /opt/served >/dev/null 2>&1 & sleep 2; "


@pytest.fixture(scope="module")
def root():
    """The root with CUDA as Spack lays it out, the recipes, and an archive to download."""
    found = root_of("sid", "nvcc", stack_gb=2)
    top = found.directory / "opt"
    found.run("bash", "-ec", PREFIXES)
    _add_cudnn(top)
    shutil.rmtree(top / "spack", ignore_errors=True)
    shutil.copytree(folder("spack"), top / "spack", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(Path(__file__).parents[1] / "bazel_recipe.py", top)
    (top / "scope").mkdir(exist_ok=True)
    (top / "scope" / "include.yaml").unlink(missing_ok=True)
    for section in SETTINGS.format(builtin=PACKAGES).strip().splitlines():
        (top / "scope" / f"{section.partition(':')[0]}.yaml").write_text(section)
    return replace(found, shared=(find_spack().resolve().parents[1], PACKAGES.parents[2], RULES))


def _add_cudnn(top):
    """What the rules look at of cuDNN: its headers, and the name of its library; fetched once."""
    link = top / "cudnn" / "lib" / "libcudnn.so"
    if link.is_symlink():
        return
    with tempfile.TemporaryDirectory() as place:
        fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", place]
        if subprocess.run([*fetch, CUDNN], check=False).returncode != 0:
            pytest.skip(f"pip cannot download {CUDNN}")
        (wheel,) = Path(place).iterdir()
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                kind, _, file = name.removeprefix("nvidia/cudnn/").partition("/")
                if kind == "include" or file == "libcudnn.so.9":
                    (top / "cudnn" / kind / file).write_bytes(archive.read(name))
    link.symlink_to("libcudnn.so.9")


def recipes_options(root, name, **env):
    """What the recipe makes in /opt/NAME, for bazel: `arguments` and `environment`."""
    spack = find_spack()
    script = (
        f"cd /opt/{name} && {spack} -C /opt/scope -e /opt/spack/environments/{name} python "
        f"/opt/bazel_recipe.py /opt/{name}.json /opt/cuda /opt/cudnn /opt/nccl {COMPILER}"
    )
    root.run(
        "bash",
        "-ec",
        script,
        SPACK_USER_CACHE_PATH="/opt/spack-cache",
        SPACK_DISABLE_LOCAL_CONFIG="1",
        **env,
    )
    return json.loads((root.directory / "opt" / f"{name}.json").read_text())


def bazel(root, name, before="", **env):
    """Run bazel as the recipe would, from an empty state; the server that `before` starts ends."""
    told = recipes_options(root, name, HPCDL_BAZEL_CACHE="/opt/bazel-cache", **env)
    command = shlex.join(["bazel", *DEBIANS, *told["arguments"]])
    state = told["environment"]["TEST_TMPDIR"]
    objects = "bazel-bin/tensorflow/tools/pip_package/_objs/wheel/*.o"
    script = (
        f"cd /opt/{name}; {before} {command}; code=$?; mkdir -p out; rm -f out/*; "
        f"cp -L {objects} out; rm -rf {state}; exit $code"
    )
    return root.run("bash", "-c", script, check=False, **{**told["environment"], "CC": COMPILER})


def write_project(root, name):
    """TensorFlow's target, with one kernel in it."""
    archive = (root.directory / "opt" / "served" / "skylib.tar.gz").read_bytes()
    digest = hashlib.sha256(archive).hexdigest()
    where = root.directory / "opt" / name
    shutil.rmtree(where, ignore_errors=True)
    target = where / "tensorflow" / "tools" / "pip_package"
    target.mkdir(parents=True)
    (where / "WORKSPACE").write_text(WORKSPACE.format(sha256=digest, rules=RULES))
    (where / ".bazelrc").write_text(BAZELRC)
    (where / "BUILD").touch()
    (target / "BUILD").write_text(BUILD)
    (target / "add.cu.cc").write_text(KERNEL)
    return where


@pytest.mark.parametrize(("name", "sm"), [("p100", 60), ("v100", 70)])
def test_the_recipes_options_compile_a_kernel_for_its_gpu_without_internet(root, name, sm):
    shutil.rmtree(root.directory / "opt" / "bazel-cache", ignore_errors=True)
    where = write_project(root, name)
    refused = bazel(root, name, HPCDL_BAZEL_OFFLINE="1")
    assert refused.returncode != 0
    assert "download is disabled" in refused.stderr, "an empty cache is an error at once"
    filled = bazel(root, name, before=SERVE)
    assert filled.returncode == 0, filled.stderr
    offline = bazel(root, name, HPCDL_BAZEL_OFFLINE="1")
    assert offline.returncode == 0, offline.stderr
    written = (where / ".tf_configure.bazelrc").read_text()
    assert "CUDA_TOOLKIT_PATH" not in written
    assert "--experimental_repository_disable_download" in written
    (compiled,) = (where / "out").glob("**/*.o")
    assert set(read_device_code(compiled)) == {f"sm_{sm}", f"compute_{sm}"}
