"""Checks against the cluster: what a script names that it has not."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpcdl.jobs.lint.checks import checks
from hpcdl.jobs.lint.cluster import Names
from hpcdl.jobs.lint.gaps import GAP
from hpcdl.jobs.lint.job import Hit, Job, at, gpu_requests
from hpcdl.jobs.lint.options import Option
from hpcdl.system.text import nearest

_FEATURE = re.compile(r"[^&|,()\[\]!*\s]+(?=$|[&|,()\[\]!*\s])")
_COUNT = re.compile(r"\*\d+")
_PER_TASK = ("gpus-per-task", "gpus-per-socket", "cpus-per-gpu", "mem-per-gpu")


def _literal(option: Option) -> bool:
    return bool(option.text) and "$" not in option.text and not GAP.search(option.text)


@checks("partition-unknown", "account-unknown", "qos-unknown", "feature-unknown")
def names_of_the_cluster(job: Job) -> Iterator[Hit]:
    """Partitions, accounts, QOS and features that the cluster has not."""
    cluster = job.cluster
    listed: tuple[tuple[str, str, Names], ...] = (
        ("partition-unknown", "partition", cluster.partitions),
        ("account-unknown", "account", cluster.accounts),
        ("qos-unknown", "qos", cluster.qos),
        ("feature-unknown", "constraint", cluster.features),
    )
    for _, options in job.commands_at():
        for rule, name, known in listed:
            option = options.last(name)
            if option is None or known is None or not _literal(option):
                continue
            feature = name == "constraint"
            text = _COUNT.sub("", option.text) if feature else option.text
            names = _FEATURE.findall(text) if feature else text.split(",")
            yield from _unknown(job, rule, option, names, known)


@checks("gres-unknown")
def gres_of_the_cluster(job: Job) -> Iterator[Hit]:
    """GPUs of types, and other GRES, that no node has."""
    cluster = job.cluster
    for _, options in job.commands_at():
        for request in gpu_requests(options):
            if cluster.gpu_types is not None and request.kind and _literal(request.option):
                kinds = [request.kind]
                yield from _unknown(job, "gres-unknown", request.option, kinds, cluster.gpu_types)
        option = options.last("gres")
        if option is not None and cluster.gres is not None and _literal(option):
            parts = [part.removeprefix("gres:") for part in option.text.lower().split(",")]
            names = [re.split("[:=]", part)[0] for part in parts]
            known = cluster.gres | {"none", "gres"}
            yield from _unknown(job, "gres-unknown", option, names, known)


def _unknown(
    job: Job, rule: str, option: Option, names: list[str], known: frozenset[str]
) -> Iterator[Hit]:
    for name in filter(None, map(str.strip, names)):
        if name not in known:
            close = nearest(name, known)
            there = f"{job.cluster.where} has {', '.join(sorted(known)[:8]) or 'none'}"
            guess = f"did you mean '{close}'?" if close else there
            yield at(rule, option, f"'{name[:60]}'; {guess}")


@checks("linear-per-task-gres")
def whole_nodes_only(job: Job) -> Iterator[Hit]:
    """GPUs per task, where nodes are given out whole."""
    if not job.cluster.sets("SelectType", "linear"):
        return
    for _, options in job.commands_at():
        option = options.last(*_PER_TASK)
        if option is not None:
            yield at("linear-per-task-gres", option)
