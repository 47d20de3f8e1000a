"""YAML with positions: every fault can point at its line and column.

A document is read from the parser's events, not composed by the library, for three reasons:
each node keeps its place; depth and size are bounded, so hostile nesting or alias bombs end
in one line; and scalars keep their text, so that the schema, not YAML 1.1's guesses, decides
what `24:00:00`, `22.10` or `no` mean.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpcdl.system.errors import BadInput
from hpcdl.system.safe_read import read_regular
from hpcdl.system.text import count_of

if TYPE_CHECKING:
    import yaml

MAX_DEPTH = 30
_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
_SHOWN_FAULTS = 25
_MOST_FAULTS = 1000
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


class Mark(NamedTuple):
    """A place in a document, both counted from 1."""

    line: int
    column: int


class Scalar(NamedTuple):
    """A scalar as written: its text, and whether quotes made it a string for certain."""

    text: str
    quoted: bool
    mark: Mark

    @property
    def empty(self) -> bool:
        """Whether the value is missing, `~` or `null`."""
        return not self.quoted and self.text in {"", "~", "null"}


class Sequence(NamedTuple):
    """A list and the place where it starts."""

    items: tuple[Node, ...]
    mark: Mark


class Mapping(NamedTuple):
    """A mapping; keys keep their own places."""

    entries: tuple[tuple[Scalar, Node], ...]
    mark: Mark

    def get(self, key: str) -> Node | None:
        """The value of `key`, or None."""
        return next((value for name, value in self.entries if name.text == key), None)


Node = Scalar | Sequence | Mapping


class Fault(NamedTuple):
    """One thing wrong at one place of a document."""

    message: str
    mark: Mark
    hint: str = ""
    width: int = 1


@dataclass
class Document:
    """A parsed file: its lines for showing, its root, and the faults found so far."""

    name: str
    lines: list[str]
    root: Node
    faults: list[Fault] = field(default_factory=list)

    def find(self, path: tuple[str | int, ...]) -> Node:
        """The node at `path`, or the deepest one on the way that exists."""
        node = self.root
        for step in path:
            child: Node | None = None
            if isinstance(node, Mapping) and isinstance(step, str):
                child = node.get(step)
            elif isinstance(node, Sequence) and isinstance(step, int) and step < len(node.items):
                child = node.items[step]
            if child is None:
                return node
            node = child
        return node

    def fault(self, message: str, node: Node, hint: str = "") -> None:
        """Note a fault at a node."""
        width = len(node.text) if isinstance(node, Scalar) else 1
        self.faults.append(Fault(message, node.mark, hint, max(1, width)))
        if len(self.faults) >= _MOST_FAULTS:
            raise InvalidDocument(self)  # not a file of hpcdl: looking on would only take time

    def raise_faults(self) -> None:
        """Raise one `BadInput` that shows every fault noted so far, where there is one."""
        if self.faults:
            raise InvalidDocument(self)


class InvalidDocument(BadInput):
    """A file with faults: all of them, each with its line and a caret."""

    def __init__(self, document: Document) -> None:
        faults = sorted(document.faults, key=lambda fault: (fault.mark.line, fault.mark.column))
        details: list[str] = []
        for fault in faults[:_SHOWN_FAULTS]:
            details += ["", *show_fault(document, fault)]
        if len(faults) > _SHOWN_FAULTS:
            details += ["", f"... and {len(faults) - _SHOWN_FAULTS} more"]
        message = f"{document.name} has {count_of(len(faults), 'fault')}"
        super().__init__(message, details=details)
        self.faults = tuple(faults)


def show_fault(document: Document, fault: Fault) -> list[str]:
    """A fault as a compiler would show it: place, message, line, caret, hint."""
    line, column = fault.mark.line, fault.mark.column
    lines = [f"{document.name}:{line}:{column}: {fault.message}"]
    if 1 <= line <= len(document.lines):
        start = max(0, column - 60)
        text = document.lines[line - 1].replace("\t", " ")[start : start + 100]
        gutter = " " * len(str(line))
        carets = "^" * max(1, min(fault.width, len(text) - (column - 1 - start)))
        lines += [f" {line} | {text}", f" {gutter} | {' ' * (column - 1 - start)}{carets}"]
    if fault.hint:
        lines.append(f"   {fault.hint}")
    return lines


def read_document(
    path: Path, *, if_empty: str = "", require: Callable[[Path, os.stat_result], None] | None = None
) -> Document:
    """Read and parse a YAML file; `if_empty` is an empty one's hint.

    `require` may refuse the file, as `read_regular` says. Duplicate keys, anchors and tags are
    noted in the document, to be shown with all other faults.
    """
    return parse_bytes(read_regular(path, require=require), str(path), if_empty)


def parse_bytes(data: bytes, name: str, if_empty: str = "") -> Document:
    """Parse a YAML file's bytes as `read_document` does; `name` is what faults call it."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        line = data[: fault.start].count(b"\n") + 1
        raise BadInput(f"{name}:{line}: is not UTF-8 text", hint="save it as UTF-8") from fault
    return parse_document(text, name, if_empty)


def parse_document(text: str, name: str, if_empty: str = "") -> Document:
    """Parse YAML text as `read_document` does; `name` is what faults call it."""
    import yaml  # here, because commands that check only their options need none of it

    document = Document(name, _LINE_BREAK.split(text), Scalar("", False, Mark(1, 1)))
    try:
        root = _build(_events(text, document), document)
    except yaml.YAMLError as fault:
        document.faults.append(_syntax_fault(fault, document.lines))
        raise InvalidDocument(document) from fault
    if root is None or (isinstance(root, Scalar) and root.empty):
        raise BadInput(f"{name} is empty", hint=if_empty)
    document.root = root
    return document


def _events(text: str, document: Document) -> Iterator[yaml.Event]:
    """The parser's events, bounded in depth; the C parser where PyYAML has it."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                document.faults.append(Fault(_TOO_DEEP, _mark(event)))
                raise InvalidDocument(document)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        yield event


def _build(events: Iterator[yaml.Event], document: Document) -> Node | None:
    """The first document's root; a second document in the file is a fault."""
    import yaml

    root: Node | None = None
    for event in events:
        if not isinstance(event, yaml.NodeEvent):
            continue
        if root is not None:
            document.faults.append(Fault("a second document starts here", _mark(event)))
            break
        root = _node(event, events, document)
    return root


def _node(event: yaml.NodeEvent, events: Iterator[yaml.Event], document: Document) -> Node:
    import yaml

    mark, tag = _mark(event), getattr(event, "tag", None)
    if event.anchor is not None:
        sign = "an alias" if isinstance(event, yaml.AliasEvent) else "an anchor"
        message = f"{sign} ('{event.anchor}') is not supported"
        document.faults.append(Fault(message, mark, "write the value out"))
    if tag is not None:
        message = f"a tag ('{tag}') is not supported"
        document.faults.append(Fault(message, mark, "write the value without it"))
    if isinstance(event, yaml.ScalarEvent):
        return Scalar(event.value, event.style not in (None, ""), mark)
    if isinstance(event, yaml.SequenceStartEvent):
        return Sequence(tuple(_children(events, document)), mark)
    if isinstance(event, yaml.MappingStartEvent):
        return _mapping(list(_children(events, document)), mark, document)
    return Scalar("", False, mark)


def _children(events: Iterator[yaml.Event], document: Document) -> Iterator[Node]:
    import yaml

    for event in events:
        if isinstance(event, yaml.CollectionEndEvent):
            return
        assert isinstance(event, yaml.NodeEvent)
        yield _node(event, events, document)


def _mapping(flat: list[Node], mark: Mark, document: Document) -> Mapping:
    """Pair keys with values; the last of duplicate keys is kept, the fault names the first."""
    entries: dict[str, tuple[Scalar, Node]] = {}
    for key, value in zip(flat[::2], flat[1::2], strict=True):
        if not isinstance(key, Scalar):
            document.fault("a key must be a plain word", key)
            continue
        if key.text in entries:
            first = entries[key.text][0].mark.line
            document.fault(f"duplicate key '{key.text}'", key, f"first given in line {first}")
        entries[key.text] = (key, value)
    return Mapping(tuple(entries.values()), mark)


def _mark(event: yaml.Event) -> Mark:
    start = event.start_mark
    assert start is not None
    return Mark(start.line + 1, start.column + 1)


def _syntax_fault(fault: yaml.YAMLError, lines: list[str]) -> Fault:
    """PyYAML's own complaint, with its place; tabs get the advice they deserve."""
    mark = getattr(fault, "problem_mark", None)
    problem = getattr(fault, "problem", None) or str(fault).splitlines()[0]
    at = "".join(lines[mark.line : mark.line + 1])[mark.column :] if mark else ""
    hint = "indent with spaces, not tabs" if at.startswith("\t") or " tab " in problem else ""
    if problem.startswith("mapping values are not allowed"):
        hint = "each key begins a line, at the indent of its neighbours; quote text that has ': '"
    if mark is None:
        reason = getattr(fault, "reason", "")
        return Fault(f"not YAML: {reason or problem}", Mark(1, 1), hint)
    # libyaml reads ahead for keys, and from 0.2.6 on gives up at 1000 levels of its own.
    message = _TOO_DEEP if "nesting depth" in problem else f"not YAML: {problem}"
    return Fault(message, Mark(mark.line + 1, mark.column + 1), hint)
