"""Every field of every declared format: the command line, files and Python take the same of it."""

import argparse
import dataclasses
import re
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hpcdl.jobs.spec import JobSpec
from hpcdl.predict.request import ScalingRequest
from hpcdl.predict.step import ModelSplit
from hpcdl.site import Site
from hpcdl.system import declare
from hpcdl.system.document import parse_document
from hpcdl.system.errors import BadInput
from hpcdl.train.options import TrainOptions

BY_NAME = {"gpus", "partitions", "groups", "stacks", "waivers"}
"""Keys of a site file whose values `site.load` makes; their own fields are here one by one."""
WRITTEN = (JobSpec, TrainOptions, ScalingRequest, ModelSplit)
"""Those that go back to a file or a command line; a site file is only read."""
PRINTED = st.characters(min_codepoint=32, max_codepoint=126)


def all_declared(*classes):
    """Classes and those of their nested fields, each once."""
    found = dict.fromkeys(classes)
    for cls in classes:
        found |= dict.fromkeys(all_declared(*(one.of for one in declare.entries(cls) if one.of)))
    return list(found)


FIELDS = [
    pytest.param(cls, entry, id=f"{cls.__name__}.{entry.name}")
    for cls in all_declared(*WRITTEN, Site)
    for entry in declare.entries(cls)
    if entry.key and entry.name not in BY_NAME
]


def alone(cls, name):
    """A class that has this field of another one only."""
    (one,) = [one for one in dataclasses.fields(cls) if one.name == name]
    how = {"default": one.default, "default_factory": one.default_factory}
    field = dataclasses.field(**how, metadata=one.metadata)
    return dataclasses.make_dataclass("One", [(name, Any, field)], frozen=True)


def sound(schema):
    """Written forms that a schema takes."""
    kind, low, high = schema["type"], schema.get("minimum", 0), schema.get("maximum", 10**6)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if kind == "boolean":
        return st.booleans()
    if kind == "integer":
        return st.integers(low, high)
    if kind == "number":
        return st.floats(schema.get("exclusiveMinimum", low) or low, high, exclude_min=True)
    if kind == "array":
        return st.lists(sound(schema["items"]), min_size=schema.get("minItems", 0), max_size=3)
    if schema.get("additionalProperties"):
        names = sound({"type": "string", **schema.get("propertyNames", {})})
        least = schema.get("minProperties", 0)
        values = sound(schema["additionalProperties"])
        return st.dictionaries(names, values, min_size=least, max_size=2)
    if kind == "object":
        parts = {key: sound(part) for key, part in schema["properties"].items()}
        needed = {key: parts.pop(key) for key in schema["required"]}
        return st.fixed_dictionaries(needed, optional=parts)
    pattern = re.compile(schema.get("pattern", ".+").replace("$", r"\Z"), re.ASCII)
    made = st.from_regex(pattern, fullmatch=True, alphabet=PRINTED)
    made = made.filter(lambda text: 0 < len(text) <= schema.get("maxLength", 4096))
    return made | st.sampled_from(schema["examples"]) if "examples" in schema else made


def wrong(schema):
    """Written forms that it does not take."""
    kind = schema["type"]
    if kind in {"integer", "number"}:
        low, high = schema.get("minimum", 0) - 1, schema.get("maximum", 1e300)
        beyond = [low] * ("minimum" in schema) + [int(high) * 2 + 1] * (high < 1e17)
        return [*beyond, "many", "1e", *([1.5] if kind == "integer" else [])]
    if "enum" in schema:
        return ["no such word"]
    odd = ["\n", " ", "-", "a\nb", "\x1b", "$(id)", "é;", "x" * 5000]
    pattern = schema.get("pattern", "").replace("$", r"\Z")
    return [text for text in odd if not re.search(pattern, text, re.ASCII)]


def by_file(one, entry, value):
    text = yaml.safe_dump({entry.key: value}, allow_unicode=True)
    return declare.build(one, declare.read_file(one, parse_document(text, "file")))


def parsed(one, argv):
    parser = argparse.ArgumentParser(exit_on_error=False)
    declare.configure(parser, one)
    return declare.build(one, declare.typed(one, parser.parse_args(argv)))


def by_options(one, entry, value):
    if isinstance(value, dict):
        value = [f"{name}={text}" for name, text in value.items()]
    several = value if isinstance(value, list) else [value]
    argv = [entry.flag] if value is True else [f"{entry.flag}={text}" for text in several]
    return parsed(one, argv)


def outcome(entry, door, *words):
    """The value that a door gives, or its refusal without what it calls the datum."""
    try:
        return getattr(door(*words), entry.name)
    except BadInput as fault:
        text = fault.in_one_line()
        names = (f"'{entry.key}'", entry.flag, entry.name)
        called = next((name for name in names if name and name in text), text)
        return f"refused: {text.partition(called)[2].partition(';')[0]}"


def is_option(entry, value):
    """Whether the command line can say this: lists that are not empty, switches that are on."""
    mapped = isinstance(value, list) and any(isinstance(each, dict) for each in value)
    return (entry.flag or "").startswith("--") and value not in ([], {}, False) and not mapped


@settings(max_examples=6, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(data=st.data())
@pytest.mark.parametrize(("cls", "entry"), FIELDS)
def test_a_field_has_one_meaning_in_a_file_in_options_and_in_python_and_back(cls, entry, data):
    one = alone(cls, entry.name)
    schema = declare.schema_of(one)
    jsonschema.Draft202012Validator.check_schema(schema)
    value = data.draw(sound(schema["properties"][entry.key]))
    found = outcome(entry, by_file, one, entry, value)
    if is_option(entry, value):
        assert outcome(entry, by_options, one, entry, value) == found
    if cls in WRITTEN and not str(found).startswith("refused"):
        record = one(found)
        assert declare.check(record) == record
        written = declare.written(record)
        again = by_file(one, entry, written[entry.key]) if written else one(entry.default)
        assert again == record
        if is_option(entry, value):
            assert parsed(one, declare.to_argv(record)) == record


@pytest.mark.parametrize(("cls", "entry"), FIELDS)
def test_a_value_beyond_a_fields_bounds_is_refused_alike_everywhere(cls, entry):
    one = alone(cls, entry.name)
    for value in wrong(declare.schema_of(one)["properties"][entry.key]):
        found = outcome(entry, by_file, one, entry, value)
        assert str(found).startswith("refused"), value
        if is_option(entry, value):
            assert outcome(entry, by_options, one, entry, value) == found
        if cls in WRITTEN:
            assert str(outcome(entry, declare.check, one(value))).startswith("refused"), value
