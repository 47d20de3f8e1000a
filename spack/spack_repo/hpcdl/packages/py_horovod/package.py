"""Horovod 0.28.1 for the TensorFlow of this repository.

The builtin recipe deprecates every version (CVE-2024-10190: the elastic rendezvous server runs
what it is sent) and asks for an estimator that ended with TensorFlow 2.15. This one declares
0.28.1 again: elastic mode and its launcher are removed after the installation, and the waiver
is a record that the site keeps. It also knows the limits: TensorFlow's release, the GPU of
NCCL, Python 3.11.
"""

import os

from spack_repo.builtin.build_systems.cuda import CudaPackage
from spack_repo.builtin.packages.py_horovod.package import PyHorovod as BuiltinPyHorovod

from spack.package import *


class PyHorovod(BuiltinPyHorovod):
    __doc__ = BuiltinPyHorovod.__doc__

    maintainers("hpcdl")

    version("0.28.1", tag="v0.28.1", commit="1d217b59949986d025f6db93c49943fb6b6cc78f")

    # horovod/runner/js_run.py imports distutils, gone in Python 3.12.
    depends_on("python@:3.11", when="@:0.28", type=("build", "run"))
    depends_on("py-setuptools@:80", type="build")

    with when("frameworks=tensorflow"):
        # 2.14 and 2.15 bring an estimator of their own release; later ones have none.
        for minor in (14, 15):
            depends_on(
                f"py-tensorflow-estimator@2.{minor}",
                when=f"^py-tensorflow@2.{minor}",
                type=("build", "run"),
            )
        # Horovod's Keras callbacks and optimizers need Keras 2.
        for minor in range(16, 21):
            depends_on(f"py-tf-keras@2.{minor}", when=f"^py-tensorflow@2.{minor}", type="run")
        for arch in CudaPackage.cuda_arch_values:
            depends_on(f"py-tensorflow+cuda cuda_arch={arch}", when=f"+cuda cuda_arch={arch}")

    with when("tensor_ops=nccl +cuda"):
        for arch in CudaPackage.cuda_arch_values:
            depends_on(f"nccl cuda_arch={arch}", when=f"cuda_arch={arch}")

    # TensorFlow 2.19 and later ship no llvm and highwayhash headers, which Horovod's XLA
    # operations need; they are off unless HOROVOD_ENABLE_XLA_OPS is set.
    patch("no-xla-ops.patch", when="^py-tensorflow@2.19:")
    # gcc 14 refuses an assignment to a const member that older compilers never looked at.
    patch("span-that-assigns.patch")
    # TensorFlow's libraries export AsGpuStreamValue up to 2.20.
    patch("own-stream-value.patch", when="+cuda ^py-tensorflow@2.21:")

    def flag_handler(self, name, flags):
        """Headers that its sources forget: gcc 13 and later do not bring them along."""
        if name == "cxxflags":
            flags += ["-include", "stdexcept", "-include", "cstdint"]
        return (flags, None, None)

    def setup_build_environment(self, env: EnvironmentModifications) -> None:
        super().setup_build_environment(env)
        # CMake 4 refuses projects that ask for a CMake before 3.5.
        env.set("CMAKE_POLICY_VERSION_MINIMUM", "3.5")

    @run_after("install")
    def remove_elastic_launcher(self):
        """Remove what starts the elastic rendezvous server; Slurm starts the ranks."""
        launcher = join_path(self.prefix.bin, "horovodrun")
        if os.path.lexists(launcher):
            os.remove(launcher)


# An inherited dependency can only be taken out here: the unconditional estimator.
for _when, _dependencies in PyHorovod.dependencies.items():
    if _when == Spec("frameworks=tensorflow"):
        _dependencies.pop("py-tensorflow-estimator", None)
