"""job.yaml, version 1: a job's request as a file, the one definition as a JSON Schema.

The keys are the options of `hpcdl job submit`; options on the command line go before them.
`hpcdl job schema` prints the schema for editors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcdl.jobs.spec import LAUNCHERS
from hpcdl.system.document import read_document
from hpcdl.system.schema import Schema, check
from hpcdl.system.schema_parts import ENVIRONMENT, NAME, count, text

VERSION = 1
_MOST = 1_000_000


def _number(description: str, **more: object) -> Schema:
    return count(description, 1, _MOST, **more)


JOB: Schema = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "hpcdl job file, version 1",
    "type": "object",
    "description": "A job: what `hpcdl job submit` takes as options, as a file.",
    "required": ["schema"],
    "additionalProperties": False,
    "properties": {
        "schema": _number("Version of this format.", maximum=VERSION, examples=[VERSION]),
        "partition": text("The partition; the site's default where none is named.", pattern=NAME),
        "gpus": _number("GPUs in all, one rank each.", examples=[16]),
        "gpu_model": text(
            "The GPU model, where a partition has several.", pattern=NAME, examples=["L40S"]
        ),
        "nodes": _number("Nodes."),
        "gpus_per_node": _number("GPUs on each node."),
        "tasks": _number("Processes in all, on a partition without GPUs."),
        "tasks_per_node": _number("Ranks on each node, on a partition without GPUs."),
        "cpus_per_task": _number("CPUs of a rank; its share of the node by default."),
        "mem": text("Memory of each node; its share by default.", examples=["64G"]),
        "mem_per_cpu": text("The same, per CPU."),
        "mem_per_gpu": text("The same, per GPU."),
        "time": text("Walltime, as for sbatch; an hour by default.", examples=["2:00:00"]),
        "name": text("The job's name.", pattern=NAME),
        "launcher": text("How ranks start and find each other.", enum=list(LAUNCHERS)),
        "trusted_network": {
            "type": "boolean",
            "description": "Whether all who reach the nodes' ports may run code as you; "
            "`multiworker` needs it.",
            "default": False,
        },
        "modules": {
            "type": "array",
            "description": "Modules to load instead of the release's; an empty list loads none.",
            "items": {"type": "string", "pattern": r"^[A-Za-z0-9_][^\s]{0,200}$"},
        },
        "env": {**ENVIRONMENT, "description": "Variables of the job, by name."},
        "account": text("Account to charge.", pattern=NAME),
        "qos": text("Quality of service.", pattern=NAME),
        "reservation": text("Reservation to run in.", pattern=NAME),
        "licenses": text("Licences that the job needs.", examples=["matlab:2"]),
        "sbatch": {
            "type": "array",
            "description": "Further options of sbatch.",
            "items": {"type": "string", "maxLength": 10_000},
            "examples": ["[mail-type=END, mail-user=me]"],
        },
        "data": text("Data set; the job sees it as HPCDL_DATA."),
        "stage_data": {
            "type": "boolean",
            "description": "Whether it is copied to the nodes' own disks first.",
            "default": False,
        },
        "container": text(
            "Image to run the program in, where the site declares a container runtime.",
            examples=["/images/tensorflow.sif"],
        ),
        "chdir": text("Where the program works; the job's own directory by default."),
        "preflight": {
            "type": "boolean",
            "description": "Whether the allocation is checked before the ranks start.",
            "default": True,
        },
        "job_dir": text("Directory of the job's files; one below the site's work by default."),
        "program": {
            "type": "array",
            "description": "The program and its arguments; `hpcdl train` by default.",
            "items": {"type": "string", "maxLength": 100_000},
            "minItems": 1,
            "examples": ["[python, train.py, --lr, '0.1']"],
        },
    },
}


def load_request(path: Path) -> dict[str, Any]:
    """The values of a job file, defaults filled in.

    Raises:
        BadInput: every fault of the file at once, each with its line and a caret.
    """
    keys = "write `schema: 1` and options of `hpcdl job submit`; `hpcdl job schema` has all keys"
    document = read_document(path, if_empty=keys)
    values = check(document, JOB)
    document.raise_faults()
    assert isinstance(values, dict)
    return values
