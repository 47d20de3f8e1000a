"""Horovod for TensorFlow's wheels, with the wheels of what it and hpcdl import.

The sources are PyPI's. They are compiled with the machine's own c++ and MPI, as `pip` would do
it: nothing here is linked against a library that Spack builds, so no compiler of Spack's is
asked for. With +cuda it is linked with the NCCL of TensorFlow's wheels: nvcc and the gcc that it
takes are Spack's or the machine's, needed to build only. wheels.json and, for +cuda,
wheels-cuda.json list the wheels, each with its address and SHA-256.
"""

import json
import os

from spack_repo.builtin.build_systems.generic import Package
from spack_repo.builtin.build_systems.python import PythonExtension

from spack.package import *

_SETS = {}
for _cuda, _name in (("~cuda", "wheels.json"), ("+cuda", "wheels-cuda.json")):
    with open(os.path.join(os.path.dirname(__file__), _name), encoding="utf-8") as _file:
        _SETS[_cuda] = json.load(_file)

_ARCHS = ("60", "70")


class PyHorovodWheels(Package, PythonExtension):
    """Distributed training framework, built for TensorFlow from wheels."""

    homepage = "https://github.com/horovod/horovod"

    maintainers("hpcdl")

    license("Apache-2.0")

    version(
        "0.28.1",
        sha256="92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0",
        url="https://files.pythonhosted.org/packages/e4/86/da559fcc1620ac7831a16ccb2ad3acb477a8da8a631f75a83b6410507210/horovod-0.28.1.tar.gz",
    )

    variant("cuda", default=False, description="For NVIDIA's GPUs, with NCCL")
    variant(
        "cuda_arch",
        default="60,70",
        values=_ARCHS,
        multi=True,
        when="+cuda",
        description="GPUs to compile for",
    )

    for _cuda, _sets in _SETS.items():
        for _version, _set in _sets.items():
            for _use, _wheels in _set.items():
                for _name, _wheel in _wheels.items():
                    resource(
                        name=_name,
                        url=_wheel["url"],
                        sha256=_wheel["sha256"],
                        expand=False,
                        placement=f"{_use}-{_name}",
                        when=f"@{_version} {_cuda}",
                    )

    extends("python@3.11", when="~cuda")
    extends("python@3.13", when="+cuda")
    depends_on("py-tensorflow-wheels", type=("build", "run"), when="~cuda")
    depends_on("py-tensorflow-cuda-wheels", type=("build", "run"), when="+cuda")
    for _arch in _ARCHS:
        depends_on(
            f"py-tensorflow-cuda-wheels cuda_arch={_arch}",
            type=("build", "run"),
            when=f"+cuda cuda_arch={_arch}",
        )
    depends_on("mpi", type=("build", "run"))
    depends_on("cmake@3.13:", type="build")
    depends_on("gmake", type="build")
    depends_on("py-pip", type="build")
    with when("+cuda"):
        depends_on("cuda@12.1:12", type="build")
        depends_on("gcc@:14", type="build")
        # crt/host_config.h of each CUDA.
        conflicts("^gcc@13:", when="^cuda@:12.3")
        conflicts("^gcc@14:", when="^cuda@:12.7")
    conflicts("target=aarch64:", msg="these wheels are for x86_64")

    patch("no-xla-ops.patch")
    patch("span-that-assigns.patch")
    patch("own-stream-value.patch", when="+cuda")

    def patch(self):
        """Look for libraries where they stay: no path inside the sources is in the RUNPATH."""
        line = "set(CMAKE_CXX_EXTENSIONS OFF)"
        kept = ("BUILD_WITH_INSTALL_RPATH", "INSTALL_RPATH_USE_LINK_PATH")
        text = "\n".join([line, *(f"set(CMAKE_{name} ON)" for name in kept)])
        filter_file(line, text, "CMakeLists.txt", string=True)

    def setup_build_environment(self, env: EnvironmentModifications) -> None:
        env.set("HOROVOD_WITH_TENSORFLOW", "1")
        env.set("HOROVOD_WITHOUT_PYTORCH", "1")
        env.set("HOROVOD_WITHOUT_MXNET", "1")
        env.set("HOROVOD_WITH_MPI", "1")
        env.set("HOROVOD_WITHOUT_GLOO", "1")
        # Headers that its sources forget; gcc 13 and later do not bring them along.
        env.set("CXXFLAGS", "-include stdexcept -include cstdint")
        env.set("CMAKE_POLICY_VERSION_MINIMUM", "3.5")
        flags = ["-Wl,--strip-all"]
        if self.spec.satisfies("+cuda"):
            self._for_gpus(env)
            # The very files that TensorFlow opens: one process has one NCCL.
            folders = (join_path(self.wheels, "tensorflow"), join_path(self.nccl, "lib"))
            flags += [f"-Wl,-rpath,{folder}" for folder in folders]
        env.set("LDFLAGS", " ".join(flags))
        env.set("MAKEFLAGS", f"-j{self.module.make_jobs}")
        # The newest setuptools no longer has what Horovod's setup.py imports.
        env.prepend_path("PYTHONPATH", self.build_tools)

    def _for_gpus(self, env: EnvironmentModifications) -> None:
        """NCCL of the wheels; nvcc, and the gcc that it takes."""
        gcc = self.spec["gcc"].package
        archs = sorted(self.spec.variants["cuda_arch"].value)
        env.set("HOROVOD_GPU_OPERATIONS", "NCCL")
        env.set("HOROVOD_NCCL_LINK", "SHARED")
        env.set("HOROVOD_NCCL_HOME", self.local_nccl)
        env.set("HOROVOD_CUDA_HOME", self.spec["cuda"].prefix)
        env.set("HOROVOD_BUILD_CUDA_CC_LIST", ",".join(archs))
        env.set("CC", gcc.cc)
        env.set("CXX", gcc.cxx)
        env.set("CUDAHOSTCXX", gcc.cxx)

    @property
    def wheels(self):
        """site-packages of TensorFlow."""
        tensorflow = self.spec["py-tensorflow-cuda-wheels"].prefix
        return join_path(tensorflow, self.spec["python-venv"].package.platlib)

    @property
    def nccl(self):
        """NCCL of NVIDIA's wheel."""
        return join_path(self.wheels, "nvidia", "nccl")

    @property
    def local_nccl(self):
        """The same with the link that a linker looks for; see `patch` for its place."""
        return join_path(self.stage.source_path, "local-nccl")

    @run_before("install", when="+cuda")
    def make_local_nccl(self):
        """Link the parts of NCCL together; a stage may be used again."""
        mkdirp(join_path(self.local_nccl, "lib"))
        for source, name in (
            (join_path(self.nccl, "include"), "include"),
            (join_path(self.nccl, "lib", "libnccl.so.2"), join_path("lib", "libnccl.so")),
        ):
            link = join_path(self.local_nccl, name)
            if not os.path.lexists(link):
                symlink(source, link)

    @property
    def build_tools(self):
        """Where the wheels lie unpacked that only the build needs."""
        return join_path(self.stage.path, "build-tools")

    def install(self, spec, prefix):
        pip = ["-m", "pip", "--disable-pip-version-check", "install", "--no-index", "--no-deps",
               "--no-warn-script-location"]  # fmt: skip
        source = self.stage.source_path
        for use, where in (
            ("build", f"--target={self.build_tools}"),
            ("others", f"--prefix={prefix}"),
        ):
            python(*pip, where, *(path for path in find(source, "*.whl") if f"/{use}-" in path))
        python(*pip, "--no-build-isolation", f"--prefix={prefix}", source)

    @run_after("install")
    def remove_elastic_launcher(self):
        """Remove what starts the elastic rendezvous server (CVE-2024-10190)."""
        launcher = join_path(self.prefix.bin, "horovodrun")
        if os.path.lexists(launcher):
            os.remove(launcher)

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_import(self):
        python("-c", "import horovod.tensorflow")
