"""What a script asks of Slurm, in numbers where they can be known.

`Job` answers the questions that several checks ask: how many nodes and tasks, whether there
are GPUs, which options an srun takes from its job. A number that only the cluster or the command
line knows is None, and a check that needs it stays silent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from hpcdl.jobs.lint.cluster import Cluster
from hpcdl.jobs.lint.options import Option, Options
from hpcdl.jobs.lint.parse import Script, Step
from hpcdl.site.model import Partition
from hpcdl.slurm.rules import Release

_NODES = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?\Z", re.A)
# A type may begin with a digit, as 3090 and 1g.10gb do; digits alone are one before a count only.
_TYPE = r"[A-Za-z][^,:=]*|\d[^,:=]*(?=[:=]\d)|(?!\d+[kKmM](?:,|\Z))\d+[^\W\d][^,:=]*"
_GRES_GPU = re.compile(
    rf"(?:^|,)\s*(?:gres[:/])?gpu(?:[:=/]({_TYPE}))?(?:[:=](\d+[kKmM]?))?(?=,|\Z)"
)
_COUNT = re.compile(rf"(?:^|,)(?:({_TYPE})[:=])?(\d+)(?=,|\Z)")
GPU_COUNTS = ("gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task")


@dataclass(frozen=True)
class Hit:
    """A rule broken at a place: offset and length in the text, and what is special here."""

    rule: str
    start: int
    length: int
    detail: str = ""


def at(rule: str, option: Option, detail: str = "") -> Hit:
    """A hit on an option."""
    return Hit(rule, option.start, option.length, detail)


def at_step(rule: str, step: Step, detail: str = "") -> Hit:
    """A hit on the launcher of a step."""
    return Hit(rule, step.start, len(step.launcher), detail)


@dataclass(frozen=True)
class GpuRequest:
    """GPUs that an option asks for; `kind` is the type, empty where none is named."""

    option: Option
    kind: str
    count: int


def gpu_requests(options: Options) -> Iterator[GpuRequest]:
    """Every request for GPUs among some options, except for none at all."""
    for option in options.given:
        text = option.text[:2000]
        if option.name in GPU_COUNTS:
            found = [(kind or "", count) for kind, count in _COUNT.findall(text)]
        elif option.name in {"gres", "tres-per-task"}:
            found = [(kind or "", count or "1") for kind, count in _GRES_GPU.findall(text)]
        else:
            continue
        for kind, count in found:
            number = int(count.rstrip("kKmM")[:9])
            if number:
                yield GpuRequest(option, kind, number)


def asks_per_task(options: Options) -> Option | None:
    """The option that asks for GPUs per task, if one does."""
    requests = [one.option for one in gpu_requests(options)]
    per_task = {"gpus-per-task", "tres-per-task"}
    return next((option for option in requests if option.name in per_task), None)


def nodes(options: Options) -> int | None:
    """Number of nodes; None where it is a range or left to Slurm."""
    option = options.last("nodes")
    if option is None:
        single = options.number("ntasks") in {None, 1} and not options.has("ntasks", "nodelist")
        return 1 if single or options.number("ntasks") == 1 else None
    match = _NODES.match(option.text)
    if match is None or match.group(2) not in {None, match.group(1)}:
        return None
    return int(match.group(1))


def tasks_per_node(options: Options) -> int | None:
    """Tasks on each node; None where that is left to Slurm."""
    if options.has("ntasks-per-node"):
        most, total = options.number("ntasks-per-node"), options.number("ntasks")
        fewer = most and total and total < most * (nodes(options) or 1)
        # Beside --ntasks it is the most of a node.
        return most if not fewer else total if nodes(options) == 1 else None
    if options.has("ntasks-per-gpu", "ntasks-per-socket", "ntasks-per-core", "ntasks-per-tres"):
        return None
    if not options.has("ntasks"):
        return 1
    tasks, count = options.number("ntasks"), nodes(options)
    if tasks is None or not count:
        return 1 if tasks == 1 else None
    return tasks // count if tasks % count == 0 and (count == 1 or tasks == count) else None


def tasks(options: Options) -> int | None:
    """All tasks; None where that is left to Slurm."""
    if options.has("ntasks"):
        return options.number("ntasks")
    each, count = tasks_per_node(options), nodes(options)
    return None if each is None or count is None else each * count


class Job:
    """A script, the release that it is meant for, its partition and cluster as far as known."""

    def __init__(
        self,
        script: Script,
        release: Release,
        partition: Partition | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        self.script, self.release, self.partition = script, release, partition
        self.cluster = cluster or Cluster()

    @cached_property
    def options(self) -> Options:
        """The options of all its directives, the components of a heterogeneous job together."""
        parts = self.script.components
        return Options(tuple(option for part in parts for option in part.given), ())

    @property
    def heterogeneous(self) -> bool:
        """Whether it has several components."""
        return len(self.script.components) > 1

    @property
    def nodes(self) -> int | None:
        """Number of nodes, where known."""
        return nodes(self.options) if self._counts else None

    @property
    def tasks_per_node(self) -> int | None:
        """Tasks per node, where known."""
        return tasks_per_node(self.options) if self._counts else None

    @property
    def tasks(self) -> int | None:
        """All tasks, where known."""
        return tasks(self.options) if self._counts else None

    @property
    def _counts(self) -> bool:
        return self.script.is_batch and not self.heterogeneous

    @cached_property
    def has_gpus(self) -> bool:
        """Whether its directives or a step ask for GPUs."""
        everything = [self.options, *(step.options for step in self.script.steps)]
        return any(True for options in everything for _ in gpu_requests(options))

    @cached_property
    def sruns(self) -> tuple[Step, ...]:
        """The steps that srun launches."""
        return tuple(step for step in self.script.steps if step.launcher == "srun")

    def step_tasks(self, step: Step) -> int | None:
        """Tasks of a step: its own options, else the job's."""
        if step.options.has("ntasks", "nodes", "ntasks-per-node"):
            given = (*self.options.given, *step.options.given)
            if step.options.has("ntasks"):
                return step.options.number("ntasks")
            kept = [one for one in given if one.name != "ntasks"]
            return tasks(Options(tuple(kept), ()))
        return self.tasks

    def step_tasks_per_node(self, step: Step) -> int | None:
        """Tasks of a step on each node: its own options, else the job's."""
        if step.options.has("ntasks-per-node"):
            return step.options.number("ntasks-per-node")
        if step.options.number("ntasks") == 1:
            return 1
        return None if step.options.has("ntasks", "nodes") else self.tasks_per_node

    def commands_at(self) -> Iterator[tuple[str, Options]]:
        """The option sets that Slurm checks together: each component, and each srun."""
        for part in self.script.components:
            yield "sbatch", part
        for step in self.sruns:
            yield "srun", step.options
