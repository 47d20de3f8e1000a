"""The recursion against steps that were measured layer by layer (facts/phases.yaml).

Three forms on the same traces: the authors' (measured all-reduces, no more), ours with the
measured all-reduces, which adds stragglers, and ours with all-reduces priced from the
network's published figures alone. Contention has no part: MPI reduced on the hosts' cores, not
on the GPUs. None sees the measured steps of several nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcdl import facts
from hpcdl.predict.allreduce import ring
from hpcdl.predict.hardware import network_link
from hpcdl.predict.network import FLOAT_BYTES
from hpcdl.predict.overlap import Cost, gradients, wait_free
from hpcdl.predict.step import Constants, constants, largest_of

FORMS = ("authors", "measured all-reduce", "published network")
_AS_SECONDS: Cost = ((0.0, 1.0),)
"""The price of a message whose size is given in seconds."""


@dataclass(frozen=True)
class Trace:
    """A traced step on `nodes` nodes: per layer its parameters and seconds of both passes."""

    nodes: int
    parameters: tuple[int, ...]
    backward: tuple[float, ...]
    allreduce: tuple[float, ...]


@dataclass(frozen=True)
class Traced:
    """A trace, one form's prediction of its step, and what was measured; seconds."""

    nodes: int
    form: str
    exposed: float
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """(predicted - measured) / measured, of the step's time."""
        return self.predicted / self.measured - 1


def read_traces() -> tuple[Trace, ...]:
    """The traces of the facts."""
    found = []
    for nodes, text in facts.load("phases")["traces"].items():
        rows = [line.split() for line in text.splitlines()]
        backward, allreduce = (tuple(float(row[at]) * 1e-6 for row in rows) for at in (1, 2))
        found.append(Trace(int(nodes), tuple(int(row[0]) for row in rows), backward, allreduce))
    return tuple(found)


def judge_traces(known: Constants | None = None) -> tuple[Traced, ...]:
    """Every trace in every form."""
    known = known or constants("early")
    return tuple(_judge(trace, form, known) for form in FORMS for trace in read_traces())


def _judge(trace: Trace, form: str, known: Constants) -> Traced:
    one, where = _measured(1), facts.load("phases")["network"]
    sizes: Sequence[float] = trace.allreduce
    cost = _AS_SECONDS
    if form == "published network":
        line = ring(trace.nodes, network_link(where["fabric"], where["gbps"]))
        sizes, cost = [FLOAT_BYTES * n for n in trace.parameters], (line,)
    overlap = wait_free(gradients(trace.backward, sizes), cost, sum(trace.backward))
    predicted = one + overlap.exposed
    if form != "authors":
        gpus = trace.nodes * int(facts.load("phases")["gpus_per_node"])
        # The step of one node has its own two GPUs' stragglers in it.
        waiting = known.straggler * (largest_of(gpus) - largest_of(gpus // trace.nodes))
        predicted += one * waiting
    return Traced(trace.nodes, form, overlap.exposed, predicted, _measured(trace.nodes))


def _measured(nodes: int) -> float:
    """Seconds of the measured GoogLeNet step with wait-free back-propagation."""
    known, asked = facts.load("phases"), {"model": "googlenet", "algorithm": "wfbp", "nodes": nodes}
    row = next(row for row in known["steps"] if asked.items() <= row.items())
    return nodes * float(known["batch_per_node"]["googlenet"]) / float(row["images_per_sec"])
