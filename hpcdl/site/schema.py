"""The one definition of site.yaml, version 1, as a JSON Schema: hpcdl/facts/site_format.yaml.

The checker reads it, `hpcdl site schema` prints it for editors, and docs/site-file.md is
generated from its descriptions.
"""

from __future__ import annotations

from functools import cache

from hpcdl import facts
from hpcdl.system.schema import Schema

_LAST_OF_NODES = "reference_set"


@cache
def site_schema() -> Schema:
    """The schema, with the keys of a partition's groups filled in."""
    site: Schema = facts.load("site_format")["site"]
    keys = site["properties"]["partitions"]["additionalProperties"]["properties"]
    names = list(keys)[: list(keys).index(_LAST_OF_NODES) + 1]
    # No defaults: what a group leaves out is the partition's.
    keys["groups"]["items"]["properties"] = {
        name: {word: value for word, value in keys[name].items() if word != "default"}
        for name in names
    }
    return site


def cleaned() -> tuple[str, ...]:
    """The kinds of what `hpcdl clean` removes."""
    return tuple(facts.load("site_format")["cleaned"])
