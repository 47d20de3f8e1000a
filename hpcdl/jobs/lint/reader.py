"""Turns tokens into a flat list of simple commands, each with the constructs around it.

Loops, conditions, cases, functions, groups and subshells become scopes; whether a command runs
in the background or writes into a pipe is set once the operator behind it has been seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from hpcdl.jobs.lint.tokens import Scanner, Token, Word, unquote

MAX_SCOPES = 60
"""Constructs nested deeper than this are read as if they lay at this depth."""
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[[^][]{0,200}\])?\+?=")


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
    of them follows it.
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


class Reader:
    """Turns tokens into commands; `read` is its only entrance."""

    def __init__(self, scopes: tuple[Scope, ...]) -> None:
        self._outer = scopes
        self._levels = [_Level(None, 0, 0)]
        self._drafts: list[_Draft] = []
        self._current = _Draft(scopes=scopes)
        self._function, self._empty_list = "", False
        self._patterns: list[str] | None = None
        self._skip_word = False

    def read(self, scanner: Scanner) -> Iterator[Command]:
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

    def _word(self, token: Token) -> None:
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

    def _pattern(self, token: Token) -> None:
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
