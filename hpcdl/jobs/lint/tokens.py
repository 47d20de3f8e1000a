"""Splits a shell script into words and operators, without running or expanding anything.

One pass looks at each character once, whatever the nesting: quotes, substitutions, arithmetic,
comments and here-documents are distinguished by a stack of closers. Text that no shell would take
still gives some tokens: a linter must not crash on what it reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_BLANKS = re.compile(r"(?:[ \t\r\f\v]|\\\r?\n)+")
_REDIRECTION = re.compile(r"\d{0,9}(?:<<<|<<-?|<>|<&|<(?!\()|>>|>&|>\||>(?!\()|&>>?)")
_OPERATOR = re.compile(r"\|\||&&|;;&|;;|;&|\|&|[|&;()]")
_ARRAY_OPENS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=\(")
_ANSI_C_QUOTE = re.compile(r"\$'(?:[^'\\]|\\.)*'", re.S)
_UNQUOTE = re.compile(r"'([^']*)'|\\(\n|.)|(\")|([^'\"\\]+)|(.)", re.S)
_STOPS = {
    "": re.compile(r"[\s'\"\\$`|&;()<>]"),
    '"': re.compile(r'["\\`]|\$[({]'),
    ")": re.compile(r"['\"\\`()#]|\$[{(]"),
    "}": re.compile(r"['\"\\`}]|\$[({]"),
    "q}": re.compile(r"[\"\\`}]|\$[({]"),
    "`": re.compile(r"[`\\]"),
}


@dataclass(frozen=True)
class Word:
    """A word as written, and the offset in the text where it starts."""

    raw: str
    start: int

    @property
    def value(self) -> str:
        """The word without its quotes; `$` expansions stay as written."""
        return unquote(self.raw)


def unquote(raw: str) -> str:
    """A word's text without quotes and escapes; expansions stay as written."""
    if "'" not in raw and '"' not in raw and "\\" not in raw:
        return raw
    parts: list[str] = []
    in_double = False
    for match in _UNQUOTE.finditer(raw):
        single, escaped, double, plain, other = match.groups()
        if double:
            in_double = not in_double
        elif single is not None:
            parts.append(f"'{single}'" if in_double else single)
        elif escaped is not None:
            keep = in_double and escaped not in '"\\$`\n'
            parts.append("\\" + escaped if keep else escaped.replace("\n", ""))
        else:
            parts.append(plain or other or "")
    return "".join(parts)


@dataclass(frozen=True)
class Token:
    """`kind` is word, operator, newline or redirection."""

    kind: str
    raw: str
    start: int


class Scanner:
    """Splits a span of text into tokens."""

    def __init__(self, text: str, start: int, end: int) -> None:
        self.text, self.position, self.end = text, start, end
        self.bodies: list[tuple[int, int]] = []
        self._pending: list[tuple[str, bool]] = []
        self._no_arithmetic = False

    def tokens(self) -> Iterator[Token]:
        """All tokens; comments and here-documents are left out."""
        while self.position < self.end:
            token = self._next()
            if token is not None:
                yield token

    def _next(self) -> Token | None:
        text, start = self.text, self.position
        if blanks := _BLANKS.match(text, start, self.end):
            self.position = blanks.end()
            return None
        character = text[start]
        if character == "\n":
            self.position = start + 1
            self._skip_bodies()
            return Token("newline", "\n", start)
        if character == "#":
            self.position = _find(text, "\n", start, self.end)
            return None
        if redirection := _REDIRECTION.match(text, start, self.end):
            return self._redirection(redirection)
        return self._operator(start) or self._word(start)

    def _redirection(self, match: re.Match[str]) -> Token:
        self.position = match.end()
        raw = match.group().lstrip("0123456789")
        if raw in {"<<", "<<-"}:
            if blanks := _BLANKS.match(self.text, self.position, self.end):
                self.position = blanks.end()
            stop = word_end(self.text, self.position, self.end)
            self._pending.append((unquote(self.text[self.position : stop]), raw == "<<-"))
        return Token("redirection", raw, match.start())

    def _operator(self, start: int) -> Token | None:
        match = _OPERATOR.match(self.text, start, self.end)
        if match is None:
            return None
        if self.text.startswith("((", start) and not self._no_arithmetic:
            stop = word_end(self.text, start + 2, self.end, "))")
            if self.text.startswith("))", stop - 2):
                self.position = stop
                return Token("word", self.text[start:stop], start)
            self._no_arithmetic = True
        self.position = match.end()
        return Token("operator", match.group(), start)

    def _word(self, start: int) -> Token:
        self.position = max(start + 1, word_end(self.text, start, self.end))
        return Token("word", self.text[start : self.position], start)

    def _skip_bodies(self) -> None:
        for delimiter, tabs in self._pending:
            indent = r"\t*" if tabs else ""
            last = re.compile(rf"^{indent}{re.escape(delimiter)}\r?$", re.M)
            match = last.search(self.text, self.position, self.end)
            stop = match.start() if match else self.end
            self.bodies.append((self.position, stop))
            self.position = min(self.end, match.end() + 1) if match else self.end
        self._pending = []


def word_end(text: str, start: int, end: int, closers: str = "") -> int:
    """The offset behind the word that starts at `start`, quotes and substitutions included.

    With `closers` (`)` or `))`) the word is what lies between them and its start.
    """
    stack = list(closers)
    doubles = 0
    position = start
    while position < end:
        top = stack[-1] if stack else ""
        match = _STOPS[top].search(text, position, end)
        if match is None:
            return end
        position, sign = match.start(), match.group()
        if not stack and _ends_word(text, start, position, sign):
            return position
        position, opened, closed = _step(text, position, sign, top, doubles > 0, end)
        doubles += (opened == '"') - (closed == '"')
        if closed:
            stack.pop()
            if closers and not stack:
                return position
        if opened:
            stack.append(opened)
    return end


def _ends_word(text: str, start: int, position: int, sign: str) -> bool:
    """Whether an unquoted sign ends the word that began at `start`."""
    if sign.isspace() or sign in "|&;)":
        return True
    if sign in "<>":
        return not text.startswith("(", position + 1)
    if sign == "(":
        array = _ARRAY_OPENS.match(text, start)
        extended = position > start and text[position - 1] in "@!?*+<>$"
        return not (extended or (array is not None and array.end() == position + 1))
    return False


def _step(
    text: str, position: int, sign: str, top: str, in_double: bool, end: int
) -> tuple[int, str, str]:
    """Past one sign: the next offset, the closers that it opens, and the one that it is."""
    if sign == "\\":
        return position + 2, "", ""
    if sign == top or (sign == "}" and top == "q}"):
        return position + 1, "", top
    if sign == "'":
        return _find(text, "'", position + 1, end) + 1, "", ""
    if sign == "#":
        comment = position > 0 and text[position - 1] in " \t\n;"
        return (_find(text, "\n", position, end) if comment else position + 1), "", ""
    if sign in {"$(", "${"}:
        if sign == "${":
            return position + 2, "q}" if in_double else "}", ""
        return position + 2, ")", ""
    if sign == "$" and (quote := _ANSI_C_QUOTE.match(text, position, end)):
        return quote.end(), "", ""
    if sign == "$":
        opened = {"(": ")", "{": "}"}.get(text[position + 1 : position + 2], "")
        return position + (2 if opened else 1), opened, ""
    return position + 1, {"(": ")", '"': '"', "`": "`"}.get(sign, ""), ""


def _find(text: str, sign: str, start: int, end: int) -> int:
    """Where a sign is, or the end."""
    found = text.find(sign, start, end)
    return end if found < 0 else found
