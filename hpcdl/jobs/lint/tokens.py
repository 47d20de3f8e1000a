"""A word of a script as written, and its text without quotes."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
