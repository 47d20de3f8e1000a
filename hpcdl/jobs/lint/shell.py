"""Just enough of a shell's grammar to know which commands a script runs, and where.

`tokens` splits the text into words and operators; `reader` turns them into commands, each with the
constructs around it; here the scripts within words (substitutions, `bash -c '...'`) are read as
well. Nothing is executed or expanded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpcdl.jobs.lint.reader import Command, Reader, Scope
from hpcdl.jobs.lint.tokens import Scanner, Word, word_end

_MAX_INNER = 4
"""Scripts within scripts (substitutions, `bash -c`) are read down to this depth."""
_INNER = re.compile(r"\$\((?!\()|`")
_SHELLS = {"bash", "sh", "dash", "ksh", "zsh"}


def commands(text: str) -> tuple[Command, ...]:
    """The simple commands of a shell script, in the order of the text.

    Those of substitutions and of `bash -c '...'` follow the command that holds them.
    """
    return tuple(_read(text, 0, len(text), (), _MAX_INNER))


def heredocs(text: str) -> tuple[tuple[int, int], ...]:
    """The spans of all here-documents' bodies: text that is no script of this shell."""
    scanner = Scanner(text, 0, len(text))
    for _ in scanner.tokens():
        pass
    return tuple(scanner.bodies)


def _read(
    text: str, start: int, end: int, scopes: tuple[Scope, ...], depth: int
) -> Iterator[Command]:
    """The commands of a span, each followed by those of the scripts within it."""
    for command in Reader(scopes).read(Scanner(text, start, end)):
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
