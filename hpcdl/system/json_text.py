"""Values as JSON text, for files and for `--json`."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import isfinite
from typing import Any


def as_json(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """A value as JSON, indented; `default` is what stands for what JSON does not know."""
    how: dict[str, Any] = {"indent": 2, "ensure_ascii": False, "default": default}
    try:
        return json.dumps(value, allow_nan=False, **how)
    except ValueError:
        return json.dumps(_finite(value), **how)


def _finite(value: Any) -> Any:
    """The same without NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value
