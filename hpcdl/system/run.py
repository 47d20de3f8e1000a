"""Runs commands and keeps their records.

`run` is the only way this package starts a program that ends by itself. The result is a
record; a failure is an error that shows the command, where it ran, its exit code, its last
lines, the log, and a script that reopens the same environment at the same place.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcdl.system.errors import ExitCode, HpcdlError, MachineLacks, Stopped
from hpcdl.system.files import write_atomic
from hpcdl.system.resources import home
from hpcdl.system.text import duration

_SHOWN_LINES = 12
_SECRETS = ("TOKEN", "PASSWORD", "SECRET", "KEY", "JWT")


@dataclass(frozen=True)
class CommandResult:
    """What one command did: enough to judge it, to show it, and to run it again."""

    argv: tuple[str, ...]
    directory: Path
    exit_code: int
    stdout: str
    stderr: str
    seconds: float
    log: Path | None = None

    @property
    def ok(self) -> bool:
        """Whether the command left with exit code 0."""
        return self.exit_code == 0

    @property
    def command(self) -> str:
        """The command as a shell would take it."""
        return shlex.join(self.argv)

    def last_lines(self, count: int = _SHOWN_LINES) -> list[str]:
        """The end of what the command said: its errors, else its output, else its log."""
        text = self.stderr.strip() or self.stdout.strip()
        if not text and self.log is not None and self.log.exists():
            text = self.log.read_text(errors="replace")[-20000:].strip()
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
) -> CommandResult:
    """Run a command to its end and return its record.

    Args:
        argv: program and arguments; no shell is involved.
        directory: where to run it; the current folder by default.
        env: variables set on top of the environment.
        base_env: the whole environment, instead of this process's.
        stdin: text for standard input; empty by default, so nothing ever waits for a person.
        timeout: seconds until it is killed.
        check: raise on a non-zero exit code.
        log: write both outputs there as they come, instead of keeping them.
        hint: what to do when it fails.

    Raises:
        MachineLacks: the program is not installed.
        CommandFailed: non-zero exit code and `check`.
        Stopped: the time limit passed.
    """
    words = tuple(str(word) for word in argv)
    where = (directory or Path.cwd()).absolute()
    start = time.monotonic()
    try:
        merged = {**(os.environ if base_env is None else base_env), **(env or {})}
        done = _execute(words, where, merged, stdin, timeout, log)
    except (FileNotFoundError, PermissionError) as fault:
        if not where.is_dir():
            raise MachineLacks(f"the folder {where} does not exist") from fault
        raise MachineLacks(
            f"cannot run '{words[0]}': it is not installed or not on PATH", hint=hint
        ) from fault
    except subprocess.TimeoutExpired as fault:
        raise Stopped(
            f"'{shlex.join(words)[:200]}' did not end within {duration(timeout or 0)}", hint=hint
        ) from fault
    result = CommandResult(
        words, where, done.returncode, done.stdout or "", done.stderr or "",
        time.monotonic() - start, log,
    )  # fmt: skip
    if check and not result.ok:
        raise CommandFailed(result, _reopen_script(result, env), hint)
    return result


def _execute(
    words: tuple[str, ...],
    where: Path,
    env: Mapping[str, str],
    stdin: str | None,
    timeout: float | None,
    log: Path | None,
) -> subprocess.CompletedProcess[str]:
    common = {"cwd": where, "env": env, "input": stdin or "", "timeout": timeout}
    if log is None:
        return subprocess.run(  # type: ignore[call-overload, no-any-return]
            words, capture_output=True, text=True, errors="replace", check=False, **common
        )
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as out:
        out.write(f"$ {shlex.join(words)}\n")
        out.flush()
        return subprocess.run(  # type: ignore[call-overload, no-any-return]
            words, stdout=out, stderr=subprocess.STDOUT, text=True, check=False, **common
        )


def _reopen_script(result: CommandResult, env: Mapping[str, str] | None) -> Path | None:
    """A script that opens a shell where the command failed; None where it cannot be written."""
    stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    path = home() / "failures" / f"{stamp}-{Path(result.argv[0]).name}.sh"
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
    try:
        write_atomic(path, "\n".join(lines) + "\n", mode=0o700)
    except (HpcdlError, OSError):
        return None
    return path
