"""The input and output of checks: a job, its request, its cluster, and hits.

A check is a function from a `Job` to hits, registered with the ids of the rules in
facts/slurm_rules.yaml that it may yield. It knows no release: it yields what it sees, and the
rules' spans decide which of it holds. A number that only the cluster or the command line knows is
None, and a check that needs it stays silent. So it is with what the cluster has: a site file lists
partitions, their GPUs and, where it is filled in, features; of accounts, QOS and other GRES only
Slurm tells.

A script waives a rule by `# hpcdl-lint: allow RULE reason`, wherever that stands. One that names no
rule is a finding itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from hpcdl.jobs.lint.options import Option, Options
from hpcdl.jobs.lint.parse import Assignment, BatchScript, JobStep
from hpcdl.jobs.lint.shell import ShellCommand, Word
from hpcdl.slurm.fits import Cluster, PartitionLimits
from hpcdl.slurm.rules import SlurmRelease, all_rules

_WAIVER = re.compile(r"#[ \t]*hpcdl-lint:[ \t]*allow(?:-file)?[ \t]+(\S+)")
_ONE_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?", re.A)


class Hit(NamedTuple):
    """A rule broken at a place: offset and length in the text, and what is special here."""

    rule: str
    start: int
    length: int
    detail: str = ""


def at(rule: str, place: Option | JobStep | Assignment | Word, detail: str = "") -> Hit:
    """A hit on an option, the launcher of a step, the first line of an assignment, or a word."""
    if isinstance(place, Option):
        length = place.length
    elif isinstance(place, JobStep):
        length = len(place.launcher)
    elif isinstance(place, Assignment):
        length = len(place.raw.partition("\n")[0])
    else:
        length = min(len(place.raw), 60)
    return Hit(rule, place.start, length, detail)


class Job:
    """A script, the release that it is for, and its cluster as far as known."""

    def __init__(self, script: BatchScript, release: SlurmRelease, cluster: Cluster | None) -> None:
        self.script, self.release = script, release
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

    def limits_for(self, part: Options) -> list[PartitionLimits]:
        """Return the limits of the partitions that a component may run in, as far as known."""
        named, known = part.text("partition"), self.cluster.limits
        if not named:
            named = self.cluster.default
        return [known[name] for name in named.split(",") if name in known]

    @cached_property
    def has_gpus(self) -> bool:
        """Whether its directives or a step ask for GPUs."""
        return any(
            one.gpus for one in (self.options, *(step.options for step in self.script.steps))
        )

    @cached_property
    def _places(self) -> dict[int, int]:
        return {id(command): place for place, command in enumerate(self.script.commands)}

    def inner(self, command: ShellCommand) -> Iterator[ShellCommand]:
        """The commands of a script that a command runs: `bash -c '...'`, a here-document."""
        depth = len(command.scopes)
        for one in self.script.commands[self._places[id(command)] + 1 :]:
            if len(one.scopes) <= depth or one.scopes[:depth] != command.scopes:
                return
            if one.scopes[depth] == "inner":
                yield one

    def launched(self, step: JobStep) -> Iterator[tuple[Word, ...]]:
        """The words of each program of a step, also behind `bash -c` and in here-documents."""
        yield from step.programs
        for command in self.inner(step.command):
            yield from command.programs

    def parent(self, command: ShellCommand) -> ShellCommand:
        """The command that runs the inner script which has this one; itself where none does."""
        place = self._places[id(command)]
        while place and self.script.commands[place].within("inner"):
            place -= 1
        return self.script.commands[place]

    @cached_property
    def gpus_per_node(self) -> int | None:
        """GPUs that the job asks for on a node; None where that is not known."""
        asked = self.options.request
        total, node = (sum(n for _, n in one) for one in (asked.gpus, asked.gpus_per_node))
        if total and self.nodes and total % self.nodes == 0:
            node = total // self.nodes
        return node if node and not self.heterogeneous else None

    @property
    def gpus(self) -> int | None:
        """GPUs that the job asks for in all; None where that is not known."""
        total = sum(n for _, n in self.options.request.gpus)
        total = total or (self.nodes or 0) * (self.gpus_per_node or 0)
        return total if total and not self.heterogeneous else None

    def number(self, text: str) -> int | None:
        """A number, also in a variable that the script or Slurm sets to one that is known."""
        if text.isascii() and text.isdigit():
            return int(text[:9])
        match = _ONE_VARIABLE.fullmatch(text)
        if match is None:
            return None
        values = {one.value for one in self.script.assigned(match[1])}
        if values:
            (value, *more) = values
            return self.number(value) if not more and match[1] not in value else None
        return {
            "SLURM_NTASKS": self.tasks,
            "SLURM_NPROCS": self.tasks,
            "SLURM_NTASKS_PER_NODE": self.tasks_per_node,
            "SLURM_NNODES": self.nodes,
            "SLURM_JOB_NUM_NODES": self.nodes,
            "SLURM_CPUS_PER_TASK": self.options.number("cpus-per-task"),
            "SLURM_GPUS_ON_NODE": self.gpus_per_node,
            "SLURM_GPUS_PER_NODE": self.gpus_per_node,
        }.get(match[1])

    def mpirun_ranks(self, step: JobStep) -> int | None:
        """Return how many ranks mpirun starts; None if its options leave that open."""
        program = step.programs[0] if step.programs else ()
        own = step.options.rest[: len(step.options.rest) - len(program)]
        for word, after in pairwise([*own, Word("", 0)]):
            if word.value in {"-n", "-np", "--np", "-c", "--n"}:
                return self.number(after.value)
        return None

    @cached_property
    def sruns(self) -> tuple[JobStep, ...]:
        """The steps that srun launches."""
        return tuple(step for step in self.script.steps if step.launcher == "srun")

    def step_nodes(self, step: JobStep) -> int | None:
        """Nodes of a step: its own option, else the job's."""
        return step.options.nodes if step.options.has("nodes") else self.nodes

    def step_tasks(self, step: JobStep) -> int | None:
        """Tasks of a step: its own options, else the job's."""
        if step.options.has("ntasks"):
            return self.number(step.options.text("ntasks"))
        if step.options.has("nodes", "ntasks-per-node"):
            given = (*self.options.given, *step.options.given)
            return Options(tuple(one for one in given if one.name != "ntasks")).tasks
        return self.tasks

    def step_tasks_per_node(self, step: JobStep) -> int | None:
        """Tasks of a step on each node: its own options, else the job's."""
        if step.options.has("ntasks-per-node"):
            return self.number(step.options.text("ntasks-per-node"))
        if step.options.number("ntasks") == 1:
            return 1
        return None if step.options.has("ntasks", "nodes") else self.tasks_per_node

    @property
    def appends(self) -> bool:
        """Whether --open-mode appends to the log: its first letter decides."""
        return self.options.text("open-mode").lower().startswith("a")

    def commands_at(self) -> Iterator[tuple[str, Options]]:
        """The option sets that Slurm checks together: each component, and each srun."""
        yield from (("sbatch", part) for part in self.script.components)
        yield from (("srun", step.options) for step in self.sruns)


LintCheck = Callable[[Job], Iterator[Hit]]
CHECKS: list[tuple[frozenset[str], LintCheck]] = []
"""Every check of the modules that are imported, with the ids of its rules."""


def checks(*rules: str) -> Callable[[LintCheck], LintCheck]:
    """Register a check for some rules."""

    def register(check: LintCheck) -> LintCheck:
        CHECKS.append((frozenset(rules), check))
        return check

    return register


# ---- waivers ----


def apply(script: BatchScript, hits: Iterable[Hit]) -> list[Hit]:
    """The hits of rules that no line waives, and waivers of rules that there are not."""
    ids, waived, wrong = {rule.id for rule in all_rules()}, set(), []
    for line in script.lines if "hpcdl-lint:" in script.text else ():
        match = _WAIVER.search(line.text)
        if match and not script.in_body(line.start):
            waived.add(match[1])
            place = Hit("waiver-unknown", line.start + match.start(), len(match[0]))
            wrong += [] if match[1] in ids else [place._replace(detail=f"'{match[1][:60]}'")]
    return [*(hit for hit in hits if hit.rule not in waived), *wrong]
