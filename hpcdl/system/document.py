"""YAML with positions: every fault can point at its line and column.

A document is read from the parser's events, not composed by the library, for three reasons:
each node keeps its place; depth and size are bounded, so hostile nesting or alias bombs end
in one line; and scalars keep their text, so that the schema, not YAML 1.1's guesses, decides
what `24:00:00`, `22.10` or `no` mean.

A schema is plain JSON Schema (draft 2020-12), so that editors can use it. The checker knows the
part of it that our files use: type (also with "null"), properties, required,
additionalProperties, propertyNames.pattern, items, minItems, enum, pattern, minimum,
exclusiveMinimum, maximum, maxLength, default, and format "line" for what is shown on one line.
`patternErrorMessage`, which editors show as well, says what a pattern allows. It is our own
because the site file is read by every command and the jsonschema package alone takes longer to
import than a whole `hpcdl job render` may; the tests compare it with jsonschema on mutated
documents.

A value is a node of a YAML document, whose faults have lines and carets, or a plain value such as
parsed JSON holds, whose faults have places (`verdicts[2].metrics`). People write the former, so
an unknown key is a fault there; programs write the latter, and later ones say more.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import fsum, inf, isfinite
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcdl.system.errors import BadInput
from hpcdl.system.files import read_regular
from hpcdl.system.text import count_of, did_you_mean, nearest, one_line, one_of

if TYPE_CHECKING:
    import yaml

MAX_DEPTH = 30
_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
_SHOWN_FAULTS = 25
_MOST_FAULTS = 1000
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffe\uffff]")


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
        return not self.quoted and self.text in {"", "~", "null", "Null", "NULL"}


class Sequence(NamedTuple):
    """A list and the place where it starts."""

    items: tuple[YamlNode, ...]
    mark: Mark


class Mapping(NamedTuple):
    """A mapping; keys keep their own places."""

    entries: tuple[tuple[Scalar, YamlNode], ...]
    mark: Mark

    def get(self, key: str) -> YamlNode | None:
        """The value of `key`, or None."""
        return next((value for name, value in self.entries if name.text == key), None)


YamlNode = Scalar | Sequence | Mapping


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
    root: YamlNode
    faults: list[Fault] = field(default_factory=list)

    def find(self, path: tuple[str | int, ...]) -> YamlNode:
        """The node at `path`, or the deepest one on the way that exists."""
        node = self.root
        for step in path:
            child: YamlNode | None = None
            if isinstance(node, Mapping) and isinstance(step, str):
                child = node.get(step)
            elif isinstance(node, Sequence) and isinstance(step, int) and step < len(node.items):
                child = node.items[step]
            if child is None:
                return node
            node = child
        return node

    def fault(self, message: str, node: YamlNode, hint: str = "") -> None:
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


def _build(events: Iterator[yaml.Event], document: Document) -> YamlNode | None:
    """The first document's root; a second document in the file is a fault."""
    import yaml

    root: YamlNode | None = None
    for event in events:
        if not isinstance(event, yaml.NodeEvent):
            continue
        if root is not None:
            document.faults.append(Fault("a second document starts here", _mark(event)))
            break
        root = _node(event, events, document)
    return root


def _node(event: yaml.NodeEvent, events: Iterator[yaml.Event], document: Document) -> YamlNode:
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


def _children(events: Iterator[yaml.Event], document: Document) -> Iterator[YamlNode]:
    import yaml

    for event in events:
        if isinstance(event, yaml.CollectionEndEvent):
            return
        assert isinstance(event, yaml.NodeEvent)
        yield _node(event, events, document)


def _mapping(flat: list[YamlNode], mark: Mark, document: Document) -> Mapping:
    """Pair keys with values; the last of duplicate keys is kept, the fault names the first."""
    entries: dict[str, tuple[Scalar, YamlNode]] = {}
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
        signs = ((row, _CONTROL.search(line)) for row, line in enumerate(lines, 1))
        places = (Mark(row, sign.start() + 1) for row, sign in signs if sign)
        return Fault(f"not YAML: {reason or problem}", next(places, Mark(1, 1)), hint)
    # libyaml reads ahead for keys, and from 0.2.6 on gives up at 1000 levels of its own.
    message = _TOO_DEEP if "nesting depth" in problem else f"not YAML: {problem}"
    return Fault(message, Mark(mark.line + 1, mark.column + 1), hint)


Schema = dict[str, Any]
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}\Z")
_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,3})?\Z")
_BOOLEANS = {
    form: word == "true"
    for word in ("true", "false")
    for form in (word, word.title(), word.upper())
}
_OTHER_BOOLEANS = {"yes": "true", "on": "true", "no": "false", "off": "false"}
_NAMES = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}
_PLAIN: dict[str, set[type]] = {"integer": {int}, "number": {int, float}}
_ROOT = "the file"
_LONGEST_INTEGER = 2**63
_MOST_OF_VALUES = 100
_Source = Document | dict[str, str]
"""What faults are noted in: a document, or for plain values sentences by place."""


def check(document: Document, schema: Schema) -> Any:
    """The document's values as the schema types them, defaults filled in.

    Faults are noted in `document.faults`; call `document.raise_faults()` when all checks are
    done. Values at faulty places are None.
    """
    return _check(document, document.root, schema, _ROOT)


def check_node(document: Document, node: YamlNode, schema: Schema, what: str) -> Any:
    """The values of one node, called `what` in faults, as the schema types them; see `check`."""
    return _value(document, node, schema, what)


def check_values(value: object, schema: Schema) -> tuple[Any, dict[str, str]]:
    """Plain values as the schema types them, and what is wrong with them, by place.

    Values at faulty places are None; so is a number that is none (NaN, Infinity) where null may
    stand, which JSON has no other word for. Keys that the schema does not name are kept.
    """
    faults: dict[str, str] = {}
    return _check(faults, value, schema, _ROOT), faults


def _check(source: _Source, node: Any, schema: Schema, what: str) -> Any:
    nothing = _is_empty(node) or (isinstance(node, float) and not isfinite(node))
    if nothing and schema["type"] != _kind(schema):
        return None
    return _CHECKS[_kind(schema)](source, node, schema, what)


def _kind(schema: Schema) -> str:
    """The type without `null`."""
    kind = schema["type"]
    return kind if isinstance(kind, str) else next(one for one in kind if one != "null")


def _is_empty(node: Any) -> bool:
    return node.empty if isinstance(node, Scalar) else node is None


def _text(node: Any) -> Any:
    return node.text if isinstance(node, Scalar) else node


def _fault(
    source: _Source, what: str, sentence: str, node: Any, hint: str = "", place: str = ""
) -> None:
    """Note what is wrong at a node of a document, or at a place (`what`, if no other)."""
    if isinstance(source, Document):
        source.fault(f"{what} {sentence}", node, hint)
    elif len(source) < _MOST_OF_VALUES:
        source.setdefault(place or what, f"{what} {sentence}")
    else:  # one more at the top: nothing below it counts as sound
        above = re.split(r"[.\[]", place or what)[0]
        more = f"{above} has more faults than are listed"
        source.setdefault(above, f"{what} {sentence}" if above == (place or what) else more)


def _below(source: _Source, what: str, key: str) -> str:
    """Return the name of a key's value in messages."""
    if isinstance(source, Document):
        return f"'{key}'"
    return short(key) if what == _ROOT else f"{what}.{short(key)}"


def _object(source: _Source, node: Any, schema: Schema, what: str) -> Any:
    entries = _entries_of(node)
    if entries is None:
        return _wrong_type(source, node, schema, what)
    parts: dict[str, Schema] = schema.get("properties", {})
    given = {name for name, _, _ in entries}
    values = _entries(source, entries, schema, what)
    for name in schema.get("required", ()):
        if name not in given:
            place = _below(source, what, name)
            _fault(source, what, f"lacks the key '{name}'", node, _purpose(parts[name]), place)
    if len(entries) < schema.get("minProperties", 0):
        _fault(source, what, "is empty: it needs at least one entry", node)
    for name, part in parts.items():
        if name not in given and "default" in part:
            values[name] = part["default"]
    return values


def _entries_of(node: Any) -> list[tuple[str, Any, Any]] | None:
    """Name, key and value of each entry of a mapping; None where it is something else."""
    if isinstance(node, Mapping):
        return [(key.text, key, value) for key, value in node.entries]
    rows = node.items() if isinstance(node, dict) else None
    return None if rows is None else [(str(name), name, value) for name, value in rows]


def _entries(
    source: _Source, entries: list[tuple[str, Any, Any]], schema: Schema, what: str
) -> dict[str, Any]:
    parts: dict[str, Schema] = schema.get("properties", {})
    plain = isinstance(source, dict)
    extra = schema.get("additionalProperties", plain)
    pattern = schema.get("propertyNames", {}).get("pattern")
    missing = [name for name in parts if name not in {text for text, _, _ in entries}]
    values: dict[str, Any] = {}
    for text, key, value in entries:
        if text in parts:
            values[text] = _value(source, value, parts[text], _below(source, what, text))
        elif extra == {} or extra is True:  # JSON Schema: any further key, with any value
            values |= {text: value} if plain else {}
        elif isinstance(extra, dict):
            if pattern and not _matches(pattern, text):
                names = schema["propertyNames"].get("patternErrorMessage")
                hint = names or "use letters, digits, '-', '_' and '.'"
                _fault(source, f"'{short(text)}'", "is no valid name", key, hint)
            values[text] = _value(source, value, extra, _below(source, what, text))
        else:
            close = nearest(text, missing) or nearest(text, parts)
            hint = f"did you mean '{close}'?" if close else f"known keys: {', '.join(parts)}"
            _fault(source, "unknown key", f"'{short(text)}'", key, hint)
    return values


def _value(source: _Source, node: Any, schema: Schema, what: str) -> Any:
    """A property's value: nothing written means the default, where there is one."""
    if not _is_empty(node):
        return _check(source, node, schema, what)
    if "default" not in schema and schema["type"] == _kind(schema):
        _fault(source, what, "has no value", node, _purpose(schema))
    return schema.get("default")


def _array(source: _Source, node: Any, schema: Schema, what: str) -> Any:
    if not isinstance(node, Sequence | list):
        return _wrong_type(source, node, schema, what)
    items = node if isinstance(node, list) else node.items
    if len(items) < schema.get("minItems", 0):
        _fault(source, what, f"needs at least {schema['minItems']} entries", node)
    inner = schema["items"]
    if isinstance(items, list) and _all_numbers(items, inner):
        return items
    named = f"an entry of {what}" if isinstance(source, Document) else what + "[{}]"
    return [
        _value(source, item, inner, named.format(index) if isinstance(source, dict) else named)
        for index, item in enumerate(items)
    ]


def _all_numbers(items: list[Any], schema: Schema) -> bool:
    """Whether all are sound numbers, without a look at each: there may be millions."""
    nullable = schema["type"] != _kind(schema)
    rows = [one for one in items if one is not None] if nullable else items
    if not rows or not set(map(type, rows)) <= _PLAIN.get(_kind(schema), set()):
        return False
    try:
        sound = isfinite(fsum(rows))
    except (OverflowError, ValueError):
        return False
    low, high = schema.get("minimum", -inf), schema.get("maximum", inf)
    return sound and low <= min(rows) and max(rows) <= high


def _string(source: _Source, node: Any, schema: Schema, what: str) -> Any:
    if not isinstance(node, Scalar | str):
        return _wrong_type(source, node, schema, what)
    text = _text(node)
    longest = schema.get("maxLength", 4096 if isinstance(source, Document) else inf)
    if "enum" in schema and text not in schema["enum"]:
        hint = did_you_mean(text, schema["enum"])
        _fault(source, what, f"is '{short(text)}', not {one_of(schema['enum'])}", node, hint)
    elif len(text) > longest:
        _fault(source, what, f"is too long: {len(text)} characters", node)
    elif "pattern" in schema and not _matches(schema["pattern"], text):
        problem = f"is '{short(text)}', which does not match the format"
        _fault(source, what, problem, node, schema.get("patternErrorMessage") or _purpose(schema))
    elif schema.get("format") == "line":
        return one_line(text)
    else:
        return text
    return None


def _number(source: _Source, node: Any, schema: Schema, what: str) -> Any:
    whole = _kind(schema) == "integer"
    value = _written(node, whole) if isinstance(node, Scalar) else _plain(node, whole)
    if value is None:
        return _wrong_type(source, node, schema, what)
    text = node.text if isinstance(node, Scalar) else _shown(node)
    low, high, above = (schema.get(f"{name}imum") for name in ("min", "max", "exclusiveMin"))
    if low is not None and value < low:
        _fault(source, what, f"is {text}, below its minimum of {low}", node)
    elif above is not None and value <= above:
        _fault(source, what, f"is {text}, not above {above}", node)
    elif high is not None and value > high:
        _fault(source, what, f"is {text}, above its maximum of {high}", node)
    else:
        return value
    return None


def _shown(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


def _written(node: Scalar, whole: bool) -> float | None:
    """Return the number in a document's text, None if it is no number."""
    pattern = _INTEGER if whole else _NUMBER
    if node.quoted or not pattern.match(node.text):
        return None
    return int(node.text) if whole else float(node.text)


def _plain(value: object, whole: bool) -> float | None:
    """A finite number, None where it is none; true and false are no numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float | Integral):
        return None
    value = value if isinstance(value, float) else int(value)
    if isinstance(value, int) or whole:
        sound = abs(value) < _LONGEST_INTEGER and value == int(value)
        return (int(value) if whole else value) if sound else None
    return value if isfinite(value) else None


def _boolean(source: _Source, node: Any, schema: Schema, what: str) -> Any:
    if isinstance(node, bool):
        return node
    text = node.text if isinstance(node, Scalar) and not node.quoted else ""
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if other := _OTHER_BOOLEANS.get(text.lower()):
        problem = f"is '{text}', not true or false"
        return _fault(source, what, problem, node, f"did you mean '{other}'?")
    return _wrong_type(source, node, schema, what)


def _matches(pattern: str, text: str) -> bool:
    """Whether a JSON Schema pattern matches: `$` is the very end, digits are 0 to 9, as there."""
    return re.search(pattern.replace("$", r"\Z"), text, re.ASCII) is not None


def _wrong_type(source: _Source, node: Any, schema: Schema, what: str) -> None:
    if isinstance(node, Sequence | list):
        actual = "a list"
    elif isinstance(node, Mapping | dict):
        actual = "a mapping"
    else:
        huge = isinstance(node, int) and abs(node) >= _LONGEST_INTEGER
        actual = f"'{short('a number too large' if huge else str(_text(node)))}'"
    problem = f"must be {_NAMES[_kind(schema)]}, not {actual}"
    _fault(source, what, problem, node, _purpose(schema))


def _purpose(schema: Schema) -> str:
    """The first sentence of a key's description, and an example, as a hint."""
    description = str(schema.get("description", "")).split(". ")[0].rstrip(".")
    example = schema.get("examples", [None])[0]
    return description + (f" (for example {example})" if example is not None else "")


def short(text: str) -> str:
    """`text` as a message may quote it: in ASCII, on one line, at most 60 characters."""
    clean = text.encode("unicode_escape").decode()
    return clean if len(clean) <= 60 else clean[:57] + "..."


_CHECKS: dict[str, Callable[[_Source, Any, Schema, str], Any]] = {
    "object": _object,
    "array": _array,
    "string": _string,
    "integer": _number,
    "number": _number,
    "boolean": _boolean,
}
