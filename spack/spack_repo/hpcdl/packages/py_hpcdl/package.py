"""hpcdl itself, from the checkout that this package repository lies in.

There is nothing to download: the recipe and the program travel together, so their versions
always fit. `hpcdl stack build` names its own wheel in HPCDL_WHEEL, which then takes the place
of the checkout.
"""

import os

from spack_repo.builtin.build_systems.python import PythonPackage, PythonPipBuilder

from spack.package import *


class PyHpcdl(PythonPackage):
    """From bare Slurm to verified TensorFlow training, from one site file."""

    homepage = "https://www.tensorflow.org"
    has_code = False

    license("Apache-2.0")

    version("0.1.0")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@68:", type="build")
    depends_on("py-wheel", type="build")
    depends_on("py-jinja2@3.1:", type=("build", "run"))
    depends_on("py-pyyaml@6:", type=("build", "run"))
    depends_on("py-shtab@1.6:", type=("build", "run"))

    @property
    def checkout(self):
        """The directory with setup.cfg, four directories above the repository's packages."""
        return os.path.abspath(os.path.join(self.package_dir, *[os.pardir] * 5))

    @property
    def sources(self):
        """What pip installs: a wheel, or a copy of the checkout, for pip writes beside it."""
        wheel = os.environ.get("HPCDL_WHEEL")
        if wheel:
            return wheel
        if not os.path.isfile(os.path.join(self.checkout, "setup.cfg")):
            raise InstallError(
                f"{self.checkout} is no checkout of hpcdl: use the repository of a checkout, "
                "or name a wheel of hpcdl in HPCDL_WHEEL"
            )
        copy = os.path.join(self.stage.path, "hpcdl")
        if not os.path.isdir(copy):
            for name in ("hpcdl", "templates", "modulefiles", "spack", "reframe_checks"):
                install_tree(os.path.join(self.checkout, name), os.path.join(copy, name))
            for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
                install(os.path.join(self.checkout, name), copy)
        return copy

    def install(self, spec, prefix):
        python("-m", "pip", *PythonPipBuilder.std_args(self), f"--prefix={prefix}", self.sources)
