"""What is wrong with the GPUs and the groups of nodes of a site file, as no schema can say it.

A model must be known or described; groups must cover the partition's nodes, and jobs must be able
to ask Slurm for each of them alone: by the type of its GPUs, a feature, or its nodes' names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpcdl import facts
from hpcdl.site.gpu_models import NVIDIA, find_row, gres_type, known_names, out_of_scope
from hpcdl.slurm.hostlist import expand_hostlist
from hpcdl.system.document import Document, Node
from hpcdl.system.errors import BadInput
from hpcdl.system.schema import short
from hpcdl.system.text import did_you_mean, one_of

Where = tuple[str | int, ...]
Values = Mapping[str, Any]
CPU_ONLY = "leave out `gpu`: the partition then serves CPU jobs, as do all others"


def check_models(document: Document, own: Values) -> None:
    """Fault models of the site's own that nothing can be done with."""
    for name, row in own.items():
        _check_model(document, ("gpus", name), name, row or {}, own)


def _check_model(document: Document, where: Where, name: str, row: Values, own: Values) -> None:
    foreign = out_of_scope(name, row.get("vendor") or NVIDIA)
    if foreign:
        document.fault(foreign, document.find(where), CPU_ONLY)
        return
    known = facts.load("gpus")["capabilities"]["known"]
    compute = row.get("compute")
    if compute and compute not in known:
        document.fault(
            f"there is no compute capability {short(compute)}",
            document.find((*where, "compute")),
            f"CUDA has {', '.join(known)}",
        )
    whole = find_row(name, own) or {}
    for key in ("compute", "memory_gb"):
        if whole.get(key) is None and key not in row:
            document.fault(
                f"'{short(name)}' lacks '{key}': hpcdl's facts do not know this model",
                document.find(where),
                f"give its {key}, for example "
                + ("compute: '8.9'" if key == "compute" else "memory_gb: 48"),
            )


def check_gpus(document: Document, where: Where, partition: Values, own: Values) -> None:
    """Fault GPU models of a partition and its groups that nobody knows, and host lists."""
    groups = partition.get("groups") or []
    _check_nodes(document, where, partition, own)
    for index, group in enumerate(groups):
        _check_nodes(document, (*where, "groups", index), group or {}, own)
    if groups and partition.get("gpu"):
        document.fault(
            "with 'groups', each group says what GPUs it has",
            document.find((*where, "gpu")),
            "move `gpu` into the groups that have these",
        )


def _check_nodes(document: Document, where: Where, nodes: Values, own: Values) -> None:
    model = (nodes.get("gpu") or {}).get("model")
    place = (*where, "gpu", "model")
    if model and out_of_scope(model):
        document.fault(out_of_scope(model), document.find(place), CPU_ONLY)
    elif model and find_row(model, own) is None:
        close = did_you_mean(model, known_names(own)).rstrip(";.")
        document.fault(
            f"unknown GPU model '{short(model)}'",
            document.find(place),
            f"{close} Or describe it: `gpus: {{{short(model)}: {{compute: 'X.Y', memory_gb: N}}}}`",
        )
    if nodes.get("hostlist"):
        _check_hostlist(document, document.find((*where, "hostlist")), nodes)


def _check_hostlist(document: Document, node: Node, nodes: Values) -> None:
    try:
        count = len(set(expand_hostlist(nodes["hostlist"])))
    except BadInput as fault:
        document.fault(fault.message, node, fault.hint)
        return
    said = nodes.get("nodes")
    if said is not None and count != said:
        document.fault(f"'hostlist' names {count} nodes, but 'nodes' is {said}", node)


def check_groups(document: Document, name: str, partition: Values, slurm: Values) -> None:
    """Fault groups that do not make up their partition, or that no job could ask for."""
    groups = [group or {} for group in partition.get("groups") or []]
    if not groups or any(group.get("nodes") is None for group in groups):
        return
    where: Where = ("partitions", name, "groups")
    lists = [_names(group) for group in groups]
    whole, own = _names(partition), set().union(*lists)
    total = len(own) if all(lists) else sum(group["nodes"] for group in groups)
    if partition.get("nodes") is not None and total != partition["nodes"]:
        document.fault(
            f"the groups have {total} nodes, but 'nodes' of '{name}' is {partition['nodes']}",
            document.find(where),
        )
    elif whole and own and not own <= whole:
        strange = ", ".join(sorted(own - whole)[:3])
        document.fault(f"'hostlist' of '{name}' does not name {strange}", document.find(where))
    if not any(group.get("gpu") for group in groups):
        document.fault(
            "none of the groups has GPUs",
            document.find(where),
            "groups are for nodes of different GPUs; leave them out",
        )
    for index, group in enumerate(groups):
        others = [(other, names) for place, (other, names) in
                  enumerate(zip(groups, lists, strict=True)) if place != index]  # fmt: skip
        if group.get("gpu") and not _tellable(name, group, others, slurm):
            document.fault(
                "Slurm cannot tell these nodes from the partition's others",
                document.find((*where, index)),
                f"give them {one_of(['a gres_type', 'a feature', 'a hostlist'])} of their own",
            )


def _tellable(
    name: str, group: Values, others: Sequence[tuple[Values, set[str]]], slurm: Values
) -> bool:
    """Whether a job can ask for this group alone."""
    kind = gres_type(name, group["gpu"], slurm)
    kinds = {gres_type(name, other["gpu"], slurm) for other, _ in others if other.get("gpu")}
    elsewhere = {feature for other, _ in others for feature in other.get("features") or ()}
    own = set(group.get("features") or ())
    apart = all(names for _, names in others) and not any(
        names & _names(group) for _, names in others
    )
    return bool((kind and kind not in kinds) or own - elsewhere or apart)


def _names(nodes: Values) -> set[str]:
    """The nodes that a host list names; none where there is none, or a wrong one."""
    try:
        return set(expand_hostlist(nodes["hostlist"])) if nodes.get("hostlist") else set()
    except BadInput:
        return set()
