"""A run's progress for users and monitoring: plain lines or a bar, and one file.

Rich is an extra, imported only for a terminal; its bar is drawn on request, without a thread of its
own, and never hides the cursor: a process that is killed leaves a usable terminal. progress.json is
renewed at most once a second. Only rank 0's reporter prints.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdl.results.records import PROGRESS
from hpcdl.system.files import explain_os_errors
from hpcdl.system.inert import InertStream, inert
from hpcdl.system.text import duration

LINE_SECONDS = 5.0
"""Between progress lines where there is no terminal."""


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
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss [bold]{task.fields[loss]:.4f}[/]"),
            TextColumn("{task.fields[pace]}"),
            TextColumn("{task.fields[left]}"),
        )
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


class Reporter:
    """Shows progress, on rank 0."""

    def __init__(self, folder: Path, steps: int, *, silent: bool) -> None:
        self._path = folder / PROGRESS.name
        if not silent:
            with explain_os_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
        self._steps = steps
        self._silent = silent
        self._face = Log() if silent else choose_face()
        self._line_at = self._file_at = 0.0
        self._rate_at = time.monotonic()
        self._rate_images = 0
        self._rate = 0.0
        self._first: tuple[float, int] | None = None

    def step(self, step: int, epoch: int, loss: float, images: int) -> None:
        """After every step; `images` are those of all ranks in it."""
        if self._silent:
            return
        now = time.monotonic()
        self._first = self._first or (now, step)
        self._rate_images += images
        if now - self._rate_at >= 0.5 or step == self._steps:
            self._rate = self._rate_images / max(now - self._rate_at, 1e-9)
            self._rate_at, self._rate_images = now, 0
        if now - self._line_at >= (self._face.every or LINE_SECONDS):
            self._line_at = now
            self._show(step, epoch, loss)
        if now - self._file_at >= 1.0:
            self._file_at = now
            self._write(step, epoch, loss, "running")

    def end(self, step: int, epoch: int, loss: float, outcome: str, reason: str = "") -> None:
        """The last state, whatever the intervals."""
        if not self._silent:
            self._show(step, epoch, loss)
            self.close()
            self._write(step, epoch, loss, outcome, reason)

    def say(self, text: str) -> None:
        """A line of its own."""
        if not self._silent:
            self._face.say(text)

    def close(self) -> None:
        """Restore the terminal; after a failure too."""
        self._face.close()

    def _show(self, step: int, epoch: int, loss: float) -> None:
        left = self._seconds_left(step)
        self._face.show(Progress(step, self._steps, epoch, loss, self._rate, left))

    def _write(self, step: int, epoch: int, loss: float, outcome: str, reason: str = "") -> None:
        # Not synced, since the next one comes soon.
        PROGRESS.write(
            self._path,
            {
                "step": step,
                "steps": self._steps,
                "epoch": epoch,
                "loss": loss,
                "images_per_second": round(self._rate, 3),
                "seconds_left": self._seconds_left(step),
                "outcome": {"status": outcome, "reason": reason},
                "time": time.time(),
            },
            sync=False,
        )

    def _seconds_left(self, step: int) -> float | None:
        """By the pace since the first step, which is not counted because it compiles."""
        if self._first is None or step <= self._first[1]:
            return None
        begun, first = self._first
        return round((time.monotonic() - begun) / (step - first) * (self._steps - step), 1)
