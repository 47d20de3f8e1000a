"""The small programs that measure a node or a network with what training uses.

Checks run them on compute nodes, `python -m hpcdl.measure.NAME`; each writes a result.json in the
shape of a training's, for checks, reports and people read one format.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcdl.results.records import RESULT, outcome
from hpcdl.system.amounts import positive
from hpcdl.system.errors import HpcdlError
from hpcdl.system.packages import nvidia_driver
from hpcdl.train.result import job_of
from hpcdl.train.startup import RankPlace, this_place

WARMUP = 3
"""Iterations that are left out."""


def write_measurement(
    kind: str, hosts: Sequence[str], gpus: int, versions: Mapping[str, Any], **values: Any
) -> None:
    """Write result.json into HPCDL_JOB_DIR, else the current directory.

    `hosts` has every rank's node, `gpus` those of a rank; `values` are its options, samples and
    summary, whose metrics checks read.
    """
    nodes = list(dict.fromkeys(hosts))
    layout = {"ranks": len(hosts), "nodes": nodes, "hosts": list(hosts), "gpu_per_rank": gpus}
    folder = Path(os.environ.get("HPCDL_JOB_DIR") or ".").absolute()
    RESULT.write(
        folder / RESULT.name,
        {
            "kind": kind,
            "outcome": outcome("completed"),
            "ended": time.time(),
            "job": job_of(os.environ),
            "layout": layout,
            "release": os.environ.get("HPCDL_RELEASE"),
            "versions": {**versions, "driver": nvidia_driver()},
            **values,
        },
    )


def run_program(
    main: Callable[[argparse.Namespace, RankPlace], None],
    flag: str,
    kind: Callable[[str], Any],
    default: Any,
) -> int:
    """Run a program with its option and --repeats; returns the exit code, also of a clear error.

    One of several ranks exits at once: an orderly exit would wait for the others.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument(flag, type=kind, default=default)
    parser.add_argument("--repeats", type=positive, default=20, metavar="N")
    args, place = parser.parse_args(), this_place()
    try:
        main(args, place)
    except HpcdlError as error:
        print(f"rank {place.rank} on {place.host}: {error.render()}", file=sys.stderr, flush=True)
        if place.size > 1:
            os._exit(int(error.exit_code))
        return int(error.exit_code)
    return 0


def times_of(act: Callable[[], Any], repeats: int) -> list[float]:
    """Seconds of each call of `act` after the warm-up."""
    times = []
    for _ in range(WARMUP + repeats):
        start = time.perf_counter()
        act()
        times.append(time.perf_counter() - start)
    return times[WARMUP:]
