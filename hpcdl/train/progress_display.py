"""How progress looks: plain lines in a log, a bar on a terminal where Rich is.

Rich is an extra, imported only for a terminal; the bar is drawn on request, without
a thread of its own, and never hides the cursor: a process that is killed leaves a usable terminal.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hpcdl.system.inert import InertStream, inert
from hpcdl.system.text import duration


@dataclass(frozen=True)
class Progress:
    """The progress of a run; `rate` in images/s, `left` in seconds, None while unknown."""

    step: int
    steps: int
    epoch: int
    loss: float
    rate: float
    left: float | None

    @property
    def pace(self) -> str:
        """`1,234 images/s`; empty before anything is known."""
        if not self.rate:
            return ""
        return f"{self.rate:,.0f} images/s" if self.rate >= 100 else f"{self.rate:.2f} images/s"

    def __str__(self) -> str:
        place = f"epoch {self.epoch + 1}  step {self.step}/{self.steps}"
        return f"{place}  loss {self.loss:.4f}  {self.pace}".rstrip()


class Log:
    """Shows progress as a line each. `every`: seconds between them; None: as the user says."""

    every: float | None = None

    def show(self, progress: Progress) -> None:
        """Show the progress."""
        print(progress, flush=True)

    def say(self, text: str) -> None:
        """A line of its own."""
        print(text, flush=True)

    def close(self) -> None:
        """Keep what was shown last; harmless to repeat."""


class Bar(Log):
    """Rich's progress bar; ImportError where Rich is not installed."""

    every = 0.2

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("epoch {task.fields[epoch]}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("loss [bold]{task.fields[loss]:.4f}[/]"), TextColumn("{task.fields[pace]}"),
            TextColumn("{task.fields[left]}"),
        )  # fmt: skip
        # Rich's own commands pass; it is told numbers, and text of ours in `say`.
        raw = sys.stdout.raw if isinstance(sys.stdout, InertStream) else None
        self._bar = RichProgress(*columns, console=Console(file=raw), auto_refresh=False)
        self._task: Any = None

    def show(self, progress: Progress) -> None:
        """Draw it."""
        left = "" if progress.left is None else f"{duration(progress.left)} left"
        fields: dict[str, Any] = {
            "epoch": progress.epoch + 1,
            "loss": progress.loss,
            "pace": progress.pace,
            "left": left,
        }
        if self._task is None:
            self._task = self._bar.add_task("", total=progress.steps, **fields)
            self._bar.start()
            self._bar.console.show_cursor(True)
        self._bar.update(self._task, completed=progress.step, refresh=True, **fields)

    def say(self, text: str) -> None:
        """Above the bar, as it is."""
        self._bar.console.print(inert(text), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Keep the bar as it is."""
        if self._task is not None:
            self._bar.stop()


def choose_face() -> Log:
    """The display for this process's standard output."""
    # mpirun gives its ranks a terminal of its own as standard output, but not as both.
    looked_at = sys.stdout.isatty() and sys.stderr.isatty()
    if not looked_at or os.environ.get("TERM") == "dumb":
        return Log()
    with suppress(ImportError):
        return Bar()
    return Log()
