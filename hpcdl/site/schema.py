"""The one definition of site.yaml, version 1, as a JSON Schema: hpcdl/facts/site_format.yaml.

The checker reads it, `hpcdl site schema` prints it for editors, and docs/site-file.md is
generated from its descriptions. `expand` is what a schema cannot say of its paths.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl import facts
from hpcdl.system.resources import home

if TYPE_CHECKING:
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


def expand(text: str) -> str:
    """A path of the site file with `~` and the variables that are known here replaced."""
    known = {"HPCDL_HOME": lambda: str(home()), "HOME": lambda: str(Path.home()), "USER": _user}
    text = re.sub(
        r"\$\{([A-Z_]+)\}|\$([A-Z_]+)",
        lambda m: known.get(m.group(1) or m.group(2), m.group)(),
        text,
    )
    if not text.startswith("~"):
        return text
    try:
        return str(Path(text).expanduser())
    except (RuntimeError, ValueError):  # no such user, or no home
        return text


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in a container that does not know the user
        return os.environ.get("USER") or str(os.getuid())
