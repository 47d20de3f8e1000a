"""How ranks can work together: the one table of strategies, and the choice.

A strategy is a function that joins the ranks and returns their `Communicator`. Another one is a
module with such a function, a row of `STRATEGIES` here and its name in options.py; step, loop,
checkpoints and evaluation stay as they are. The Horovod strategy checks that MPI sees the ranks
that the launcher started: where Slurm's and Open MPI's PMIx differ, every task believes to be
alone, and would train apart.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from hpcdl.system.errors import MissingPrerequisite
from hpcdl.train.chief import Chief
from hpcdl.train.communicate import Communicator, Horovod
from hpcdl.train.multiworker import join
from hpcdl.train.ranks import RankPlace
from hpcdl.train.startup import StartupClock, import_horovod


@dataclass(frozen=True)
class Joining:
    """What a strategy is given: `keras` says whether the network is a Keras model."""

    place: RankPlace
    clock: StartupClock
    keras: bool


def _single(joining: Joining) -> Communicator:
    if joining.place.size > 1:
        raise MissingPrerequisite(
            f"{joining.place.size} tasks were started, but --strategy single is for one",
            hint="start one task, or leave --strategy to 'auto'",
        )
    return Communicator()


def _multiworker(joining: Joining) -> Communicator:
    ranks = join(joining.place)
    joining.clock.mark("collectives")
    return ranks


def _parameter_server(joining: Joining) -> Communicator:
    chief = Chief()
    joining.clock.mark("servers")
    return chief


def _horovod(joining: Joining) -> Communicator:
    hvd = import_horovod(keras=joining.keras)
    hvd.init()
    joining.clock.mark("horovod")
    if hvd.size() != joining.place.size:
        raise MissingPrerequisite(
            f"{joining.place.size} tasks were started, but MPI sees {hvd.size()}",
            hint="Slurm and Open MPI must share PMIx: launch with `srun --mpi=pmix` or mpirun",
        )
    return Horovod(hvd)


STRATEGIES: dict[str, Callable[[Joining], Communicator]] = {
    "horovod": _horovod,
    "multiworker": _multiworker,
    "parameter-server": _parameter_server,
    "single": _single,
}


def join_ranks(strategy: str, joining: Joining) -> Communicator:
    """The communicator of the strategy; `auto` depends on how ranks were started.

    Raises:
        MissingPrerequisite: Horovod is missing, or MPI sees other ranks than the launcher started.
    """
    if strategy == "auto":
        strategy = _chosen(joining.place)
    return STRATEGIES[strategy](joining)


def _chosen(place: RankPlace) -> str:
    """What ranks were started for: tf.distribute's launcher sets TF_CONFIG and starts no MPI."""
    if place.size < 2:
        return "single"
    return "multiworker" if "TF_CONFIG" in os.environ else "horovod"
