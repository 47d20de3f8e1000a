"""Checks a site file: first by its schema, then what a schema cannot express.

The schema follows from the fields of `model`: `hpcdl schema site` prints it for editors, and
docs/site-file.md is generated from their help. A GPU model must be known or described; groups
must cover the partition's nodes, and jobs must be able to ask Slurm for each of them alone. It is
apart from `load` because it needs YAML and the schema, and the values of a valid file are cached.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cache, partial
from typing import Any

from hpcdl import facts
from hpcdl.results.gpus import (
    NVIDIA,
    find_row,
    gres_type,
    known_names,
    may_be,
    model_of_type,
    out_of_scope,
)
from hpcdl.site.model import Site
from hpcdl.site.sections import Waiver
from hpcdl.slurm.hostlist import expand_hostlist
from hpcdl.slurm.rules import known_release
from hpcdl.system.declare import build, schema_of
from hpcdl.system.document import Document, Schema, check, parse_bytes, short
from hpcdl.system.errors import BadInput
from hpcdl.system.text import did_you_mean, one_of

_CPU_ONLY = "leave out `gpu`: the partition then serves CPU jobs, as do all others"
_EXAMPLES = {"compute": "compute: '8.9'", "memory_gb": "memory_gb: 48"}
_LAST_OF_NODES = "reference_set"
Where = tuple[str | int, ...]
Values = Mapping[str, Any]


@cache
def site_schema() -> Schema:
    """The JSON Schema of a site file, with the keys of a partition's groups filled in."""
    site = schema_of(
        Site, "A cluster: its Slurm, its paths, its partitions and the stacks it wants.", 1
    )
    keys = site["properties"]["partitions"]["additionalProperties"]["properties"]
    names = list(keys)[: list(keys).index(_LAST_OF_NODES) + 1]
    # No defaults: what a group leaves out is the partition's.
    own = {
        name: {word: value for word, value in keys[name].items() if word != "default"}
        for name in names
    }
    keys["groups"] = {**keys["groups"], "items": {**keys["groups"]["items"], "properties": own}}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {**head, "title": "hpcdl site file, version 1", **site}


def checked(data: bytes, name: str) -> dict[str, Any]:
    """The values of a valid site file, defaults and the facts of its GPUs filled in."""
    document = parse_bytes(data, name, "`hpcdl site init` writes a commented one to start from")
    values = check(document, site_schema())
    if isinstance(values, dict):
        _Meaning(document, values).check()
    document.raise_faults()
    assert isinstance(values, dict)
    own = values["gpus"]
    for partition in values["partitions"].values():
        for nodes in (partition, *partition["groups"]):
            if "gpu" in nodes:
                nodes["gpu"]["row"] = find_row(nodes["gpu"]["model"], own)
    values["gpus"] = {name: find_row(name, own) for name in own}
    return values


class _Meaning:
    """Notes the faults that no schema can state; what the schema faulted already is None."""

    def __init__(self, document: Document, values: Values) -> None:
        self.document, self.values = document, values
        self.own, self.stacks = values.get("gpus") or {}, values.get("stacks") or {}
        self.partitions, self.slurm = values.get("partitions") or {}, values.get("slurm") or {}

    def fault(self, message: str, where: Where, hint: str = "") -> None:
        self.document.fault(message, self.document.find(where), hint)

    def known(self, kind: str, name: str | None, names: Iterable[str], where: Where) -> None:
        if name and name not in names:
            self.fault(f"there is no {kind} '{name}'", where, did_you_mean(name, names))

    def check(self) -> None:
        if ":" in str((self.values.get("paths") or {}).get("prefix") or ""):
            hint = "PATH and MODULEPATH are divided there: choose another directory"
            self.fault("'prefix' has a ':'", ("paths", "prefix"), hint)
        for name, row in self.own.items():
            self.model(("gpus", name), name, row or {})
        for name, part in self.partitions.items():
            self.partition(name, part or {})
        chosen = self.values.get("default_partition")
        self.known("partition", chosen, self.partitions, ("default_partition",))
        for name, stack in self.stacks.items():
            for index, part in enumerate((stack or {}).get("partitions") or []):
                where = ("stacks", name, "partitions", index)
                self.known("partition", part, self.partitions, where)
        for name in self.values.get("agreements") or {}:
            known = facts.load("records")["agreements"]
            self.known("agreement", name, known, ("agreements", name))
        for name, row in (self.values.get("waivers") or {}).items():
            build(Waiver, row or {}, partial(self.unread, ("waivers", name)))
        try:
            known_release(self.slurm.get("version") or "")
        except BadInput as fault:
            if self.slurm.get("version"):
                self.fault(fault.message, ("slurm", "version"), fault.hint)

    def unread(self, above: Where, path: Where, fault: BadInput) -> None:
        """A value that is no day, or no word of the facts."""
        self.fault(f"'{path[-1]}' {fault.message}", (*above, *path), fault.hint)

    def model(self, where: Where, name: str, row: Values) -> None:
        """A model of the site's own."""
        if foreign := out_of_scope(name, row.get("vendor") or NVIDIA):
            self.fault(foreign, where, _CPU_ONLY)
            return
        self.one_card(name, where)
        known, compute = facts.load("gpus")["capabilities"]["known"], row.get("compute")
        if compute and compute not in known:
            message = f"there is no compute capability {short(compute)}"
            self.fault(message, (*where, "compute"), f"CUDA has {', '.join(known)}")
        whole = find_row(name, self.own) or {}
        for key, example in _EXAMPLES.items():
            if whole.get(key) is None and key not in row:
                message = f"'{short(name)}' lacks '{key}': hpcdl's facts do not know this model"
                self.fault(message, where, f"give its {key}, for example {example}")

    def partition(self, name: str, part: Values) -> None:
        where: Where = ("partitions", name)
        stack = part.get("stack")
        self.known("stack", stack, self.stacks, (*where, "stack"))
        served = (self.stacks.get(stack) or {}).get("partitions")
        if served and name not in served:
            message = f"the stack '{stack}' does not serve '{name}': its 'partitions' leave it out"
            self.fault(message, (*where, "stack"), "add it there, or take the key out here")
        self.nodes(where, part)
        groups = [group or {} for group in part.get("groups") or []]
        for index, group in enumerate(groups):
            self.nodes((*where, "groups", index), group)
        if groups and part.get("gpu"):
            message = "with 'groups', each group says what GPUs it has"
            self.fault(message, (*where, "gpu"), "move `gpu` into the groups that have these")
        if groups and all(group.get("nodes") is not None for group in groups):
            self.groups(name, part, groups)

    def nodes(self, where: Where, nodes: Values) -> None:
        """Equal nodes: their GPU model, and their names."""
        model = (nodes.get("gpu") or {}).get("model")
        place = (*where, "gpu", "model")
        if model and (foreign := out_of_scope(model)):
            self.fault(foreign, place, _CPU_ONLY)
        elif model and find_row(model, self.own) is None:
            meant, shown = model_of_type(model), short(model)
            close = did_you_mean(meant or model, known_names(self.own)).rstrip(";.")
            end = "" if close.endswith("?") else "."
            row = f"`gpus: {{{shown}: {{compute: 'X.Y', memory_gb: N}}}}`"
            self.fault(f"unknown GPU model '{shown}'", place, f"{close}{end} Or describe it: {row}")
        else:
            self.one_card(model, place)
        self.cpus(where, nodes)
        if not nodes.get("hostlist"):
            return
        try:
            count, declared = len(set(expand_hostlist(nodes["hostlist"]))), nodes.get("nodes")
        except BadInput as fault:
            self.fault(fault.message, (*where, "hostlist"), fault.hint)
            return
        if declared is not None and count != declared:
            wrong = f"'hostlist' names {count} nodes, but 'nodes' is {declared}"
            self.fault(wrong, (*where, "hostlist"))

    def one_card(self, model: str | None, where: Where) -> None:
        """A name of several cards: their speed and memory differ."""
        if cards := may_be(model):
            hint = "write the one that these nodes have: `nvidia-smi -L` there names it"
            self.fault(f"the GPU model '{model}' may be {one_of(cards)}", where, hint)

    def cpus(self, where: Where, nodes: Values) -> None:
        """More usable CPUs than there are."""
        sizes = ("sockets", "cores_per_socket", "threads_per_core")
        there = math.prod(int(nodes.get(key) or 0) for key in sizes)
        if there and (nodes.get("usable_cpus") or 0) > there:
            message = f"'usable_cpus' is more than the {there} CPUs of a node"
            self.fault(
                message, (*where, "usable_cpus"), "leave it out where jobs may have them all"
            )

    def groups(self, name: str, part: Values, groups: list[Values]) -> None:
        """Groups that do not make up their partition, or that no job could ask for."""
        where: Where = ("partitions", name, "groups")
        lists = [_names(group) for group in groups]
        whole, own = _names(part), set().union(*lists)
        total = len(own) if all(lists) else sum(group["nodes"] for group in groups)
        if part.get("nodes") is not None and total != part["nodes"]:
            message = f"the groups have {total} nodes, but 'nodes' of '{name}' is {part['nodes']}"
            self.fault(message, where)
        elif whole and own and not own <= whole:
            strange = ", ".join(sorted(own - whole)[:3])
            self.fault(f"'hostlist' of '{name}' does not name {strange}", where)
        if not any(group.get("gpu") for group in groups):
            hint = "groups are for nodes of different GPUs; leave them out"
            self.fault("none of the groups has GPUs", where, hint)
        for index, group in enumerate(groups):
            others = [other for other in groups if other is not group]
            if group.get("gpu") and not self.tellable(name, group, others):
                message = "Slurm cannot distinguish these nodes from the partition's others"
                hint = "give them a gres_type, a feature or a hostlist of their own"
                self.fault(message, (*where, index), hint)

    def tellable(self, name: str, group: Values, others: list[Values]) -> bool:
        """Whether a job can ask for this group alone: by type, by a feature, or by names."""
        kind = gres_type(name, group["gpu"], self.slurm)
        kinds = {gres_type(name, one["gpu"], self.slurm) for one in others if one.get("gpu")}
        elsewhere = {feature for one in others for feature in one.get("features") or ()}
        lists = [_names(one) for one in others]
        apart = all(lists) and not set().union(*lists) & _names(group)
        return bool(
            (kind and kind not in kinds) or {*(group.get("features") or ())} - elsewhere or apart
        )


def _names(nodes: Values) -> set[str]:
    """The nodes that a host list names; none where there is none, or a wrong one."""
    try:
        return set(expand_hostlist(nodes.get("hostlist") or ""))
    except BadInput:
        return set()
