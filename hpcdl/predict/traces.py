"""The recursion against steps that were measured layer by layer (facts/phases.yaml).

Three forms on the same traces: the authors' (measured all-reduces, no more), ours with the
measured all-reduces, which adds stragglers, and ours with all-reduces priced from the
network's published figures alone. Contention has no part: MPI reduced on the hosts' cores, not
on the GPUs. None sees the measured steps of several nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcdl import facts
from hpcdl.predict.allreduce import ring
from hpcdl.predict.hardware import network_link
from hpcdl.predict.network import FLOAT_BYTES
from hpcdl.predict.overlap import Cost, Overlap, gradients, wait_free
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
    known: dict[str, Any] = facts.load("phases")
    found = []
    for nodes, text in known["traces"].items():
        rows = [line.split() for line in text.splitlines()]
        found.append(
            Trace(
                int(nodes),
                tuple(int(row[0]) for row in rows),
                tuple(float(row[1]) * 1e-6 for row in rows),
                tuple(float(row[2]) * 1e-6 for row in rows),
            )
        )
    return tuple(found)


def judge_traces(known: Constants | None = None) -> tuple[Traced, ...]:
    """Every trace in every form."""
    known = known or constants("early")
    return tuple(_judge(trace, form, known) for form in FORMS for trace in read_traces())


def _judge(trace: Trace, form: str, known: Constants) -> Traced:
    one = _measured(1)
    if form == "published network":
        overlap = _priced(trace)
    else:
        ready = gradients(trace.backward, trace.allreduce)
        overlap = wait_free(ready, _AS_SECONDS, sum(trace.backward))
    predicted = one + overlap.exposed
    if form != "authors":
        gpus = trace.nodes * int(facts.load("phases")["gpus_per_node"])
        # The step of one node has its own two GPUs' stragglers in it.
        waiting = known.straggler * (largest_of(gpus) - largest_of(gpus // trace.nodes))
        predicted += one * waiting
    return Traced(trace.nodes, form, overlap.exposed, predicted, _measured(trace.nodes))


def _priced(trace: Trace) -> Overlap:
    """The recursion with a ring over the published network."""
    where = facts.load("phases")["network"]
    line = ring(trace.nodes, network_link(where["fabric"], where["gbps"]))
    sizes = [float(FLOAT_BYTES * count) for count in trace.parameters]
    ready = gradients(trace.backward, sizes)
    return wait_free(ready, ((line.latency, line.rate),), sum(trace.backward))


def _measured(nodes: int) -> float:
    """Seconds of the measured GoogLeNet step with wait-free back-propagation."""
    known = facts.load("phases")
    row = next(
        row
        for row in known["steps"]
        if (row["model"], row["algorithm"], row["nodes"]) == ("googlenet", "wfbp", nodes)
    )
    return nodes * float(known["batch_per_node"]["googlenet"]) / float(row["images_per_sec"])
