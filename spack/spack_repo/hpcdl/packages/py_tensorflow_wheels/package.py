"""TensorFlow for CPUs from wheels: no compiler, no bazel, minutes instead of hours.

wheels.json lists TensorFlow's wheel and those of everything it imports, each with its address
and SHA-256, as pip chose them together for CPython 3.11 on x86_64. They are installed into one
prefix, so that nothing else of Spack's Python packages is needed.
"""

import json
import os

from spack_repo.builtin.build_systems.generic import Package
from spack_repo.builtin.build_systems.python import PythonExtension

from spack.package import *

with open(os.path.join(os.path.dirname(__file__), "wheels.json"), encoding="utf-8") as _file:
    _SETS = json.load(_file)


class PyTensorflowWheels(Package, PythonExtension):
    """TensorFlow is an open source machine learning framework for everyone."""

    homepage = "https://www.tensorflow.org"

    maintainers("hpcdl")

    license("Apache-2.0")

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

    extends("python@3.11")
    depends_on("py-pip", type="build")
    # The modulefile of the other backend gives the same name.
    conflicts("target=aarch64:", msg="these wheels are for x86_64")

    def install(self, spec, prefix):
        wheels = find(self.stage.path, "*.whl")
        python("-m", "pip", "install", "--no-index", "--no-deps", "--no-warn-script-location",
               f"--prefix={prefix}", *wheels)  # fmt: skip

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_import(self):
        python("-c", "import tensorflow")
