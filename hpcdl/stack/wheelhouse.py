"""Which wheels make a stack, fetched once and locked by their digests; and hpcdl's own wheel.

From a resolution to a `Recipe` by facts/wheels.yaml and nvidia_wheels.yaml, never by code. Digests
of a recipe name what is cached, so a changed fact never meets a stale file.

A wheelhouse is a directory that appears by one rename when it is complete. pip fetches, so a
site's pip.conf (mirrors, proxies, certificates) counts; afterwards nothing needs the network.
Before every use each file is compared with the lock, and the lock with facts/wheel_lock.yaml, so
neither the index, nor a mirror, nor a cache can say what a wheel is. Without a row there are
machines that are no x86_64, and what `packages:` asks for: there, what is fetched first counts.

A published module carries the hpcdl it was made with: a wheel of the files that run. A checkout and
an installed wheel have the same files, so a release built from either is the same.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import platform
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdl import __version__, facts
from hpcdl.site import Site, StackRequest
from hpcdl.stack.release import MODULE, digest, normal_name, variant_of
from hpcdl.stack.resolve import Resolver, computes_of
from hpcdl.stack.resolve_facts import conditions, gpus_of, needs_of
from hpcdl.stack.tree import sha256
from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.files import explain_os_errors, made_aside, shared_lock, write_atomic, write_json
from hpcdl.system.resources import cache, home
from hpcdl.system.run import module_argv, run
from hpcdl.system.text import one_of, utc_stamp
from hpcdl.system.trust import require_no_stranger, require_private

Say = Callable[[str], None]
MACHINE = "x86_64"
"""Whose wheels the facts have."""
INDEX = "pip needs PyPI or a mirror of it: set it in pip.conf, or PIP_INDEX_URL"
_FETCH_SECONDS = 3600
_RECORD = "sha256.txt"
_PACKAGE = Path(__file__).resolve().parent.parent
_FOLDERS = ("examples", "modulefiles", "reframe_checks", "spack", "templates")
# The second line is what Spack makes in a directory of spack/environments: links to gigabytes.
_JUNK = {
    "__pycache__",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".gitignore",
    ".spack-env",
    "view",
    "._view",
    "concretize.log",
}
_BUILD_SECONDS = 600
_TOP = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE")


@dataclass(frozen=True)
class Wheel:
    """One file of a wheelhouse, as locked."""

    name: str
    version: str
    file: str
    sha256: str


@dataclass(frozen=True)
class Wheelhouse:
    """A complete, locked set of wheels."""

    folder: Path
    wheels: tuple[Wheel, ...]

    def lock(self) -> list[dict[str, str]]:
        """Its entries in a lock."""
        return [dict(vars(wheel)) for wheel in self.wheels]

    def paths(self) -> list[Path]:
        """The files; MissingPrerequisite where one is missing or is not what was locked."""
        for wheel in self.wheels:
            path = self.folder / wheel.file
            if not path.is_file() or sha256(path) != wheel.sha256:
                raise MissingPrerequisite(
                    f"the wheel {path} is not the one that was locked",
                    hint=f"remove {self.folder}; the next build fetches it again",
                )
        os.utime(self.folder)  # `hpcdl clean` goes by the last use
        return [self.folder / wheel.file for wheel in self.wheels]


def wheels_cache() -> Path:
    """Where wheels are kept, fetched or built."""
    return cache("wheels")


def new_log(what: str) -> Path:
    """A fresh log file's path."""
    return home("logs", "stack") / f"{utc_stamp()}-{os.getpid()}-{what}.log"


def pins(tensorflow: str, python: str) -> tuple[str, ...]:
    """The versions beside a TensorFlow under a Python such as `3.11`; none without a row for it."""
    rows = facts.load("wheel_lock")["pins"].get(python, {})
    if tensorflow not in rows or platform.machine() != MACHINE:
        return ()
    chosen = dict(one.split("==") for one in f"{rows['all']} {rows[tensorflow]}".split())
    return tuple(f"{name}=={version}" for name, version in chosen.items())


def digest_of(file: str) -> str | None:
    """The SHA-256 that a wheel's file must have; None where the facts have none."""
    name, version, tags = file.removesuffix(".whl").split("-", 2)
    wheels: dict[str, dict[str, str]] = facts.load("wheel_lock")["wheels"]
    return wheels.get(f"{normal_name(name)} {version}", {}).get(tags)


def wheelhouse_folder(recipe: Recipe, python: Interpreter) -> Path:
    """Return the directory of a recipe's wheelhouse, whether or not it exists."""
    beside = pins(recipe.tensorflow, python.minor)
    key = digest(recipe.requirements, recipe.alone, python.minor, beside)
    return wheels_cache() / f"{recipe.package}-{recipe.tensorflow}-{python.tag}-{key}"


def find_wheelhouse(recipe: Recipe, python: Interpreter) -> Wheelhouse | None:
    """The wheelhouse of a recipe, where it is complete.

    MissingPrerequisite if another user can change it, or its wheels are not those of the facts.
    """
    folder = wheelhouse_folder(recipe, python)
    try:
        require_no_stranger(folder)  # made under a careless umask
        entries = json.loads((folder / "lock.json").read_text(encoding="utf-8"))["wheels"]
        wheels = tuple(Wheel(**entry) for entry in entries)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not all((folder / wheel.file).is_file() for wheel in wheels):
        return None
    _require_known(recipe, python, wheels, folder)
    return Wheelhouse(folder, wheels)


def _require_known(
    recipe: Recipe, python: Interpreter, wheels: Sequence[Wheel], folder: Path
) -> None:
    """Compare with the facts; what a site adds, and other machines' wheels, are not in them."""
    all_of_them = bool(pins(recipe.tensorflow, python.minor)) and not recipe.packages
    wrong = [
        f"{one.file}: sha256 {one.sha256[:16]}..., not {(known or 'known')[:16]}"
        for one in wheels
        if (known := digest_of(one.file)) != one.sha256 and (known or all_of_them)
    ]
    if wrong:
        raise MissingPrerequisite(
            f"{len(wrong)} of the wheels in {folder} are not those of PyPI; none is installed",
            details=wrong[:10],
            hint="the package index, a mirror or a person changed them: check pip.conf, remove "
            f"{folder} if it is there, then build again",
        )


def fetch(recipe: Recipe, python: Interpreter, say: Say) -> Wheelhouse:
    """The wheelhouse of a recipe, fetched now where it is not there.

    Raises:
        CommandFailed: pip failed; its log is named.
        MissingPrerequisite: no pip, no space left, or a wheel is not that of the facts.
    """
    with shared_lock(wheels_cache() / ".lock", wait_seconds=_FETCH_SECONDS):
        found = find_wheelhouse(recipe, python)
        if found is not None:
            return found
        program = tools(python, say) / "bin" / "python"
        say(
            f"fetching {recipe.package} {recipe.tensorflow} and what it needs "
            f"(about {recipe.fetch_gb:.1f} GB, once)"
        )
        folder = wheelhouse_folder(recipe, python)
        # Begun anew each time (pip caches what it fetched): two versions of one package, fetched
        # on different days, must not meet in one lock.
        with made_aside(folder, f"{recipe.package}-*") as partial:
            _download(recipe, python, program, partial, say)
            wheels = tuple(map(_locked_wheel, sorted(partial.glob("*.whl"))))
            _require_known(recipe, python, wheels, partial)
            house = Wheelhouse(folder, wheels)
            write_json(partial / "lock.json", {"schema": 1, "wheels": house.lock()})
    return house


def _locked_wheel(path: Path) -> Wheel:
    """A wheel's lock entry; name and version are in the file's name (PEP 427)."""
    name, version = path.name.split("-")[:2]
    return Wheel(name.lower().replace("_", "-"), version, path.name, sha256(path))


def _download(recipe: Recipe, python: Interpreter, program: Path, target: Path, say: Say) -> None:
    """Let the pip of a Python fetch wheels; it installs nothing, and of wheels it runs nothing."""
    beside = pins(recipe.tensorflow, python.minor)
    if not beside:
        say(
            f"note: digests of wheels come with hpcdl for {MACHINE}, and none for Python "
            f"{python.minor} on {platform.machine()}: the index is believed"
        )
    constraints = target / "constraints.txt"
    with explain_os_errors(target):
        constraints.write_text("".join(f"{one}\n" for one in beside))
    needs: list[str | Path] = ["--constraint", constraints, *recipe.requirements]
    hint = (
        f"{INDEX}; what `packages:` in site.yaml asks for must have wheels and agree with "
        f"{recipe.package} {recipe.tensorflow} and its dependencies"
    )
    pip_download(program, target, *needs, wheels=True, hint=hint)
    if recipe.alone:
        pip_download(program, target, "--no-deps", *recipe.alone, wheels=True, hint=hint)


def pip_download(
    python: Path, target: Path, *words: str | Path, wheels: bool, hint: str = ""
) -> None:
    """Let the pip of a Python fetch wheels, or else sources, into a directory.

    CommandFailed names the log; pip refuses what has another digest than `words` say.
    """
    run(
        [
            *module_argv(python, "pip"),
            "--disable-pip-version-check",
            "--no-input",
            "--no-color",
            "download",
            "--only-binary" if wheels else "--no-binary",
            ":all:",
            "--dest",
            target,
            *words,
        ],
        log=new_log("fetch"),
        timeout=_FETCH_SECONDS,
        hint=hint or f"{INDEX}; where the hashes differ, that one serves something else",
        tied=True,
    )


def tools(python: Interpreter, say: Say) -> Path:
    """A small environment of that Python with pip in it; its directory."""
    where = cache("tools", python.tag)
    # On another machine of this cache its Python may be elsewhere: a link that leads nowhere.
    if not all((where / "bin" / name).is_file() for name in ("python", "pip")):
        say(f"making pip ready for Python {python.minor}")
        run(
            [*module_argv(python.path, "venv"), "--clear", where],
            log=new_log("tools"),
            tied=True,
            hint="Debian and Ubuntu: apt install python3-venv",
        )
    for part in (where, where / "bin"):  # what is in it is executed
        require_private(part)
    return where


def record_digest(wheel: Path) -> None:
    """Note the digest of a wheel that was built here, beside it, in a directory of ours alone."""
    write_atomic(wheel.with_name(_RECORD), f"{sha256(wheel)}\n")


def require_as_built(wheel: Path) -> Path:
    """A wheel that was built here; MissingPrerequisite where it, or who may write it, changed."""
    require_private(wheel)
    if (wheel.with_name(_RECORD)).read_text().strip() != sha256(wheel):
        raise MissingPrerequisite(
            f"the wheel {wheel} is not the one that was built",
            hint=f"remove {wheel.parent}; the next build makes it again",
        )
    os.utime(wheel.parent)  # `hpcdl clean` goes by the last use
    return wheel


def is_recorded(wheel: Path) -> bool:
    """Return whether its digest was noted when it was built."""
    return wheel.is_file() and wheel.with_name(_RECORD).is_file()


def is_checkout() -> bool:
    """Return whether hpcdl runs from a checkout, with its build files beside it."""
    return all((_PACKAGE.parent / name).is_file() for name in _TOP)


def own_files() -> Iterator[tuple[str, Path]]:
    """Return every file of hpcdl: its path in a wheel and its path now; sorted."""
    found = {f"hpcdl/{name}": path for name, path in _files(_PACKAGE)}
    if is_checkout():
        for folder in _FOLDERS:
            for name, path in _files(_PACKAGE.parent / folder):
                found[f"hpcdl/{folder}/{name}"] = path
    yield from sorted(found.items())


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for where, folders, names in os.walk(folder):
        folders[:] = set(folders) - _JUNK
        for path in (Path(where, name) for name in set(names) - _JUNK):
            # A link is the site file of an installed prefix: no part of hpcdl.
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(folder).as_posix(), path


def own_digest() -> str:
    """Eight hex digits for the content of all of hpcdl's files."""
    return _digest_of({name: path.read_bytes() for name, path in own_files()})


def _digest_of(members: Mapping[str, bytes]) -> str:
    state = hashlib.sha256(__version__.encode())
    for name, content in members.items():
        state.update(f"\0{name}\0".encode() + hashlib.sha256(content).digest())
    return state.hexdigest()[:8]


def own_wheel() -> tuple[str, Path]:
    """The digest of hpcdl's own files, and their wheel in the cache, made now if it is not there.

    Both are of the very bytes that were read: who edits a file meanwhile gets another one next
    time.
    """
    members = {name: path.read_bytes() for name, path in own_files()}
    own, info = _digest_of(members), f"hpcdl-{__version__}.dist-info"
    name = f"hpcdl-{__version__}-py3-none-any.whl"
    target = wheels_cache() / f"hpcdl-{__version__}-{own}" / name
    with shared_lock(wheels_cache() / ".hpcdl.lock", wait_seconds=_BUILD_SECONDS):
        if not is_recorded(target):
            members |= {f"{info}/{file}": text.encode() for file, text in _metadata().items()}
            write_atomic(target, pack(members, f"{info}/RECORD"))
            record_digest(target)
        return own, require_as_built(target)


def _metadata() -> dict[str, str]:
    """The metadata of hpcdl as it is installed here: of a wheel, or in place of a checkout."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        installed = distribution("hpcdl")
    except PackageNotFoundError as fault:
        raise MissingPrerequisite(
            "hpcdl is not installed, so it cannot be put into a stack",
            hint="`pip install --editable .` in its checkout",
        ) from fault
    about = installed.read_text("METADATA") or installed.read_text("PKG-INFO") or ""
    return {
        "METADATA": about,
        "WHEEL": "Wheel-Version: 1.0\nGenerator: hpcdl\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "entry_points.txt": installed.read_text("entry_points.txt") or "",
    }


def pack(members: dict[str, bytes], record: str) -> bytes:
    """A wheel of these members: a zip file whose RECORD lists their digests (PEP 427)."""
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    for name, content in sorted(members.items()):
        checksum = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
        writer.writerow([name, f"sha256={checksum.decode()}", len(content)])
    writer.writerow([record, "", ""])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in [*sorted(members.items()), (record, rows.getvalue().encode())]:
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
    return packed.getvalue()


_EACH = "resolved only, each version by itself: `hpcdl stack resolve`"


@dataclass(frozen=True)
class SourceEdit:
    """A text that occurs once in a source file, its replacement, and why."""

    name: str
    file: str
    find: str
    replace: str
    why: str


@dataclass(frozen=True)
class HorovodRecipe:
    """How Horovod is built from its sdist.

    `environment` is set while it builds, `commands` must be on PATH, `leave_out` are files of
    the installation that are removed again. `computes` are the GPUs that it is compiled for,
    such as `6.0`; none for CPUs.
    """

    version: str
    sdist: str
    sha256: str
    environment: Mapping[str, str]
    commands: tuple[str, ...]
    leave_out: tuple[str, ...]
    edits: tuple[SourceEdit, ...]
    computes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """A set of wheels that belongs together, and how sure it is that it works.

    `variant` is `cpu` or such as `cuda12.9-sm60-sm70`; `python` such as `3.11`; `versions` are
    those of Horovod, Keras, CUDA, cuDNN and NCCL, as far as they are in it; `horovod` is None
    without it, for tf.distribute. `environment` is what the module sets (`{packages}` stands for
    Python's site-packages); `packages` are requirements that the site adds, `alone` wheels that
    are fetched without what they ask for; `fetch_gb` and `tree_gb` say how much is fetched and how
    large the tree gets.
    """

    tensorflow: str
    package: str
    variant: str
    python: str
    requirements: tuple[str, ...]
    horovod: HorovodRecipe | None
    proof: str
    source: str
    needs: Mapping[str, Any]
    fetch_gb: float
    tree_gb: float
    versions: Mapping[str, str]
    environment: Mapping[str, str]
    packages: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        """Name and version of the modulefile, such as `tensorflow/2.21.0-cpu`."""
        return f"{MODULE}/{self.tensorflow}-{self.variant}"

    @property
    def edits(self) -> tuple[SourceEdit, ...]:
        """The changes to Horovod's sources."""
        return self.horovod.edits if self.horovod else ()


@dataclass(frozen=True)
class Interpreter:
    """The Python that a stack is built on: the one below the running one's virtual environment."""

    path: Path
    version: str

    @property
    def minor(self) -> str:
        """`3.11`."""
        return ".".join(self.version.split(".")[:2])

    @property
    def tag(self) -> str:
        """Python and machine, as part of a file name: `py311-x86_64`."""
        return f"py{self.minor.replace('.', '')}-{platform.machine()}"


def running_interpreter() -> Interpreter:
    """The base of the Python that runs now."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    return Interpreter(Path(base).resolve(), platform.python_version())


def interpreter(minor: str) -> Interpreter:
    """The Python of a release such as `3.11`: the running one's base, else one of PATH."""
    own = running_interpreter()
    if own.minor == minor:
        return own
    ask = "import platform, sys; print(sys._base_executable, platform.python_version())"
    answer = run(
        [f"python{minor}", "-c", ask],
        directory=Path("/"),
        timeout=60,
        hint=f"is Python {minor} whole?",
    )
    path, version = answer.stdout.split()
    return Interpreter(Path(path).resolve(), version)


def recipe_of(site: Site, request: StackRequest, names: tuple[str, ...]) -> Recipe:
    """The recipe of a stack for partitions that share one build.

    Raises:
        BadInput: pins that contradict each other or the facts.
        MissingPrerequisite: nothing fits, or the wheels of that CUDA are unknown.
    """
    resolution = Resolver(site).build(request, names)
    computes, own = computes_of(site, request, names), gpus_of(site, names)
    versions, table = resolution.versions, facts.load("wheels")
    kind = "cuda" if computes else "cpu"
    digits = tuple(one.replace(".", "") for one in computes)
    package, needs = table["packages"][kind], table["needs"][kind]
    parts = ("horovod", "keras", *(("cuda", "cudnn", "nccl") if computes else ()))
    return Recipe(
        tensorflow=versions["tensorflow"],
        package=package,
        variant=variant_of(digits, versions.get("cuda", "")),
        python=versions["python"],
        requirements=(
            f"{package}=={versions['tensorflow']}",
            *(_nvidia(versions) if computes else ()),
            *table["requirements"],
            f"keras=={versions['keras']}",
            *request.packages,
        ),
        horovod=_horovod(table["horovod"], versions, computes) if "horovod" in versions else None,
        proof=resolution.proof,
        source=resolution.tried.source if resolution.tried else _EACH,
        needs=needs_of(digits, versions.get("cuda", ""), "", own, wheels=True),
        fetch_gb=needs["fetch_gb"],
        tree_gb=needs["tree_gb"],
        versions={name: versions[name] for name in parts if name in versions},
        environment=facts.load("nvidia_wheels")["environment"] if computes else {},
        packages=request.packages,
        alone=tuple(
            row["wheel"]
            for row in table["alone"]
            if all(condition.holds(versions) for condition in conditions(row["when"]))
        ),
    )


def _nvidia(versions: Mapping[str, str]) -> tuple[str, ...]:
    """NVIDIA's wheels of a CUDA release, cuDNN and NCCL, each at one version."""
    cuda = versions["cuda"]
    toolkits = facts.load("nvidia_wheels")["toolkits"]
    if cuda not in toolkits:
        raise MissingPrerequisite(
            f"no NVIDIA wheels are listed for CUDA {cuda}",
            hint=f"pin cuda to {one_of(list(toolkits))}",
        )
    own = {"cudnn": versions["cudnn"], "nccl": versions["nccl"]}
    major = cuda.split(".")[0]
    return tuple(
        f"nvidia-{name}-cu{major}=={version}" for name, version in {**toolkits[cuda], **own}.items()
    )


def _horovod(
    built: Mapping[str, Any], versions: Mapping[str, str], computes: Sequence[str]
) -> HorovodRecipe:
    kind = "cuda" if computes else "cpu"
    codes = ",".join(one.replace(".", "") for one in computes)
    gpus = {**built["gpu_environment"], "HOROVOD_BUILD_CUDA_CC_LIST": codes} if computes else {}
    wanted = [
        SourceEdit(name, row["file"], row["find"], row["replace"], " ".join(row["why"].split()))
        for name, row in built["edits"].items()
        if row.get("variant", kind) == kind
        and all(condition.holds(versions) for condition in conditions(row.get("when", {})))
    ]
    return HorovodRecipe(
        version=versions["horovod"],
        sdist=built["sdist"],
        sha256=built["sha256"],
        environment={**built["environment"], **gpus},
        commands=tuple(built["commands"]),
        leave_out=tuple(built["leave_out"]),
        edits=tuple(wanted),
        computes=tuple(computes),
    )
