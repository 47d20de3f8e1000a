"""Words for bash, byte for byte.

Every value of a user is quoted by `word` before it is written into a script. Plain words stay
readable; invisible characters become `$'...'`, so that a value neither spans lines nor hides.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from hpcdl.system.inert import UNSEEN

_UNSEEN = re.compile(rf"[\t\n]|{UNSEEN.pattern}")
_PLAIN_DIRECTIVE = re.compile(r"[A-Za-z0-9_./%:=,@+-]+\Z")
_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\", "'": "\\'"}


class Expandable(str):
    """A word in which bash shall replace `$NAME`; every other word arrives as it is."""

    __slots__ = ()


def word(text: str) -> str:
    """`text` as one word of bash that expands to exactly itself, unless it is to be expanded."""
    if isinstance(text, Expandable):
        return expandable(text)
    if not _UNSEEN.search(text):
        return shlex.quote(text)
    return f"$'{''.join(map(_escaped, text))}'"


def _escaped(character: str) -> str:
    """A character in `$'...'`: its bytes where it cannot be seen."""
    if character in _SHORT or not _UNSEEN.match(character):
        return _SHORT.get(character, character)
    half = "surrogateescape" if "\udc80" <= character <= "\udcff" else "surrogatepass"
    return "".join(f"\\x{byte:02x}" for byte in character.encode(errors=half))


def quote_argv(items: Iterable[str]) -> str:
    """Several words, separated by blanks."""
    return " ".join(word(item) for item in items)


def expandable(text: str) -> str:
    """`text` as one word in which `$NAME` is replaced, and nothing else is."""
    escaped = re.sub(r'["\\\\`]', r"\\\g<0>", text)
    return '"' + re.sub(r"\$(?![A-Za-z_{])", r"\\$", escaped) + '"'


def directive(text: str) -> str:
    """`text` as the value of a directive: sbatch reads double quotes, and no shell reads it."""
    if _PLAIN_DIRECTIVE.match(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
