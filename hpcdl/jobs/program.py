"""The files that a program's arguments name, as seen from where the job is asked for.

A job works in a directory of its own, so that requeues, chains and sweeps find their own files
there and no two jobs write over each other's. What the user named from where they stand is not
there: the program, its script and its module are made absolute when the job is asked for; other
files are not guessed at but refused, and `--chdir .` takes them as they are.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from hpcdl.jobs.spec import JobSpec, Module, is_train
from hpcdl.system.errors import BadInput

_PYTHON = re.compile(r"python[0-9.]*\Z")
_SHELLS = frozenset({"bash", "sh"})
# Options that take the next argument, and those after which no script is named.
_OF_PYTHON = (
    re.compile(r"-[A-Za-z]*[WX]\Z|--check-hash-based-pycs\Z"),
    re.compile(r"-([^WX-]*[cm].*)?\Z"),
)
_OF_SHELLS = (
    re.compile(r"[-+][A-Za-z]*[oO]\Z|--(rcfile|init-file)\Z"),
    re.compile(r"-([A-Za-z]*[cs].*)?\Z"),
)
_SCRIPT = (".py", ".sh")
_FUNCTION = re.compile(r"(?:--(?:model|dataset)=)?([A-Za-z_]\w*)(?:\.\w+)*:\w+\Z")
# Programs that start the one their arguments name: the first argument that ends like a script.
_STARTERS = frozenset(
    {
        "accelerate", "deepspeed", "env", "horovodrun", "mpiexec", "mpirun", "ncu", "nice", "nsys",
        "numactl", "srun", "stdbuf", "strace", "taskset", "time", "timeout", "torchrun",
    }
)  # fmt: skip


def script_index(program: Sequence[str]) -> int | None:
    """Index of the argument that is the script for an interpreter; None for no script."""
    name = Path(program[0]).name if program else ""
    if name in _STARTERS:
        return next((n for n, one in enumerate(program) if n and one.endswith(_SCRIPT)), None)
    if not _PYTHON.match(name) and name not in _SHELLS:
        return None
    valued, ending = _OF_SHELLS if name in _SHELLS else _OF_PYTHON
    skip = False
    for index, argument in enumerate(program[1:], start=1):
        if skip:
            skip = False
        elif valued.match(argument):
            skip = True
        elif argument[:1] not in {"-", "+"}:
            return index if argument else None
        elif ending.match(argument):
            return None
    return None


def seen_from(folder: Path, spec: JobSpec) -> JobSpec:
    """The job with its program's own file, script and module found, where `folder` holds them.

    A bare name is looked for on PATH first, as a shell does. A script whose name holds a mark
    of a sweep is taken to lie there.
    """
    argv = list(spec.program)
    found: list[Path] = []
    if argv and _names_file(folder, argv[0]):
        argv[0] = str(folder / argv[0])
        found.append(Path(argv[0]).parent)
    at = script_index(argv)
    if at is not None:
        marked = "{" in argv[at] and argv[at].endswith(_SCRIPT)
        if marked or _is_there(folder / argv[at]):
            argv[at] = str(folder / argv[at])
            found.append(Path(argv[at]).parent)
    modules = [*filter(None, [_module(argv)]), *_of_train(argv)]
    here = any(_is_there(folder / one) for name in modules for one in (name, f"{name}.py"))
    data = _data_index(argv)
    if data is not None and _is_there(folder / argv[data].removeprefix("--data=")):
        sign, _, value = argv[data].rpartition("--data=")
        argv[data] = f"{'--data=' if argv[data] != value else sign}{folder / value}"
    return replace(
        spec,
        program=tuple(argv),
        python_path=folder if here and spec.chdir is None else None,
        files=tuple(dict.fromkeys(found)),
    )


def check_program(folder: Path, spec: JobSpec, module: Module, *, queued: bool = True) -> None:
    """Refuse a program, script or module that is not there, and files that the job would not find.

    What a module or a container brings is not looked for, and a name on PATH only where the job
    is queued: a script that is only printed may be for another machine.

    Raises:
        BadInput: names it.
    """
    check_script(spec)
    argv = spec.program
    check_image(folder, spec.container)
    if not argv or spec.container:
        return
    named = "/" not in argv[0] and (not queued or bool(module.names) or argv[0] == "hpcdl")
    if not named and ("/" in argv[0] or shutil.which(argv[0]) is None):
        _check_runs(spec.chdir or folder, argv[0])
    at = script_index(argv)
    if at and argv[at].startswith("/") and not ("{" in argv[at] or _is_there(Path(argv[at]))):
        raise BadInput(f"there is no script {argv[at]}", hint="the job's nodes see what you see")
    name = _module(argv) if queued else None
    if name and not module.names and spec.python_path is None and not _has_module(spec, name):
        raise BadInput(
            f"{argv[0]} finds no module '{name}' here",
            hint="give the directory that holds it: --chdir DIR",
        )
    for argument in _relative_files(folder, spec):
        raise BadInput(
            f"{argument} lies here, and the job works in a directory of its own",
            hint="--chdir . lets the program work here; or write the whole path",
        )


def check_script(spec: JobSpec) -> None:
    """Refuse a script that the ranks would not find.

    Raises:
        BadInput: names the script.
    """
    at = script_index(spec.program)
    # An image has files of its own.
    if at is None or spec.container:
        return
    script = Path(spec.program[at])
    if script.is_absolute() or "{" in script.name or script.suffix not in _SCRIPT:
        return
    if not any(place and _is_there(place / script) for place in (spec.chdir, spec.job_dir)):
        raise BadInput(
            f"there is no script {script} here",
            hint="jobs work in a directory of their own: name the script by its path from here, "
            "or by its absolute path",
        )


def check_image(folder: Path, image: str | None) -> None:
    """Refuse an image that is not there; one with a name in a registry is not looked for.

    Raises:
        BadInput: names it.
    """
    if image is None or (
        image[:1] not in {"/", "."} and not image.endswith((".sif", ".sqsh", ".sqfs"))
    ):
        return
    if not _is_there(folder / image):
        raise BadInput(
            f"there is no image {image}",
            hint="name it by its path, or by its place in a registry, such as docker://NAME",
        )


def _check_runs(folder: Path, name: str) -> None:
    """Refuse a program that cannot be run."""
    path = folder / name
    if "/" not in name or not _is_there(path):
        raise BadInput(
            f"there is no program '{name}'" + ("" if "/" in name else " here"),
            hint="name it by its path; or load the module that has it: --module NAME",
        )
    if path.is_dir() or not os.access(path, os.X_OK):
        raise BadInput(
            f"'{name}' cannot be run",
            hint=f"`chmod +x {name}`, or name what runs it: -- python {name}",
        )


def _module(argv: Sequence[str]) -> str | None:
    """The first part of what `python -m` names; None for any other program."""
    name = Path(argv[0]).name if argv else ""
    if name in _STARTERS:
        start = next((n for n, one in enumerate(argv) if n and _PYTHON.match(Path(one).name)), 0)
        return _module(argv[start:]) if start else None
    if not _PYTHON.match(name) or script_index(argv) is not None:
        return None
    for one, following in pairwise(argv):
        if re.match(r"-[A-Za-z]*m\Z", one):
            return following.partition(".")[0]
    return None


def _of_train(argv: Sequence[str]) -> list[str]:
    """The modules of the functions `package.module:function` that `hpcdl train` is given."""
    words = argv[2:] if is_train(argv) else ()
    found = (_FUNCTION.match(one) for one in words)
    return [match[1] for match in found if match]


def _has_module(spec: JobSpec, name: str) -> bool:
    """Whether this Python finds a module, as the job's would."""
    from hpcdl.system.run import run

    if not name.isidentifier():
        return True
    if spec.chdir and any(_is_there(spec.chdir / one) for one in (name, f"{name}.py")):
        return True
    code = f"import importlib.util as u, sys; sys.exit(u.find_spec({name!r}) is None)"
    python = next(one for one in spec.program if _PYTHON.match(Path(one).name))
    # In a directory where nobody can plant a module.
    done = run([python, "-c", code], directory=Path("/"), timeout=60, check=False)
    return done.ok


def _data_index(argv: Sequence[str]) -> int | None:
    """Where `hpcdl train` is given its data set, as a directory."""
    if not is_train(argv):
        return None
    for index, one in enumerate(argv):
        if one.startswith("--data=") and one != "--data=synthetic":
            return index
        if one == "--data" and index + 1 < len(argv) and argv[index + 1] != "synthetic":
            return index + 1
    return None


def _relative_files(folder: Path, spec: JobSpec) -> Iterator[str]:
    """Arguments that name a file or directory of `folder`, which the job would not find."""
    if spec.chdir is not None or spec.job_dir == folder:
        return
    # What follows `-m` is a module, and found as one; the `train` of `hpcdl train` is no file.
    words = spec.program[1:] if is_train(spec.program) else spec.program
    files = [one for option, one in pairwise(words) if not re.match(r"-[A-Za-z]*m\Z", option)]
    for argument in files:
        name = argument.partition("=")[2] if argument.startswith("-") else argument
        if not name or name.startswith("/") or not _is_there(folder / name):
            continue
        if "/" in name or Path(name).suffix or (folder / name).is_dir():
            yield name


def _names_file(folder: Path, argument: str) -> bool:
    """Whether the program itself is a file of the directory, and not one of PATH."""
    if not _is_there(folder / argument) or (folder / argument).is_dir():
        return False
    return "/" in argument or shutil.which(argument) is None


def _is_there(path: Path) -> bool:
    with suppress(OSError, ValueError):  # a argument may be no possible name at all
        return path.exists()
    return False


def check_data(spec: JobSpec) -> None:
    """Raise BadInput for a data set that is not on the file system, which nodes share."""
    if spec.data and not Path(spec.data).exists():
        raise BadInput(
            f"there is no data set {spec.data}",
            hint="`hpcdl data make` writes one; `hpcdl job render` does not ask for it",
        )
