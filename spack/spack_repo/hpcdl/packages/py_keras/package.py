"""Keras as TensorFlow's wheels bring it, from wheels: nothing to compile, no bazel.

The builtin recipe makes Keras 3 depend on TensorFlow, which depends on Keras: a cycle. Here
TensorFlow asks for Keras 3, and Keras 2 asks for its TensorFlow.
"""

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *

_FILES = "https://files.pythonhosted.org/packages"


class PyKeras(PythonPackage):
    """Keras is a deep learning API written in Python."""

    homepage = "https://keras.io"

    maintainers("hpcdl")

    license("Apache-2.0")

    version(
        "3.15.0",
        sha256="9bbd7df12b7b53500d00dc24d97b7e066c771260482cb7118de0b7687a7a2781",
        url=f"{_FILES}/d4/16/d506c09bbff25927a65d13c542cb4eedc2d573e304f38b6ac3f49ed6be9b/keras-3.15.0-py3-none-any.whl",
        expand=False,
    )
    version(
        "2.15.0",
        sha256="2dcc6d2e30cf9c951064b63c1f4c404b966c59caf09e01f3549138ec8ee0dd1f",
        url=f"{_FILES}/fc/a7/0d4490de967a67f68a538cc9cdb259bff971c4b5787f7765dc7c8f118f71/keras-2.15.0-py3-none-any.whl",
        expand=False,
    )
    version(
        "2.14.0",
        sha256="d7429d1d2131cc7eb1f2ea2ec330227c7d9d38dab3dfdf2e78defee4ecc43fcd",
        url=f"{_FILES}/fe/58/34d4d8f1aa11120c2d36d7ad27d0526164b1a8ae45990a2fede31d0e59bf/keras-2.14.0-py3-none-any.whl",
        expand=False,
    )

    with default_args(type=("build", "run")):
        depends_on("python@3.11:", when="@3.13:")
        depends_on("python@3.9:")

    with default_args(type="run"), when("@3:"):
        depends_on("py-absl-py")
        depends_on("py-numpy")
        depends_on("py-rich")
        depends_on("py-namex")
        depends_on("py-h5py")
        depends_on("py-optree")
        depends_on("py-ml-dtypes")
        depends_on("py-packaging")

    for minor in (14, 15):
        depends_on(f"py-tensorflow@2.{minor}", when=f"@2.{minor}", type="run")

    @property
    def import_modules(self):
        # Importing Keras imports TensorFlow, which is not there yet when Keras 3 is built.
        return []
