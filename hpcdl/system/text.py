"""Text for people: the nearest valid name, lists, tables, sizes and times, one status line."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

from hpcdl.system.inert import UNSEEN, command, in_a_cell, in_a_line, inert, without_commands

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_MOST_NAMES = 40
_PLAIN_SECONDS = 10.0
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def utc_now() -> str:
    """Now as records have it, such as `2026-06-01T03:10:00Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def utc_stamp() -> str:
    """Now as a part of a file's name, such as `20260601-031000Z`; in UTC no hour is twice."""
    return time.strftime("%Y%m%d-%H%M%SZ", time.gmtime())


def nearest(word: str, choices: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The choice most like `word`, or None where none is close (case does not count).

    `cutoff` is how like, from 0 to 1: difflib's ratio. Of three letters none may be another.
    """
    from difflib import get_close_matches

    cutoff = max(cutoff, 0.7) if len(word) < 4 else cutoff
    folded = {choice.casefold(): choice for choice in choices}
    found = get_close_matches(word.casefold()[:200], folded, n=1, cutoff=cutoff)
    return folded[found[0]] if found else None


def one_of(choices: Iterable[str]) -> str:
    """`a, b or c`."""
    names = list(choices)
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """A hint for an unknown name: the nearest one, else the list of all, or of the first."""
    names = list(choices)
    if (close := nearest(word, names)) is not None:
        return f"did you mean '{close}'?"
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"use one of: {', '.join(names[:_MOST_NAMES])}{more}" if names else ""


def one_line(text: str) -> str:
    """A text of anybody's as a line may show it: short, and no command to a terminal."""
    return inert(text[:200]).replace("\n", " ")


def plain(text: str) -> str:
    """`text` without ANSI escape sequences."""
    return _ANSI.sub("", without_commands(text))


def use_color(stream: TextIO) -> bool:
    """Whether to colour: a terminal, and neither NO_COLOR nor TERM=dumb (no-color.org)."""
    plain_text = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain_text and stream.isatty()


def paint(text: str, style: str, stream: TextIO | None = None) -> str:
    """`text` in a style of `_STYLES` where the stream shows colours, else as it is."""
    stream = stream or sys.stdout
    if not use_color(stream):
        return text
    begin, end = (command(f"\x1b[{code}m", stream) for code in (_STYLES[style], 0))
    return f"{begin}{text}{end}"


def wrapped(text: str) -> str:
    """A paragraph in the columns that there are."""
    from textwrap import fill

    return fill(text, shutil.get_terminal_size().columns)


def listed(names: Mapping[str, str]) -> str:
    """Return lines of names, each with its description beside it, wrapped."""
    from textwrap import wrap

    width = max(map(len, names))
    room = max(20, shutil.get_terminal_size().columns - width - 4)
    rest = "\n" + " " * (width + 4)
    lines = (
        f"  {name:<{width}}  {rest.join(wrap(description, room))}"
        for name, description in names.items()
    )
    return "\n".join(lines)


def table(rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> str:
    """Columns padded to their widest cell; numbers are not special, order is the caller's."""
    lines = [[in_a_cell(cell) for cell in row] for row in ([header, *rows] if header else rows)]
    widths = [max(len(plain(cell)) for cell in column) for column in zip(*lines, strict=True)]
    padded = [
        [cell + " " * (width - len(plain(cell))) for cell, width in zip(line, widths, strict=True)]
        for line in lines
    ]
    return "\n".join("  ".join(line).rstrip() for line in padded)


def count_of(number: int, what: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def duration(seconds: float) -> str:
    """Seconds as text short enough for a progress line: `0.4 s`, `12 s`, `3 min 05 s`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


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
        """Return the text that completes a line which was cut while it was updated in place."""
        line = in_a_line(self._shown)
        cut = len(line) >= shutil.get_terminal_size().columns
        return command("\r\x1b[K", self._stream) + line if cut else ""


# ---- words for bash, byte for byte: plain ones stay readable, unseen signs are `$'...'` ----

_UNSEEN = re.compile(rf"[\t\n]|{UNSEEN.pattern}")
_PLAIN_DIRECTIVE = re.compile(r"[A-Za-z0-9_./%:=,@+-]+\Z")
_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\", "'": "\\'"}


class Expandable(str):
    """A word in which bash shall replace `$NAME`; every other word arrives as it is."""

    __slots__ = ()


def bash_word(text: str) -> str:
    """`text` as one word of bash that expands to exactly itself, unless it is to be expanded."""
    if isinstance(text, Expandable):
        return bash_expandable(text)
    if not _UNSEEN.search(text):
        return shlex.quote(text)
    return f"$'{''.join(map(_escaped, text))}'"


def _escaped(character: str) -> str:
    """A character in `$'...'`: its bytes where it cannot be seen."""
    if character in _SHORT or not _UNSEEN.match(character):
        return _SHORT.get(character, character)
    half = "surrogateescape" if "\udc80" <= character <= "\udcff" else "surrogatepass"
    return "".join(f"\\x{byte:02x}" for byte in character.encode(errors=half))


def bash_words(items: Iterable[str]) -> str:
    """Several words, separated by blanks."""
    return " ".join(bash_word(item) for item in items)


def bash_expandable(text: str) -> str:
    """`text` as one word in which `$NAME` is replaced, and nothing else is."""
    escaped = re.sub(r'["\\\\`]', r"\\\g<0>", text)
    return '"' + re.sub(r"\$(?![A-Za-z_{])", r"\\$", escaped) + '"'


def sbatch_value(text: str) -> str:
    """`text` as the value of a directive: sbatch reads double quotes, and no shell reads it."""
    if _PLAIN_DIRECTIVE.match(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
