r"""Text for people: the nearest valid name, lists, tables, sizes and times, one status line.

A name, a reason or a log may come from other users, from Slurm, from files that anybody wrote. What
a terminal would obey, or what makes text read otherwise than it is written, becomes an escape such
as `\u202e`; it is valid in JSON too, where it stands for the same character. `inert_output` puts
`inert` between `print` and the terminal, so that no caller can forget it; commands of our own
(colours, a line that is renewed) pass it between marks that nobody outside this process knows.
Each format adds its own escapes: a cell of Markdown, a label of Prometheus, XML.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

# Control characters but tab and newline, separators of lines and paragraphs, marks that turn the
# direction of writing, characters without width or ink, and halves of characters.
_UNSEEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
UNSEEN = re.compile(f"[{_UNSEEN}]")
_MARK = f"\x1b{os.urandom(8).hex()}\x1b"
_LINKED = re.compile(r"(:|\bwww)([/.])", re.IGNORECASE)
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#!|~<>&$])")


def inert(text: str) -> str:
    """`text` with every character escaped that could command a terminal or mislead a reader."""
    return UNSEEN.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    """A character as JSON escapes it: beyond the first plane, as two halves."""
    halves = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{halves[place : place + 4]}" for place in range(0, len(halves), 4))


def inert_values(value: Any) -> Any:
    """A value of JSON, every text of which is inert: for a page that shows them."""
    if isinstance(value, str):
        return inert(value)
    if isinstance(value, dict):
        return {inert(str(key)): inert_values(one) for key, one in value.items()}
    return [inert_values(one) for one in value] if isinstance(value, list | tuple) else value


def inert_text(value: object) -> object:
    """A value that a template shows: text is inert; marked-up text was made by a template."""
    return inert(value) if type(value) is str else value


def in_a_line(text: str) -> str:
    """An inert text on one line, of whatever length: no name begins a line of its own."""
    return inert(text).replace("\n", "\\n").replace("\t", " ")


def markdown_cell(text: str) -> str:
    """A cell of a table in Markdown: one line, plain text, no link, image, code or element.

    GitHub and GitLab make links of bare addresses as well, and notify whoever is named with an @.
    """
    plain = _MARKDOWN.sub(r"\\\1", in_a_line(" ".join(text.split()))).replace("\\<", "&lt;")
    return _LINKED.sub(r"\1\\\2", plain).replace("@", "@<!-- -->")


def prometheus_label(text: str) -> str:
    """The value of a label in Prometheus' text format, without its quotes."""
    return inert(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def xml_attribute(text: str) -> str:
    """A quoted attribute of XML."""
    from xml.sax.saxutils import quoteattr  # it imports an HTTP client: no command starts by that

    return quoteattr(inert(text))


class InertStream:
    """A text stream that prints inert text and, between marks, commands of our own."""

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw

    def write(self, text: str) -> int:
        """Write inert text; the number of characters that were given.

        Errors that can go nowhere are lost: they neither stop the work nor change its exit code.
        """
        try:
            self.raw.write("".join(_between_marks(text, inert)))
        except OSError:
            if self.raw is not sys.__stderr__:
                raise
            discard(self.raw)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def discard(stream: TextIO) -> None:
    """Let the interpreter end quietly though the stream's text can go nowhere."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def command(code: str, stream: object) -> str:
    """A command to the terminal, written so that `stream` lets it pass."""
    return f"{_MARK}{code}{_MARK}" if isinstance(stream, InertStream) else code


def in_a_cell(text: str) -> str:
    """As `in_a_line`; commands of our own stay what they are."""
    return _MARK.join(_between_marks(text, in_a_line))


def _between_marks(text: str, change: Callable[[str], str]) -> Iterator[str]:
    """The parts of a text between marks: commands of our own as they are, others changed."""
    for place, part in enumerate(text.split(_MARK)):
        yield part if place % 2 else change(part)


def without_commands(text: str) -> str:
    """`text` without commands of our own."""
    return "".join(text.split(_MARK)[::2])


@contextmanager
def inert_output() -> Iterator[None]:
    """Everything that is printed meanwhile is inert, on both streams."""
    before = sys.stdout, sys.stderr
    for name, stream in zip(("stdout", "stderr"), before, strict=True):
        if not isinstance(stream, InertStream):
            setattr(sys, name, cast("TextIO", InertStream(stream)))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


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
    """A hint for an unknown name: the nearest one, else the list of all, or of the first.

    Names may be anybody's: none begins a line, which could look like a hint of ours.
    """
    names = [*map(in_a_line, choices)]
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

_UNPRINTED = re.compile(rf"[\t\n]|{UNSEEN.pattern}")
_PLAIN_DIRECTIVE = re.compile(r"[A-Za-z0-9_./%:=,@+-]+\Z")
_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\", "'": "\\'"}


class Expandable(str):
    """A word in which bash shall replace `$NAME`; every other word arrives as it is."""

    __slots__ = ()


def bash_word(text: str) -> str:
    """`text` as one word of bash that expands to exactly itself, unless it is to be expanded."""
    if isinstance(text, Expandable):
        return bash_expandable(text)
    if not _UNPRINTED.search(text):
        return shlex.quote(text)
    return f"$'{''.join(map(_escaped, text))}'"


def _escaped(character: str) -> str:
    """A character in `$'...'`: its bytes where it cannot be seen."""
    if character in _SHORT or not _UNPRINTED.match(character):
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
