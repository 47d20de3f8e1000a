"""Parts of a JSON Schema, each with its description: what site.yaml and job.yaml are made of."""

from __future__ import annotations

from hpcdl.system.schema import Schema

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
ENVIRONMENT: Schema = {
    "type": "object",
    "description": "Variables that every job here gets, by name.",
    "propertyNames": {"pattern": r"^[A-Za-z_][A-Za-z0-9_]{0,100}$"},
    "additionalProperties": {"type": "string", "pattern": r"^[^\x00-\x1f]{0,1000}$"},
    "default": {},
    "examples": ["{NCCL_IB_HCA: mlx5}"],
}


def text(description: str, **more: object) -> Schema:
    """A string."""
    return {"type": "string", "description": description, **more}


def count(description: str, low: int, high: int, **more: object) -> Schema:
    """A whole number between two."""
    return {"type": "integer", "description": description, "minimum": low, "maximum": high, **more}


def size(description: str, low: float, high: float, **more: object) -> Schema:
    """A number between two."""
    return {"type": "number", "description": description, "minimum": low, "maximum": high, **more}


def record(description: str, required: list[str], properties: dict[str, Schema]) -> Schema:
    """A mapping with these keys and no others."""
    return {
        "type": "object",
        "description": description,
        "required": required,
        "additionalProperties": False,
        "properties": properties,
    }


def named(description: str, value: Schema, **more: object) -> Schema:
    """A mapping of names to values of one kind; empty by default."""
    return {
        "type": "object",
        "description": description,
        "propertyNames": {"pattern": NAME},
        "additionalProperties": value,
        **(more or {"default": {}}),
    }
