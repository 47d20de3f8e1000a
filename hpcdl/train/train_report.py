"""A run's progress for users and monitoring: lines, and one file.

progress.json is renewed at most once a second. Only rank 0's reporter prints.
"""

from __future__ import annotations

import time
from pathlib import Path

from hpcdl.results.records import PROGRESS
from hpcdl.system.files import explain_os_errors

LINE_SECONDS = 5.0
"""Between progress lines."""


class Reporter:
    """Shows progress, on rank 0."""

    def __init__(self, folder: Path, steps: int, *, silent: bool) -> None:
        self._path = folder / PROGRESS.name
        if not silent:
            with explain_os_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
        self._steps = steps
        self._silent = silent
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
        if now - self._line_at >= (LINE_SECONDS):
            self._line_at = now
            self._show(step, epoch, loss)
        if now - self._file_at >= 1.0:
            self._file_at = now
            self._write(step, epoch, loss, "running")

    def end(self, step: int, epoch: int, loss: float, outcome: str, reason: str = "") -> None:
        """The last state, whatever the intervals."""
        if not self._silent:
            self._show(step, epoch, loss)
            self._write(step, epoch, loss, outcome, reason)

    def say(self, text: str) -> None:
        """A line of its own."""
        if not self._silent:
            print(text, flush=True)

    def _show(self, step: int, epoch: int, loss: float) -> None:
        pace = f"{self._rate:,.0f}" if self._rate >= 100 else f"{self._rate:.2f}"
        place = f"epoch {epoch + 1}  step {step}/{self._steps}  loss {loss:.4f}"
        print(f"{place}  {pace} images/s" if self._rate else place, flush=True)

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
