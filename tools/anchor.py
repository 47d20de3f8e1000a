"""Where the model's two constants come from: solved from Horovod's own scaling figures.

Sergeev and Del Balso published the efficiency of two networks on 512 GPUs: Inception-v3, whose
communication hides, so that what it loses is contention of few bytes and stragglers; and
VGG-16, whose communication does not. Two measurements, two unknowns. Their network is RoCE of
25 Gb/s, taken at its line rate. No row that `hpcdl predict validate` compares is used.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hpcdl import facts
from hpcdl.predict.hardware import Link, Machine, of_gpu
from hpcdl.predict.network import network
from hpcdl.predict.step import Constants, Training, constants, predict_step, profile


def solve(known: Constants | None = None) -> tuple[float, float]:
    """Contention and straggler from facts/links.yaml's anchor.

    A step is base + contention x a + straggler x b, linear in both, so two rows give them.
    """
    known = replace(known or constants("early"), exposed=1.0)
    anchor: dict[str, Any] = facts.load("links")["constants"]["anchor"]
    machine = _machine(anchor)
    (loss1, a1, b1), (loss2, a2, b2) = (_row(machine, anchor, row, known) for row in anchor["rows"])
    scale = a1 * b2 - a2 * b1
    return (loss1 * b2 - loss2 * b1) / scale, (a1 * loss2 - a2 * loss1) / scale


def _machine(anchor: dict[str, Any]) -> Machine:
    latency = facts.load("links")["fabrics"]["infiniband"]["latency_us"] * 1e-6
    rate = anchor["gbps"] / 8 * 1e9
    machine = of_gpu(anchor["gpu"], "pcie3", 1, 1, Link("RoCE", latency, rate))
    return replace(machine, per_node=anchor["gpus"] // anchor["nodes"])


def _row(
    machine: Machine, anchor: dict[str, Any], row: dict[str, Any], known: Constants
) -> tuple[float, float, float]:
    """What the constants must explain, and the step's slopes in them, in steps of one GPU."""
    training = Training(network(row["model"]), anchor["batch"])
    one = profile(machine, training, anchor["batch"] / row["images_per_sec"], known)
    step = predict_step(
        machine,
        training,
        one,
        anchor["gpus"],
        anchor["nodes"],
        replace(known, contention=1.0, straggler=1.0),
    )
    loss = 1 / row["efficiency"] - 1 - step.exposed / one.total
    return loss, step.contention / one.total, step.straggler / one.total
