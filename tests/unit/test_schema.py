"""The schema checker: the same verdict as the jsonschema package, and words for people."""

import json
import re
from contextlib import suppress
from copy import deepcopy
from dataclasses import fields

import jsonschema
import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from hpcdl import facts
from hpcdl.regress.identity import Series
from hpcdl.regress.references import Reference as CheckReference
from hpcdl.site.check import site_schema
from hpcdl.system.declare import for_editors
from hpcdl.system.document import InvalidDocument, check, parse_document
from hpcdl.system.resources import folder

SITE = site_schema()
EXAMPLES = sorted((folder("templates") / "sites").glob("*.yaml"))


def ecma_pattern(validator, pattern, instance, schema):
    """JSON Schema's patterns are ECMAScript's: `$` is the end, `\\d` is 0 to 9."""
    text = instance if validator.is_type(instance, "string") else None
    if text is not None and not re.search(pattern.replace("$", r"\Z"), text, re.ASCII):
        yield jsonschema.ValidationError(f"{text!r} does not match {pattern!r}")


Reference = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"pattern": ecma_pattern})


def faults_of(value, schema=SITE):
    document = parse_document(json.dumps(value), "f.yaml")
    with suppress(InvalidDocument):
        check(document, schema)
    return [fault.message for fault in document.faults]


def plain(path):
    """A file's values with numbers and booleans typed, as a JSON file would have them."""
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_both_take_the_shipped_examples(path):
    jsonschema.Draft202012Validator.check_schema(SITE)
    assert Reference(SITE).is_valid(plain(path))
    assert faults_of(plain(path)) == []


def places(value, path=()):
    """Every place in a value."""
    listed = enumerate(value) if isinstance(value, list) else ()
    children = value.items() if isinstance(value, dict) else listed
    inner = [place for key, child in children for place in places(child, (*path, key))]
    return [path, *inner] if path else inner


ODD = [-1, 0, 1, 65, 10**6, 10**17, 0.5, 1e300, -0.0, True, False, [], {}, [1], {"a": 1}, "x\n"]
ODD += ["", "x", "pi", "a b", "24:00:00", "1-00:00:00", "22.05.8", "٣", "gres"]
# Of the first plane: JSON writes others as pairs, which YAML does not read.
PLAIN = st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs", "Cc"])
JUNK = st.sampled_from(ODD) | st.text(PLAIN, max_size=8) | st.integers(-(10**6), 10**6)


@st.composite
def mutated(draw):
    """A shipped example with a few places changed, dropped or added to."""
    value = deepcopy(plain(draw(st.sampled_from(EXAMPLES))))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(value)))
        parent = value
        for step in path[:-1]:
            parent = parent[step]
        action = draw(st.sampled_from(["replace", "drop", "add"]))
        if action == "replace":
            parent[path[-1]] = draw(JUNK)
        elif action == "drop":
            del parent[path[-1]]
        elif isinstance(parent, dict):
            parent[draw(st.sampled_from(["nodez", "x y", "", "gpus", "stack"]))] = draw(JUNK)
        if not value or not places(value):
            break
    return value


@given(mutated())
def test_the_verdict_is_that_of_jsonschema_on_mutated_documents(value):
    # A whole number may be written with a fraction of zero in JSON; in our files it may not.
    assume(value and not any(isinstance(n, float) and n == int(n) for n in numbers(value)))
    # Scalars are typed by the schema: an unquoted 5 is text where text is asked for.
    theirs = [one for one in Reference(SITE).iter_errors(value) if not reads_as_text(one)]
    ours = faults_of(value)
    assert bool(ours) == bool(theirs), (ours, [error.message for error in theirs])
    # What hpcdl takes, editors take: numbers without quotes, keys without values.
    assert ours or Reference(for_editors(SITE)).is_valid(value)


def numbers(value):
    children = value.values() if isinstance(value, dict) else value
    nested = isinstance(value, dict | list)
    return [one for child in children for one in numbers(child)] if nested else [value]


def reads_as_text(error):
    """A plain scalar where the schema wants text: text it is, if its own form is right."""
    kind = (error.validator, error.validator_value)
    if kind != ("type", "string") or isinstance(error.instance, (dict, list)):
        return False
    return Reference(error.schema).is_valid(json.dumps(error.instance))


SCHEMA = {
    "type": "object",
    "required": ["nodes"],
    "additionalProperties": False,
    "properties": {
        "nodes": {"type": "integer", "minimum": 1, "maximum": 9, "description": "How many. More."},
        "ratio": {"type": "number", "minimum": 0.5},
        "on": {"type": "boolean", "default": True},
        "kind": {"type": "string", "enum": ["gres", "gpus-per-node"]},
        "name": {"type": "string", "pattern": "^[a-z]+$", "examples": ["pi"]},
        "list": {"type": "array", "items": {"type": "string"}, "minItems": 1, "default": ["x"]},
        "map": {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1},
    },
}


@pytest.mark.parametrize(
    ("text", "fault", "hint"),
    [
        ("nodse: 4", "unknown key 'nodse'", "did you mean 'nodes'?"),
        ("zzz: 4", "unknown key 'zzz'", "known keys: nodes, ratio"),
        ("ratio: 1", "the file lacks the key 'nodes'", "How many"),
        ("nodes:", "'nodes' has no value", "How many"),
        ("nodes: '4'", "'nodes' must be a whole number, not '4'", "How many"),
        ("nodes: 4.0", "'nodes' must be a whole number, not '4.0'", ""),
        ("nodes: 0x4", "'nodes' must be a whole number, not '0x4'", ""),
        ("nodes: 1_0", "'nodes' must be a whole number, not '1_0'", ""),
        ("nodes: 0", "'nodes' is 0, below its minimum of 1", ""),
        ("nodes: 10", "'nodes' is 10, above its maximum of 9", ""),
        ("nodes: 99999999999999999999999", "'nodes' must be a whole number", ""),
        ("ratio: .nan", "'ratio' must be a number, not '.nan'", ""),
        ("on: yes", "'on' is 'yes', not true or false", "did you mean 'true'?"),
        ("on: 1", "'on' must be true or false, not '1'", ""),
        ("kind: gress", "'kind' is 'gress', not gres or gpus-per-node", "did you mean 'gres'?"),
        ("name: Pi", "'name' is 'Pi', which does not match the format", "(for example pi)"),
        ('name: "pi\\n"', "which does not match the format", ""),
        ("name: [pi]", "'name' must be text, not a list", ""),
        ("list: x", "'list' must be a list, not 'x'", ""),
        ("list: []", "'list' needs at least 1 entries", ""),
        ("list: [[x]]", "an entry of 'list' must be text, not a list", ""),
        ("map: {}", "'map' is empty", ""),
        ("map: {a: b}", "'a' must be a whole number, not 'b'", ""),
        ("map: 5", "'map' must be a mapping, not '5'", ""),
        ("just text", "the file must be a mapping, not 'just text'", ""),
        ("- 1", "the file must be a mapping, not a list", ""),
    ],
)
def test_each_fault_has_its_words_and_its_hint(text, fault, hint):
    document = parse_document(text, "f.yaml")
    check(document, SCHEMA)
    found = [one for one in document.faults if fault in one.message]
    assert found, [one.message for one in document.faults]
    assert hint in found[0].hint


def test_defaults_are_filled_in_and_scalars_typed_by_the_schema():
    document = parse_document("nodes: 4\nratio: 1\nname: no\nkind: gres\n", "f.yaml")
    values = {"nodes": 4, "ratio": 1.0, "name": "no", "kind": "gres", "on": True, "list": ["x"]}
    assert check(document, SCHEMA) == values
    assert document.faults == []
    assert check(parse_document("nodes: 4\non: FALSE\n", "f.yaml"), SCHEMA)["on"] is False


def test_many_thousand_unknown_keys_take_no_time():
    document = parse_document("".join(f"key{n}: 1\n" for n in range(10_000)), "f.yaml")
    with pytest.raises(InvalidDocument):
        check(document, SITE)


def patterns(schema):
    if not isinstance(schema, dict):
        return []
    own = [schema["pattern"]] if isinstance(schema.get("pattern"), str) else []
    return own + [one for child in schema.values() for one in patterns(child)]


def test_no_pattern_uses_a_dollar_that_does_not_mean_the_end():
    assert [pattern for pattern in patterns(SITE) if re.search(r"\$[^|]", pattern)] == []


def test_the_formats_of_the_checks_files_name_what_the_code_has():
    rows = facts.load("check_formats")
    row = rows["references"]["properties"]["references"]["items"]["properties"]
    assert tuple(row["proof"]["enum"]) == facts.PROOFS
    assert set(row) == {field.name for field in fields(CheckReference)}
    accepted = rows["accepted"]["properties"]["accepted"]["items"]["properties"]
    assert tuple(accepted["series"]["properties"]) == Series._fields
