"""shtab of the release that hpcdl needs; the builtin recipe ends at 1.3."""

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyShtab(PythonPackage):
    """Automagic shell tab completion for Python programs."""

    homepage = "https://github.com/iterative/shtab"

    maintainers("hpcdl")

    license("Apache-2.0")

    version(
        "1.7.2",
        sha256="858a5805f6c137bb0cda4f282d27d08fd44ca487ab4a6a36d2a400263cd0b5c1",
        url="https://files.pythonhosted.org/packages/74/03/3271b7bb470fbab4adf5bd30b0d32143909d96f3608d815b447357f47f2b/shtab-1.7.2-py3-none-any.whl",
        expand=False,
    )

    depends_on("python@3.7:", type=("build", "run"))
