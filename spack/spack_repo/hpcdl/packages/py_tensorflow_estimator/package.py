"""TensorFlow's estimator from wheels: pure Python, no bazel, no pandas.

TensorFlow 2.14 and 2.15 are the last that bring one.
"""

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *

_FILES = "https://files.pythonhosted.org/packages"


class PyTensorflowEstimator(PythonPackage):
    """TensorFlow's high-level API of old."""

    homepage = "https://github.com/tensorflow/estimator"

    maintainers("hpcdl")

    license("Apache-2.0")

    version(
        "2.15.0",
        sha256="aedf21eec7fb2dc91150fc91a1ce12bc44dbb72278a08b58e79ff87c9e28f153",
        url=f"{_FILES}/b6/c8/2f823c8958d5342eafc6dd3e922f0cc4fcf8c2e0460284cc462dae3b60a0/tensorflow_estimator-2.15.0-py2.py3-none-any.whl",
        expand=False,
    )
    version(
        "2.14.0",
        sha256="820bf57c24aa631abb1bbe4371739ed77edb11361d61381fd8e790115ac0fd57",
        url=f"{_FILES}/d1/da/4f264c196325bb6e37a6285caec5b12a03def489b57cc1fdac02bb6272cd/tensorflow_estimator-2.14.0-py2.py3-none-any.whl",
        expand=False,
    )

    depends_on("python@3.7:", type=("build", "run"))

    @property
    def import_modules(self):
        # Importing it imports TensorFlow, which need not be there yet.
        return []
