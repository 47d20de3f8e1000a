"""Runs commands and keeps their records.

`run` is the only way this package starts a program that ends by itself. The result is a
record; a failure is an error that shows the command, where it ran, its exit code, its last
lines, the log, and a script that reopens the same environment at the same place.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

from hpcdl.system.errors import ExitCode, HpcdlError, MissingPrerequisite, Stopped
from hpcdl.system.files import explain_os_errors, last_text, make_directory, write_atomic
from hpcdl.system.frozen import dataclass
from hpcdl.system.resources import home
from hpcdl.system.signals import noted
from hpcdl.system.text import duration, utc_stamp

_SHOWN_LINES = 12
_WATCH_SECONDS = 1.0
_SECRETS = (
    "TOKEN",
    "PASSWORD",
    "SECRET",
    "KEY",
    "JWT",
    "INDEX",
)  # an index may have one in its URL
_MODULE = (
    "import sys; sys.path[:] = filter(None, sys.path); del sys.argv[0]; "
    "from runpy import run_module; run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


@dataclass(frozen=True)
class CommandResult:
    """The result of one command: enough to check it, to show it, and to run it again."""

    argv: tuple[str, ...]
    directory: Path
    exit_code: int
    stdout: str
    stderr: str
    seconds: float
    log: Path | None = None

    @property
    def ok(self) -> bool:
        """Whether the command exited with status 0."""
        return self.exit_code == 0

    @property
    def command(self) -> str:
        """The command as a shell would take it."""
        return shlex.join(self.argv)

    def last_lines(self, count: int = _SHOWN_LINES) -> list[str]:
        """The end of what the command printed: its errors, else its output, else its log."""
        text = self.stderr.strip() or self.stdout.strip()
        if not text and self.log is not None:
            text = last_text(self.log, 20_000).strip()
        return text.splitlines()[-count:]


class CommandFailed(HpcdlError):
    """A command that had to succeed did not (exit code 4)."""

    exit_code = ExitCode.COMMAND_FAILED

    def __init__(self, result: CommandResult, reopen: Path | None = None, hint: str = "") -> None:
        program = Path(result.argv[0]).name
        details = [
            f"command:   {result.command}",
            f"directory: {result.directory}",
            f"took:      {duration(result.seconds)}",
        ]
        if result.log is not None:
            details.append(f"log:       {result.log}")
        if reopen is not None:
            details.append(f"reopen:    bash {reopen}")
        details += [f"| {line}" for line in result.last_lines()]
        super().__init__(
            f"{program} failed with exit code {result.exit_code}", hint=hint, details=details
        )
        self.result = result


def run(
    argv: Sequence[str | Path],
    *,
    directory: Path | None = None,
    env: Mapping[str, str] | None = None,
    base_env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    timeout: float | None = None,
    check: bool = True,
    log: Path | None = None,
    hint: str = "",
    tied: bool = False,
    watch: Callable[[], None] | None = None,
) -> CommandResult:
    """Run a command to its end and return its record. No shell is involved.

    `env` is set on top of `base_env`, by default this process's environment. `stdin` is empty by
    default, so nothing ever waits for a person. The command is killed after `timeout` seconds and,
    if `tied`, when this process dies, even by SIGKILL: for what would still write where the next
    attempt starts again. With a `log` both outputs go there as they come, and are not kept.
    `watch` is called about once a second; `hint` says what to do when the command fails.

    Raises MissingPrerequisite (it could not be started), CommandFailed (non-zero exit code and
    `check`), or Stopped: the time limit passed.
    """
    command, where, start = tuple(map(str, argv)), _absolute(directory), time.monotonic()
    try:
        with ExitStack() as stack:
            out = subprocess.PIPE if log is None else stack.enter_context(_log(log, command))
            ended = _execute(
                command,
                stdin,
                timeout,
                watch,
                cwd=where,
                env={**(os.environ if base_env is None else base_env), **(env or {})},
                stdout=out,
                stderr=subprocess.PIPE if log is None else subprocess.STDOUT,
                preexec_fn=tie() if tied else None,  # one call, no threads
            )
    except subprocess.TimeoutExpired as fault:
        message = f"'{shlex.join(command)[:200]}' did not end within {duration(timeout or 0)}"
        raise Stopped(message, hint=hint) from fault
    except (OSError, ValueError) as fault:
        raise _not_run(command, where, fault, hint) from fault
    result = CommandResult(command, where, *ended, time.monotonic() - start, log)
    if check and not result.ok:
        raise CommandFailed(result, _reopen_script(result, env), hint)
    return result


def _absolute(directory: Path | None) -> Path:
    try:
        return (directory or Path.cwd()).absolute()
    except FileNotFoundError as fault:
        gone = "the current directory no longer exists"
        raise MissingPrerequisite(gone, hint="cd to another") from fault


def _not_run(
    argv: tuple[str, ...], where: Path, fault: OSError | ValueError, hint: str
) -> MissingPrerequisite:
    """Why the operating system did not start a command."""
    if not where.is_dir():
        return MissingPrerequisite(f"the directory {where} does not exist")
    if isinstance(fault, FileNotFoundError):
        reason = "it is not installed or not on PATH"
    elif isinstance(fault, PermissionError):
        reason = "it is not a program that you may run"
    else:
        reason = getattr(fault, "strerror", None) or str(fault)
    return MissingPrerequisite(f"cannot run '{argv[0]}': {reason}", hint=hint)


def _log(path: Path, argv: Sequence[str]) -> IO[bytes]:
    """A log for the output of a command, which is its first line."""
    with explain_os_errors(path):
        make_directory(path.parent)
        with path.open("ab") as log:
            log.write(f"$ {shlex.join(argv)}\n".encode(errors="surrogateescape"))
        return path.open("ab")


def _execute(
    argv: tuple[str, ...],
    stdin: str | None,
    timeout: float | None,
    watch: Callable[[], None] | None,
    **options: Any,
) -> tuple[int, str, str]:
    """Exit code, output and errors; with a log both go there and the texts are empty."""
    with ExitStack() as stack:
        process = None
        try:
            with noted():  # a signal in the middle of it would leave an unrecorded process
                started = subprocess.Popen(argv, stdin=subprocess.PIPE, **options)
                process = stack.enter_context(started)
            streams = _wait(process, (stdin or "").encode(errors="surrogateescape"), timeout, watch)
        except BaseException:
            # Its children too: one that holds the output open would keep us waiting.
            if process is not None:
                _kill(process.pid)
            raise
        stdout, stderr = ((text or b"").decode(errors="replace") for text in streams)
        return process.returncode, stdout, stderr


def _wait(
    process: subprocess.Popen[bytes],
    text: bytes,
    timeout: float | None,
    watch: Callable[[], None] | None,
) -> tuple[bytes | None, bytes | None]:
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        left = None if end is None else max(0.0, end - time.monotonic())
        steps = [one for one in (left, _WATCH_SECONDS if watch else None) if one is not None]
        try:
            return process.communicate(text, min(steps, default=None))
        except subprocess.TimeoutExpired:
            if watch is None or left == 0:
                raise
            watch()
            text = b""  # the process keeps what is left of it


def every(tell: Callable[[], None], seconds: float = 15) -> Callable[[], None]:
    """Return a `watch` of `run` that calls `tell` so often: how far a long command is.

    Files that the command removes while `tell` looks at them are no reason to end it.
    """
    due = time.monotonic() + seconds

    def watch() -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + seconds
            with suppress(OSError):
                tell()

    return watch


def module_argv(python: str | Path, name: str) -> list[str | Path]:
    """`python -m name` that never looks into the current directory; arguments follow.

    That may be /tmp, where anybody can leave a directory `hpcdl` or `pip`.
    """
    return [python, "-c", _MODULE, name]


def tie() -> Callable[[], None]:
    """Return a function for the child process: the kernel kills it with its parent (prctl(2))."""
    import ctypes

    libc, die_with_parent = ctypes.CDLL(None), 1
    return lambda: libc.prctl(die_with_parent, signal.SIGKILL)


def _kill(pid: int) -> None:
    descendants = [pid]
    for parent in descendants:
        descendants += _children(parent)
    for one in descendants:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(one, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:  # it has ended meanwhile
        return []


def _reopen_script(result: CommandResult, env: Mapping[str, str] | None) -> Path | None:
    """A script that opens a shell where the command failed; None where it cannot be written."""
    exports = [
        f"export {key}={shlex.quote(value)}"
        for key, value in sorted((env or {}).items())
        if not any(word in key.upper() for word in _SECRETS)
    ]
    lines = [
        "#!/bin/bash",
        "# Reopens the environment in which this command failed:",
        *(f"#   {line}" for line in result.command.splitlines()),
        f"cd {shlex.quote(str(result.directory))} || exit",
        *exports,
        'exec "${SHELL:-/bin/bash}" -i',
    ]
    name = f"{utc_stamp()}-{os.getpid()}-{Path(result.argv[0]).name}.sh"
    try:
        path = home("failures") / name
        make_directory(path.parent)
        write_atomic(path, "\n".join(lines) + "\n", mode=0o700)
    except (HpcdlError, OSError):
        return None
    return path
