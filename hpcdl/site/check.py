"""What is wrong with a site file: first the schema, then what a schema cannot say.

`checked` gives the file's values, defaults and the facts of its GPUs filled in, or one error
with every fault. It is apart from `load` because it needs YAML and the schema, and the values
of a valid file are cached.
"""

from __future__ import annotations

from typing import Any

from hpcdl.site.check_nodes import check_gpus, check_groups, check_models
from hpcdl.site.gpu_models import find_row
from hpcdl.site.paths import expand
from hpcdl.site.schema import cleaned, site_schema
from hpcdl.slurm.time_limit import slurm_minutes
from hpcdl.system.document import Document, Mapping, Node, parse_bytes
from hpcdl.system.errors import BadInput
from hpcdl.system.schema import check
from hpcdl.system.text import did_you_mean

_TAKEN = frozenset({"store", "buildcache", "keys", "downloads"})
"""What all stacks share below PREFIX/spack, where each has a directory of its own name."""


def checked(data: bytes, name: str) -> dict[str, Any]:
    """The values of a valid site file.

    Raises:
        BadInput: every fault of the file at once, each with its line and a caret.
    """
    document = parse_bytes(data, name, "`hpcdl site init` writes a commented one to start from")
    values = check(document, site_schema())
    if isinstance(values, dict):
        _check_meaning(document, values)
    document.raise_faults()
    assert isinstance(values, dict)
    own = values["gpus"]
    for partition in values["partitions"].values():
        for nodes in (partition, *partition["groups"]):
            if "gpu" in nodes:
                nodes["gpu"]["row"] = find_row(nodes["gpu"]["model"], own)
    values["gpus"] = {name: find_row(name, own) for name in own}
    return values


def _check_meaning(document: Document, values: dict[str, Any]) -> None:
    """Faults that no schema can state: names that must exist elsewhere."""
    partitions, own = values.get("partitions") or {}, values.get("gpus") or {}
    check_models(document, own)
    for name, partition in partitions.items():
        _check_partition(document, name, partition or {}, values.get("stacks") or {})
        check_gpus(document, ("partitions", name), partition or {}, own)
        check_groups(document, name, partition or {}, values.get("slurm") or {})
    chosen = values.get("default_partition")
    if chosen and chosen not in partitions:
        _unknown(document, ("default_partition",), "partition", chosen, partitions)
    for name, stack in (values.get("stacks") or {}).items():
        if name in _TAKEN:
            taken = f"'{name}' is no name for a stack: PREFIX/spack has a directory of that name"
            other = f"choose another, such as {name}-1"
            document.fault(taken, document.find(("stacks", name)), other)
        for index, partition in enumerate((stack or {}).get("partitions") or []):
            if partition and partition not in partitions:
                where = ("stacks", name, "partitions", index)
                _unknown(document, where, "partition", partition, partitions)
    for kind in set(values.get("clean") or {}).difference(cleaned()):
        _unknown(document, ("clean", kind), "kind", kind, cleaned())
    _check_release(document, (values.get("slurm") or {}).get("version"))
    _check_paths(document, values.get("paths") or {})


def _check_partition(
    document: Document, name: str, partition: dict[str, Any], stacks: dict[str, Any]
) -> None:
    def place(*keys: str) -> Node:
        return document.find(("partitions", name, *keys))

    stack = partition.get("stack")
    if stack and stack not in stacks:
        _unknown(document, ("partitions", name, "stack"), "stack", stack, stacks)
    served = (stacks.get(stack) or {}).get("partitions") if stack else None
    if served and name not in served:
        said = f"the stack '{stack}' does not serve '{name}': its 'partitions' leave it out"
        document.fault(said, place("stack"), "add it there, or take the key out here")
    if partition.get("max_time") and slurm_minutes(partition["max_time"]) < 1:
        document.fault("'max_time' leaves no time for a job", place("max_time"))
    scratch = (partition.get("scratch") or {}).get("path")
    if scratch and (not scratch.startswith(("/", "$")) or not scratch.isprintable()):
        document.fault(
            "'path' of 'scratch' is not an absolute path",
            place("scratch", "path"),
            "start it with / or a variable of the job, such as $TMPDIR",
        )


def _check_release(document: Document, version: str | None) -> None:
    """Fault a release of Slurm that is none, or older than what scripts are written for."""
    from hpcdl.slurm.rules import known_release

    try:
        known_release(version or "")
    except BadInput as fault:
        if version:
            document.fault(fault.message, document.find(("slurm", "version")), fault.hint)


def _unknown(
    document: Document, where: tuple[str | int, ...], kind: str, name: str, known: Any
) -> None:
    document.fault(f"there is no {kind} '{name}'", document.find(where), did_you_mean(name, known))


def _check_paths(document: Document, paths: dict[str, Any]) -> None:
    for key in ("prefix", "work", "datasets", "lmod_init"):
        text = paths.get(key)
        if not text or not isinstance(document.find(("paths",)), Mapping):
            continue
        node = document.find(("paths", key))
        expanded = expand(text)
        if "$" in expanded:
            document.fault(f"'{key}' names a variable that is not replaced here", node,
                           "use ~, $HOME, $USER or $HPCDL_HOME")  # fmt: skip
        elif not expanded.startswith("/"):
            document.fault(f"'{key}' is not an absolute path", node, "start it with / or ~")
        elif any(ord(character) < 32 for character in expanded):
            document.fault(f"'{key}' has a control character in it", node)
