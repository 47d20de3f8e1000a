"""The files that a program's arguments name, as seen from where the job is asked for.

A job runs in its own directory, so that requeues, chains and sweeps find their own files
there and no two jobs write over each other's. What the user named from where they stand is not
there: the program, its script and its module are made absolute when the job is asked for; other
files are not guessed at but refused, and `--chdir .` takes them as they are.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from getopt import GetoptError, getopt
from itertools import pairwise
from pathlib import Path
from string import ascii_letters

from hpcdl.jobs.spec import JobSpec, Module, is_train
from hpcdl.slurm.unwrap import CONDA, PROJECTS, SHELLS, is_agent, program_of
from hpcdl.system.errors import BadInput
from hpcdl.system.files import MAX_BYTES, open_regular

_PYTHON = re.compile(r"python[0-9.]*\Z")
_SCRIPT = (".py", ".sh")
_LINE = re.compile(r"[\s;&|<>`=]|\$\(")
"""What a line for a shell has, and the name of hardly any program."""
_OF_THE_SHELL = frozenset({"source", ".", "module", "ml", "cd", "export", "ulimit"})
_OF_PROJECTS = frozenset({*PROJECTS, "uv", "hatch", "pixi"})
_PROJECT_FILES = ("pyproject.toml", "Pipfile", "pixi.toml")
_OPTION_M = re.compile(r"-[A-Za-z]*m\Z")
_FUNCTION = re.compile(r"(?:--(?:model|dataset)=)?([A-Za-z_]\w*)(?:\.\w+)*:\w+\Z")


class NotHere(BadInput):
    """A file of the job that is not on this machine, which another one may have."""


def script_of(program: Sequence[str]) -> tuple[int | None, str]:
    """The index of the script for an interpreter (None: none), and the package of `python -m`."""
    start = program_of(program)
    words = program[start:]
    name = Path(words[0]).name if words else ""
    if is_agent(words):
        scripts = (n for n, one in enumerate(program) if n > start and one.endswith(_SCRIPT))
        return next(scripts, None), ""
    # Options that take the next word, and those behind which there is no script.
    valued, ending, long = "cmWX", {"-c", "-m"}, ["check-hash-based-pycs="]
    if name in SHELLS:
        valued, ending, long = "oO", {"-c", "-s"}, ["rcfile=", "init-file=", "login", "posix"]
    elif not _PYTHON.match(name):
        return None, ""
    letters = "".join(f"{one}:" if one in valued else one for one in ascii_letters)
    try:
        options, rest = getopt([re.sub(r"^\+", "-", one) for one in words[1:]], letters, long)
    except GetoptError:
        return None, ""
    given = dict(options)
    if given.keys() & ending or rest[:1] in ([], [""], ["-"]):
        return None, "" if name in SHELLS else given.get("-m", "").partition(".")[0]
    return len(program) - len(rest), ""


def _shell_scripts(program: Sequence[str]) -> Iterator[tuple[Path, bytes]]:
    """The shell scripts that a program runs, with their text; those that can be read here."""
    for index in {0, script_of(program)[0] or 0} if program else ():
        path = Path(program[index])
        if path.suffix == ".sh" or (index and Path(program[0]).name in SHELLS):
            with suppress(BadInput, OSError), open_regular(path, "script") as file:
                yield path, file.read(MAX_BYTES)


def unread_directives(spec: JobSpec) -> Path | None:
    """The program's own script where it has lines for sbatch, which a job does not read."""
    scripts = () if spec.container else _shell_scripts(spec.program)
    return next((path for path, text in scripts if re.search(rb"(?m)^#SBATCH\b", text)), None)


# ---- from here to the job's directory ----


def _path(folder: Path, given: str | Path) -> Path:
    """A path as the shell would have it: no shell expands what a file, or `--data=~/x`, says."""
    try:
        return folder / Path(given).expanduser()
    except RuntimeError as fault:
        raise BadInput(f"{given}: there is no such user, or no home") from fault


def _directory(folder: Path, given: Path | None) -> Path | None:
    """A directory that is made or used here, so that no variable in its name is left."""
    path = _path(folder, given) if given else None
    if path and (found := re.search(r"\$\{?\w+", str(given))) and not path.exists():
        raise BadInput(f"{given}: the variable {found[0]} was not expanded", hint="write the path")
    return path


def seen_from(folder: Path, spec: JobSpec) -> JobSpec:
    """The job with all that it names found, as a shell in `folder` does: the job works elsewhere.

    Directories, data set and image become absolute, and of the program what `folder` holds: its
    own file, its script and its module. A bare name is looked for on PATH first, as a shell does;
    a script whose name holds a mark of a sweep is assumed to be there.
    """
    argv, taken, image = list(spec.program), set[int](), spec.container
    own = argv and _is_there(folder / argv[0]) and not (folder / argv[0]).is_dir()
    if own and ("/" in argv[0] or shutil.which(argv[0]) is None):
        taken.add(0)
    at, module = script_of(argv)
    marked = at is not None and "{" in argv[at] and argv[at].endswith(_SCRIPT)
    if at is not None and (marked or _is_there(folder / argv[at])):
        taken.add(at)
    modules = [module]
    if is_train(argv):
        modules = [match[1] for match in map(_FUNCTION.match, argv[2:]) if match]
        for index, one in enumerate(argv[2:], 2):
            option = "--data=" if one.startswith("--data=") else ""
            value = one.removeprefix(option)
            named = (option or argv[index - 1] == "--data") and value != "synthetic"
            if named and _is_there(folder / value):
                argv[index] = f"{option}{folder / value}"
    for index in taken:
        argv[index] = str(folder / argv[index])
    files = (folder / f"{name}{end}" for name in modules if name for end in ("", ".py"))
    here = spec.chdir is None and any(map(_is_there, files))
    # An image may be a name in a registry instead of a path.
    if image and (image[0] in "~." or _is_there(folder / image)):
        image = str(_path(folder, image))
    return replace(
        spec,
        program=tuple(argv),
        job_dir=_directory(folder, spec.job_dir),
        chdir=_directory(folder, spec.chdir),
        data=str(_path(folder, spec.data)) if spec.data else None,
        container=image,
        python_path=spec.python_path or (folder if here else None),
        files=tuple(dict.fromkeys((*spec.files, *(Path(argv[one]).parent for one in taken)))),
        traps=spec.traps or any(b"USR2" in text for _, text in _shell_scripts(argv)),
    )


# ---- what the job would not find ----


def check_program(folder: Path, spec: JobSpec, module: Module, *, queued: bool = True) -> None:
    """Raise BadInput for a program, script or other file that the job would not find.

    What a module or a container brings is not looked for, and a name on PATH only where the job
    is queued: a script that is only printed may be for another machine.
    """
    argv, work, image = spec.program, spec.chdir or folder, spec.container or ""
    path = image.startswith(("/", ".")) or image.endswith((".sif", ".sqsh", ".sqfs"))
    if path and not _is_there(folder / image):
        hint = "name it by its path, or by its place in a registry, such as docker://NAME"
        raise NotHere(f"there is no image {image}", hint=hint)
    if queued and spec.data and not Path(spec.data).exists():
        hint = "`hpcdl data make` writes one; `hpcdl job render` does not ask for it"
        raise BadInput(f"there is no data set {spec.data}", hint=hint)
    if spec.chdir and not spec.chdir.is_dir():
        raise NotHere(f"there is no directory {spec.chdir}", hint="make it, or correct --chdir")
    if not argv or image:
        return
    if _LINE.search(argv[0]) and not _is_there(work / argv[0]):
        hint = f"let a shell run a line: -- bash -c {shlex.quote(' '.join(argv))}"
        raise BadInput(f"'{argv[0]}' is no program", hint=hint)
    if argv[0] in _OF_THE_SHELL or (argv[0] in CONDA and argv[1:2] == ("activate",)):
        line = shlex.join(argv)
        hint = f"--setup {shlex.quote(line)} prepares the job's shell, and -- PROGRAM runs in it"
        raise BadInput(f"'{line[:60]}' is no program: it changes a shell", hint=hint)
    at, _ = script_of(argv)
    if at is not None and "{" not in argv[at]:
        _check_script(spec, argv[at])
    brought = bool(module.names) and not argv[0].endswith(_SCRIPT)
    named = "/" not in argv[0] and (not queued or brought or argv[0] == "hpcdl")
    if not named and ("/" in argv[0] or shutil.which(argv[0]) is None):
        _check_runs(work, argv[0])
    if spec.chdir is None and spec.job_dir != folder:
        _check_relative(folder, argv)


def _check_runs(folder: Path, name: str) -> None:
    path = folder / name
    if "/" not in name or not _is_there(path):
        raise NotHere(
            f"there is no program '{name}'" + ("" if "/" in name else " here"),
            hint="name it by its path; or load the module that has it: --module NAME",
        )
    if path.is_dir() or not os.access(path, os.X_OK):
        runs = "bash" if path.suffix == ".sh" else "python"
        hint = f"`chmod +x {name}`, or name what runs it: -- {runs} {name}"
        raise BadInput(f"'{name}' cannot be run", hint=hint)


def _check_script(spec: JobSpec, name: str) -> None:
    """Refuse a script that the ranks would not find; a shell looks on PATH, too."""
    by_path = spec.program[0] in SHELLS and "/" not in name and shutil.which(name)
    places = [place / name for place in (spec.chdir, spec.job_dir) if place]
    if name.startswith("/") and not _is_there(Path(name)):
        raise NotHere(f"there is no script {name}", hint="the job's nodes see what you see")
    if not (name.startswith("/") or by_path or any(map(_is_there, places))):
        raise NotHere(
            f"there is no script {name} here",
            hint="jobs work in a directory of their own: name the script by its path from here, "
            "or by its absolute path",
        )


def _check_relative(folder: Path, program: Sequence[str]) -> None:
    """Refuse arguments that name a file or directory of `folder`: the job would not find it."""
    project = next((name for name in _PROJECT_FILES if _is_there(folder / name)), "")
    if project and program[0] in _OF_PROJECTS and "run" in program[1:]:
        raise BadInput(
            f"'{program[0]} run' takes the project of the directory that it runs in, and the job "
            f"runs in its own, without {project}",
            hint="--chdir . lets the program work here",
        )
    # What follows `-m` is a module, and found as one; the `train` of `hpcdl train` is no file.
    words = program[1:] if is_train(program) else program
    for option, argument in pairwise(words):
        name = argument.partition("=")[2] if argument.startswith("-") else argument
        if _OPTION_M.match(option) or not name or name.startswith("/"):
            continue
        path = folder / name
        if _is_there(path) and ("/" in name or path.suffix or path.is_dir()):
            raise BadInput(
                f"{name} is in the current directory, but the job runs in its own directory",
                hint="--chdir . lets the program work here; or write the whole path",
            )


def _is_there(path: Path) -> bool:
    return os.path.exists(path)  # noqa: PTH110 - an argument may be no possible name at all
