"""Horovod's wheel: built once from its sdist by the recipe, then kept in the cache; its compilers.

The build runs in the environment of the stack itself: it compiles against exactly the TensorFlow
and, for GPUs, the NCCL that it will run with. Its key holds everything that shapes the result, the
compilers too.

Device code is compiled by clang, as TensorFlow's own releases are, or by the nvcc of the stack's
`cuda_home`. Of the machine's compilers the first pair that fits the rules of hpcdl/facts is used;
where none does, the error names the rule that each one breaks.

For clang, the wheels of a CUDA release on PyPI are laid out in the cache as a CUDA tree. No wheel
of CUDA 11 or 12 has fatbinary. That of CUDA 13 packs code of older releases as well: a script
translates clang's options, and packs without compression, because CUDA 13 may compress with what
older drivers cannot read (a K80 ends at R470).
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.site import Site, StackRequest
from hpcdl.stack.recipe import (
    INDEX,
    MACHINE,
    Interpreter,
    Recipe,
    Say,
    install,
    new_log,
    own_build,
    toolkit,
)
from hpcdl.stack.release import MODULE, digest
from hpcdl.stack.resolve_facts import known, sentence
from hpcdl.stack.resolve_solver import Range, Rule
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.files import explain_os_errors, made_aside, shared_lock, write_atomic
from hpcdl.system.packages import find_program
from hpcdl.system.resources import cache, folder
from hpcdl.system.run import CommandFailed, every, module_argv, run
from hpcdl.system.trust import require_private

_SYSTEM = frozenset({Path("/"), Path("/usr"), Path("/usr/local")})
_CLANGS = ("clang++", *(f"clang++-{major}" for major in range(29, 15, -1)))
_GCCS = ("g++", *(f"g++-{major}" for major in range(15, 8, -1)))
PACKAGES = "apt install libopenmpi-dev openmpi-bin g++ cmake make"
_WITHOUT = "; for tf.distribute, `horovod: none` in the stack needs no compiler"
_BUILD_SECONDS = 3600
COMPILERS = "compilers.txt"
"""Beside a wheel: what it was built with, in words."""
_VERSIONS = {
    "clang": ("--version", r"clang version (\d+[\d.]*)"),
    "nvcc": ("--version", r"release \S+, V([\d.]+)"),
}
"""What each compiler is asked for its version, and where the answer has it."""
_COMPLAINT = re.compile(
    r"^\S+?[:(]\d+.*?\b(?:fatal )?error\s*:.*"
    r"|^(?:nvcc|ptxas) fatal.*|^clang\S*: error:.*"
    r"|^CMake Error.*|^\S*ld: .*undefined.*",
    re.MULTILINE,
)
"""What gcc, clang, nvcc (`file(12): error: ...`), CMake and the linker say first."""


def mpi_version() -> str:
    """What the machine's MPI calls itself, such as `Open MPI 4.1.4`."""
    first = run(["mpirun", "--version"], hint=f"Debian and Ubuntu: {PACKAGES}").stdout
    words = first.splitlines()[0] if first else "unknown MPI"
    return words.removeprefix("mpirun ").replace("(", "").replace(")", "").strip()


def modules_behind(program: str) -> list[dict[str, str]]:
    """The loaded modules that name the installation of a program, in the order of loading.

    A release must bring along those of its MPI, for jobs start from no modules at all: its own
    module depends on them (`name`), from the entry of MODULEPATH where they were found
    (`directory`), which users need not have in theirs. Without Lmod in the environment, or with the
    system's own MPI, there are none.
    """
    found, lmod = find_program(program), os.environ.get("LMOD_CMD")
    if found is None or not lmod:
        return []
    prefixes = {path.parent.parent for path in (found, found.resolve())} - _SYSTEM
    names, files = (os.environ.get(key, "").split(":") for key in ("LOADEDMODULES", "_LMFILES_"))

    def brings(name: str) -> bool:
        shown = run([lmod, "bash", "show", name], check=False, timeout=30)
        return any(f"{prefix}/" in shown.stderr for prefix in prefixes)

    # A modulefile is as deep below the entry of MODULEPATH as its name has parts.
    return [
        {"name": name, "directory": str(Path(file).parents[name.count("/")])}
        for name, file in zip(names, files, strict=False)
        if name and name.partition("/")[0] != MODULE and brings(name)
    ]


def horovod_folder(
    recipe: Recipe, python: Interpreter, mpi: str, tools: Toolchain | None
) -> Path | None:
    """Where a recipe's wheel by these compilers is, or is to be; without any, one that is built."""
    built = recipe.horovod
    assert built is not None
    key = digest(built, recipe.package, recipe.tensorflow, recipe.versions, python.minor, mpi)
    name = f"horovod-{built['version']}-tf{recipe.tensorflow}-{python.tag}-{key}"
    if tools is not None:
        return cache("wheels") / f"{name}-{digest(str(tools))}"
    folders = (one.parent for one in sorted(cache("wheels").glob(f"{name}-*/{COMPILERS}")))
    return next((one for one in folders if ".partial-" not in one.name), None)  # of a build at work


def built_wheel(folder: Path | None) -> Path | None:
    """The wheel in such a directory, where it is built."""
    if folder is None or not (folder / COMPILERS).is_file():
        return None
    wheel = next(folder.glob("horovod-*.whl"), None)
    return own_build(wheel) if wheel else None


def build_horovod(
    recipe: Recipe, python: Interpreter, folder: Path, environment: Path, tools: Toolchain, say: Say
) -> None:
    """Build the wheel into its `folder`, unless it is there.

    `environment` is a virtual environment that has TensorFlow, NCCL and setuptools. CommandFailed
    names the compiler's first complaint and the log.
    """
    assert recipe.horovod is not None
    packages = environment / "lib" / f"python{python.minor}" / "site-packages"
    with shared_lock(cache("wheels") / ".horovod.lock", wait_seconds=_BUILD_SECONDS):
        if built_wheel(folder) is None:
            with made_aside(folder, folder.name) as partial:
                env = tools.environment()
                if tools.clang is not None:
                    tree = cuda_tree(recipe.versions["cuda"], python, say)
                    codes = [one.replace(".", "") for one in recipe.horovod["computes"]]
                    argv = compile_argv(tools.clang.path, tree, tools.cxx.path, codes, "c++14")
                    # The edits of CMakeLists.txt read them: the tree, and clang's argv.
                    env |= {"HPCDL_CUDA_TREE": str(tree), "HPCDL_CUDA_COMPILE": shlex.join(argv)}
                _build(recipe.horovod, environment / "bin", packages, partial, (tools, env), say)
                with explain_os_errors(partial):
                    write_atomic(partial / COMPILERS, f"{tools}\n")
                    shutil.rmtree(partial / "sources")


def _build(
    recipe: Mapping[str, Any],
    programs: Path,
    packages: Path,
    folder: Path,
    compilers: tuple[Toolchain, Mapping[str, str]],
    say: Say,
) -> None:
    log = new_log("horovod")
    pip = [*module_argv(programs / "python", "pip"), "--disable-pip-version-check", "--no-input"]
    sdist = fetch_sdist(recipe, programs / "python", folder, say)
    say(f"building Horovod {recipe['version']} with {compilers[0]} (minutes, once; log: {log})")
    with tarfile.open(sdist) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder / "sources", filter="data")
        else:
            archive.extractall(folder / "sources")  # noqa: S202 - its digest was checked  # nosec B202
    sources = folder / "sources" / sdist.name.removesuffix(".tar.gz")
    for edit in recipe["edits"]:
        apply_edit(sources, edit)
    nccl = {"HOROVOD_NCCL_HOME": str(_nvidia(packages, sources))} if recipe["computes"] else {}
    try:
        run(
            [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, sources],
            env={
                **recipe["environment"],
                **compilers[1],
                **nccl,
                "PATH": f"{programs}:{os.environ['PATH']}",
                "MAKEFLAGS": f"-j{len(os.sched_getaffinity(0))}",
            },
            log=log,
            timeout=_BUILD_SECONDS,
            tied=True,
            watch=every(lambda: tell_objects(sources, say)),
        )
    except CommandFailed as fault:
        complaint = first_complaint(log)
        raise CommandFailed(
            fault.result, hint=f"first error: {complaint}" if complaint else ""
        ) from fault
    sdist.unlink(missing_ok=True)


def tell_objects(sources: Path, say: Say) -> None:
    """Say how many files of C++ are compiled, of those that the rules of CMake's targets name."""
    wanted = done = 0
    for target in sources.rglob("*.dir"):
        rules = target / "build.make"
        # CMake compiles small programs of its own, too.
        if rules.is_file() and not target.name.startswith("cmTC_"):
            text = rules.read_text(errors="replace")
            wanted += len(re.findall(r"(?m)^\S+\.o: \S+/flags\.make$", text))
            done += sum(1 for _ in target.rglob("*.o"))
    if wanted:
        say(f"{done} of {wanted} files are compiled")


def _nvidia(packages: Path, sources: Path) -> Path:
    """NCCL and CUDA's runtime of the stack's wheels, with the links that a linker looks for.

    They are inside the sources, so that CMake does not write their place into the library.
    """
    home, wheels = sources / "nccl", packages / "nvidia"
    (home / "lib").mkdir(parents=True)
    (home / "include").symlink_to(wheels / "nccl" / "include")
    (home / "lib" / "libnccl.so").symlink_to(wheels / "nccl" / "lib" / "libnccl.so.2")
    for runtime in (wheels / "cuda_runtime" / "lib").glob("libcudart.so.*"):
        (home / "lib" / "libcudart.so").symlink_to(runtime)
    return home


def first_complaint(log: Path) -> str:
    """The first error in a compiler's log, with its file; empty where there is none."""
    with suppress(OSError):
        text = log.read_text(encoding="utf-8", errors="replace")
        match = _COMPLAINT.search(re.sub(r"(?m)^\s+", "", text))
        return match.group(0)[:400] if match else ""
    return ""


def fetch_sdist(recipe: Mapping[str, Any], python: Path, folder: Path, say: Say) -> Path:
    """The sdist, fetched by pip, which compares its digest before it runs anything of it."""
    say(f"fetching Horovod {recipe['version']}'s sources")
    wanted = folder / "wanted.txt"
    write_atomic(wanted, f"horovod=={recipe['version']} --hash=sha256:{recipe['sha256']}\n")
    options = (
        "--disable-pip-version-check --no-input --no-color download --no-binary :all: --no-deps"
    )
    words = ("--no-build-isolation", "--require-hashes", "--dest", folder, "--requirement", wanted)
    run(
        [*module_argv(python, "pip"), *options.split(), *words],
        log=new_log("fetch"),
        timeout=_FETCH_SECONDS,
        hint=f"{INDEX}; where the hashes differ, that one serves something else",
        tied=True,
    )
    wanted.unlink()
    return folder / str(recipe["sdist"])


def apply_edit(sources: Path, edit: Mapping[str, str]) -> None:
    """Replace a text that must occur exactly once in a source file."""
    path = sources / edit["file"]
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if text.count(edit["find"]) != 1:
        raise MissingPrerequisite(
            f"the edit '{edit['name']}' does not fit {edit['file']}: its text is there "
            f"{text.count(edit['find'])} times, not once",
            hint="the recipe in hpcdl/facts/wheels.yaml is for other sources",
        )
    path.write_text(text.replace(edit["find"], edit["replace"]), encoding="utf-8")


@dataclass(frozen=True)
class Tool:
    """A compiler and the version that it says it is."""

    path: Path
    version: str

    def __str__(self) -> str:
        return f"{self.path} {self.version}"


@dataclass(frozen=True)
class Toolchain:
    """Compilers that fit each other: for GPUs nvcc or clang, none of them for CPUs."""

    cxx: Tool
    nvcc: Tool | None = None
    clang: Tool | None = None

    def environment(self) -> dict[str, str]:
        """Return the environment variables that pass them to CMake and nvcc."""
        cxx = str(self.cxx.path)
        cc = re.sub(r"g\+\+(?=[^/]*$)", "gcc", cxx)
        found = {"CXX": cxx, "CC": cc if Path(cc).exists() else cxx}
        if self.nvcc is not None:
            found |= {"CUDACXX": str(self.nvcc.path), "CUDAHOSTCXX": cxx}
        return found

    def __str__(self) -> str:
        return " and ".join(map(str, filter(None, (self.clang, self.nvcc, self.cxx))))


def find_toolchain(site: Site, stack: StackRequest, recipe: Recipe) -> Toolchain:
    """The compilers for a stack's Horovod."""
    horovod = recipe.horovod
    assert horovod is not None
    missing = [command for command in horovod["commands"] if shutil.which(command) is None]
    if missing:
        raise MissingPrerequisite(
            f"Horovod cannot be built: there is no {', '.join(missing)} on PATH",
            hint=f"Debian and Ubuntu: {PACKAGES}",
        )
    base = {"horovod": horovod["version"], "tensorflow": recipe.tensorflow, "backend": "wheels"}
    kind = "nvcc" if stack.cuda_home else "clang"
    devices = _device_compilers(kind, stack, recipe) if horovod["computes"] else [None]
    gccs = [tool for path in _gccs(site) if (tool := _asked(path, "-dumpfullversion", r"(\S+)"))]
    refused: list[str] = []
    for device in devices:
        for gcc in gccs:
            if not Range(stack.pins.get("gcc", ":")).allows(gcc.version):
                refused.append(f"{gcc}: stack '{stack.name}' pins gcc {stack.pins['gcc']}")
                continue
            cuda = {"cuda": device.version} if device and kind == "nvcc" else {}
            broken = broken_rules({**base, **cuda, "gcc": gcc.version}, "gcc")
            if not broken:
                return Toolchain(gcc, **{kind: device})
            refused += [f"{gcc}: {sentence(rule)}" for rule in broken]
    raise MissingPrerequisite(
        f"no gcc here fits {devices[0] or 'Horovod'}" if gccs else "there is no g++ on PATH",
        details=list(dict.fromkeys(refused)),
        hint=f"Debian and Ubuntu: {PACKAGES}, or an older one beside it, such as g++-13{_WITHOUT}",
    )


def broken_rules(values: Mapping[str, str], need: str) -> list[Rule]:
    """The facts' rules about one component that these versions break.

    `values` are versions by component, where `gpu` is a compute capability; `need` is the component
    whose version may be refused.
    """
    return [
        rule
        for rule in known().rules
        if rule.origin == "fact"
        and rule.need.variable == need
        and all(condition.holds(values) for condition in rule.when)
        and not rule.need.holds(values)
    ]


def _device_compilers(kind: str, stack: StackRequest, recipe: Recipe) -> list[Tool]:
    """Every compiler of this kind that fits the stack's GPUs and the CUDA of its wheels."""
    assert recipe.horovod is not None
    computes, cuda = recipe.horovod["computes"], recipe.versions["cuda"]
    refused: list[str] = []
    paths = clangs() if stack.cuda_home is None else [_named_nvcc(stack.name, stack.cuda_home)]
    fits = list(fitting(paths, kind, computes, cuda, refused))
    if kind == "clang" and platform.machine() != MACHINE:
        what = f"NVIDIA's wheels are locked for {MACHINE} only"
        refused, fits = [f"{one}: {what}" for one in fits], []
    if fits:
        return fits
    gpus = ", ".join(f"sm_{one.replace('.', '')}" for one in computes)
    major = cuda.split(".")[0]
    release = ".".join(cuda.split(".")[:2]) if major == "11" else f"{major}.x"
    what = f"nvcc of CUDA {release}" if kind == "nvcc" else "clang"
    raise MissingPrerequisite(
        f"Horovod for {gpus} is compiled by {what}, and "
        + ("none that is here fits" if refused else "there is none here"),
        details=list(dict.fromkeys(refused)),
        hint=f"{_clang_packages(computes, cuda)}; a CUDA {release} that is installed is used where "
        f"the stack's `cuda_home` names it{_WITHOUT}",
    )


def _named_nvcc(stack: str, home: Path) -> Path:
    """The nvcc of a site's `cuda_home`; BadInput where there is none."""
    named = home / "bin" / "nvcc"
    if not os.access(named, os.X_OK):
        raise BadInput(
            f"stack '{stack}' has the cuda_home {home}, and there is no {named}",
            hint="name the directory of a CUDA toolkit: its bin/nvcc is used",
        )
    return named


def _clang_packages(computes: Sequence[str], cuda: str) -> str:
    """How to install a clang that fits, on the distributions that have one."""
    names: dict[str, list[str]] = {}
    for row in facts.load("distributions")["distributions"]:
        if not broken_by("clang", str(row["clang"]), computes, cuda):
            package = f"clang-{str(row['clang']).split('.')[0]}"
            names.setdefault(package, []).append(row["name"])
    ways = [f"apt install {package} ({', '.join(where)})" for package, where in names.items()]
    return " or ".join([*ways, "a newer clang on PATH" if not ways else "dnf install clang (RHEL)"])


def fitting(
    paths: Iterable[Path], what: str, computes: Sequence[str], cuda: str, refused: list[str]
) -> Iterator[Tool]:
    """The compilers of a kind that fit; the rules that others break are added to `refused`."""
    option, pattern = _VERSIONS[what]
    for path in paths:
        tool = _asked(path, option, pattern)
        if tool is None:
            refused.append(f"{path}: `{path} {option}` fails, or names no release")
        elif broken := broken_by(what, tool.version, computes, cuda):
            refused += [f"{tool}: {sentence(rule)}" for rule in broken]
        else:
            yield tool


def broken_by(what: str, version: str, computes: Sequence[str], cuda: str) -> list[Rule]:
    """The rules that an nvcc or clang breaks for these GPUs and the CUDA of the wheels."""
    broken = broken_rules({"cuda": cuda, what: version}, what)
    for one in computes:
        if what == "nvcc":  # it brings its own CUDA
            broken += broken_rules({"gpu": one, "cuda": version}, "cuda")
        else:
            broken += broken_rules({"gpu": one, what: version}, what)
    return broken


def clangs() -> Iterator[Path]:
    """Where a clang may be: PATH's own, else the newest."""
    found = (shutil.which(name) for name in _CLANGS)
    yield from {Path(path).resolve(): Path(path) for path in found if path}.values()


def _gccs(site: Site) -> Iterator[Path]:
    """Where a g++ may be: what the environment says, else PATH's own, the site's, newer ones."""
    named = os.environ.get("CUDAHOSTCXX") or os.environ.get("CXX")
    if named:
        names = [named]
    else:
        prefixes = [one.prefix for one in site.spack.externals if one.name == "gcc"]
        names = ["g++", *(str(one / "bin" / "g++") for one in prefixes), *_GCCS]
    found = (shutil.which(name) for name in names)
    yield from dict.fromkeys(Path(path) for path in found if path)


def _asked(path: Path, option: str, pattern: str) -> Tool | None:
    """A compiler with its version; None where it does not say one."""
    answer = run([path, option], check=False, timeout=60)
    match = re.search(pattern, answer.stdout)
    return Tool(path, match.group(1)) if answer.ok and match else None


_PLACES = {"bin": "bin", "include": "include", "lib": "lib64", "nvvm": "nvvm"}
"""Directories of `nvidia/PART/` in a wheel, and what they are called in a CUDA tree."""
_FATBINARY = "nvidia/cu13/bin/fatbinary"
_TRANSLATOR = folder("templates") / "cuda" / "fatbinary.sh"
_FETCH_SECONDS = 1800


def compile_argv(
    clang: Path, tree: Path, gxx: Path, codes: Sequence[str], standard: str
) -> list[str]:
    """The command that compiles a CUDA source for exactly these GPUs, such as `60`.

    The machine code of each, and PTX of the newest, as nvcc's `-gencode` of Horovod's own build.
    `gxx` is the compiler of the other sources: clang takes the C++ library of the same gcc, not of
    the newest gcc that is installed, which may be there without a C++ library.
    """
    library = Path(run([gxx, "-print-libgcc-file-name"]).stdout.strip()).parent
    newest = max(codes, key=int)
    return [
        str(clang),
        f"--cuda-path={tree}",
        f"--gcc-install-dir={library}",
        *(f"--cuda-gpu-arch=sm_{code}" for code in codes),
        "--no-cuda-include-ptx=all",
        f"--cuda-include-ptx=sm_{newest}",
        "-Wno-unknown-cuda-version",
        f"-std={standard}",
        "-O3",
        "-fPIC",
    ]


def cuda_wheels(cuda: str) -> dict[str, dict[str, str]]:
    """The wheels of a CUDA tree: by `name==version`, SHA-256 by tags.

    Raises MissingPrerequisite: the facts have no wheels of this CUDA release.
    """
    compiles, locked = facts.load("nvidia_wheels")["compile"], facts.load("wheel_lock")["wheels"]
    major, parts = cuda.split(".")[0], toolkit(cuda)
    versions = {part: parts[part] for part in compiles["parts"]}
    versions |= compiles["more"].get(cuda, {})
    wanted = [f"nvidia-{part}-cu{major} {version}" for part, version in versions.items()]
    return {one.replace(" ", "=="): locked[one] for one in (*wanted, compiles["fatbinary"])}


def cuda_tree(cuda: str, python: Interpreter, say: Say) -> Path:
    """The tree of a CUDA release, fetched and laid out now where it is not there."""
    key = digest(cuda_wheels(cuda), _TRANSLATOR.read_text(encoding="utf-8"))
    place = cache("wheels") / f"cuda-{cuda}-{key}"
    with shared_lock(cache("wheels") / ".cuda.lock", wait_seconds=_FETCH_SECONDS):
        if not place.is_dir():
            say(f"fetching NVIDIA's wheels of CUDA {cuda} to compile with (about 0.2 GB, once)")
            with made_aside(place, f"cuda-{cuda}-*") as partial:
                wanted, fetched = partial / "wanted.txt", partial / "fetched"
                lines = (
                    " ".join((name, *(f"--hash=sha256:{one}" for one in digests.values())))
                    for name, digests in cuda_wheels(cuda).items()
                )
                write_atomic(wanted, "".join(f"{line}\n" for line in lines))
                words = ("--target", fetched, "--require-hashes", "--requirement", wanted)
                install(python.path, new_log("cuda"), *words, hint=INDEX)
                with explain_os_errors(partial):
                    _lay_out(fetched, partial)
    require_private(place)  # what is in it is executed
    os.utime(place)  # `hpcdl clean` goes by the last use
    return place


def _lay_out(fetched: Path, tree: Path) -> None:
    """Move NVIDIA's wheels, as they are installed, into the directories of a CUDA tree."""
    for part in sorted(fetched.glob("nvidia/*")):
        for name, place in _PLACES.items():
            if (part / name).is_dir() and part.name != "cu13":  # of CUDA 13 only fatbinary
                shutil.copytree(part / name, tree / place, dirs_exist_ok=True)
    (tree / "libexec").mkdir()
    shutil.copyfile(fetched / _FATBINARY, tree / "libexec" / "fatbinary")
    shutil.rmtree(fetched)
    shutil.copyfile(_TRANSLATOR, tree / "bin" / "fatbinary")
    for program in (*(tree / "bin").iterdir(), tree / "libexec" / "fatbinary"):
        program.chmod(0o755)
    for library in sorted((tree / "lib64").glob("lib*.so.*")):
        library.with_name(f"{library.name.partition('.so')[0]}.so").symlink_to(library.name)
