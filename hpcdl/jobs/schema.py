"""job.yaml, version 1: a job's request as a file, the one definition in facts/job_format.yaml.

The keys are the options of `hpcdl job submit`; options on the command line go before them.
`hpcdl job schema` prints the schema for editors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.system.document import read_document
from hpcdl.system.schema import Schema, check


def job_schema() -> Schema:
    """The format of a job file, as a JSON Schema."""
    schema: Schema = facts.load("job_format")["job"]
    return schema


def load_request(path: Path) -> dict[str, Any]:
    """The values of a job file, defaults filled in.

    Raises:
        BadInput: every fault of the file at once, each with its line and a caret.
    """
    keys = "write `schema: 1` and options of `hpcdl job submit`; `hpcdl job schema` has all keys"
    document = read_document(path, if_empty=keys)
    values = check(document, job_schema())
    document.raise_faults()
    assert isinstance(values, dict)
    return values
