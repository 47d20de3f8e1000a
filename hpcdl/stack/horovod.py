"""Horovod's wheel: built once from its sdist by the recipe, then kept in the cache.

The sdist is checked against the recipe's digest, the recipe's edits are made (an edit whose
line is not found is an error, never skipped), and the build runs in the environment of the
stack itself, so that it compiles against exactly the TensorFlow it will run with. Its key
holds everything that shapes the result: Python, TensorFlow, Horovod, MPI, recipe.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

from hpcdl.stack.recipe import Edit, HorovodRecipe, Interpreter, Recipe, digest
from hpcdl.stack.wheelhouse import Say, new_log, sha256, wheels_cache
from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.files import explain_os_errors, locked
from hpcdl.system.run import run

_BUILD_SECONDS = 3600
_PACKAGES = "apt install libopenmpi-dev openmpi-bin g++ cmake make"


def mpi_version() -> str:
    """What the machine's MPI calls itself, such as `Open MPI 4.1.4`.

    Raises:
        MissingPrerequisite: there is no mpirun.
    """
    first = run(["mpirun", "--version"], hint=f"Debian and Ubuntu: {_PACKAGES}").stdout
    words = first.splitlines()[0] if first else "unknown MPI"
    return words.removeprefix("mpirun ").replace("(", "").replace(")", "").strip()


def horovod_folder(recipe: Recipe, python: Interpreter, mpi: str) -> Path:
    """Where the wheel of a recipe lies, whether or not it is there yet."""
    built = recipe.horovod
    key = digest(built, recipe.package, recipe.tensorflow, python.minor, mpi)
    return wheels_cache() / f"horovod-{built.version}-tf{recipe.tensorflow}-{python.tag}-{key}"


def find_horovod(recipe: Recipe, python: Interpreter, mpi: str) -> Path | None:
    """The wheel, where it has been built."""
    folder = horovod_folder(recipe, python, mpi)
    return next(iter(sorted(folder.glob("horovod-*.whl"))), None)


def build_horovod(
    recipe: Recipe, python: Interpreter, mpi: str, environment: Path, say: Say
) -> Path:
    """The wheel, built now where it is not there.

    Args:
        recipe: what to build.
        python: the Python it is for.
        mpi: the MPI it is for, as `mpi_version` tells.
        environment: the bin folder of a Python that has TensorFlow and setuptools.
        say: told what happens.

    Raises:
        MissingPrerequisite: a compiler or MPI is missing, or the sources differ from the recipe.
        CommandFailed: the build failed; its log is named.
    """
    found = find_horovod(recipe, python, mpi)
    if found is not None:
        return found
    with locked(wheels_cache() / ".horovod.lock", wait_seconds=_BUILD_SECONDS):
        found = find_horovod(recipe, python, mpi)
        if found is not None:
            return found
        require_commands(recipe.horovod)
        folder = horovod_folder(recipe, python, mpi)
        # A name of its own: compilers that a killed build left may still write to theirs.
        for left in folder.parent.glob(f"{folder.name}.partial-*"):
            shutil.rmtree(left, ignore_errors=True)
        partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
        with explain_os_errors(partial):
            partial.mkdir(parents=True)
        try:
            _build(recipe.horovod, environment, partial, say)
            with explain_os_errors(folder):
                shutil.rmtree(partial / "sources")
                shutil.rmtree(folder, ignore_errors=True)
                partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    wheel = find_horovod(recipe, python, mpi)
    assert wheel is not None
    return wheel


def require_commands(recipe: HorovodRecipe) -> None:
    """Hold the machine against what the build needs, all of it at once.

    Raises:
        MissingPrerequisite: names every missing command.
    """
    missing = [command for command in recipe.commands if shutil.which(command) is None]
    if missing:
        raise MissingPrerequisite(
            f"Horovod cannot be built: there is no {', '.join(missing)} on PATH",
            hint=f"Debian and Ubuntu: {_PACKAGES}",
        )


def _build(recipe: HorovodRecipe, environment: Path, folder: Path, say: Say) -> None:
    """From the sdist to a wheel in `folder`."""
    log = new_log("horovod")
    pip: list[str | Path] = [
        environment / "python",
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--no-input",
    ]
    sdist = _sdist(recipe, pip, folder, log, say)
    say(f"building Horovod {recipe.version} (minutes, once; log: {log})")
    with tarfile.open(sdist) as archive:
        _extract(archive, folder / "sources")
    sources = folder / "sources" / sdist.name.removesuffix(".tar.gz")
    for edit in recipe.edits:
        apply_edit(sources, edit)
    run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, sources],
        env={
            **recipe.environment,
            "PATH": f"{environment}:{os.environ['PATH']}",
            "MAKEFLAGS": f"-j{len(os.sched_getaffinity(0))}",
        },
        log=log,
        timeout=_BUILD_SECONDS,
        tied=True,
        hint="the log shows the compiler's first complaint; search it for 'error:'",
    )
    sdist.unlink(missing_ok=True)


def _sdist(recipe: HorovodRecipe, pip: list[str | Path], folder: Path, log: Path, say: Say) -> Path:
    """The sdist, fetched by pip and held against the recipe's digest."""
    say(f"fetching Horovod {recipe.version}'s sources")
    run(
        [*pip, "download", "--no-deps", "--no-build-isolation", "--no-binary", ":all:",
         "--dest", folder, f"horovod=={recipe.version}"],
        log=log,
        hint="pip needs PyPI or a mirror of it: set it in pip.conf, or PIP_INDEX_URL",
    )  # fmt: skip
    path = folder / recipe.sdist
    if not path.is_file() or sha256(path) != recipe.sha256:
        raise MissingPrerequisite(
            f"what was fetched is not {recipe.sdist} with sha256 {recipe.sha256[:16]}...",
            hint="the index or mirror serves something else: check pip.conf",
        )
    return path


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Unpack; its digest is known, so its paths are trusted where Python cannot filter them."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
    else:
        archive.extractall(folder)  # noqa: S202 - the digest was checked


def apply_edit(sources: Path, edit: Edit) -> None:
    """Take one line out of a source file.

    Raises:
        MissingPrerequisite: the line is not there exactly once: other sources.
    """
    path = sources / edit.file
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
    kept = [line for line in lines if line.strip() != edit.remove]
    if len(lines) - len(kept) != 1:
        raise MissingPrerequisite(
            f"the edit '{edit.name}' does not fit {edit.file}: its line is there "
            f"{len(lines) - len(kept)} times, not once",
            hint="the recipe in hpcdl/facts/wheels.yaml is for other sources",
        )
    path.write_text("".join(kept), encoding="utf-8")
