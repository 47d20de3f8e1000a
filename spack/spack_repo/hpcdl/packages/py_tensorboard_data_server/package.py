"""TensorBoard's data server from its wheel for every machine: no Rust to compile.

This wheel has no program in it; TensorBoard then reads its files itself.
"""

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyTensorboardDataServer(PythonPackage):
    """Fast data loading for TensorBoard."""

    homepage = "https://github.com/tensorflow/tensorboard"

    maintainers("hpcdl")

    license("Apache-2.0")

    version(
        "0.7.2",
        sha256="7e0610d205889588983836ec05dc098e80f97b7e7bbff7e994ebb78f578d0ddb",
        url="https://files.pythonhosted.org/packages/7a/13/e503968fefabd4c6b2650af21e110aa8466fe21432cd7c43a84577a89438/tensorboard_data_server-0.7.2-py3-none-any.whl",
        expand=False,
    )

    depends_on("python@3.7:", type=("build", "run"))
