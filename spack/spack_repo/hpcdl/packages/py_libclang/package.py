"""libclang from its wheel: TensorFlow names it as a requirement, the builtin one builds LLVM."""

import platform

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *

_FILES = "https://files.pythonhosted.org/packages"
_WHEELS = {
    "x86_64": (
        "1d/fc/716c1e62e512ef1c160e7984a73a5fc7df45166f2ff3f254e71c58076f7c/libclang-18.1.1-py2.py3-none-manylinux2010_x86_64.whl",
        "c533091d8a3bbf7460a00cb6c1a71da93bffe148f172c7d03b1c31fbf8aa2a0b",
    ),
    "aarch64": (
        "3c/3d/f0ac1150280d8d20d059608cf2d5ff61b7c3b7f7bcf9c0f425ab92df769a/libclang-18.1.1-py2.py3-none-manylinux2014_aarch64.whl",
        "54dda940a4a0491a9d1532bf071ea3ef26e6dbaf03b5000ed94dd7174e8f9592",
    ),
}
_MACHINE = platform.machine() if platform.machine() in _WHEELS else "x86_64"


class PyLibclang(PythonPackage):
    """The Clang C library and its Python bindings."""

    homepage = "https://github.com/sighingnow/libclang"

    maintainers("hpcdl")

    license("Apache-2.0 WITH LLVM-exception")

    _address, _digest = _WHEELS[_MACHINE]
    version("18.1.1", sha256=_digest, url=f"{_FILES}/{_address}", expand=False)

    depends_on("python@3:", type=("build", "run"))
    conflicts("target=x86_64:" if _MACHINE == "aarch64" else "target=aarch64:",
              msg="the wheel is for the machine that solves")  # fmt: skip
