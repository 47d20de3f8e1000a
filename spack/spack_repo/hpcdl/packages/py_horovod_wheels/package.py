"""Horovod for TensorFlow's wheels, with the wheels of what it and hpcdl import.

The sources are PyPI's. They are compiled with the machine's own c++ and MPI, as `pip` would do
it: nothing here is linked against a library that Spack builds, so no compiler of Spack's is
asked for. wheels.json lists the wheels, each with its address and SHA-256.
"""

import json
import os

from spack_repo.builtin.build_systems.generic import Package
from spack_repo.builtin.build_systems.python import PythonExtension

from spack.package import *

with open(os.path.join(os.path.dirname(__file__), "wheels.json"), encoding="utf-8") as _file:
    _SETS = json.load(_file)


class PyHorovodWheels(Package, PythonExtension):
    """Distributed training framework, built for TensorFlow from wheels."""

    homepage = "https://github.com/horovod/horovod"

    license("Apache-2.0")

    version(
        "0.28.1",
        sha256="92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0",
        url="https://files.pythonhosted.org/packages/e4/86/da559fcc1620ac7831a16ccb2ad3acb477a8da8a631f75a83b6410507210/horovod-0.28.1.tar.gz",
    )

    for _version, _set in _SETS.items():
        for _use, _wheels in _set.items():
            for _name, _wheel in _wheels.items():
                resource(
                    name=_name,
                    url=_wheel["url"],
                    sha256=_wheel["sha256"],
                    expand=False,
                    placement=f"{_use}-{_name}",
                    when=f"@{_version}",
                )

    extends("python@3.11")
    depends_on("py-tensorflow-wheels", type=("build", "run"))
    depends_on("mpi", type=("build", "run"))
    depends_on("cmake@3.13:", type="build")
    depends_on("gmake", type="build")
    depends_on("py-pip", type="build")
    conflicts("target=aarch64:", msg="these wheels are for x86_64")

    def patch(self):
        """TensorFlow 2.19 and later ship no llvm and highwayhash headers, which this file needs.

        It holds Horovod's XLA operations, which are off unless HOROVOD_ENABLE_XLA_OPS is set.
        """
        filter_file(
            'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")',
            "",
            "horovod/tensorflow/CMakeLists.txt",
            string=True,
        )

    def setup_build_environment(self, env: EnvironmentModifications) -> None:
        env.set("HOROVOD_WITH_TENSORFLOW", "1")
        env.set("HOROVOD_WITHOUT_PYTORCH", "1")
        env.set("HOROVOD_WITHOUT_MXNET", "1")
        env.set("HOROVOD_WITH_MPI", "1")
        env.set("HOROVOD_WITHOUT_GLOO", "1")
        env.set("LDFLAGS", "-Wl,--strip-all")
        env.set("MAKEFLAGS", f"-j{self.module.make_jobs}")
        # The newest setuptools no longer has what Horovod's setup.py imports.
        env.prepend_path("PYTHONPATH", self.build_tools)

    @property
    def build_tools(self):
        """Where the wheels lie unpacked that only the build needs."""
        return join_path(self.stage.path, "build-tools")

    def install(self, spec, prefix):
        pip = ["-m", "pip", "--disable-pip-version-check", "install", "--no-index", "--no-deps",
               "--no-warn-script-location"]  # fmt: skip
        source = self.stage.source_path
        for use, where in (("build", f"--target={self.build_tools}"), ("others", f"--prefix={prefix}")):
            python(*pip, where, *(path for path in find(source, "*.whl") if f"/{use}-" in path))
        python(*pip, "--no-build-isolation", f"--prefix={prefix}", source)

    @run_after("install")
    def remove_elastic_launcher(self):
        """Remove what starts the elastic rendezvous server (CVE-2024-10190); Slurm starts ranks."""
        launcher = join_path(self.prefix.bin, "horovodrun")
        if os.path.lexists(launcher):
            os.remove(launcher)

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_import(self):
        python("-c", "import horovod.tensorflow")
