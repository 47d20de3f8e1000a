"""Parts of a JSON Schema, each with its description: what job.yaml is made of."""

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
