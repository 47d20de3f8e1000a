"""What the checks look at: a job, what it asks for, and the hits that they yield.

A check is a function from a `Job` to hits, registered with the ids of the rules in
facts/slurm_rules.yaml that it may yield. It knows no release: it yields what it sees, and the
rules' spans decide which of it holds. A number that only the cluster or the command line knows is
None, and a check that needs it stays silent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

from hpcdl.jobs.lint.cluster import Cluster
from hpcdl.jobs.lint.options import Option, Options
from hpcdl.jobs.lint.parse import Assignment, Script, Step
from hpcdl.jobs.lint.shell import Word
from hpcdl.site.model import Partition
from hpcdl.slurm.rules import Release

_REPEATED = re.compile(r"\$\{?SLURM_(NTASKS|NTASKS_PER_NODE|GPUS_PER_NODE)\}?")


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
