"""One rank of a training run, from its arguments to its exit code."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from hpcdl.results.records import RESULT, outcome
from hpcdl.system.errors import ExitCode, HpcdlError
from hpcdl.system.files import careful_umask
from hpcdl.train import startup
from hpcdl.train.options import TrainOptions, facts_of, global_batch, parse, settings_of
from hpcdl.train.result import EXITS, nothing_measured, write_result
from hpcdl.train.startup import RankPlace, StartupClock
from hpcdl.train.stop_signals import Interrupted, StopSignals

if TYPE_CHECKING:
    from hpcdl.train.rank_run import RankRun

_PATIENCE = 60.0
"""Seconds for the result of rank 0, which may be the only one that had no signal."""


@careful_umask()
def train(argv: list[str] | None, signals: StopSignals) -> int:
    """Train as `argv` says and return the exit code. Every rank prints its own errors."""
    clock = StartupClock()
    place = startup.this_place()
    options = TrainOptions()
    try:
        # Parsed first: a run that a signal stops at once leaves its result where --job-dir says.
        options = parse(sys.argv[1:] if argv is None else argv)
        signals.preparation_begins()
        run = prepare(options, place, clock, signals)
        code = run.go()
        signals.ended()
        run.ranks.close()
        return _leave(code, place)
    except Interrupted as stopped:
        print(stopped, file=sys.stderr, flush=True)
        code = int(EXITS[stopped.status])
        path = options.folder / RESULT.name
        if place.rank:  # rank 0 writes first: the launcher ends all once one is gone
            deadline = time.monotonic() + _PATIENCE
            while not path.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
        elif not path.exists():  # one of a run that did train stays
            how = outcome(stopped.status, str(stopped), code)
            run_of = (options, place, clock, time.time())
            write_result(*run_of, how, nothing_measured(), begun=False)
        return _leave(code, place)
    except HpcdlError as error:
        signals.ended()
        prefix = f"rank {place.rank} on {place.host}: " if place.rank else ""
        if place.rank:
            time.sleep(3.0)  # an error that all ranks have is printed once
        print(prefix + error.render(), file=sys.stderr, flush=True)
        return _leave(int(error.exit_code), place)
    except SystemExit as left:  # an exit code of 0 would tell the job that all is done
        signals.ended()
        message = f"error: code of the model, the data or a callback called sys.exit({left.code!r})"
        print(message, file=sys.stderr, flush=True)
        return _leave(1, place)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr, flush=True)
        return _leave(int(ExitCode.STOPPED), place)


def _leave(code: int, place: RankPlace) -> int:
    """Return the exit code; if not 0, one of several ranks exits at once, not as one of the killed.

    The launcher ends the others when one is gone, also while they take TensorFlow apart.
    """
    if code and place.size > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def prepare(
    options: TrainOptions, place: RankPlace, clock: StartupClock, signals: StopSignals
) -> RankRun:
    """Return the run, with TensorFlow imported and the ranks joined; HpcdlError: it cannot be."""
    model = facts_of(options.model)
    # Refused before the seconds that TensorFlow and MPI take.
    global_batch(options, model, place.size)
    settings_of(options.settings, "")
    clock.mark("options")
    clustered = options.xla and place.size > 1
    tf = startup.import_tensorflow(place, onednn=model.get("onednn", True), xla=clustered)
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
    clock.mark("tensorflow")
    from hpcdl.train.rank_run import RankRun
    from hpcdl.train.ranks import join_ranks

    return RankRun(options, place, clock, join_ranks(place, clock), model, signals)
