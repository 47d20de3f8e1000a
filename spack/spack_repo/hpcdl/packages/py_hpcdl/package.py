"""hpcdl itself, from the checkout that this package repository lies in.

There is nothing to download: the recipe and the program travel together, so their versions
always fit. `hpcdl stack build` names its own wheel in HPCDL_WHEEL, which then takes the place
of the checkout.
"""

import base64
import hashlib
import os

from spack_repo.builtin.build_systems.python import PythonPackage, PythonPipBuilder

from spack.package import *

_DIRECTORIES = ("hpcdl", "examples", "templates", "modulefiles", "spack", "reframe_checks")
_FILES = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE")


class PyHpcdl(PythonPackage):
    """From bare Slurm to verified TensorFlow training, from one site file."""

    homepage = "https://www.tensorflow.org"

    maintainers("hpcdl")

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

    def content_hash(self, content=None):
        """The files of hpcdl count, too: solved again after a change, it is another package."""
        state = hashlib.sha256(super().content_hash(content).encode())
        for path in self._files():
            state.update(os.path.relpath(path, self.checkout).encode())
            with open(path, "rb") as opened:
                state.update(hashlib.sha256(opened.read()).digest())
        return base64.b32encode(state.digest()).decode().lower()

    def _files(self):
        """The program's files; environments, their views and lock files are no part of it."""
        for name in _FILES:
            path = os.path.join(self.checkout, name)
            if os.path.isfile(path):
                yield path
        for name in _DIRECTORIES:
            for where, _, files in sorted(os.walk(os.path.join(self.checkout, name))):
                if "__pycache__" not in where and "environments" not in where:
                    paths = (os.path.join(where, file) for file in sorted(files))
                    yield from (path for path in paths if not os.path.islink(path))

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
            for name in _DIRECTORIES:
                install_tree(os.path.join(self.checkout, name), os.path.join(copy, name))
            for name in _FILES:
                install(os.path.join(self.checkout, name), copy)
        return copy

    def install(self, spec, prefix):
        python("-m", "pip", *PythonPipBuilder.std_args(self), f"--prefix={prefix}", self.sources)
