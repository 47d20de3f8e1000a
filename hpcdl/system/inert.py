r"""Text of strangers, made harmless: the one function that all output passes.

Names, reasons and logs come from other users, from Slurm and from files that anybody wrote. What a
terminal would obey, or what makes text read otherwise than it is written, becomes an escape such as
`\u202e`; it is valid in JSON too, where it stands for the same character. `inert_output` puts the
function between `print` and the terminal, so that no caller can forget it; commands of our own
(colours, a line that is renewed) pass it between marks that nobody outside this process knows.
Each format adds its own escapes: a cell of Markdown, a label of Prometheus, XML.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
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
