"""Options of sbatch and srun, read as getopt reads them, from facts/slurm_options.yaml.

All spellings mean the same: `-N2`, `-N 2`, `--nodes 2`, `--nodes=2`, an unambiguous beginning of
a long name, flags in one cluster. Reading stops at the first word that is no option, as Slurm's
commands do. An option that no release knows is kept, marked unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from hpcdl.jobs.lint.shell import Word
from hpcdl.slurm.fits import ResourceRequest
from hpcdl.slurm.options import (
    TIME,
    OptionFact,
    known_options,
    letters,
    megabytes,
    prefixes,
    slurm_minutes,
)
from hpcdl.slurm.rules import SlurmRelease

_LAST = re.compile(r"(\d{1,9})\s*\]?\Z", re.A)
_PER_NODE = {"gpus-per-node", "gres"}
_OPTION_LIST = re.compile(r"OPT|ARG|FLAG|PARAM", re.I)
"""In a variable's name: it holds options. Others hold a program, and what follows is its own."""
_NODES = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?\Z", re.A)
# A type may begin with a digit, as 3090 and 1g.10gb do; digits alone are one before a count only.
_TYPE = r"[^\d,:=$][^,:=$]*|\d[^,:=]*(?=[:=]\d)|(?!\d+[kKmM](?:,|\Z))\d+[^\W\d][^,:=]*"
_GRES_GPU = re.compile(
    rf"(?:^|,)\s*(?:gres[:/])?gpu(?:[:=/]({_TYPE}))?(?:[:=](\d+[kKmM]?|\$\{{?\w+\}}?))?(?=,|\Z)"
)
_COUNT = re.compile(rf"(?:^|,)(?=[^,])(?:({_TYPE})(?:[:=](?=\d)|(?=,|\Z)))?(\d*)(?=,|\Z)")
_GPU_OPTIONS = {
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task"), _COUNT),
    **dict.fromkeys(("gres", "tres-per-task"), _GRES_GPU),
}


class Option(NamedTuple):
    """An option as given: its canonical name without dashes, its value, and its position.

    `value` is None where none was given. `fact` is None where no release knows the option.
    """

    name: str
    value: str | None
    start: int
    length: int
    fact: OptionFact | None

    @property
    def number(self) -> int | None:
        """The value as a whole number, None where it is something else."""
        text = self.text.strip()
        return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None

    @property
    def text(self) -> str:
        """The value, or nothing."""
        return self.value or ""


class GpusAsked(NamedTuple):
    """GPUs that an option asks for, at least one; `kind` is the type, empty where none is named."""

    option: Option
    kind: str
    number: int


@dataclass(frozen=True)
class Options:
    """The options of one command line, and what they ask for where it can be known.

    `rest` are the words behind them. `opaque`: a variable among them may hold more options. A
    number that is left to Slurm is None.
    """

    given: tuple[Option, ...]
    rest: tuple[Word, ...] = ()
    opaque: bool = False

    def last(self, *names: str) -> Option | None:
        """The option of one of these names; the last one counts, as for Slurm."""
        return next((one for one in reversed(self.given) if one.name in names), None)

    def text(self, name: str) -> str:
        """The value of an option, or nothing where it is absent."""
        option = self.last(name)
        return option.text if option else ""

    def has(self, *names: str) -> bool:
        """Whether one of these names is given."""
        return any(one.name in names for one in self.given)

    def number(self, name: str) -> int | None:
        """The value of an option as a whole number, None where absent or something else."""
        option = self.last(name)
        return option.number if option else None

    @property
    def gpus(self) -> list[GpusAsked]:
        """Every request for GPUs; what a variable counts is taken for one."""
        requests = []
        for option in self.given:
            pattern = _GPU_OPTIONS.get(option.name)
            for kind, count in pattern.findall(option.text[:2000]) if pattern else ():
                if number := int(count.rstrip("kKmM")[:9] if count[:1].isdigit() else 1):
                    requests.append(GpusAsked(option, kind, number))
        return requests

    @property
    def nodes(self) -> int | None:
        """Number of nodes; None for a range, too."""
        option = self.last("nodes")
        if option is None:
            single = self.number("ntasks") == 1 or not self.has("ntasks", "nodelist")
            return 1 if single else None
        least, most = self.node_range
        return least if least == most else None

    @property
    def node_range(self) -> tuple[int | None, int | None]:
        """The fewest and the most nodes of --nodes; None where it names none, or another form."""
        match = _NODES.match(self.text("nodes"))
        return (int(match[1]), int(match[2] or match[1])) if match else (None, None)

    @property
    def tasks_per_node(self) -> int | None:
        """Tasks on each node."""
        total, nodes = self.number("ntasks"), self.nodes
        if self.has("ntasks-per-node"):
            most = self.number("ntasks-per-node")
            fewer = most and total and total < most * (nodes or 1)
            # Beside --ntasks it is the most of a node.
            return most if not fewer else total if nodes == 1 else None
        if self.has("ntasks-per-gpu", "ntasks-per-socket", "ntasks-per-core", "ntasks-per-tres"):
            return None
        if not self.has("ntasks") or (total == 1 and not nodes):
            return 1
        if total is None or not nodes:
            return None
        return total // nodes if total % nodes == 0 and (nodes == 1 or total == nodes) else None

    @property
    def tasks(self) -> int | None:
        """All tasks."""
        if self.has("ntasks"):
            return self.number("ntasks")
        each, nodes = self.tasks_per_node, self.nodes
        return None if each is None or nodes is None else each * nodes

    def minutes(self, name: str) -> int | None:
        """A time in minutes, rounded up; None where absent, unlimited or malformed."""
        limit = self.last(name)
        known = limit and re.fullmatch(TIME, limit.text, re.ASCII)
        return slurm_minutes(limit.text) if limit and known else None

    @cached_property
    def request(self) -> ResourceRequest:
        """The request of a job with these options, as far as it can be known."""
        counted = [gpus for gpus in self.gpus if "$" not in gpus.option.text]
        last = {name: self.last(name) for name in _GPU_OPTIONS}
        asked = [gpus for gpus in counted if gpus.option is last[gpus.option.name]]
        array = _LAST.search(self.text("array").partition("%")[0].partition(":")[0])
        memory = {
            name: megabytes(self.text(name)) for name in ("mem", "mem-per-cpu", "mem-per-gpu")
        }
        per_task = next(
            (gpus.number for gpus in asked if gpus.option.name == "gpus-per-task"), None
        )
        return ResourceRequest(
            nodes=self.node_range[0],
            tasks=self.tasks,
            tasks_per_node=self.tasks_per_node,
            cpus_per_task=self.number("cpus-per-task"),
            gpus=tuple((gpus.kind, gpus.number) for gpus in asked if gpus.option.name == "gpus"),
            gpus_per_node=tuple(
                (gpus.kind, gpus.number) for gpus in asked if gpus.option.name in _PER_NODE
            ),
            gpus_per_task=per_task,
            memory_mb=memory["mem"],
            memory_per_cpu=memory["mem-per-cpu"],
            memory_per_gpu=memory["mem-per-gpu"],
            minutes=self.minutes("time"),
            feature=self.text("constraint"),
            qos=self.text("qos"),
            last_of_array=int(array[1]) if array else None,
        )


def read_options(
    words: Sequence[Word], command: str, release: SlurmRelease, *, expands: bool = True
) -> Options:
    """The options at the beginning of `words`, for sbatch or srun of a release.

    `expands` is whether a shell reads them first, so that a variable may hold options.
    """
    given: list[Option] = []
    index, opaque = 0, False
    while index < len(words):
        word, value = words[index], words[index].value
        if value == "--":
            index += 1
            break
        if expands and word.raw.lstrip('"').startswith("$"):
            opaque = True
            if not _holds_options(words[index : index + 2], command):
                break
            index += 1
        elif value.startswith("-") and len(value) > 1:
            options, taken = _read(words[index : index + 2], command, release)
            given += options
            index += taken
        else:
            break
    return Options(tuple(given), tuple(words[index:]), opaque)


def _holds_options(words: Sequence[Word], command: str) -> bool:
    """Whether the variable in front stands for options, so that more may follow."""
    after = "".join(word.value for word in words[1:])
    name = after[2:].partition("=")[0] if after.startswith("--") else ""
    return name in known_options(command) or bool(_OPTION_LIST.search(words[0].raw))


def _read(words: Sequence[Word], command: str, release: SlurmRelease) -> tuple[list[Option], int]:
    """The options in a word, and how many words they take: a long one, or a cluster of letters."""
    text = words[0].value
    if text.startswith("--"):
        name, equals, value = text[2:].partition("=")
        fact = known_options(command).get(name) or _meant(command, name, release)
        option, taken = _option(words, fact, name, value if equals else None)
        return [option], taken
    options: list[Option] = []
    for place, letter in enumerate(text[1:], 2):
        fact = letters(command).get(letter)
        ends = fact is None or fact.argument != "none"  # what takes an argument ends the cluster
        behind = text[place:] if fact and ends else ""
        option, taken = _option(words, fact, letter, behind or None)
        options.append(option)
        if ends:
            return options, taken
    return options, 1


def _meant(command: str, beginning: str, release: SlurmRelease) -> OptionFact | None:
    """The one option of the release that begins so, or the one of any."""
    able = prefixes(command).get(beginning, ())
    here = [fact for fact in able if fact.span.holds(release)] or able
    return here[0] if len(here) == 1 else None


def _option(
    words: Sequence[Word], fact: OptionFact | None, name: str, value: str | None
) -> tuple[Option, int]:
    """An option, whose argument may be the next word, and how many words it takes."""
    word, name = words[0], fact.name if fact else name
    if fact and fact.argument == "required" and value is None and len(words) > 1:
        after = words[1]
        return Option(name, after.value, word.start, after.end - word.start, fact), 2
    return Option(name, value, word.start, len(word.raw), fact), 1
