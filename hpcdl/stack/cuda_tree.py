"""NVIDIA's wheels as a CUDA tree for clang: device code without NVIDIA's toolkit.

The wheels of a CUDA release on PyPI have headers, ptxas, libdevice and the runtime, but no nvcc.
clang compiles device code with them (`--cuda-path`), as TensorFlow's own releases are compiled.
pip fetches them once, by the digests of facts/wheel_lock.yaml; they are laid out in the cache.

No wheel of CUDA 11 or 12 has fatbinary. That of CUDA 13 packs code of older releases as well, but
has other options than clang's: a script translates them. It packs without compression, because
CUDA 13 may compress with what older drivers cannot read (a K80 ends at R470). The headers of its
containers are, number for number, those in NVIDIA's own libraries of CUDA 11.8.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from hpcdl import facts
from hpcdl.stack.recipe import Interpreter
from hpcdl.stack.release import digest
from hpcdl.stack.wheelhouse import INDEX, Say, pip_download, tools, wheels_cache
from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.files import explain_os_errors, made_aside, shared_lock, write_atomic
from hpcdl.system.run import run
from hpcdl.system.text import one_of
from hpcdl.system.trust import require_private

_PLACES = {"bin": "bin", "include": "include", "lib": "lib64", "nvvm": "nvvm"}
"""Directories of `nvidia/PART/` in a wheel, and what they are called in a CUDA tree."""
_FATBINARY = "nvidia/cu13/bin/fatbinary"
_TRANSLATOR = """\
#!/bin/sh
# clang calls fatbinary by the options of CUDA 12; the program is that of CUDA 13.
set -- "$@" --
while [ "$1" != -- ]; do
  case $1 in
    -*image=profile=sm_*,*) kind=elf word=${1#*profile=sm_} ;;
    -*image=profile=compute_*,*) kind=ptx word=${1#*profile=compute_} ;;
    *) kind= word=$1 ;;
  esac
  shift
  set -- "$@" "${kind:+--image3=kind=$kind,sm=}$word"
done
shift
exec "$(dirname "$0")/../libexec/fatbinary" --compress-mode=none "$@"
"""
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

    Raises:
        MissingPrerequisite: the facts have no wheels of this CUDA release.
    """
    table, locked = facts.load("nvidia_wheels"), facts.load("wheel_lock")["wheels"]
    if cuda not in table["toolkits"]:
        raise MissingPrerequisite(
            f"no NVIDIA wheels are listed for CUDA {cuda}",
            hint=f"pin cuda to {one_of(list(table['toolkits']))}",
        )
    major, compiles = cuda.split(".")[0], table["compile"]
    versions = {part: table["toolkits"][cuda][part] for part in compiles["parts"]}
    versions |= compiles["more"].get(cuda, {})
    wanted = [f"nvidia-{part}-cu{major} {version}" for part, version in versions.items()]
    return {one.replace(" ", "=="): locked[one] for one in (*wanted, compiles["fatbinary"])}


def tree_folder(cuda: str) -> Path:
    """Where the tree of a CUDA release is, whether or not it is there yet."""
    return wheels_cache() / f"cuda-{cuda}-{digest(cuda_wheels(cuda), _TRANSLATOR)}"


def cuda_tree(cuda: str, python: Interpreter, say: Say) -> Path:
    """The tree of a CUDA release, fetched and laid out now where it is not there.

    Raises:
        CommandFailed: pip failed; its log is named. It refuses a wheel with another digest.
        MissingPrerequisite: no wheels of this CUDA, no space left, or another user may write it.
    """
    folder = tree_folder(cuda)
    with shared_lock(wheels_cache() / ".cuda.lock", wait_seconds=_FETCH_SECONDS):
        if not folder.is_dir():
            say(f"fetching NVIDIA's wheels of CUDA {cuda} to compile with (about 0.2 GB, once)")
            with made_aside(folder, f"cuda-{cuda}-*") as partial:
                fetched = partial / "fetched"
                _download(cuda, python, fetched, say)
                with explain_os_errors(partial):
                    _lay_out(sorted(fetched.glob("*.whl")), partial)
                    for path in sorted(fetched.iterdir(), reverse=True):
                        path.unlink()
                    fetched.rmdir()
    require_private(folder)  # what is in it is executed
    os.utime(folder)  # `hpcdl clean` goes by the last use
    return folder


def _download(cuda: str, python: Interpreter, target: Path, say: Say) -> None:
    lines = (
        " ".join((name, *(f"--hash=sha256:{one}" for one in digests.values())))
        for name, digests in cuda_wheels(cuda).items()
    )
    wanted = target / "wanted.txt"
    with explain_os_errors(target):
        target.mkdir()
        write_atomic(wanted, "\n".join(lines) + "\n")
    pip_download(
        tools(python, say) / "bin" / "python",
        target,
        "--no-deps",
        "--require-hashes",
        "--requirement",
        wanted,
        wheels=True,
        hint=f"{INDEX}; where the hashes differ, that one serves something else; a CUDA toolkit "
        "that is installed is used where the stack's `cuda_home` names it",
    )


def _lay_out(wheels: Sequence[Path], tree: Path) -> None:
    """Unpack wheels, whose digests pip has compared, into the directories of a CUDA tree."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for member, place in _places(archive.namelist()):
                target = tree / place
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(member))
                if target.parent.name in {"bin", "libexec"}:
                    target.chmod(0o755)
    for library in sorted((tree / "lib64").glob("lib*.so.*")):
        library.with_name(f"{library.name.partition('.so')[0]}.so").symlink_to(library.name)
    program = tree / "bin" / "fatbinary"
    program.write_text(_TRANSLATOR, encoding="utf-8")
    program.chmod(0o755)


def _places(names: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Yield a wheel's files for the tree and their places; of CUDA 13 only fatbinary."""
    for name in names:
        parts = PurePosixPath(name).parts
        if name == _FATBINARY:
            yield name, Path("libexec", "fatbinary")
        elif len(parts) > 3 and parts[2] in _PLACES and parts[1] != "cu13" and name[-1] != "/":
            yield name, Path(_PLACES[parts[2]], *parts[3:])
