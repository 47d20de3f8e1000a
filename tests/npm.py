"""Packages of npm that tests check with: fetched once per machine, kept in the cache."""

import shutil
import subprocess
import tarfile

import pytest

from hpcdl.system.resources import cache


def unpack(name, version, into):
    """The package's files; where it cannot be had, the test is left out and counted."""
    plain = f"{name.replace('/', '-').lstrip('@')}-{version}"
    folder = cache() / "tests" / plain
    archive = folder / f"{plain}.tgz"
    if not archive.is_file():
        if shutil.which("npm") is None:
            pytest.skip("npm is not installed")
        folder.mkdir(parents=True, exist_ok=True)
        words = ["npm", "pack", "--silent", f"{name}@{version}"]
        done = subprocess.run(words, cwd=folder, capture_output=True, timeout=120, check=False)
        if done.returncode != 0:
            pytest.skip(f"{name} cannot be had from npm here")
    with tarfile.open(archive) as packed:
        if hasattr(tarfile, "data_filter"):
            packed.extractall(into, filter="data")
        else:  # Debian 12 has Python 3.11.2
            packed.extractall(into)
    return into / "package"
