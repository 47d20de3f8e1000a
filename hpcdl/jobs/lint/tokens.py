"""A word of a script as written, and its text without quotes."""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNQUOTE = re.compile(r"'([^']*)'|\\(\n|.)|(\")|([^'\"\\]+)|(.)", re.S)


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
