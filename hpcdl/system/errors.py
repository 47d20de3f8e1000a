"""The errors a user may see, and the one table of exit codes.

Every failure that a person can cause or cure is an `HpcdlError`: one sentence of what is
wrong, details where they help, and a hint that says what to do. The command line prints it
and exits with its status; anything else that escapes is a defect of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from hpcdl.system.text import inert


class ExitCode(IntEnum):
    """Exit codes of every `hpcdl` command (docs/exit-codes.md is made from this table)."""

    OK = 0
    NO = 1
    USAGE = 2
    MISSING_PREREQUISITE = 3
    COMMAND_FAILED = 4
    STOPPED = 5
    PARTLY = 6
    CHANGES = 10
    PREFLIGHT = 20
    REQUEUE = 75


MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "done, or the answer is yes",
    ExitCode.NO: "the answer is no: drift found, lint errors, a check or the gate failed",
    ExitCode.USAGE: "bad usage or a bad input file",
    ExitCode.MISSING_PREREQUISITE: "a missing prerequisite: a package, root, Slurm, space left",
    ExitCode.COMMAND_FAILED: "a command we ran failed: its record is shown",
    ExitCode.STOPPED: "stopped: signal or time limit",
    ExitCode.PARTLY: "partly done: the rest is listed and can be resumed",
    ExitCode.CHANGES: "plan: something would change",
    ExitCode.PREFLIGHT: "20 to 29: preflight of a job, one number per cause",
    ExitCode.REQUEUE: "training: checkpoint written, requeue me",
}


class HpcdlError(Exception):
    """A failure with a message for a person: one sentence that names the thing at fault.

    `hint` says what to do about it; `details` are printed indented below the message.
    """

    exit_code = ExitCode.NO

    def __init__(self, message: str, *, hint: str = "", details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = tuple(details)

    def in_one_line(self) -> str:
        """Message, details and hint, for a list of several."""
        return "; ".join(filter(None, [self.message, *self.details, self.hint]))

    def render(self) -> str:
        """The error as printed on standard error: message, details, hint."""
        lines = [f"error: {self.message}"]
        lines += [f"  {line}" if line else "" for line in self.details]
        if self.hint:
            lines.append(f"help: {self.hint}")
        return inert("\n".join(lines))


class CheckFailed(HpcdlError):
    """The check was made and failed (exit code 1)."""


class BadInput(HpcdlError):
    """Bad usage or a bad input file (exit code 2)."""

    exit_code = ExitCode.USAGE


class MissingPrerequisite(HpcdlError):
    """A package, a permission, a service or space is missing (exit code 3)."""

    exit_code = ExitCode.MISSING_PREREQUISITE


class Stopped(HpcdlError):
    """A signal or a time limit ended the work (exit code 5)."""

    exit_code = ExitCode.STOPPED


class PartlyDone(HpcdlError):
    """Some of it is done; the rest is listed and can be resumed (exit code 6)."""

    exit_code = ExitCode.PARTLY


def of_the_system(fault: OSError) -> MissingPrerequisite:
    """Return the error for an unexpected OSError: the system's own text, no traceback."""
    reason = fault.strerror or type(fault).__name__
    return MissingPrerequisite(
        f"{str(fault.filename)[:300]}: {reason}" if fault.filename else reason,
        hint="mend that, then run the command again; `hpcdl doctor` looks at this machine",
    )
