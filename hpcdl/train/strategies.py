"""How ranks can work together: the one table of strategies, and the choice.

A strategy is a function that joins the ranks and returns their `Communicator`. Another one is a
module with such a function, a row of `STRATEGIES` here and its name in options.py; step, loop,
checkpoints and evaluation stay as they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from hpcdl.system.errors import MissingPrerequisite
from hpcdl.train.chief import Chief
from hpcdl.train.communicate import Communicator, Horovod
from hpcdl.train.multiworker import join
from hpcdl.train.ranks import RankPlace
from hpcdl.train.startup import StartupClock, import_horovod


def _single(place: RankPlace, keras: bool) -> Communicator:
    if place.size > 1:
        raise MissingPrerequisite(
            f"{place.size} tasks were started, but --strategy single is for one",
            hint="start one task, or leave --strategy to 'auto'",
        )
    return Communicator()


def _horovod(place: RankPlace, keras: bool) -> Communicator:
    """Refuses the world of MPI where PMIx differs: every task believes to be alone."""
    hvd = import_horovod(keras=keras)
    hvd.init()
    if hvd.size() != place.size:
        raise MissingPrerequisite(
            f"{place.size} tasks were started, but MPI sees {hvd.size()}",
            hint="Slurm and Open MPI must share PMIx: launch with `srun --mpi=pmix` or mpirun",
        )
    return Horovod(hvd)


STRATEGIES: dict[str, Callable[[RankPlace, bool], Communicator]] = {
    "horovod": _horovod,
    "multiworker": lambda place, _: join(place),
    "parameter-server": lambda *_: Chief(),
    "single": _single,
}


def join_ranks(
    strategy: str, place: RankPlace, clock: StartupClock, *, keras: bool
) -> Communicator:
    """The communicator of the strategy; `keras`: whether the network is a Keras model.

    Raises MissingPrerequisite: Horovod is missing, or MPI sees other ranks than were started.
    """
    if strategy == "auto":  # tf.distribute's launcher sets TF_CONFIG and starts no MPI
        several = "multiworker" if "TF_CONFIG" in os.environ else "horovod"
        strategy = several if place.size > 1 else "single"
    ranks = STRATEGIES[strategy](place, keras)
    if strategy != "single":
        clock.mark(strategy)
    return ranks
