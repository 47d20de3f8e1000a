"""Finds what comes with hpcdl, in a checkout and in a wheel, and what it keeps on this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdl import __version__
from hpcdl.system.errors import HpcdlError, MissingPrerequisite
from hpcdl.system.files import explain_os_errors, process_fields, user_name, write_json
from hpcdl.system.trust import require_no_stranger

if TYPE_CHECKING:
    import jinja2

_PACKAGE = Path(__file__).resolve().parent.parent
_KEPT = 50
_SCRATCH = ".hpcdl-scratch-"


def folder(name: str) -> Path:
    """The directory `examples`, `templates`, `modulefiles`, `spack` or `reframe_checks`.

    In a wheel it is inside the package, in a checkout beside it; MissingPrerequisite elsewhere.
    """
    for candidate in (_PACKAGE / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    raise MissingPrerequisite(
        f"this installation of hpcdl lacks its directory '{name}'",
        hint="install hpcdl again from its wheel or from a checkout",
    )


def to_install(extra: str) -> str:
    """How an extra gets to the hpcdl that runs: never into a release, which is sealed."""
    if (Path(sys.prefix).parent / "release.json").exists():
        return (
            "this is the hpcdl of a loaded module, made for jobs: `module unload tensorflow`, "
            f"then run your own hpcdl, installed with hpcdl[{extra}]"
        )
    return f"{sys.executable} -m pip install 'hpcdl[{extra}]'"


def templates(name: str, **options: Any) -> jinja2.Environment:
    """The templates of a directory in `templates`; whatever is undefined in them is an error.

    `options` are jinja's. Nothing is escaped by itself: what is rendered is bash, YAML or Lua, and
    its filters quote.
    """
    import jinja2

    loader, strict = jinja2.FileSystemLoader(folder("templates") / name), jinja2.StrictUndefined
    options = {"keep_trailing_newline": True, "autoescape": False, **options}
    return jinja2.Environment(loader=loader, undefined=strict, **options)  # noqa: S701 - no HTML  # nosec B701


def home(*parts: str) -> Path:
    """Return hpcdl's data directory: HPCDL_HOME, else ~/.local/share/hpcdl.

    `parts` name the path below it. MissingPrerequisite where somebody else can change that path.
    """
    return _ours("HPCDL_HOME", ".local/share/hpcdl", parts)


def cache(*parts: str) -> Path:
    """Return the cache directory (wheels, root file systems): HPCDL_CACHE, else ~/.cache/hpcdl.

    As `home`: much of it is executed, by root as well.
    """
    return _ours("HPCDL_CACHE", ".cache/hpcdl", parts)


def expand(text: str) -> str:
    """A path with `~` and the variables that are known here replaced: HOME, USER, HPCDL_HOME."""
    values = {
        "HPCDL_HOME": lambda: str(home()),
        "HOME": lambda: str(Path.home()),
        "USER": lambda: user_name(os.environ.get("USER")),
    }
    text = re.sub(
        r"\$\{([A-Z_]+)\}|\$([A-Z_]+)",
        lambda m: values.get(m.group(1) or m.group(2), m.group)(),
        text,
    )
    if not text.startswith("~"):
        return text
    try:
        return str(Path(text).expanduser())
    except (RuntimeError, ValueError):  # no such user, or no home
        return text


def cached(kind: str, sources: Sequence[bytes | Path], make: Callable[[], Any]) -> Any:
    """Return `make()` as JSON values, cached until one of the sources (contents, or files) changes.

    What is kept is found by a digest of contents, never of times or names, so it cannot be stale.
    A failure of `make` is not kept; any other only means that a value is made again.
    """
    import hashlib

    digest = hashlib.sha256(__version__.encode())
    try:
        for source in sources:
            data = source if isinstance(source, bytes) else source.read_bytes()
            digest.update(b"%d:" % len(data) + data)
        path = cache(kind) / f"{digest.hexdigest()}.json"
    except (HpcdlError, OSError):
        return make()
    with suppress(OSError, ValueError):
        return json.loads(path.read_bytes())
    value = make()
    with suppress(HpcdlError, OSError):
        write_json(path, value)
        kept = sorted(path.parent.glob("*.json"), key=lambda file: file.stat().st_mtime)
        for old in kept[:-_KEPT]:
            old.unlink(missing_ok=True)
    return value


def _ours(variable: str, below_home: str, parts: tuple[str, ...]) -> Path:
    chosen = os.environ.get(variable)
    try:
        place = Path(chosen).absolute() if chosen else Path.home() / below_home
    except RuntimeError as fault:
        message, hint = "this user has no home directory", "set HOME, or HPCDL_HOME and HPCDL_CACHE"
        raise MissingPrerequisite(message, hint=hint) from fault
    return require_no_stranger(place.joinpath(*parts))


@contextmanager
def scratch_directory(below: Path | None = None) -> Iterator[Path]:
    """An empty directory of this user only, below TMPDIR or `below`, removed at the end.

    What killed commands left there is removed first. MissingPrerequisite: no space left, or no
    permission, there; or another user can put one of his own in TMPDIR's place: much of its content
    is executed.
    """
    below = below or require_no_stranger(Path(tempfile.gettempdir(), _SCRATCH)).parent
    here, me = _this_machine(), f"{os.getpid()}-{_started(os.getpid())}-"
    with explain_os_errors(below):
        if here:
            _clear_abandoned(below, here)
        made = tempfile.TemporaryDirectory(
            prefix=f"{_SCRATCH}{here}{me}", dir=below, ignore_cleanup_errors=True
        )
    with made as place:
        yield Path(place)


def _this_machine() -> str:
    """This boot and namespace of processes: only here a process's id says whether it runs."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return f"{boot[:8]}.{Path('/proc/self/ns/pid').stat().st_ino}-"
    return ""


def _clear_abandoned(below: Path, here: str) -> None:
    """Remove this user's scratch directories whose process ended without doing so."""
    with os.scandir(below) as entries:
        left = [one.path for one in entries if one.name.startswith(_SCRATCH + here)]
    for path in left:
        pid, start, *_ = [*Path(path).name.removeprefix(_SCRATCH + here).split("-"), "", ""]
        with suppress(OSError):  # another command removes it as well
            status = os.lstat(path)
            own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
            if own and pid.isdecimal() and start != _started(pid):
                shutil.rmtree(path, ignore_errors=True)


def _started(pid: int | str) -> str:
    """When a process started, in ticks since the boot; '' if it is gone."""
    return "".join(process_fields(pid)[19:20])
