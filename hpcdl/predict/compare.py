"""The closed form compared with the simulation: the same step, event by event.

With equal ranks and links both apply and agree. The other scenes show what the closed form
leaves out or only knows on average: it cannot express one slow rank or one slow link.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import NormalDist

from hpcdl.predict.hardware import Machine
from hpcdl.predict.simulate import Cluster, simulate
from hpcdl.predict.step import Constants, Profile, Training, constants, predict_step
from hpcdl.system.errors import BadInput

MOST_SIMULATED = 64
_SLOW_RANK = 1.1
_SLOW_LINK = 2.0


@dataclass(frozen=True)
class Scene:
    """One scene: seconds of the step by the closed form and by the simulation."""

    name: str
    gpus: int
    closed: float
    simulated: float
    events: int

    @property
    def difference(self) -> float:
        """(closed - simulated) / simulated."""
        return self.closed / self.simulated - 1


def scenes(
    machine: Machine,
    training: Training,
    one: Profile,
    gpus: int,
    known: Constants | None = None,
) -> tuple[Scene, ...]:
    """Simulate the step of `gpus` GPUs in every scene.

    Raises:
        BadInput: too many GPUs to simulate, or a form that is not simulated.
    """
    known = known or constants()
    if gpus > MOST_SIMULATED:
        raise BadInput(
            f"{gpus} GPUs are too many to simulate event by event",
            hint=f"take {MOST_SIMULATED} or fewer; the closed form goes further",
        )
    if training.form != "horovod":
        raise BadInput(f"form '{training.form}' is not simulated, only 'horovod' is")
    return tuple(_play(machine, training, one, gpus, known))


def _play(
    machine: Machine, training: Training, one: Profile, gpus: int, known: Constants
) -> Iterator[Scene]:
    nodes = max(1, gpus // machine.per_node)
    algorithm = "ring" if nodes == 1 or training.algorithm == "ring" else "two-level"
    training = replace(training, algorithm=algorithm)
    network = machine.between if nodes > 1 else machine.pair
    cluster = Cluster(nodes, gpus // nodes, machine.link(gpus // nodes), network)
    uneven = tuple(1 + known.straggler * deviate for deviate in deviates(gpus))
    slow = (*(1.0,) * (gpus - 1), _SLOW_RANK)
    for name, straggler, scene in (
        ("equal ranks and links", 0.0, cluster),
        ("ranks as uneven as usual", known.straggler, replace(cluster, paces=uneven)),
        (f"one rank {_SLOW_RANK - 1:.0%} slower", known.straggler, replace(cluster, paces=slow)),
        (f"one link {_SLOW_LINK:.0f} times slower", 0.0,
         replace(cluster, slow_link=(0, _SLOW_LINK))),
    ):  # fmt: skip
        step = predict_step(
            machine, training, one, gpus, nodes,
            replace(known, straggler=straggler, contention=0.0, exposed=1.0),
        )  # fmt: skip
        outcome = simulate(
            scene, one.gradients,
            buffer_bytes=known.fusion_bytes, cycle=known.cycle, algorithm=algorithm,
        )  # fmt: skip
        pace = max((scene.pace(rank) for rank in range(gpus)), default=1.0)
        alone = (one.total - one.backward) * pace
        simulated = alone + max(outcome.done, one.backward * pace)
        yield Scene(name, gpus, step.seconds - step.input_wait, simulated, outcome.events)


def deviates(ranks: int) -> tuple[float, ...]:
    """Standard normal deviates spread as those of `ranks` ranks are on average (Blom 1958)."""
    normal = NormalDist()
    return tuple(normal.inv_cdf((rank + 0.625) / (ranks + 0.25)) for rank in range(ranks))
