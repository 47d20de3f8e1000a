"""Checks of what options are given: values that sbatch refuses or the cluster has not, units."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from hpcdl.facts import load
from hpcdl.jobs.lint.gaps import GAP
from hpcdl.jobs.lint.job import Hit, Job, Names, at, checks
from hpcdl.jobs.lint.options import Option
from hpcdl.slurm.rules import Release, Span, span
from hpcdl.system.text import nearest

_EXPANDS = re.compile(r"[$`]")
_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})\Z", re.A)
_HOURS = {24, 48, 72, 96}
"""Numbers of minutes that hours were meant by."""
_MEANT_GB = frozenset((*range(1, 65), 96, 128))
"""Numbers of megabytes by which gigabytes were meant; 100 and 250 are those of small examples."""
_FEATURE = re.compile(r"[^&|,()\[\]!*\s]+(?=$|[&|,()\[\]!*\s])")
_COUNT = re.compile(r"\*\d+")


@checks("option-value")
def refused_values(job: Job) -> Iterator[Hit]:
    """Values that are not written as sbatch reads them."""
    for option in job.options.given:
        expected = expects(option, job.release)
        if expected is not None:
            yield at("option-value", option, f"'{option.text[:60]}' is not {expected}")


def expects(option: Option, release: Release) -> str | None:
    """How a value is to be written, where it is written otherwise; None where it is right."""
    value = option.value
    if value is None or option.fact is None or _EXPANDS.search(value):
        return None
    for releases, pattern, row in _grammar().get(option.name, ()):
        both = _RANGE.match(value) if row.get("ordered") else None
        ordered = both is None or int(both[1]) <= int(both[2])
        if releases.holds(release) and not (ordered and pattern.fullmatch(value[:2000])):
            return str(row["expects"])
    return None


@cache
def _grammar() -> dict[str, list[tuple[Span, re.Pattern[str], dict[str, Any]]]]:
    table: dict[str, list[tuple[Span, re.Pattern[str], dict[str, Any]]]] = {}
    for row in load("slurm_values")["values"]:
        entry = span(row), re.compile(row["pattern"], re.I | re.A), row
        for name in row["options"]:
            table.setdefault(name, []).append(entry)
    return table


@checks("time-unit", "memory-unit")
def counts_without_unit(job: Job) -> Iterator[Hit]:
    """`--time=48` is 48 minutes, `--mem=16` is 16 MB."""
    time, memory = job.options.last("time"), job.options.last("mem", "mem-per-cpu", "mem-per-gpu")
    if time is not None and time.number in _HOURS:
        yield at("time-unit", time, f"{time.number} minutes")
    if memory is not None and memory.number in _MEANT_GB:
        yield at("memory-unit", memory, f"{memory.number} MB")


@checks("partition-unknown", "account-unknown", "qos-unknown", "feature-unknown", "gres-unknown")
def names_of_the_cluster(job: Job) -> Iterator[Hit]:
    """Partitions, accounts, QOS, features, types of GPUs and GRES that the cluster has not."""
    cluster = job.cluster
    for name, rule, known in (
        ("partition", "partition-unknown", cluster.partitions),
        ("account", "account-unknown", cluster.accounts),
        ("qos", "qos-unknown", cluster.qos),
    ):
        for _, _, option in job.given(name):
            yield from _unknown(job, rule, option, option.text.split(","), known)
    for _, _, option in job.given("constraint"):
        names = _FEATURE.findall(_COUNT.sub("", option.text))
        yield from _unknown(job, "feature-unknown", option, names, cluster.features)
    for _, options in job.commands_at():
        for request in options.gpus:
            kind = [request.kind]
            yield from _unknown(job, "gres-unknown", request.option, kind, cluster.gpu_types)
    gres = cluster.gres and cluster.gres | {"none", "gres"}
    for _, _, option in job.given("gres"):
        parts = (part.removeprefix("gres:") for part in option.text.lower().split(","))
        names = [re.split("[:=]", part)[0] for part in parts]
        yield from _unknown(job, "gres-unknown", option, names, gres)


def _unknown(
    job: Job, rule: str, option: Option, names: Iterable[str], known: Names
) -> Iterator[Hit]:
    if known is None or "$" in option.text or GAP.search(option.text):
        return
    for name in filter(None, map(str.strip, names)):
        if name not in known:
            close = nearest(name, known)
            there = f"{job.cluster.where} has {', '.join(sorted(known)[:8]) or 'none'}"
            guess = f"did you mean '{close}'?" if close else there
            yield at(rule, option, f"'{name[:60]}'; {guess}")


@checks("linear-per-task-gres")
def whole_nodes_only(job: Job) -> Iterator[Hit]:
    """GPUs of the whole job or per task, where nodes are given out whole."""
    if job.cluster.sets("SelectType", "linear"):
        per_task = ("gpus-per-task", "gpus-per-socket", "cpus-per-gpu", "mem-per-gpu")
        if gpus := job.options.last("gpus"):
            yield at("linear-per-task-gres", gpus)
        for _, _, option in job.given(*per_task):
            yield at("linear-per-task-gres", option)
