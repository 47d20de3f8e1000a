"""The format of a study's file, version 1, as a JSON Schema for editors and load.py.

What differs between two sizes of a study (embedded cluster, the original's) is a scale; what
differs between the jobs of a scale is the matrix `over` of one of its runs.
"""

from __future__ import annotations

from typing import Any

from hpcdl.slurm.execution import CLUSTER, PROFILES
from hpcdl.system.schema import Schema
from hpcdl.workflows.study.model import PARTS

VERSION = 1
NAME = r"^[a-z][a-z0-9-]{0,40}$"
SCALES = ("small", "full")
RULES = (
    "complete", "agree", "efficiency", "faster", "one-rank-per-gpu", "model", "metric",
    "linear", "input-share", "share",
)  # fmt: skip
PANELS = ("rate", "speedup", "efficiency", "phases", "shares", "time-by-size", "timeline")
MOST_PANELS = 8
_MOST = 1_000_000


def _text(description: str, **more: Any) -> Schema:
    return {"type": "string", "description": description, **more}


def _number(description: str, **more: Any) -> Schema:
    return {"type": "number", "description": description, "minimum": 0, "maximum": 1e12, **more}


def _texts(description: str, **more: Any) -> Schema:
    items = {"type": "string", "pattern": more.pop("pattern", r"^[^\x00]{1,200}$")}
    return {"type": "array", "description": description, "items": items, **more}


def _map(description: str, value: Schema, **more: Any) -> Schema:
    return {
        "type": "object", "description": description, "additionalProperties": value,
        "propertyNames": {"pattern": r"^[a-z][a-z0-9_-]{0,40}$"}, **more,
    }  # fmt: skip


def _object(description: str, properties: Schema, *required: str, **more: Any) -> Schema:
    return {
        "type": "object", "description": description, "additionalProperties": False,
        "required": list(required), "properties": properties, **more,
    }  # fmt: skip


_VALUE = _text("A value, as the program takes it.")
_COUNTS: Schema = {
    "type": "array",
    "description": "Numbers of GPUs.",
    "items": {"type": "integer", "minimum": 1, "maximum": _MOST},
}
_WHERE = _map("Only cells with these values of the matrix.", _VALUE, default={})

RULE = _object(
    "An acceptance rule.",
    {
        "rule": _text("Which kind.", enum=list(RULES)),
        "says": _text("What it means, in a sentence."),
        "where": _WHERE,
        "over": _text("The key of the matrix whose values are compared.", default=""),
        "better": _text("With `faster`: the value that must win.", default=""),
        "worse": _text("With `faster`: the value that must lose.", default=""),
        "gpus": {**_COUNTS, "default": [], "description": "Only cells with so many GPUs."},
        "metric": _text("With `metric`: its name in result.json.", default=""),
        "part": _text("With `share`: the part of a step.", enum=list(PARTS), default=""),
        "at_least": _number("The least that passes.", default=None),
        "at_most": _number("The most that passes.", default=None),
    },
    "rule", "says",
)  # fmt: skip

DATA = _object(
    "A data set: made by `hpcdl data make`, or given below the site's directory of data sets.",
    {
        "kind": _text("Who makes it.", enum=["digits", "photos", "given"]),
        "path": _text("With `given`: its directory, below the site's data sets.", default=""),
        "options": _map("Options of `hpcdl data make`.", _VALUE, default={}),
        "gigabytes": _number("Its size, where it is given and not looked at.", default=None),
        "images": _number("Its images, where it is given and not looked at.", default=None),
    },
    "kind",
)

READS = _object(
    "How the data set is read: slower than the storage could, or never from memory.",
    {
        "megabytes_per_second": _number("For all ranks of a job; 0 for no limit.", default=0),
        "cached": {"type": "boolean", "description": "Whether pages stay in memory.",
                   "default": True},
    },
)  # fmt: skip

RUN = _object(
    "Jobs that differ in the values of a matrix only.",
    {
        "name": _text("What reports call it.", pattern=NAME),
        "repeats": {"type": "integer", "description": "How often every job runs, in rounds.",
                    "minimum": 1, "maximum": 20, "default": 1},
        "repeat_up_to": {"type": "integer", "description": "Jobs of more GPUs run once only.",
                         "minimum": 1, "maximum": 65536, "default": None},
        "over": _map("The matrix: a list of values for each key.", _texts("Values.", minItems=1)),
        "exclude": {
            "type": "array", "description": "Combinations to leave out.", "default": [],
            "items": _map("Values that together are left out.", _VALUE),
        },
        "options": _map("Options of `hpcdl train`, the same for all.", _VALUE, default={}),
        "data": _text("The data set of all; `synthetic` for none.", default="synthetic"),
        "cpus_per_rank": {"type": "integer", "description": "CPUs of a rank.", "minimum": 1,
                          "maximum": 4096, "default": None},
        "minutes": {"type": "integer", "description": "Walltime of a job.", "minimum": 1,
                    "maximum": 100_000, "default": 60},
        "reads": {**READS, "default": None},
        "predict": {**_COUNTS, "default": [],
                    "description": "Numbers of GPUs that are predicted, not measured."},
    },
    "name", "over",
)  # fmt: skip

SCALE = _object(
    "One size of the study.",
    {
        "shows": _text("What this size can show and what it cannot."),
        "takes": _text("How long it took, where and when.", default=""),
        "in_turn": {"type": "boolean", "description": "Whether only one job runs at a time.",
                    "default": False},
        "execution": {"type": "string", "enum": list(PROFILES), "default": CLUSTER.name,
                      "description": "Where it runs: on a `cluster`, or on a `single-node` "
                                     "emulation, where all ranks share the cores of one machine."},
        "exchange_from": {
            **_WHERE, "default": None,
            "description": "On a single node: the cells that show predictions what exchanging "
                           "gradients costs; they are not compared.",
        },
        "memory_gigabytes": _number("Memory that holds data, if not a node's.", default=None),
        "data": _map("Data sets, by name.", DATA, default={}),
        "runs": {"type": "array", "description": "What is run.", "items": RUN, "minItems": 1},
        "acceptance": {"type": "array", "description": "What must hold.", "items": RULE,
                       "minItems": 1},
    },
    "shows", "runs", "acceptance",
)  # fmt: skip

POINT = _object(
    "A published number.",
    {
        "gpus": {"type": "integer", "description": "GPUs.", "minimum": 1, "maximum": _MOST},
        "images_per_second": _number("Of all GPUs.", default=None),
        "speedup": _number("Over one GPU.", default=None),
    },
    "gpus",
)

PUBLISHED = _object(
    "Published numbers of one source, set beside ours.",
    {
        "label": _text("What the figure calls them."),
        "source": _text("Who published them, where.", default=""),
        "rows": {**_texts("Ids of rows of facts/throughput.csv."), "default": []},
        "points": {"type": "array", "description": "Numbers that are no rows there.",
                   "items": POINT, "default": []},
        "where": _WHERE,
    },
    "label",
)  # fmt: skip

PANEL = _object(
    "One part of the figure.",
    {
        "panel": _text("Which kind.", enum=list(PANELS)),
        "where": _WHERE,
        "title": _text("Above it.", default=""),
    },
    "panel",
)

STUDY: Schema = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "hpcdl study, version 1",
    **_object(
        "A published question, asked again.",
        {
            "schema": {"type": "integer", "description": "Version of this format.", "minimum": 1,
                       "maximum": VERSION, "examples": [VERSION]},
            "name": _text("The study's name.", pattern=NAME),
            "title": _text("A headline."),
            "question": _text("What is asked."),
            "origin": _text("Who asked it first, and where."),
            "found": _text("What they found."),
            "series": _texts("Keys of the matrix that distinguish the lines of the figure."),
            "figure": {"type": "array", "description": "Its panels.", "items": PANEL,
                       "minItems": 1, "maxItems": MOST_PANELS},
            "published": {"type": "array", "description": "Numbers to set beside ours.",
                          "items": PUBLISHED, "default": []},
            "scales": _object("The sizes.", dict.fromkeys(SCALES, SCALE), *SCALES),
        },
        "schema", "name", "title", "question", "origin", "found", "series", "figure", "scales",
    ),
}  # fmt: skip
