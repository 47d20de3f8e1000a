"""Keras 2 for TensorFlow 2.16 and later: what Horovod's Keras callbacks need.

The builtin recipe knows 2.18 only and compiles it; the wheels are pure Python.
"""

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *

_FILES = "https://files.pythonhosted.org/packages"


class PyTfKeras(PythonPackage):
    """The legacy Keras 2, under its own name. Set TF_USE_LEGACY_KERAS=1 to use it."""

    homepage = "https://github.com/keras-team/tf-keras"

    maintainers("hpcdl")

    license("Apache-2.0")

    version(
        "2.20.1",
        sha256="3f0e0a34d9a4c8758f24fdc1053e6e335f16ab5534c7d34f1899b8924779760c",
        url=f"{_FILES}/85/6b/d9a8202bfe5c9e3b078cf550bafab962aa9d6b1a1f1180f0065399d4c9b2/tf_keras-2.20.1-py3-none-any.whl",
        expand=False,
    )
    version(
        "2.19.0",
        sha256="4f339e800987b39d1548a8c76a7b33b6801a97ec7fcd89c299ec29741f7890bd",
        url=f"{_FILES}/45/6b/d245122d108a94df5969ee7408ad343af1627730e91478e01ef098976bfa/tf_keras-2.19.0-py3-none-any.whl",
        expand=False,
    )
    version(
        "2.18.0",
        sha256="c431d04027eef790fcd3261cf7fdf93eb74f3cb32e05078b57b7f5a54bd53262",
        url=f"{_FILES}/8a/ed/e08afca471299b04a34cd548e64e89d0153eda0e6cf9b715356777e24774/tf_keras-2.18.0-py3-none-any.whl",
        expand=False,
    )
    version(
        "2.17.0",
        sha256="cc97717e4dc08487f327b0740a984043a9e0123c7a4e21206711669d3ec41c88",
        url=f"{_FILES}/21/8b/75f7572ec0273ed8da50bc19defe08aaaafcc15fda3407db53f49acec814/tf_keras-2.17.0-py3-none-any.whl",
        expand=False,
    )
    version(
        "2.16.0",
        sha256="b2ad0541fa7d9e92c4b7a1b96593377afb58aaff374299a6ca6be1a42f51d899",
        url=f"{_FILES}/75/aa/cf09f8956d4f276f655b13674e15d8d6015fd832f9689aa9ff2a515781ab/tf_keras-2.16.0-py3-none-any.whl",
        expand=False,
    )

    depends_on("python@3.9:", type=("build", "run"))
    for minor in range(16, 21):
        depends_on(f"py-tensorflow@2.{minor}", when=f"@2.{minor}", type="run")
