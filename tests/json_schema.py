"""The package jsonschema, whose import takes two seconds: not for workers that do not need it."""

from typing import Any


def validate(value: Any, schema: dict[str, Any]) -> None:
    """Refuse a value that is not of a schema."""
    import jsonschema

    jsonschema.validate(value, schema)


def check_schema(schema: dict[str, Any]) -> None:
    """Refuse what is no JSON Schema, 2020-12."""
    import jsonschema

    jsonschema.Draft202012Validator.check_schema(schema)
