"""What a person and a watching program see while it runs: one line, one file.

On a terminal the line is renewed in place; in a log a plain line comes every few seconds.
progress.json is renewed at most once a second. Only rank 0 has a reporter that speaks.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from hpcdl.system.files import explain_os_errors
from hpcdl.train.result import VERSION


class Reporter:
    """Shows progress. `silent` is for ranks other than 0.

    Args:
        folder: where progress.json goes.
        steps: steps of the whole run.
        every: seconds between lines where nobody watches a terminal.
    """

    def __init__(self, folder: Path, steps: int, every: float, *, silent: bool) -> None:
        self._path = folder / "progress.json"
        if not silent:
            with explain_os_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
        self._steps = steps
        self._every = every
        self._silent = silent
        # mpirun gives its ranks a terminal of its own as standard output, but not as both.
        both = sys.stdout.isatty() and sys.stderr.isatty()
        self._terminal = both and os.environ.get("TERM") != "dumb"
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
        if now - self._line_at >= (0.2 if self._terminal else self._every):
            self._line_at = now
            self._show(step, epoch, loss)
        if now - self._file_at >= 1.0:
            self._file_at = now
            self._write(step, epoch, loss, "running")

    def end(self, step: int, epoch: int, loss: float, outcome: str) -> None:
        """The last state, whatever the intervals."""
        if not self._silent:
            self._show(step, epoch, loss)
            if self._terminal:
                print()
            self._write(step, epoch, loss, outcome)

    def say(self, text: str) -> None:
        """A line of its own."""
        if not self._silent:
            print(("\r\x1b[K" if self._terminal else "") + text, flush=True)

    def _show(self, step: int, epoch: int, loss: float) -> None:
        rate = f"{self._rate:,.0f}" if self._rate >= 100 else f"{self._rate:.2f}"
        text = f"epoch {epoch + 1}  step {step}/{self._steps}  loss {loss:.4f}  {rate} images/s"
        if self._terminal:
            print(f"\r\x1b[K{text}", end="", flush=True)
        else:
            print(text, flush=True)

    def _write(self, step: int, epoch: int, loss: float, outcome: str) -> None:
        values = {
            "schema": VERSION,
            "step": step,
            "steps": self._steps,
            "epoch": epoch,
            "loss": loss if loss == loss and abs(loss) != float("inf") else None,
            "images_per_second": round(self._rate, 3),
            "seconds_left": self._seconds_left(step),
            "outcome": outcome,
            "time": time.time(),
        }
        # Renamed, so that a reader sees a whole file; not synced, since the next one comes soon.
        aside = self._path.with_name(f".progress.{os.getpid()}")
        with explain_os_errors(self._path):
            aside.write_text(json.dumps(values) + "\n")
            aside.replace(self._path)

    def _seconds_left(self, step: int) -> float | None:
        """By the pace since the first step, which is not counted because it compiles."""
        if self._first is None or step <= self._first[1]:
            return None
        begun, first = self._first
        return round((time.monotonic() - begun) / (step - first) * (self._steps - step), 1)
