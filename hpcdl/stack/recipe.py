"""Which wheels make a stack, locked by their digests; and hpcdl's own wheel.

From a resolution to a `Recipe` by facts/wheels.yaml and nvidia_wheels.yaml, never by code. uv
solves what a recipe needs, beside the versions of facts/wheel_lock.yaml, and installs what the
lock names by its digests, which are those of the facts: neither the index nor a mirror says what a
wheel is. Without a row there are machines that are no x86_64, and what `packages:` asks for: there,
what is looked up first counts.

A published module carries the hpcdl it was made with: a wheel of the files that run, the same from
a checkout and from an installed wheel.
"""

from __future__ import annotations

import ast
import base64
import csv
import hashlib
import importlib.util
import io
import os
import platform
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdl import __version__, facts
from hpcdl.site import Site, StackRequest
from hpcdl.stack.release import MODULE, digest, normal_name, variant_of
from hpcdl.stack.resolve import Resolver, computes_of
from hpcdl.stack.resolve_facts import conditions, gpus_of, needs_of
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.files import shared_lock, write_atomic
from hpcdl.system.resources import cache, home, scratch_directory, to_install
from hpcdl.system.run import CommandResult, module_argv, run
from hpcdl.system.text import one_of, utc_stamp
from hpcdl.system.trust import require_private

Say = Callable[[str], None]
MACHINE = "x86_64"
"""Whose wheels the facts have."""
INDEX = "uv needs PyPI or a mirror of it: set it in pip.conf, or UV_DEFAULT_INDEX"
_PINNED = re.compile(r"^(\S+)==(\S+)((?: --hash=\S+)*)", re.MULTILINE)
_FETCH_SECONDS = 3600
_PIP = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "find-links": "",
    "no-index": "",
    "cert": "",
}
"""Options of pip, and variables of uv for the same; empty for those that differ in form. No option
of uv's: an index may hold a password, and everybody sees a command line."""
_SECTIONS = ("global", "install", ":env:")
_SETTING = re.compile(rf"({'|'.join(_SECTIONS)})\.(\S+?)=(.*)")
_PACKAGE = Path(__file__).resolve().parent.parent
_FOLDERS = ("examples", "modulefiles", "reframe_checks", "spack", "templates")
# Environments of a checkout are for plain Spack, which makes links to gigabytes in them.
_JUNK = {"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".gitignore", "environments"}
_BUILD_SECONDS = 600
_TOP = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE")


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


def lock_file(recipe: Recipe, python: Interpreter) -> Path:
    """Return the file that locks a recipe's wheels, whether or not it exists."""
    beside = pins(recipe.tensorflow, python.minor)
    key = digest(recipe.requirements, recipe.alone, python.minor, beside)
    name = f"{recipe.package}-{recipe.tensorflow}-{python.tag}-{key}"
    return cache("locks") / name / "requirements.txt"


def found_lock(recipe: Recipe, python: Interpreter) -> Path | None:
    """That file where it is there; refused where others may write its digests."""
    lock = lock_file(recipe, python)
    if not lock.is_file():
        return None
    require_private(lock)
    return lock


def read_wheels(lock: Path) -> list[dict[str, str]]:
    """The wheels of such a file as entries of a release's lock."""
    return [
        {"name": name, "version": version, "sha256": hashes.replace(" --hash=sha256:", " ").strip()}
        for name, version, hashes in _PINNED.findall(lock.read_text(encoding="utf-8"))
    ]


def lock_wheels(recipe: Recipe, python: Interpreter, say: Say) -> Path:
    """The file that locks a recipe's wheels, made now where it is not there."""
    target, beside = lock_file(recipe, python), pins(recipe.tensorflow, python.minor)
    with shared_lock(cache("wheels") / ".lock", wait_seconds=_FETCH_SECONDS):
        if found_lock(recipe, python):
            return target
        say(f"looking up {recipe.package} {recipe.tensorflow} and what it needs")
        if not beside:
            say(
                f"note: digests of wheels come with hpcdl for {MACHINE}, and none for Python "
                f"{python.minor} on {platform.machine()}: the index is believed"
            )
        solved = [
            *_solved(recipe.requirements, beside, python),
            *(_solved(recipe.alone, (), python, "--no-deps") if recipe.alone else ()),
        ]
        digested = [(name, version, _digests(name, version, python)) for name, version, _ in solved]
        strange = [f"{name}=={version}" for name, version, digests in digested if not digests]
        if beside and strange and not recipe.packages:
            raise MissingPrerequisite(
                f"{len(strange)} of the wheels are not those of PyPI; none is installed",
                details=strange[:10],
                hint=f"the facts of this hpcdl do not know them. {INDEX}",
            )
        rows = (
            (name, version, "".join(f" --hash=sha256:{one}" for one in digests) or theirs)
            for (_, _, theirs), (name, version, digests) in zip(solved, digested, strict=True)
        )
        write_atomic(
            target, "".join(f"{name}=={version}{hashes}\n" for name, version, hashes in rows)
        )
    return target


def _solved(
    wanted: Sequence[str], beside: Sequence[str], python: Interpreter, *words: str
) -> list[tuple[str, str, str]]:
    """Name, version and ` --hash=` words of each wheel that these requirements need."""
    with scratch_directory() as place:
        for name, lines in (("wanted.in", wanted), ("beside.txt", beside)):
            (place / name).write_text("".join(f"{line}\n" for line in lines))
        solve = ["compile", "--quiet", "--no-header", "--no-annotate", "--generate-hashes"]
        # Named, else uv runs the `.venv` of the current directory, or of one above it.
        options = ["--python", str(python.path), "--python-version", python.minor, *words]
        options += ["--only-binary", ":all:"]
        files = (place / "wanted.in", "--constraint", place / "beside.txt", "-o", place / "found")
        hint = (
            f"{INDEX}; what `packages:` in site.yaml asks for must have wheels and agree with "
            "TensorFlow and its dependencies"
        )
        uv(*solve, *options, *files, log=new_log("lock"), hint=hint)
        return _PINNED.findall((place / "found").read_text().replace(" \\\n   ", ""))


def _digests(name: str, version: str, python: Interpreter) -> list[str]:
    """The SHA-256 that the facts know of the wheels of a package, for this Python if some are."""
    wheels: dict[str, dict[str, str]] = facts.load("wheel_lock")["wheels"]
    rows = wheels.get(f"{normal_name(name)} {version}", {})
    own = f"cp{python.minor.replace('.', '')}-"
    return [one for tags, one in rows.items() if tags.startswith(own)] or list(rows.values())


def find_uv() -> str | None:
    """Where uv is: installed beside hpcdl, or on PATH; None without it."""
    with suppress(ImportError, FileNotFoundError):
        from uv import find_uv_bin

        return str(find_uv_bin())
    return shutil.which("uv")


def uv(*words: str | Path, log: Path, **options: Any) -> CommandResult:
    """Run `uv pip`, with the index of the site's pip.conf; MissingPrerequisite without uv."""
    program = find_uv()
    if program is None:
        raise MissingPrerequisite("there is no uv to install wheels", hint=to_install("stack"))
    env = {
        "UV_CACHE_DIR": str(cache("uv")),
        "UV_NO_CONFIG": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_LINK_MODE": "copy",
        "NO_COLOR": "1",
    }
    settings = pip_settings()
    if "cert" in settings:
        env["SSL_CERT_FILE"] = os.environ.get("SSL_CERT_FILE", settings["cert"])
    env |= {name: settings[option] for option, name in _PIP.items() if name and option in settings}
    verb, *others = words
    argv = [program, "pip", verb, "--no-progress", "--index-strategy", "unsafe-best-match"]
    if settings.get("no-index", "").lower() in {"1", "true", "yes", "on"}:
        argv.append("--no-index")
    argv += [
        word for link in settings.get("find-links", "").split() for word in ("--find-links", link)
    ]
    argv += others
    return run(argv, env=env, log=log, tied=True, timeout=_FETCH_SECONDS, **options)


def pip_settings() -> dict[str, str]:
    """What pip's own files and variables say, by its options: uv reads none of them."""
    argv = [*module_argv(sys.executable, "pip"), "config", "list"]
    listed = run(argv, check=False, timeout=60)
    if not listed.ok and importlib.util.find_spec("pip"):
        message = f"pip's settings cannot be read: {' | '.join(listed.last_lines(2))}"
        raise BadInput(message, hint="mend the file, as `pip config debug` shows them")
    rows = [row for row in map(_SETTING.fullmatch, listed.stdout.splitlines()) if row]
    rows.sort(key=lambda row: _SECTIONS.index(row[1]))  # the variables last: they count
    return {row[2]: str(ast.literal_eval(row[3])) for row in rows if row[2] in _PIP}


def install(
    python: Path,
    log: Path,
    *words: str | Path,
    hint: str = "",
    watch: Callable[[], None] | None = None,
) -> None:
    """Install wheels into the environment of `python`, without what they need.

    What uv has in its cache is not looked for on the network. `watch` is called every second.
    """
    argv = ["install", "--python", python, "--no-deps", "--only-binary", ":all:", *words]
    if not uv(*argv, "--offline", log=log, check=False, watch=watch).ok:
        uv(*argv, log=log, hint=hint, watch=watch)


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
    target = cache("wheels") / f"hpcdl-{__version__}-{own}" / name
    with shared_lock(cache("wheels") / ".hpcdl.lock", wait_seconds=_BUILD_SECONDS):
        if not target.is_file():
            members |= {f"{info}/{file}": text.encode() for file, text in _metadata().items()}
            write_atomic(target, pack(members, f"{info}/RECORD"))
    return own, own_build(target)


def own_build(wheel: Path) -> Path:
    """A wheel that was built here; MissingPrerequisite where others may write it."""
    require_private(wheel)
    os.utime(wheel.parent)  # `hpcdl clean` goes by the last use
    return wheel


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
class Recipe:
    """A set of wheels that belongs together, and how sure it is that it works.

    `variant` is `cpu` or such as `cuda12.9-sm60-sm70`; `python` such as `3.11`; `versions` are
    those of Horovod, Keras, CUDA, cuDNN and NCCL, as far as they are in it; `horovod` is its row of
    the facts for `computes` (GPUs such as `6.0`, none for CPUs), None for tf.distribute.
    `environment` is what the module sets (`{packages}` stands for Python's site-packages);
    `packages` are requirements that the site adds, `alone` wheels that are fetched without what
    they ask for; `fetch_gb` and `tree_gb` say how much is fetched and how large the tree gets.
    """

    tensorflow: str
    package: str
    variant: str
    python: str
    requirements: tuple[str, ...]
    horovod: Mapping[str, Any] | None
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
    path, _, version = answer.stdout.splitlines()[-1].rpartition(" ")
    return Interpreter(Path(path).resolve(), version)


def recipe_of(site: Site, request: StackRequest, names: tuple[str, ...]) -> Recipe:
    """The recipe of a stack for partitions that share one build."""
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


def toolkit(cuda: str) -> Mapping[str, str]:
    """NVIDIA's wheels of a CUDA release and their versions; MissingPrerequisite: not known."""
    toolkits: dict[str, dict[str, str]] = facts.load("nvidia_wheels")["toolkits"]
    if cuda not in toolkits:
        raise MissingPrerequisite(
            f"no NVIDIA wheels are listed for CUDA {cuda}",
            hint=f"pin cuda to {one_of(list(toolkits))}",
        )
    return toolkits[cuda]


def _nvidia(versions: Mapping[str, str]) -> tuple[str, ...]:
    """NVIDIA's wheels of a CUDA release, cuDNN and NCCL, each at one version."""
    parts = {**toolkit(versions["cuda"]), "cudnn": versions["cudnn"], "nccl": versions["nccl"]}
    major = versions["cuda"].split(".")[0]
    return tuple(f"nvidia-{name}-cu{major}=={version}" for name, version in parts.items())


def _horovod(
    built: Mapping[str, Any], versions: Mapping[str, str], computes: Sequence[str]
) -> Mapping[str, Any]:
    """How Horovod is built from its sdist: what is set meanwhile, and the edits that apply."""
    kind = "cuda" if computes else "cpu"
    codes = ",".join(one.replace(".", "") for one in computes)
    gpus = {**built["gpu_environment"], "HOROVOD_BUILD_CUDA_CC_LIST": codes} if computes else {}
    edits = [
        {
            "name": name,
            **{key: row[key] for key in ("file", "find", "replace")},
            "why": " ".join(row["why"].split()),
        }
        for name, row in built["edits"].items()
        if row.get("variant", kind) == kind
        and all(condition.holds(versions) for condition in conditions(row.get("when", {})))
    ]
    return {
        **{key: built[key] for key in ("sdist", "sha256", "commands", "leave_out")},
        "version": versions["horovod"],
        "environment": {**built["environment"], **gpus},
        "edits": edits,
        "computes": tuple(computes),
    }
