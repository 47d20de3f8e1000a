"""Wrap the prose of hand-written pages at 100 characters: `python -m tools.wrap [PAGE ...]`.

Tables, blocks, headings and pictures stay as they are, and so does a paragraph that fits.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.docs import DOCS, PAGES

WIDTH = 100
_UNBROKEN = re.compile(r"(?:`[^`]*`|\[[^\]]*\]\([^)]*\)|\S)+")
_ITEM = re.compile(r"(\s*)((?:[-*]|\d+\.) )?")
_OTHER = re.compile(r"\s*(\||#|<|!\[)")
_BEGINS = re.compile(r"\s*([-*+#>|]|\d+\.)(\s|$)")


def pages() -> list[Path]:
    """The pages that are written by hand."""
    made = {*PAGES} - {"studies.md"}  # of which only tables are made
    found = [path for path in sorted(DOCS.glob("*.md")) if path.name not in made]
    return [
        *found,
        *(
            DOCS.parent / f"{name}.md"
            for name in ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY")
        ),
    ]


def wrapped(text: str) -> str:
    """A page with no paragraph wider than WIDTH, if words allow."""
    lines: list[str] = []
    for paragraph, prose in _paragraphs(text.split("\n")):
        wide = prose and any(len(line) > WIDTH for line in paragraph)
        lines += _wrap(paragraph) if wide else paragraph
    return "\n".join(lines)


def _paragraphs(lines: list[str]) -> Iterator[tuple[list[str], bool]]:
    """Runs of lines, and whether they are one paragraph or item of prose."""
    block: list[str] = []
    fenced = False
    for line in lines:
        fence = line.lstrip().startswith("```")
        indented = line.startswith("    ") and not block
        alone = fence or fenced or indented or not line.strip() or _OTHER.match(line) is not None
        if block and (alone or re.match(r"\s*([-*]|\d+\.) ", line)):
            yield block, True
            block = []
        if alone:
            yield [line], False
        else:
            block.append(line)
        fenced = fenced != fence
    if block:
        yield block, True


def _wrap(paragraph: list[str]) -> list[str]:
    found = _ITEM.match(paragraph[0])
    assert found is not None
    lead, indent = found[0], found[1] + " " * len(found[2] or "")
    words = _UNBROKEN.findall(" ".join([paragraph[0][len(lead) :], *map(str.strip, paragraph[1:])]))
    lines, line = [], lead
    for word in words:
        if line not in (lead, indent) and len(line) + 1 + len(word) > WIDTH:
            lines.append(line)
            line = indent
        line += word if line in (lead, indent) else f" {word}"
    lines.append(line)
    # A line that would begin an item or a heading by accident: left to a person.
    return paragraph if any(map(_BEGINS.match, lines[1:])) else lines


def main() -> None:
    """Wrap the named pages, or all."""
    for path in map(Path, sys.argv[1:]) if sys.argv[1:] else pages():
        before = path.read_text()
        after = wrapped(before)
        assert before.split() == after.split()
        if after != before:
            path.write_text(after)
            print(f"{path} changed")


if __name__ == "__main__":
    main()
