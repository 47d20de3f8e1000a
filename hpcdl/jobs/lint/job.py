"""What the checks look at: a job, what it asks for, its cluster, and the hits that they yield.

A check is a function from a `Job` to hits, registered with the ids of the rules in
facts/slurm_rules.yaml that it may yield. It knows no release: it yields what it sees, and the
rules' spans decide which of it holds. A number that only the cluster or the command line knows is
None, and a check that needs it stays silent. So it is with what the cluster has: a site file lists
partitions, their GPUs and, where it is filled in, features; of accounts, QOS and other GRES only
Slurm tells.

A script waives a rule by `# hpcdl-lint: allow RULE reason` for the next line, by `allow-file` for
the whole file. On a line of its own a waiver holds for the line that follows (with its continuation
lines, and past further waivers); behind code or a directive, for its own line. One that names no
rule, gives no reason or waives nothing is a finding itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from hpcdl.jobs.lint.options import Option, Options
from hpcdl.jobs.lint.parse import Assignment, Script, Step
from hpcdl.jobs.lint.shell import Word
from hpcdl.site.model import Partition, Site
from hpcdl.slurm.rules import Release, all_rules

_WAIVER = re.compile(
    r"(?:^|(?<=\s))#[ \t]*hpcdl-lint:[ \t]*(allow(?:-file)?)(?:[ \t]+([^\s]+))?[ \t]*(.*)"
)
_FILE = 0
_REPEATED = re.compile(r"\$\{?SLURM_(NTASKS|NTASKS_PER_NODE|GPUS_PER_NODE)\}?")
Names = frozenset[str] | None


@dataclass(frozen=True)
class Cluster:
    """The names of a cluster's things, and its settings.

    `gpu_types` are types in Gres (`p100` of gpu:p100:4), `plugin_options` the long options, without
    dashes, that plug-ins (SPANK) add, `settings` what is known of slurm.conf: all, little or none.
    """

    where: str = ""
    partitions: Names = None
    accounts: Names = None
    qos: Names = None
    gres: Names = None
    gpu_types: Names = None
    features: Names = None
    plugin_options: Names = None
    settings: Mapping[str, str] = field(default_factory=dict)

    def sets(self, key: str, word: str) -> bool:
        """Whether a setting is known and holds a word: ("TaskPlugin", "affinity")."""
        return word in self.settings.get(key, "").lower()


def of_site(site: Site) -> Cluster:
    """What a site file says."""
    groups = [group for part in site.partitions.values() for group in part.node_groups]
    gpus = [group.gpu for group in groups if group.gpu]
    typed = all(gpu.gres_type for gpu in gpus)
    features = {name for group in groups for name in group.features}
    complete = all(group.features for group in groups)
    return Cluster(
        where=f"'{site.name}'",
        partitions=frozenset(site.partitions),
        gpu_types=frozenset(gpu.gres_type or "" for gpu in gpus) if gpus and typed else None,
        features=frozenset(features) if complete else None,
        plugin_options=frozenset(site.slurm.plugin_options) or None,
        settings={
            "SelectType": f"select/{site.slurm.select or ''}",
            "TaskPlugin": ",".join(site.slurm.task_plugins),
        },
    )


def of_live() -> Cluster:
    """What the Slurm on PATH says.

    Raises:
        MissingPrerequisite: there is none, or it does not answer.
    """
    from hpcdl.slurm import client

    config, nodes = client.config(), client.nodes()
    gres = [one for node in nodes for one in node.gres.split(",") if one]
    gpu_types = {kind for node in nodes for kind, _ in node.gpus if kind}
    enforced = "associations" in config.get("AccountingStorageEnforce", "").lower()
    return Cluster(
        where=f"'{config['ClusterName'].split()[0]}'",
        partitions=frozenset(one.name for one in client.partitions()),
        accounts=(frozenset(client.own_accounts()) or None) if enforced else None,
        qos=(frozenset(client.all_qos()) or None) if enforced else None,
        gres=frozenset(one.partition(":")[0].partition("(")[0] for one in gres),
        gpu_types=frozenset(gpu_types) or None,
        features=frozenset(name for node in nodes for name in node.features),
        plugin_options=frozenset(client.plugin_options()),
        settings=config,
    )


class Hit(NamedTuple):
    """A rule broken at a place: offset and length in the text, and what is special here."""

    rule: str
    start: int
    length: int
    detail: str = ""


def at(rule: str, place: Option | Step | Assignment | Word, detail: str = "") -> Hit:
    """A hit on an option, the launcher of a step, the first line of an assignment, or a word."""
    if isinstance(place, Option):
        length = place.length
    elif isinstance(place, Step):
        length = len(place.launcher)
    elif isinstance(place, Assignment):
        length = len(place.raw.partition("\n")[0])
    else:
        length = min(len(place.raw), 60)
    return Hit(rule, place.start, length, detail)


class Job:
    """A script, the release that it is meant for, its partition and cluster as far as known."""

    def __init__(
        self, script: Script, release: Release, partition: Partition | None, cluster: Cluster | None
    ) -> None:
        self.script, self.release, self.partition = script, release, partition
        self.cluster = cluster or Cluster()
        parts = script.components
        self.options = Options(tuple(option for part in parts for option in part.given))
        """The options of all its directives, the components of a heterogeneous job together."""
        self.heterogeneous = len(parts) > 1
        self.nodes: int | None = None
        self.tasks_per_node: int | None = None
        self.tasks: int | None = None
        if script.is_batch and not self.heterogeneous:
            self.nodes, self.tasks = self.options.nodes, self.options.tasks
            self.tasks_per_node = self.options.tasks_per_node

    @cached_property
    def has_gpus(self) -> bool:
        """Whether its directives or a step ask for GPUs."""
        return any(
            one.gpus for one in (self.options, *(step.options for step in self.script.steps))
        )

    @cached_property
    def sruns(self) -> tuple[Step, ...]:
        """The steps that srun launches."""
        return tuple(step for step in self.script.steps if step.launcher == "srun")

    def step_tasks(self, step: Step) -> int | None:
        """Tasks of a step: its own options, else the job's."""
        if step.options.has("ntasks"):
            return self._number(step, "ntasks")
        if step.options.has("nodes", "ntasks-per-node"):
            given = (*self.options.given, *step.options.given)
            return Options(tuple(one for one in given if one.name != "ntasks")).tasks
        return self.tasks

    def step_tasks_per_node(self, step: Step) -> int | None:
        """Tasks of a step on each node: its own options, else the job's."""
        if step.options.has("ntasks-per-node"):
            return self._number(step, "ntasks-per-node")
        if step.options.number("ntasks") == 1:
            return 1
        return None if step.options.has("ntasks", "nodes") else self.tasks_per_node

    def _number(self, step: Step, name: str) -> int | None:
        """What a step says, in digits or by a variable in which Slurm repeats the job's option."""
        repeated = None if self.heterogeneous else _REPEATED.fullmatch(step.options.text(name))
        if repeated is None:
            return step.options.number(name)
        return self.options.number(repeated[1].lower().replace("_", "-"))

    @property
    def appends(self) -> bool:
        """Whether --open-mode says to append to the log: its first letter decides."""
        return self.options.text("open-mode").lower().startswith("a")

    def commands_at(self) -> Iterator[tuple[str, Options]]:
        """The option sets that Slurm checks together: each component, and each srun."""
        yield from (("sbatch", part) for part in self.script.components)
        yield from (("srun", step.options) for step in self.sruns)

    def given(self, *names: str) -> Iterator[tuple[str, Options, Option]]:
        """The commands that have an option of one of these names: name, options and that option."""
        for command, options in self.commands_at():
            if option := options.last(*names):
                yield command, options, option


Check = Callable[[Job], Iterator[Hit]]
CHECKS: list[tuple[frozenset[str], Check]] = []
"""Every check of the modules that are imported, with the ids of its rules."""


def checks(*rules: str) -> Callable[[Check], Check]:
    """Register a check for some rules."""

    def register(check: Check) -> Check:
        CHECKS.append((frozenset(rules), check))
        return check

    return register


# ---- waivers ----


class _Waiver(NamedTuple):
    """A waiver of one rule, with its place in the text, and the last of the lines it holds for."""

    rule: str
    reason: str
    start: int
    length: int
    end: int


def apply(script: Script, hits: Iterable[Hit], active: frozenset[str]) -> list[Hit]:
    """The hits that no waiver covers, and those of the waivers themselves.

    `active` are the ids of the rules that hold in the release: a waiver of a rule that does not
    hold there is not unused.
    """
    if "hpcdl-lint:" not in script.text:
        return list(hits)
    # Where the logical line of each line ends, continuation lines included.
    ends = list(range(len(script.lines) + 2))
    for line in reversed(script.lines[:-1]):
        if line.text.endswith("\\"):
            ends[line.number] = ends[line.number + 1]
    waivers = list(_waivers(script, ends))
    covered = {(one.rule, one.end) for one in waivers}
    left, used = [], set()
    for hit in hits:
        places = {(hit.rule, _FILE), (hit.rule, ends[script.place(hit.start)[0]])} & covered
        used |= places
        left += [] if places else [hit]
    known = {one.id for one in all_rules()}
    for one in waivers:
        if one.rule not in known:
            detail = f"'{one.rule[:60]}'" if one.rule else "it names none"
            left.append(Hit("waiver-unknown", one.start, one.length, detail))
        elif one.rule in active and (one.rule, one.end) not in used:
            left.append(Hit("waiver-unused", one.start, one.length, one.rule))
        elif not one.reason:
            left.append(Hit("waiver-reason", one.start, one.length, one.rule))
    return left


def _waivers(script: Script, ends: list[int]) -> Iterator[_Waiver]:
    following = len(script.lines) + 1  # the next line that is no waiver
    for line in reversed(script.lines):
        text = line.text
        marked = "hpcdl-lint:" in text
        alone = marked and text.lstrip().startswith("#") and not text.startswith("#SBATCH")
        following = following if alone else line.number
        match = _WAIVER.search(text) if marked else None
        if match is None or script.in_body(line.start):
            continue
        kind, rules, reason = match.groups()
        end = _FILE if kind == "allow-file" else ends[following]
        start, length = line.start + match.start(), len(match.group().rstrip())
        for rule in (rules or "").split(","):
            yield _Waiver(rule, reason.strip(), start, length, end)
