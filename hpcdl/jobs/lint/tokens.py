"""A word of a script as written, its text without quotes, and where a command line begins."""

from __future__ import annotations

import re
from dataclasses import dataclass

_WRAPPERS = {"time", "exec", "nohup", "command", "env", "timeout", "stdbuf", "nice", "builtin"}
_UNQUOTE = re.compile(r"'([^']*)'|\"((?:[^\"\\]|\\.)*)\"|\\(.)|([^'\"\\]+|.)", re.S)
_IN_DOUBLE = re.compile(r"\\([\"\\$`\n])")


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
    for match in _UNQUOTE.finditer(raw):
        single, double, escaped, other = match.groups()
        if double is not None:
            parts.append(_IN_DOUBLE.sub(lambda found: found[1].strip("\n"), double))
        elif escaped is not None:
            parts.append(escaped.strip("\n"))
        else:
            parts.append(single or (other or "").strip('"'))
    return "".join(parts)


def past_wrappers(words: tuple[Word, ...]) -> int:
    """The index of the command behind `time`, `env A=b`, `timeout 60` and the like."""
    index = 0
    while index < len(words) and words[index].raw in _WRAPPERS:
        index += 1
        while index < len(words) and re.match(r"-|\d|[^=]*=", words[index].raw):
            index += 1
    return index
