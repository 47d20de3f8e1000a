"""One status line: renewed in place on a terminal, printed on change elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

from hpcdl.system.inert import command, in_a_line

_PLAIN_SECONDS = 10.0


class StatusLine:
    """Shows the state of long work.

    On a terminal the line is renewed in place; in a log a line is printed when its `key`
    changes, and every ten seconds while the text changes.
    """

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = stream or sys.stdout
        self._quiet = quiet
        self._terminal = self._stream.isatty()
        self._shown = ""
        self._key: object = None
        self._when = -_PLAIN_SECONDS

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal and self._shown and not self._quiet:
            self._stream.write(self._whole() + "\n")
            self._stream.flush()

    def show(self, text: str, *, key: object = None) -> None:
        """Show `text`; a new `key` starts a new line that stays."""
        if self._quiet or (text == self._shown and key == self._key):
            return
        new, shown = key != self._key, in_a_line(text)
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            start = command("\r\x1b[K", self._stream)
            start = self._whole() + "\n" if new and self._shown else start
            self._stream.write(start + shown[:width])
        elif new or time.monotonic() - self._when >= _PLAIN_SECONDS:
            self._when = time.monotonic()
            self._stream.write(shown + "\n")
        self._stream.flush()
        self._shown, self._key = text, key

    def _whole(self) -> str:
        """What makes a line that stays a whole one: it was cut while it was renewed in place."""
        line = in_a_line(self._shown)
        cut = len(line) >= shutil.get_terminal_size().columns
        return command("\r\x1b[K", self._stream) + line if cut else ""
