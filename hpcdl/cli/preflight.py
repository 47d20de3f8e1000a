"""`hpcdl preflight`: the checks that every job runs before its program. Job scripts call it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.cli.framework import Group, command, option, print_json
from hpcdl.system.errors import ExitCode

if TYPE_CHECKING:
    from hpcdl.jobs.preflight import ExpectedAllocation

_PAUSE_SECONDS = 5
"""A node that has just come back may miss its first step."""
_MOST = 1 << 28
"""Characters that are read: a million ranks print fewer, and a device never ends."""
_BROKEN = 29
"""The preflight itself did not work (facts/slurm_reasons.yaml)."""


_LOOKS = (
    option("--scratch", "DIR", "node-local scratch to check", default=""),
    option("--data", "PATH", "data set that must exist", default=""),
)


# Scripts that are queued while hpcdl is upgraded call it with these. They are read and ignored: how
# fast GPUs reach each other is what the all-reduce checks measure.
_hidden = partial(option, help=argparse.SUPPRESS)
_OF_OLDER_PROBES = (_hidden("--transport", "DIR", "ignored"),)
_OF_OLDER_SCRIPTS = (
    _hidden("--fabric", "KIND", "ignored"),
    _hidden("--nvlink", "ignored"),
    _hidden("--memory-mb", "N", "ignored"),
)


@command(
    "srun hpcdl preflight probe --scratch /tmp > preflight.jsonl",
    *_LOOKS,
    *_OF_OLDER_PROBES,
    site=False,
)
def _probe(args: argparse.Namespace) -> ExitCode:
    """Probe the environment of one rank; print one line of JSON."""
    import json
    from dataclasses import asdict

    from hpcdl.jobs.preflight import probe

    print(json.dumps(asdict(probe(args.scratch, args.data))), flush=True)
    return ExitCode.OK


def _probe_ranks(args: argparse.Namespace) -> None:
    """Let srun, with the options behind `--`, probe every rank; twice if a node misses a step."""
    import subprocess

    named = {"scratch": args.scratch, "data": args.data}
    looks = [f"--{name}={value}" for name, value in named.items() if value]
    argv = ["srun", *args.rest, "hpcdl", "preflight", "probe", *looks]
    for pause in (_PAUSE_SECONDS, 0):
        with args.probes.open("wb") as file:
            if not subprocess.run(argv, stdout=file, check=False).returncode:
                return
        time.sleep(pause)


_EXPECTATIONS = (
    option("--world", "N", "total number of ranks", type=int, required=True),
    option("--tasks-per-node", "N", "ranks per node", type=int, required=True),
    option("--cpus-per-task", "N", "CPUs per rank", type=int, required=True),
    option("--gpus-per-node", "N", "GPUs per node", type=int, default=0),
    option("--release", "ID", "release that must be loaded", default=""),
    *_LOOKS,
    option("probes", "FILE", "output of the ranks' probes", type=Path),
)


def _expected(args: argparse.Namespace, without_driver: bool) -> ExpectedAllocation:
    from hpcdl.jobs.preflight import ExpectedAllocation, needed_driver

    names = vars(args).keys() & ExpectedAllocation.__dataclass_fields__.keys()
    values = {name: getattr(args, name) for name in names}
    values["driver"] = needed_driver(os.environ)
    if args.gpus_per_node and without_driver:
        from hpcdl.slurm.execution import current_or_cluster

        # Slurm knows whether it only counts GPUs that are not there.
        values["real_gpus"] = current_or_cluster().real_gpus
    return ExpectedAllocation(**values)


@command(
    "hpcdl preflight judge --world 8 --tasks-per-node 4 --cpus-per-task 4 preflight.jsonl",
    *_EXPECTATIONS,
    *_OF_OLDER_SCRIPTS,
    site=False,
    rest="options of srun, which then writes FILE first",
)
def _judge(args: argparse.Namespace) -> ExitCode | int:
    """Check the probes of all ranks; exit codes 20 to 29 name the cause."""
    from dataclasses import asdict

    from hpcdl.jobs.preflight import as_table, judge, notes, read_probes

    try:
        if args.rest:
            _probe_ranks(args)
        with args.probes.open(errors="replace") as file:
            probes = read_probes(file.read(_MOST))
    except OSError as fault:
        message = f"cannot read {args.probes}: {fault.strerror} (exit code {_BROKEN})"
        print(f"preflight: {message}", file=sys.stderr)
        return _BROKEN
    expected = _expected(args, any(one.driver is None for one in probes))
    problems = judge(probes, expected)
    if args.json:
        told = [{"code": code, "sentence": sentence} for code, sentence in problems.items()]
        print_json({"ranks": [*map(asdict, probes)], "problems": told})
    else:
        print(as_table(probes))
        print("".join(f"note: {line}\n" for line in notes(probes, expected)), end="")
    for code, sentence in problems.items():
        print(f"preflight: {sentence} (exit code {code})", file=sys.stderr)
    return next(iter(problems), ExitCode.OK)


GROUP = Group("preflight", (_judge, _probe))
