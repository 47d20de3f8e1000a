"""Just enough of a shell's grammar to know which commands a script runs, and where.

A scanner cuts the text into words and operators in one pass (each character is looked at once,
whatever the nesting); a reader turns them into a flat list of simple commands, each with the
constructs around it, and whether it runs in the background or writes into a pipe. Nothing is
executed or expanded. Text that no shell would take still gives some list: a linter must not
crash on what it reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_SCOPES = 60
"""Constructs nested deeper than this are read as if they lay at this depth."""
_MAX_INNER = 4
"""Scripts within scripts (substitutions, `bash -c`) are read down to this depth."""

_BLANKS = re.compile(r"(?:[ \t\r\f\v]|\\\r?\n)+")
_REDIRECTION = re.compile(r"\d{0,9}(?:<<<|<<-?|<>|<&|<(?!\()|>>|>&|>\||>(?!\()|&>>?)")
_OPERATOR = re.compile(r"\|\||&&|;;&|;;|;&|\|&|[|&;()]")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[[^][]{0,200}\])?\+?=")
_ARRAY_OPENS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=\(")
_ANSI_C_QUOTE = re.compile(r"\$'(?:[^'\\]|\\.)*'", re.S)
_UNQUOTE = re.compile(r"'([^']*)'|\\(\n|.)|(\")|([^'\"\\]+)|(.)", re.S)
_INNER = re.compile(r"\$\((?!\()|`")
_STOPS = {
    "": re.compile(r"[\s'\"\\$`|&;()<>]"),
    '"': re.compile(r'["\\`]|\$[({]'),
    ")": re.compile(r"['\"\\`()#]|\$[{(]"),
    "}": re.compile(r"['\"\\`}]|\$[({]"),
    "q}": re.compile(r"[\"\\`}]|\$[({]"),
    "`": re.compile(r"[`\\]"),
}
_SHELLS = {"bash", "sh", "dash", "ksh", "zsh"}


@dataclass(frozen=True)
class Word:
    """A word as written, and the offset in the text where it starts."""

    raw: str
    start: int

    @property
    def value(self) -> str:
        """The word without its quotes; `$` expansions stay as written."""
        return unquote(self.raw)


@dataclass(frozen=True)
class Scope:
    """A construct around commands.

    `kind` is loop, condition, then, else, case, arm, group, subshell, function, substitution
    or inner (the text after `bash -c`). `subject` is what a case or a condition looks at, or a
    function's name; `patterns` are those of a case arm.
    """

    kind: str
    subject: str = ""
    patterns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Command:
    """A simple command: assignments before it, its words, and how it runs.

    `end` is the offset behind its last word. `background`: it, or what it is part of, ends
    with `&`. `piped`: its output goes into another command. `follow` is `&&` or `||` where one
    of them stands behind it.
    """

    assignments: tuple[Word, ...]
    words: tuple[Word, ...]
    scopes: tuple[Scope, ...]
    background: bool
    piped: bool
    follow: str

    @property
    def start(self) -> int:
        """The offset of its first character."""
        return (self.assignments or self.words)[0].start

    @property
    def end(self) -> int:
        """The offset behind its last character."""
        last = (self.words or self.assignments)[-1]
        return last.start + len(last.raw)

    @property
    def name(self) -> str:
        """The command's own word, unquoted; empty for bare assignments."""
        return self.words[0].value if self.words else ""

    def within(self, *kinds: str) -> bool:
        """Whether one of the constructs around it is of these kinds."""
        return any(scope.kind in kinds for scope in self.scopes)


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


def commands(text: str) -> tuple[Command, ...]:
    """The simple commands of a shell script, in the order of the text.

    Those of substitutions and of `bash -c '...'` follow the command that holds them.
    """
    return tuple(_read(text, 0, len(text), (), _MAX_INNER))


def heredocs(text: str) -> tuple[tuple[int, int], ...]:
    """The spans of all here-documents' bodies: text that is no script of this shell."""
    scanner = _Scanner(text, 0, len(text))
    for _ in scanner.tokens():
        pass
    return tuple(scanner.bodies)


# --- the scanner ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Token:
    """`kind` is word, operator, newline or redirection."""

    kind: str
    raw: str
    start: int


class _Scanner:
    """Cuts a span of text into tokens."""

    def __init__(self, text: str, start: int, end: int) -> None:
        self.text, self.position, self.end = text, start, end
        self.bodies: list[tuple[int, int]] = []
        self._pending: list[tuple[str, bool]] = []
        self._no_arithmetic = False

    def tokens(self) -> Iterator[_Token]:
        """All tokens; comments and here-documents are left out."""
        while self.position < self.end:
            token = self._next()
            if token is not None:
                yield token

    def _next(self) -> _Token | None:
        text, start = self.text, self.position
        if blanks := _BLANKS.match(text, start, self.end):
            self.position = blanks.end()
            return None
        character = text[start]
        if character == "\n":
            self.position = start + 1
            self._skip_bodies()
            return _Token("newline", "\n", start)
        if character == "#":
            self.position = _find(text, "\n", start, self.end)
            return None
        if redirection := _REDIRECTION.match(text, start, self.end):
            return self._redirection(redirection)
        return self._operator(start) or self._word(start)

    def _redirection(self, match: re.Match[str]) -> _Token:
        self.position = match.end()
        raw = match.group().lstrip("0123456789")
        if raw in {"<<", "<<-"}:
            if blanks := _BLANKS.match(self.text, self.position, self.end):
                self.position = blanks.end()
            stop = word_end(self.text, self.position, self.end)
            self._pending.append((unquote(self.text[self.position : stop]), raw == "<<-"))
        return _Token("redirection", raw, match.start())

    def _operator(self, start: int) -> _Token | None:
        match = _OPERATOR.match(self.text, start, self.end)
        if match is None:
            return None
        if self.text.startswith("((", start) and not self._no_arithmetic:
            stop = word_end(self.text, start + 2, self.end, "))")
            if self.text.startswith("))", stop - 2):
                self.position = stop
                return _Token("word", self.text[start:stop], start)
            self._no_arithmetic = True
        self.position = match.end()
        return _Token("operator", match.group(), start)

    def _word(self, start: int) -> _Token:
        self.position = max(start + 1, word_end(self.text, start, self.end))
        return _Token("word", self.text[start : self.position], start)

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


# --- the reader -----------------------------------------------------------------------------------


@dataclass
class _Draft:
    """A command that is still being read."""

    assignments: list[Word] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    scopes: tuple[Scope, ...] = ()
    background: bool = False
    piped: bool = False
    follow: str = ""

    def freeze(self) -> Command:
        return Command(
            tuple(self.assignments), tuple(self.words), self.scopes,
            self.background, self.piped, self.follow,
        )  # fmt: skip


@dataclass
class _Level:
    """A construct on the way: where its current list and pipeline began among the drafts."""

    scope: Scope | None
    list_start: int
    pipe_start: int


def _read(
    text: str, start: int, end: int, scopes: tuple[Scope, ...], depth: int
) -> Iterator[Command]:
    """The commands of a span, each followed by those of the scripts within it."""
    for command in _Reader(scopes).read(_Scanner(text, start, end)):
        yield command
        if depth > 0:
            for kind, first, last in _inner_scripts(text, command):
                yield from _read(text, first, last, (*command.scopes, Scope(kind)), depth - 1)


def _inner_scripts(text: str, command: Command) -> Iterator[tuple[str, int, int]]:
    """Spans of substitutions in a command's words, and of what `bash -c` runs."""
    for word in (*command.assignments, *command.words):
        if "$(" in word.raw or "`" in word.raw:
            yield from _substitutions(text, word)
    for shell, option, script in zip(
        command.words, command.words[1:], command.words[2:], strict=False
    ):
        quoted = script.raw[:1] in {"'", '"'} and len(script.raw) >= 2
        if quoted and "c" in option.raw and option.raw[:1] == "-" and _is_shell(shell):
            yield "inner", script.start + 1, script.start + len(script.raw) - 1


def _is_shell(word: Word) -> bool:
    return word.raw.rpartition("/")[2] in _SHELLS


def _substitutions(text: str, word: Word) -> Iterator[tuple[str, int, int]]:
    """The spans of `$(...)` and backticks in a word that no single quote hides."""
    position, end = word.start, word.start + len(word.raw)
    if word.raw.startswith("'"):
        return
    while match := _INNER.search(text, position, end):
        closer = "`" if match.group() == "`" else ")"
        stop = word_end(text, match.end(), end, closer)
        yield "substitution", match.end(), max(match.end(), stop - 1)
        position = max(stop, match.end())


class _Reader:
    """Turns tokens into commands; `read` is its only entrance."""

    def __init__(self, scopes: tuple[Scope, ...]) -> None:
        self._outer = scopes
        self._levels = [_Level(None, 0, 0)]
        self._drafts: list[_Draft] = []
        self._current = _Draft(scopes=scopes)
        self._function, self._empty_list = "", False
        self._patterns: list[str] | None = None
        self._skip_word = False

    def read(self, scanner: _Scanner) -> Iterator[Command]:
        """All commands of the scanner's span."""
        for token in scanner.tokens():
            if self._patterns is not None:
                self._pattern(token)
            elif token.kind == "word":
                self._word(token)
            elif token.kind == "redirection":
                self._skip_word = True
            elif self._in_test() and token.kind != "newline":
                self._current.words.append(Word(token.raw, token.start))
            else:
                self._operator(token.raw)
        self._finish()
        return (draft.freeze() for draft in self._drafts)

    def _in_test(self) -> bool:
        """Whether a `[[` is still open."""
        words = self._current.words
        return bool(words) and words[0].raw == "[[" and words[-1].raw != "]]"

    def _word(self, token: _Token) -> None:
        if self._skip_word:
            self._skip_word = False
            return
        word = Word(token.raw, token.start)
        if self._current.words:
            self._argument(word)
        elif _ASSIGNMENT.match(word.raw):
            self._current.assignments.append(word)
        elif self._current.assignments or not self._reserved(word):
            self._current.words.append(word)

    def _argument(self, word: Word) -> None:
        self._current.words.append(word)
        first = self._current.words[0].raw
        if first == "case" and word.raw == "in" and len(self._current.words) > 2:
            self._push(Scope("case", self._current.words[1].raw))
            self._finish()
            self._patterns = []
        elif first == "function" and len(self._current.words) == 2:
            self._function = word.raw
            self._current.words.clear()

    def _reserved(self, word: Word) -> bool:
        """Handle a reserved word in command position; False where it is none."""
        action = {
            "if": self._if, "elif": self._elif, "then": self._then, "else": self._else,
            "fi": self._fi, "while": self._while, "until": self._while, "do": self._do,
            "done": self._done, "{": self._open_group, "}": self._close_group,
            "esac": self._esac, "!": self._nothing, "time": self._nothing,
        }.get(word.raw)  # fmt: skip
        if action is None:
            return False
        action()
        return True

    def _operator(self, raw: str) -> None:
        if raw == "(":
            self._parenthesis()
        elif raw == ")":
            self._close_parenthesis()
        elif raw in {";;", ";&", ";;&"}:
            self._finish()
            self._pop("arm")
            self._patterns = []
        else:
            self._separator(raw)

    def _separator(self, raw: str) -> None:
        self._finish()
        level = self._levels[-1]
        if raw in {"|", "|&"}:
            for draft in self._drafts[level.pipe_start :]:
                draft.piped = True
            level.pipe_start = max(level.pipe_start, len(self._drafts) - 1)
            return
        if raw in {"&&", "||"} and self._drafts:
            self._drafts[-1].follow = raw
        if raw == "&":
            for draft in self._drafts[level.list_start :]:
                draft.background = True
        if raw not in {"&&", "||"}:
            level.list_start = len(self._drafts)
        level.pipe_start = len(self._drafts)

    def _parenthesis(self) -> None:
        words = self._current.words
        if len(words) == 1 and not self._current.assignments:
            self._function, self._empty_list = words[0].raw, True
            words.clear()
        elif self._function and not self._empty_list and not words:
            self._empty_list = True
        elif not words:
            self._push(Scope("function", self._function) if self._function else Scope("subshell"))
            self._function, self._empty_list = "", False

    def _close_parenthesis(self) -> None:
        self._finish()
        if not self._function:
            self._pop("subshell", "function")

    def _pattern(self, token: _Token) -> None:
        """Within `case`, before the `)` of an arm."""
        assert self._patterns is not None
        if token.kind == "word" and token.raw == "esac" and not self._patterns:
            self._patterns = None
            self._pop("case")
        elif token.kind == "word":
            self._patterns.append(unquote(token.raw))
        elif token.raw == ")":
            subject = next(
                (s.subject for s in reversed(self._scopes()) if s.kind == "case"), ""
            )  # fmt: skip
            self._push(Scope("arm", subject, tuple(self._patterns)))
            self._patterns = None

    def _if(self) -> None:
        self._push(Scope("condition"))

    def _elif(self) -> None:
        self._pop("then")
        self._push(Scope("condition"))

    def _then(self) -> None:
        level = self._levels[-1]
        tests = self._drafts[level.list_start - 1 :] if level.list_start else self._drafts
        tests = [draft for draft in tests if draft.scopes[-1:] == (Scope("condition"),)][-1:]
        subject = " ".join(word.raw for draft in tests for word in draft.words)
        self._pop("condition")
        self._push(Scope("then", subject))

    def _else(self) -> None:
        self._pop("then")
        self._push(Scope("else"))

    def _fi(self) -> None:
        self._pop("then", "else", "condition")

    def _while(self) -> None:
        self._push(Scope("loop", "while"))

    def _do(self) -> None:
        scope = self._levels[-1].scope
        if scope == Scope("loop", "while"):
            level = self._levels[-1]
            level.scope = Scope("loop")
        else:
            self._push(Scope("loop"))

    def _done(self) -> None:
        self._pop("loop")

    def _open_group(self) -> None:
        self._push(Scope("function", self._function) if self._function else Scope("group"))
        self._function, self._empty_list = "", False

    def _close_group(self) -> None:
        self._pop("group", "function")

    def _esac(self) -> None:
        self._pop("arm")
        self._pop("case")

    def _nothing(self) -> None:
        """A word that changes nothing here."""

    def _push(self, scope: Scope) -> None:
        count = len(self._drafts)
        if len(self._levels) <= MAX_SCOPES:
            self._levels.append(_Level(scope, count, count))

    def _pop(self, *kinds: str) -> None:
        """Leave the innermost construct if it is of one of these kinds."""
        scope = self._levels[-1].scope
        if scope is not None and scope.kind in kinds:
            self._levels.pop()

    def _scopes(self) -> tuple[Scope, ...]:
        return (*self._outer, *(level.scope for level in self._levels[1:] if level.scope))

    def _finish(self) -> None:
        draft, self._skip_word = self._current, False
        if draft.words or draft.assignments:
            draft.scopes = self._scopes()
            self._drafts.append(draft)
        self._current = _Draft(scopes=self._outer)
