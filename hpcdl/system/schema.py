"""Checks values against a JSON Schema and gives them back typed, all faults at once.

The schemas are plain JSON Schema (draft 2020-12), so editors can use them; this checker knows
the part of it that our files use: type (also with "null"), properties, required,
additionalProperties, propertyNames.pattern, items, minItems, enum, pattern, minimum,
exclusiveMinimum, maximum, maxLength, default, and format "line" for what is shown on one line.
`patternErrorMessage`, which editors show as well, says what a pattern allows.
It is our own because the site file is read by every command and the jsonschema package alone
takes longer to import than a whole `hpcdl job render` may; the tests compare it with
jsonschema on mutated documents.

A value is a node of a YAML document, whose faults have lines and carets, or a plain value such
as parsed JSON holds, whose faults have places (`verdicts[2].metrics`). People write the former,
so an unknown key is a fault there; programs write the latter, and later ones say more.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import fsum, inf, isfinite
from typing import Any

from hpcdl.system.document import Document, Mapping, Node, Scalar, Sequence
from hpcdl.system.text import did_you_mean, nearest, one_line, one_of

Schema = dict[str, Any]
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}\Z")
_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,3})?\Z")
_BOOLEANS = {"true": True, "false": False}
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
_MOST_FAULTS = 100
_Source = Document | dict[str, str]
"""What faults are noted in: a document, or for plain values sentences by place."""


def check(document: Document, schema: Schema) -> Any:
    """The document's values as the schema types them, defaults filled in.

    Faults are noted in `document.faults`; call `document.raise_faults()` when all checks are
    done. Values at faulty places are None.
    """
    return _check(document, document.root, schema, _ROOT)


def check_node(document: Document, node: Node, schema: Schema, what: str) -> Any:
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
    elif len(source) < _MOST_FAULTS:
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
    return [(name, name, value) for name, value in node.items()] if isinstance(node, dict) else None


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
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
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
