"""Checks of learning and survival without ReFrame: jobs, loss bands, what must hold. Pure.

The band of a healthy loss curve is a fact (facts/loss_curves.yaml), measured over seeds. A run
that is interrupted continues for so many steps after its newest checkpoint, however far it came:
nothing depends on how fast a machine is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from hpcdl import facts
from hpcdl.regress.result import Measured, faults_of
from hpcdl.regress.training import losses
from hpcdl.results.faults import Fault, FaultKind

WINDOWS = ((0, 10), (10, 30), (30, 60), (60, 120), (120, 240), (240, 660))
"""Steps over which losses are averaged before they are compared with the band."""
STEPS_AFTER = 300
CHECKPOINT_EVERY = 100
_NO_IDEA = math.log(10)
"""The loss of a network of ten classes that has learnt nothing."""


@dataclass(frozen=True)
class Convergence:
    """A training to the end, whose loss curve is known."""

    model: str
    data: str
    epochs: int
    global_batch: int
    accuracy: float

    def __str__(self) -> str:
        return f"{self.model}-{self.data}-{self.accuracy:.0%}".removesuffix("%")

    def describe(self, directory: Path) -> tuple[str, ...]:
        """Options of the training."""
        return (
            f"--model={self.model}", f"--data={directory}", f"--epochs={self.epochs}",
            f"--global-batch={self.global_batch}", "--checkpoint-every=0",
        )  # fmt: skip


DIGITS = Convergence("mlp", "digits", epochs=60, global_batch=128, accuracy=0.95)


def curve_faults(case: Convergence, curve: Sequence[float]) -> list[Fault]:
    """Where a loss curve leaves the band of a healthy one."""
    rows = facts.load("loss_curves")["curves"][str(case)]["windows"]
    found = []
    for row in rows:
        window = curve[row["first"] : row["last"]]
        loss = mean(window) if len(window) == row["last"] - row["first"] else math.nan
        if not row["low"] <= loss <= row["high"]:
            band = f"{row['low']:.4g} to {row['high']:.4g}"
            steps = f"{row['first']} to {row['last']}"
            text = f"the loss of steps {steps} is {loss:.4g}, healthy is {band}"
            found.append(Fault(FaultKind.LOSS, text, "loss", wanted=band, got=loss))
    return found


# The newest checkpoint's step from its name, step-000000100.ckpt.
_NEWEST = (
    "newest=$(ls checkpoints/step-*.ckpt | sort | tail -n 1); newest=${newest##*step-}; "
    "newest=$((10#${newest%.ckpt})); "
)
_WAIT = "until compgen -G 'checkpoints/step-*.ckpt' >/dev/null; do sleep 0.05; done; "
_KILLED = (
    '"$@" --steps=100000000 & training=$!; '
    "if [[ $SLURM_PROCID == 0 ]]; then " + _WAIT + "kill -KILL $training; fi; wait $training"
)
_WARNED = (
    "if [[ ${SLURM_RESTART_COUNT:-0} == 0 ]]; then "
    "if [[ $SLURM_PROCID == 0 ]]; then "
    "(" + _WAIT + "scancel --signal=USR2 --batch $SLURM_JOB_ID) & fi; "
    'exec "$@" --steps=100000000; fi; '
    + _NEWEST
    + f'exec "$@" --steps=$((newest + {STEPS_AFTER}))'
)  # fmt: skip


def _training(data: Path) -> tuple[str, ...]:
    return ("hpcdl", "train", "--model=mlp", f"--data={data}", "--global-batch=128",
            f"--checkpoint-every={CHECKPOINT_EVERY}")  # fmt: skip


def killed_program(data: Path) -> tuple[str, ...]:
    """A training whose rank 0 is killed once there is a checkpoint."""
    return ("bash", "-c", _KILLED, "killed", *_training(data))


def warned_program(data: Path) -> tuple[str, ...]:
    """A training that is warned as before its walltime ends, and resumes when it is requeued."""
    return ("bash", "-c", _WARNED, "warned", *_training(data))


def resumed_program(data: Path, step: int) -> tuple[str, ...]:
    """The training again, from the checkpoint at `step` on."""
    return (*_training(data), f"--steps={step + STEPS_AFTER}")


def newest_step(directory: Path) -> int:
    """The step of the newest checkpoint of a job's directory, 0 where there is none."""
    found = sorted((directory / "checkpoints").glob("step-*.ckpt"))
    return int(found[-1].stem.removeprefix("step-")) if found else 0


def resume_faults(
    measured: Measured, layout: Mapping[str, Any], release: str | None, *, real_gpus: bool = False
) -> list[Fault]:
    """What is wrong with a training that should have gone on from a checkpoint."""
    found = faults_of(measured, layout, release, real_gpus=real_gpus)
    if measured.faults:
        return found
    first = measured.number("samples", "first_step") or 0
    if first < CHECKPOINT_EVERY:
        text = f"the training began at step {first:.0f}, not at its checkpoint"
        found.append(Fault(FaultKind.CHECKPOINT, text, wanted=CHECKPOINT_EVERY, got=first))
    done, planned = measured.number("steps", "done"), measured.number("steps", "planned")
    if done is None or done != planned:
        text = f"{done or 0:.0f} of {planned or 0:.0f} steps were done"
        found.append(Fault(FaultKind.STEPS, text, wanted=planned, got=done))
    early = losses(measured)[:10]
    if not early or not mean(early) < 0.7 * _NO_IDEA:
        loss = mean(early) if early else math.nan
        text = f"what had been learnt is lost: the loss after the checkpoint is {loss:.4g}"
        found.append(Fault(FaultKind.LOSS, text, "loss", wanted=0.7 * _NO_IDEA, got=loss))
    return found
