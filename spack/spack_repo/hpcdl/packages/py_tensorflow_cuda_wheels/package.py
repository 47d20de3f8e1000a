"""TensorFlow for NVIDIA's GPUs from wheels, with CUDA, cuDNN and NCCL from NVIDIA's: minutes.

wheels.json lists TensorFlow's wheel and those of everything it opens or imports, each with its
address and SHA-256, as pip chose them together for one Python on x86_64, and the GPUs that all of
them have machine code for. They are installed into one prefix: TensorFlow looks for CUDA's
libraries beside itself.
"""

import json
import os

from spack_repo.builtin.build_systems.generic import Package
from spack_repo.builtin.build_systems.python import PythonExtension

from spack.package import *

with open(os.path.join(os.path.dirname(__file__), "wheels.json"), encoding="utf-8") as _file:
    _SETS = json.load(_file)


class PyTensorflowCudaWheels(Package, PythonExtension):
    """TensorFlow is an open source machine learning framework for everyone."""

    homepage = "https://www.tensorflow.org"

    maintainers("hpcdl")

    license("Apache-2.0")

    variant(
        "cuda_arch",
        default=",".join(sorted({arch for one in _SETS.values() for arch in one["cuda_arch"]})),
        values=tuple(sorted({arch for one in _SETS.values() for arch in one["cuda_arch"]})),
        multi=True,
        description="GPUs that the stack is for; the wheels have code for them",
    )

    for _version, _wheels in _SETS.items():
        version(
            _version,
            sha256=_wheels["tensorflow"]["sha256"],
            url=_wheels["tensorflow"]["url"],
            expand=False,
        )
        for _name, _wheel in _wheels["others"].items():
            resource(
                name=_name,
                url=_wheel["url"],
                sha256=_wheel["sha256"],
                expand=False,
                placement=f"wheel-{_name}",
                when=f"@{_version}",
            )

    extends("python@3.13")
    depends_on("py-pip", type="build")
    conflicts("target=aarch64:", msg="these wheels are for x86_64")

    def install(self, spec, prefix):
        wheels = find(self.stage.path, "*.whl")
        python("-m", "pip", "install", "--no-index", "--no-deps", "--no-warn-script-location",
               f"--prefix={prefix}", *wheels)  # fmt: skip
        # TensorFlow 2.21 opens cuSOLVER from a library whose RUNPATH has no directory of it.
        if spec.satisfies("@2.21"):
            nvidia = join_path(prefix, spec["python-venv"].package.platlib, "nvidia")
            file = join_path("lib", "libcusolver.so.11")
            symlink(join_path("..", "..", "cusolver", file), join_path(nvidia, "cusparse", file))

    def setup_run_environment(self, env: EnvironmentModifications) -> None:
        # XLA looks for ptxas and libdevice here.
        nvcc = join_path(
            self.prefix, self.spec["python-venv"].package.platlib, "nvidia", "cuda_nvcc"
        )
        env.append_flags("XLA_FLAGS", f"--xla_gpu_cuda_data_dir={nvcc}")

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_import(self):
        python("-c", "import tensorflow")
