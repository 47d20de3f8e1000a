"""One declaration per datum: a field of a frozen dataclass is the option, the key and the check.

    @dataclass(frozen=True)  # of hpcdl.system.frozen, or Python's
    class Wish:
        gpus: int | None = option("GPUs in all", None, sweep=True, example=8, **COUNT)
        minutes: int = option("walltime", 60, key="time", type="string",
                              read=minutes_of, write=str)
        preflight: bool = option("check the nodes first", True, type="boolean", flag=None,
                                 constants={"--no-preflight": (False, "skip the checks")})
        env: Mapping[str, str] = option("variables", {}, type="object", metavar="NAME=VALUE",
                                        additionalProperties={"type": "string"})
        disk: Disk | None = option("the node's disk", None, of=Disk)  # another such class

    configure(parser, Wish)                               # --gpus N, --time TIME, ...
    wish = build(Wish, typed(Wish, parser.parse_args()))  # all faults in one BadInput
    wish = build(Wish, read_file(Wish, document))         # each fault with its line and a caret
    wish = check(Wish(gpus=8))                            # the same for a value made in Python
    to_argv(wish); written(wish); shape(wish)             # and back
    schema_of(Wish, "A wish."); entries(Wish)             # for editors, docs, sweeps, completion

A datum has a *written* form, that of YAML, JSON and the command line, which the JSON Schema (draft
2020-12) describes, such as `time: 1:30:00`, and the *value* that the program uses, 90. `read` makes
the value of a checked written form, `write` is its inverse. `read` may raise BadInput; its message
continues the datum's name: "is no time limit". Every door, command line, file and Python, checks
the written form by the same function, `document.check_node`.

`key` is the name in files ("": the field's name; None: neither in files nor an option). `flag` is
the option ("": the key with dashes; None: none). `constants` are options that stand for one written
value each. What options give of one group `together` replaces all of it that a file has. `of` is
the declared class of a nested mapping; `type="array", items=Disk` are several, `type="object",
additionalProperties=Disk` several by name. A sweep may vary fields with `sweep`; values whose
`shapes` fields are equal share a job script; no result follows from a `free` one. `section` begins
a group in the help. `required=False`: the class needs the value, but a file may leave it out.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from hpcdl.system.document import Document, Fault, Mark, Scalar, Schema, check_node
from hpcdl.system.document import check as check_document
from hpcdl.system.errors import BadInput
from hpcdl.system.text import count_of

COUNT: Schema = {"type": "integer", "minimum": 1, "maximum": 1_000_000}
SWITCH: Schema = {"type": "boolean"}
PATH: Mapping[str, Any] = {"type": "string", "pattern": "^/", "read": Path}
_NOWHERE = Mark(0, 0)
_METAVARS = {"integer": "N", "number": "X"}
_SEVERAL = {"array", "object"}
_Record = TypeVar("_Record")
_Path = tuple[str | int, ...]
_Note = Callable[[_Path, BadInput], None]


def number(minimum: float, maximum: float) -> Schema:
    """The schema of a number between bounds."""
    return {"type": "number", "minimum": minimum, "maximum": maximum}


def whole(minimum: int, maximum: int) -> Schema:
    """The schema of a whole number between bounds."""
    return {"type": "integer", "minimum": minimum, "maximum": maximum}


def text(pattern: str, allowed: str = "") -> Schema:
    """The schema of a text that a regular expression describes; `allowed` says how."""
    return {"type": "string", **_pattern(pattern, allowed)}


def _pattern(pattern: str, allowed: str) -> Schema:
    return {"pattern": pattern, **({"patternErrorMessage": allowed} if allowed else {})}


def choice(*words: str) -> Schema:
    """The schema of one of some words."""
    return {"type": "string", "enum": list(words)}


def listed(items: Schema) -> Schema:
    """The schema of a list."""
    return {"type": "array", "items": items}


def by_name(values: Schema | type, names: str, allowed: str = "") -> Schema:
    """The schema of a mapping, whose names a regular expression describes; `allowed` says how."""
    names_of = _pattern(names, allowed)
    return {"type": "object", "propertyNames": names_of, "additionalProperties": values}


def _plain(value: Any) -> Any:
    """The usual written form: paths are text, tuples lists, declared records mappings."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    return written(value) if is_dataclass(value) else value


class Declaration(NamedTuple):
    """The declaration of the field `name`; the module's docstring explains each part."""

    help: str
    schema: Schema
    key: str | None = ""
    flag: str | None = ""
    metavar: str | None = None
    constants: Mapping[str, tuple[Any, str]] = MappingProxyType({})
    sweep: bool = False
    shapes: bool = True
    free: bool = False
    together: str = ""
    section: str = ""
    required: bool | None = None
    of: type | None = None
    read: Callable[[Any], Any] | None = None
    write: Callable[[Any], Any] = _plain
    name: str = ""
    default: Any = MISSING

    @property
    def kind(self) -> str:
        """The JSON type of the written form."""
        return str(self.schema["type"])


_PARTS = frozenset(Declaration._fields)


def option(
    help: str,  # noqa: A002
    default: Any = MISSING,
    *,
    example: Any = None,
    **parts: Any,
) -> Any:
    """A dataclass field with its declaration; other `parts` are the JSON Schema's."""
    own = {name: value for name, value in parts.items() if name in _PARTS}
    schema = {name: value for name, value in parts.items() if name not in _PARTS}
    schema = {"type": "object", **schema} if "of" in own else schema
    schema |= {"examples": [example]} if example is not None else {}
    inner = schema.get("items", schema.get("additionalProperties"))
    usual = {"metavar": _METAVARS.get(str(schema["type"]), "NAME"), "required": default is MISSING}
    usual |= {"of": inner} if isinstance(inner, type) else {}
    usual |= {"flag": None} if {"of"} & {*usual, *own} else {}
    entry = Declaration(help, schema, **{**usual, **own})
    if isinstance(default, Mapping):
        frozen = MappingProxyType(dict(default))
        return field(default_factory=lambda: frozen, metadata={"declared": entry})
    return field(default=default, metadata={"declared": entry})


def entries(cls: type) -> tuple[Declaration, ...]:
    """The declarations of a class's fields, in their order; a field without one is left out."""
    hashable: Any = cls
    return _entries(hashable)


@cache
def _entries(cls: Any) -> tuple[Declaration, ...]:
    declarations = []
    for attribute in fields(cls):
        if entry := attribute.metadata.get("declared"):
            made = attribute.default_factory
            default = attribute.default if made is MISSING else made()
            key = attribute.name if entry.key == "" else entry.key
            plain = f"--{key}".replace("_", "-") if key else None
            flag = plain if entry.flag == "" else entry.flag
            own = {"name": attribute.name, "default": default, "key": key, "flag": flag}
            declarations.append(entry._replace(**own))
    return tuple(declarations)


def shape(record: Any) -> tuple[object, ...]:
    """The values of the `shapes` fields, hashable: records of one shape have the same script."""
    values = (getattr(record, one.name) for one in entries(type(record)) if one.shapes)
    return tuple(tuple(one.items()) if isinstance(one, Mapping) else one for one in values)


# ---- the JSON Schema ----


def schema_of(cls: type, description: str = "", version: int | None = None) -> Schema:
    """The JSON Schema of the written form; with a `version`, files must have `schema: VERSION`."""
    keys = {entry.key: entry for entry in entries(cls) if entry.key}
    first: dict[str, Schema] = {}
    if version is not None:
        bounds = {"minimum": version, "maximum": version, "examples": [version]}
        first["schema"] = {"type": "integer", "description": "Version of this format.", **bounds}
    return {
        "type": "object",
        "description": description or (cls.__doc__ or "").splitlines()[0],
        "required": [*first, *(key for key, entry in keys.items() if entry.required)],
        "additionalProperties": False,
        "properties": {**first, **{key: _property(entry) for key, entry in keys.items()}},
    }


def _property(entry: Declaration) -> Schema:
    schema = dict(entry.schema)
    if entry.of and schema.keys() & {"items", "additionalProperties"}:
        where = "items" if "items" in schema else "additionalProperties"
        schema[where] = schema_of(entry.of)
    elif entry.of:
        schema = {**schema_of(entry.of), **schema}
    schema["description"] = f"{entry.help[:1].upper()}{entry.help[1:]}."
    known = entry.default is not MISSING and entry.default is not None
    if known and (text := entry.write(entry.default)) is not None:
        schema["default"] = text
    return schema


def for_editors(schema: Any) -> Any:
    """The schema for editors, which type what has no quotes; of `2.15` our files have the text."""
    if not isinstance(schema, dict):
        return [for_editors(part) for part in schema] if isinstance(schema, list) else schema
    published = {key: for_editors(part) for key, part in schema.items()}
    also = []
    if schema.get("type") == "string" and "enum" not in schema:
        kinds = {"number": ("1", "1.5", "22.05", "535"), "boolean": ("true",)}
        pattern = schema.get("pattern", "")
        also = [k for k, texts in kinds.items() if any(re.search(pattern, one) for one in texts)]
    if "default" in schema and "type" in schema:  # a key without a value means its default
        also.append("null")
        published |= {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return {**published, "type": [schema["type"], *also]} if also else published


# ---- files and Python ----


def read_file(cls: type, document: Document, version: int | None = None) -> dict[str, Any]:
    """The written forms that a file gives, checked; keys that it does not have are left out."""
    values = check_document(document, schema_of(cls, version=version)) or {}
    root = document.root
    given = {key.text for key, _ in getattr(root, "entries", ())}

    def note(path: _Path, fault: BadInput) -> None:
        document.fault(f"'{path[-1]}' {fault.message}", document.find(path), fault.hint)

    values = {key: value for key, value in values.items() if key in given and value is not None}
    build(cls, values, note)
    document.raise_faults()
    return {key: value for key, value in values.items() if key != "schema"}


def _refuse(path: _Path, fault: BadInput) -> None:
    raise BadInput(f"'{path[-1]}' {fault.message}", hint=fault.hint) from fault


def build(cls: type[_Record], values: Mapping[str, Any], note: _Note = _refuse) -> _Record:
    """Return the record of checked written forms; `note` gets the errors of `read`, or raises."""
    found = values_of(cls, values, note)
    missing = (one.name for one in entries(cls) if one.default is MISSING)
    if note is not _refuse and any(name not in found for name in missing):
        return None  # type: ignore[return-value]  # the faults of the document say what is missing
    return cls(**found)


def changed(record: _Record, values: Mapping[str, Any]) -> _Record:
    """The record with other values for these checked written forms."""
    return replace(record, **values_of(type(record), values))  # type: ignore[type-var]


def values_of(cls: type, values: Mapping[str, Any], note: _Note = _refuse) -> dict[str, Any]:
    """The values of checked written forms by attribute, for a class with more attributes."""
    return {
        entry.name: _value(entry, values[entry.key], (entry.key,), note)
        for entry in entries(cls)
        if entry.key and values.get(entry.key) is not None
    }


def _value(entry: Declaration, text: Any, path: _Path, note: _Note) -> Any:
    parts = list(text.values()) if isinstance(text, dict) else text
    if entry.of is None and isinstance(parts, list) and None in parts:
        return None  # a part has a fault, which is noted already
    if entry.read:
        try:
            return entry.read(text)
        except BadInput as fault:
            return note(path, fault)

    def one(value: Any, *more: str | int) -> Any:
        def below(inner: _Path, fault: BadInput) -> None:
            note((*path, *more, *inner), fault)

        return build(entry.of, value, _refuse if note is _refuse else below) if entry.of else value

    if isinstance(text, list):
        return tuple(one(row, index) for index, row in enumerate(text))
    if isinstance(text, dict) and not (entry.of and "additionalProperties" not in entry.schema):
        return MappingProxyType({name: one(row, name) for name, row in text.items()})
    return one(text)


def check(record: _Record) -> _Record:
    """The record, its values as files and options give them; BadInput names all it cannot have."""
    faults, values = _Faults(), {}
    for entry in entries(type(record)):
        value = getattr(record, entry.name)
        if value != entry.default:
            text = faults.check(entry, entry.write(value), entry.name)
            values[entry.name] = (
                text if faults.faults else _value(entry, text, (entry.name,), _refuse)
            )
    faults.refuse()
    return replace(record, **values)  # type: ignore[type-var]


def merged(cls: type, file: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The written forms of a file and of options, which go before those of the file."""
    group = {entry.key: entry.together for entry in entries(cls) if entry.together}
    replaced = {group[key] for key in options if key in group}
    kept = {key: value for key, value in file.items() if group.get(key) not in replaced}
    both = kept.keys() & options.keys()
    mappings = {key: {**kept[key], **options[key]} for key in both if isinstance(kept[key], dict)}
    return {**kept, **options, **mappings}


def written(record: Any) -> dict[str, Any]:
    """The written forms of what differs from the defaults: the content of a file."""
    found = {}
    for entry in entries(type(record)):
        value = getattr(record, entry.name)
        if entry.key and value != entry.default:
            found[entry.key] = entry.write(value)
    return found


class _Faults(Document):
    """Faults of values that are in no file: they have no lines, and are named by their options."""

    def __init__(self) -> None:
        super().__init__("", [], Scalar("", False, _NOWHERE))

    def fault(self, message: str, node: object, hint: str = "") -> None:
        """Note a fault."""
        self.faults.append(Fault(message, _NOWHERE, hint))

    def check(self, entry: Declaration, value: Any, what: str) -> Any:
        """The written form `value` of a datum, called `what` in faults, as its schema types it."""
        before, schema = len(self.faults), _property(entry)
        value = check_node(self, value, schema, what)
        for at, fault in enumerate(self.faults[before:], before):
            self.faults[at] = fault._replace(hint=fault.hint or _bounds(schema))
        if len(self.faults) == before and value is not None:
            _value(entry, value, (what,), self._note)
        return value

    def _note(self, path: _Path, fault: BadInput) -> None:
        self.fault(f"{path[0]} {fault.message}", None, fault.hint)

    def refuse(self) -> None:
        """Raise one BadInput that has every fault, each with what to do."""
        if len(self.faults) == 1:
            raise BadInput(self.faults[0].message, hint=self.faults[0].hint)
        if self.faults:
            details = [": ".join(filter(None, [one.message, one.hint])) for one in self.faults]
            raise BadInput(f"{count_of(len(details), 'value')} cannot be used", details=details)


def _bounds(schema: Schema) -> str:
    if "minimum" in schema and "maximum" in schema:
        return f"give a number from {schema['minimum']:,} to {schema['maximum']:,}"
    return str(schema["description"])


# ---- the command line ----


def configure(parser: argparse.ArgumentParser, cls: type, leave_out: Collection[str] = ()) -> None:
    """Add the options of a class to a parser; they are text until `typed` checks all of them."""
    group: Any = parser
    for entry in entries(cls):
        group = parser.add_argument_group(entry.section) if entry.section else group
        if entry.name in leave_out:
            continue
        what = ": ".join(filter(None, [entry.help, ", ".join(entry.schema.get("enum", ()))]))
        how = {"dest": entry.name, "help": what.replace("%", "%%")}
        if entry.flag and entry.kind == "boolean":
            group.add_argument(entry.flag, action="store_const", const="true", **how)
        elif entry.flag:
            many = "append" if entry.kind in _SEVERAL else "store"
            group.add_argument(entry.flag, action=many, metavar=entry.metavar, **how)
        for flag, (_, text) in entry.constants.items():
            group.add_argument(flag, dest=flag, action="store_true", default=None, help=text)


def typed(cls: type, args: argparse.Namespace) -> dict[str, Any]:
    """The written forms that options give, checked; BadInput has all faults of the line at once."""
    faults, values = _Faults(), {}
    for entry in entries(cls):
        text = getattr(args, entry.name, None)
        constants = [flag for flag in entry.constants if getattr(args, flag, None)]
        if constants and (text is not None or len(constants) > 1):
            pair = [*constants, str(entry.flag)][:2]
            faults.fault(f"{pair[0]} and {pair[1]} exclude each other", None, "give one of them")
        elif constants:
            values[str(entry.key)] = entry.constants[constants[0]][0]
        elif text is not None:
            value = _untyped(faults, entry, text)
            values[str(entry.key)] = faults.check(entry, value, entry.flag or entry.name)
    faults.refuse()
    return values


def meaning(cls: type, name: str, text: str) -> Any:
    """The value that the text of an option means: `8G` and `8192M` are one; else the text."""
    try:
        return values_of(cls, typed(cls, argparse.Namespace(**{name: text})))[name]
    except (BadInput, KeyError):
        return text


def _untyped(faults: _Faults, entry: Declaration, text: Any) -> Any:
    """The text of an option as its schema takes it: numbers are scalars of a document."""
    if entry.kind == "object":
        for pair in text:
            if "=" not in pair:
                faults.fault(f"{entry.flag} {pair!r} has no '='", None, f"write {entry.metavar}")
        return dict(pair.partition("=")[::2] for pair in text)
    if entry.kind in {"string", "array"}:
        return text
    number = Scalar(str(text), False, _NOWHERE)
    return number._replace(quoted=number.empty)  # `~` leaves out a value in a file only


def to_argv(record: Any) -> list[str]:
    """The options that mean a record: what differs from the defaults."""
    argv: list[str] = []
    for entry in entries(type(record)):
        value = getattr(record, entry.name)
        if value == entry.default or not (entry.flag or entry.constants):
            continue
        text = entry.write(value)
        constant = [flag for flag, (const, _) in entry.constants.items() if const == text]
        if constant or entry.kind == "boolean":
            argv += constant or [str(entry.flag)]
        elif isinstance(text, dict):
            argv += [f"{entry.flag}={name}={each}" for name, each in text.items()]
        else:
            several = text if isinstance(text, list) else [text]
            argv += [f"{entry.flag}={each}" for each in several]
    return argv
