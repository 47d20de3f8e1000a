"""Checks a document against a JSON Schema and gives its values, all faults at once.

The schemas are plain JSON Schema (draft 2020-12), so editors can use them; this checker knows
the part of it that our files use: type, properties, required, additionalProperties,
propertyNames.pattern, items, minItems, enum, pattern, minimum, maximum, maxLength, default.
It is our own because the site file is read by every command and the jsonschema package alone
takes longer to import than a whole `hpcdl job render` may; the tests compare it with
jsonschema on mutated documents.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hpcdl.system.document import Document, Mapping, Node, Scalar, Sequence
from hpcdl.system.text import did_you_mean, nearest, one_of

Schema = dict[str, Any]
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}\Z")
_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,3})?\Z")
_BOOLEANS = {"true": True, "false": False}
_OTHER_BOOLEANS = {"yes": "true", "on": "true", "no": "false", "off": "false"}
_NAMES = {"object": "a mapping", "array": "a list", "string": "text", "integer": "a whole number",
          "number": "a number", "boolean": "true or false"}  # fmt: skip


def check(document: Document, schema: Schema) -> Any:
    """The document's values as the schema types them, defaults filled in.

    Faults are noted in `document.faults`; call `document.raise_faults()` when all checks are
    done. Values at faulty places are None.
    """
    return _check(document, document.root, schema, "the file")


def _check(document: Document, node: Node, schema: Schema, what: str) -> Any:
    return _CHECKS[schema["type"]](document, node, schema, what)


def _object(document: Document, node: Node, schema: Schema, what: str) -> Any:
    if not isinstance(node, Mapping):
        return _wrong_type(document, node, schema, what)
    known: dict[str, Schema] = schema.get("properties", {})
    given = {key.text for key, _ in node.entries}
    values = _entries(document, node, schema)
    for name in schema.get("required", ()):
        if name not in given:
            document.fault(f"{what} lacks the key '{name}'", node, _purpose(known[name]))
    if len(node.entries) < schema.get("minProperties", 0):
        document.fault(f"{what} is empty: it needs at least one entry", node)
    for name, part in known.items():
        if name not in given and "default" in part:
            values[name] = part["default"]
    return values


def _entries(document: Document, node: Mapping, schema: Schema) -> dict[str, Any]:
    """The values of the keys that are given; unknown keys become faults."""
    known: dict[str, Schema] = schema.get("properties", {})
    extra = schema.get("additionalProperties", False)
    missing = [name for name in known if node.get(name) is None]
    values: dict[str, Any] = {}
    for key, value in node.entries:
        if key.text in known:
            values[key.text] = _value(document, value, known[key.text], f"'{key.text}'")
        elif extra == {}:  # JSON Schema: any further key, with any value; none of ours
            continue
        elif isinstance(extra, dict):
            _check_name(document, key, schema)
            values[key.text] = _value(document, value, extra, f"'{key.text}'")
        else:
            _unknown_key(document, key, missing, known)
    return values


def _unknown_key(
    document: Document, key: Scalar, missing: list[str], known: dict[str, Schema]
) -> None:
    """An unknown key: most likely one of those that are not given yet."""
    close = nearest(key.text, missing) or nearest(key.text, known)
    hint = f"did you mean '{close}'?" if close else f"known keys: {', '.join(known)}"
    document.fault(f"unknown key '{short(key.text)}'", key, hint)


def _value(document: Document, node: Node, schema: Schema, what: str) -> Any:
    """A property's value: nothing written means the default, where there is one."""
    if isinstance(node, Scalar) and node.empty:
        if "default" in schema:
            return schema["default"]
        document.fault(f"{what} has no value", node, _purpose(schema))
        return None
    return _check(document, node, schema, what)


def _check_name(document: Document, key: Scalar, schema: Schema) -> None:
    pattern = schema.get("propertyNames", {}).get("pattern")
    if pattern and not _matches(pattern, key.text):
        document.fault(
            f"'{short(key.text)}' is no valid name", key, "use letters, digits, '-', '_' and '.'"
        )


def _array(document: Document, node: Node, schema: Schema, what: str) -> Any:
    if not isinstance(node, Sequence):
        return _wrong_type(document, node, schema, what)
    if len(node.items) < schema.get("minItems", 0):
        document.fault(f"{what} needs at least {schema['minItems']} entries", node)
    return [_value(document, item, schema["items"], f"an entry of {what}") for item in node.items]


def _string(document: Document, node: Node, schema: Schema, what: str) -> Any:
    if not isinstance(node, Scalar):
        return _wrong_type(document, node, schema, what)
    text = node.text
    if "enum" in schema and text not in schema["enum"]:
        hint = did_you_mean(text, schema["enum"])
        document.fault(f"{what} is '{short(text)}', not {one_of(schema['enum'])}", node, hint)
    elif len(text) > schema.get("maxLength", 4096):
        document.fault(f"{what} is too long: {len(text)} characters", node)
    elif "pattern" in schema and not _matches(schema["pattern"], text):
        document.fault(f"{what} is '{short(text)}', which does not match the format", node,
                       _purpose(schema))  # fmt: skip
    else:
        return text
    return None


def _number(document: Document, node: Node, schema: Schema, what: str) -> Any:
    whole = schema["type"] == "integer"
    pattern = _INTEGER if whole else _NUMBER
    if not isinstance(node, Scalar) or node.quoted or not pattern.match(node.text):
        return _wrong_type(document, node, schema, what)
    value = int(node.text) if whole else float(node.text)
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and value < low:
        document.fault(f"{what} is {node.text}, below its minimum of {low}", node)
    elif high is not None and value > high:
        document.fault(f"{what} is {node.text}, above its maximum of {high}", node)
    else:
        return value
    return None


def _boolean(document: Document, node: Node, schema: Schema, what: str) -> Any:
    if isinstance(node, Scalar) and not node.quoted:
        if node.text in _BOOLEANS:
            return _BOOLEANS[node.text]
        if node.text.lower() in _OTHER_BOOLEANS:
            document.fault(
                f"{what} is '{node.text}', not true or false", node,
                f"did you mean '{_OTHER_BOOLEANS[node.text.lower()]}'?",
            )  # fmt: skip
            return None
    return _wrong_type(document, node, schema, what)


def _matches(pattern: str, text: str) -> bool:
    """Whether a JSON Schema pattern matches: `$` is the very end, digits are 0 to 9, as there."""
    return re.search(pattern.replace("$", r"\Z"), text, re.ASCII) is not None


def _wrong_type(document: Document, node: Node, schema: Schema, what: str) -> None:
    found = {Scalar: "text", Sequence: "a list", Mapping: "a mapping"}[type(node)]
    if isinstance(node, Scalar):
        found = f"'{short(node.text)}'"
    document.fault(f"{what} must be {_NAMES[schema['type']]}, not {found}", node, _purpose(schema))


def _purpose(schema: Schema) -> str:
    """The first sentence of a key's description, and an example, as a hint."""
    description = str(schema.get("description", "")).split(". ")[0].rstrip(".")
    example = schema.get("examples", [None])[0]
    return description + (f" (for example {example})" if example is not None else "")


def short(text: str) -> str:
    """`text` as a message may quote it: in ASCII, on one line, at most 60 characters."""
    clean = text.encode("unicode_escape").decode()
    return clean if len(clean) <= 60 else clean[:57] + "..."


_CHECKS: dict[str, Callable[[Document, Node, Schema, str], Any]] = {
    "object": _object,
    "array": _array,
    "string": _string,
    "integer": _number,
    "number": _number,
    "boolean": _boolean,
}
