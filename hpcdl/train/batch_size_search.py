"""`python -m hpcdl.train.batch_size_search LOW HIGH UNIT SECONDS RANKS ARGUMENTS`.

Searches between two batches for the run that the command line ARGUMENTS describes, alone on this
process's CPUs, and prints each batch before it tries it, so that the reader knows which batch
ended the process.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from hpcdl.train.memory import Bounds, search
from hpcdl.train.options import parse
from hpcdl.train.program import prepare
from hpcdl.train.ranks import this_place
from hpcdl.train.startup import StartupClock


def main(argv: list[str]) -> int:
    """Search, and say every step of it on standard output."""
    low, high, unit, seconds, ranks, *rest = argv
    run = prepare(replace(parse(rest), strategy="single"), this_place(), StartupClock())
    tries = run.trial(int(ranks))
    print("ready", flush=True)
    bounds = Bounds(int(low), int(high), int(unit), time.monotonic() + float(seconds))

    def reported(batch: int) -> bool:
        print(f"tries {batch}", flush=True)
        fits = tries(batch)
        print(f"{'fits' if fits else 'fails'} {batch}", flush=True)
        return fits

    search(bounds, reported)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
