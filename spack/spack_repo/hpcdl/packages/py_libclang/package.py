"""libclang from its wheel: TensorFlow names it as a requirement, the builtin recipe builds LLVM."""

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyLibclang(PythonPackage):
    """The Clang C library and its Python bindings."""

    homepage = "https://github.com/sighingnow/libclang"

    license("Apache-2.0 WITH LLVM-exception")

    version(
        "18.1.1",
        sha256="c533091d8a3bbf7460a00cb6c1a71da93bffe148f172c7d03b1c31fbf8aa2a0b",
        url="https://files.pythonhosted.org/packages/1d/fc/716c1e62e512ef1c160e7984a73a5fc7df45166f2ff3f254e71c58076f7c/libclang-18.1.1-py2.py3-none-manylinux2010_x86_64.whl",
        expand=False,
    )

    depends_on("python@3:", type=("build", "run"))
    conflicts("target=aarch64:", msg="this wheel is for x86_64")
