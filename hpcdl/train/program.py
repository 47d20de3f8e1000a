"""One rank of a training run, from its arguments to its exit code.

The order is dictated by cost and by what must come first: place among the ranks, environment,
TensorFlow, Horovod, and then the run itself (run.py).
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from hpcdl.system.errors import BadInput, ExitCode, HpcdlError
from hpcdl.train import parameter_server, startup
from hpcdl.train.options import TrainOptions, check_parallel, facts_of, global_batch, parse
from hpcdl.train.startup import RankPlace, StartupClock

if TYPE_CHECKING:
    from hpcdl.train.run import Run


def main(argv: list[str] | None = None) -> int:
    """Train as `argv` says and return the exit code. Every rank prints its own errors."""
    clock = StartupClock()
    place = startup.this_place()
    try:
        return _run(parse(sys.argv[1:] if argv is None else argv), place, clock)
    except HpcdlError as error:
        prefix = f"rank {place.rank} on {place.host}: " if place.rank else ""
        if place.rank:
            time.sleep(3.0)  # an error that all ranks have is printed once
        print(prefix + error.render(), file=sys.stderr, flush=True)
        return _leave(int(error.exit_code), place)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr, flush=True)
        return _leave(int(ExitCode.STOPPED), place)


def _leave(code: int, place: RankPlace) -> int:
    """The exit code; if not 0, one of several ranks exits at once, not as one of the killed.

    The launcher ends the others when one is gone, also while they take TensorFlow apart.
    """
    if code and place.size > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _run(options: TrainOptions, place: RankPlace, clock: StartupClock) -> int:
    if options.find_batch:
        raise BadInput("--find-batch is another program", hint="python -m hpcdl.measure.find_batch")
    if options.strategy == parameter_server.NAME:
        task = parameter_server.task_here()
        if task is None:
            return _leave(parameter_server.lead(options, place), place)
        if task["type"] != "chief":
            startup.import_tensorflow(place, onednn=True)
            from hpcdl.train.strategies import serve

            serve()
        place = replace(place, rank=0, size=1)  # the chief is the only rank of its run
    run = prepare(options, place, clock)
    code = run.go()
    run.ranks.close()
    return _leave(code, place)


def prepare(options: TrainOptions, place: RankPlace, clock: StartupClock) -> Run:
    """The run, with TensorFlow imported and the ranks joined; HpcdlError: it cannot be."""
    model = facts_of(options.model)
    keras = model["builder"] != "mlp" or options.needs_keras
    # Refused before the seconds that TensorFlow and MPI take.
    global_batch(options, model, place.size)
    check_parallel(options, place.size)
    clock.mark("options")
    tf = startup.import_tensorflow(
        place, keras=keras, onednn=model.get("onednn", True), devices=options.model_parallel
    )
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
    clock.mark("tensorflow")
    from hpcdl.train.run import Run
    from hpcdl.train.strategies import join_ranks

    ranks = join_ranks(options.strategy, place, clock, keras=keras)
    return Run(options, place, clock, ranks, model, keras=keras)
