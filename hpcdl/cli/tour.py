"""`hpcdl tour`: the demo, step by step; `make demo` is `hpcdl tour --yes`.

The steps are data. Each command is one that a person could type. What exists already is used
again, so a tour that was stopped continues.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from hpcdl.cli.framework import Configure, command, option, print_json
from hpcdl.system.amounts import at_least
from hpcdl.system.errors import BadInput, CheckFailed, ExitCode, Stopped
from hpcdl.system.signals import noted, terminable
from hpcdl.system.text import paint

_SITE = "embedded"
_CHECK = "hpcdl check run --partition p100 --tag smoke --name throughput"


class TourStep:
    """A step: its title, its reason in a sentence, its commands and the last one's exit status."""

    def __init__(self, title: str, why: str, *commands: str, status: int = 0) -> None:
        self.title, self.why, self.commands, self.status = title, why, commands, status


STEPS = (
    TourStep(
        "a real Slurm on this machine",
        "Seven emulated nodes in four partitions, with the daemons that a cluster has.",
        "hpcdl cluster up",
        "sinfo",
    ),
    TourStep(
        "the software stack: TensorFlow and Horovod, built once, published as a module",
        "Publishing has a gate: a job on the partition imports, reduces and trains with it.",
        "hpcdl stack build --backend wheels",
        "hpcdl stack publish --partition p100",
    ),
    TourStep(
        "a data set: 1,797 handwritten digits as TFRecords",
        "It is made here, so nothing is downloaded; checksums show when it is damaged.",
        "hpcdl data make digits {datasets}/digits",
    ),
    TourStep(
        "a training job on 2 nodes x 2 ranks",
        "The script is derived from the site file; `hpcdl job explain` gives its reasons.",
        "hpcdl job submit --partition p100 --nodes 2 --gpus-per-node 2 --name digits --time 10:00"
        " --watch -- --model mlp --data {datasets}/digits --epochs 60 --global-batch 128"
        " --target-accuracy 0.95",
    ),
    TourStep(
        "a reference: throughput of the healthy cluster",
        "Several runs show how much it scatters; that sets the bound of the nightly check.",
        "hpcdl check references measure --partition p100 --tag smoke --name throughput"
        " --if-missing",
    ),
    TourStep(
        "the nightly check, compared with the reference",
        "Every metric has a verdict, and the exit status is one that a pipeline can use.",
        _CHECK,
    ),
    TourStep(
        "the same check with a slowed job: it must fail",
        "Each training step is held up for 60 ms; a check that never fails proves nothing.",
        f"{_CHECK} --set delay_ms=60 --set steps=60",
        status=1,
    ),
)


def _step(name: str, text: str, default: int, dest: str) -> Configure:
    kind = at_least(1, len(STEPS))
    return option(name, "N", text, type=kind, default=default, dest=dest)


@command(
    "hpcdl tour",
    option("--yes", "do not wait for Enter before each command"),
    _step("--from", "begin with step N", 1, "first"),
    _step("--to", "end with step N", len(STEPS), "last"),
    changes=True,
    site=False,
)
def _tour(args: argparse.Namespace) -> ExitCode:
    """Walk through the demo step by step, with the real commands."""
    if args.first > args.last:
        raise BadInput(
            f"there is no step from {args.first} to {args.last}",
            hint="--to is the last step, --from the first",
        )
    steps = [*enumerate(STEPS, 1)][args.first - 1 : args.last]
    if args.json:
        print_json([{"number": n, **vars(step), "commands": _typed(step)} for n, step in steps])
        return ExitCode.OK
    asks = not (args.yes or args.dry_run)
    if asks and not (sys.stdin and sys.stdin.isatty()):
        raise BadInput(
            "there is no terminal to press Enter in",
            hint="use `hpcdl tour --yes`, which does not wait for Enter",
        )
    if asks:
        print("Enter runs the command that is shown; Ctrl-C ends the tour.")
    begun = time.monotonic()
    with terminable():
        for number, step in steps:
            _take(number, step, asks=asks, runs=not args.dry_run)
    if not args.dry_run:
        print(
            f"\nDone in {time.monotonic() - begun:.0f} s. To explore the cluster:\n"
            f"  export HPCDL_SITE={_SITE}\n"
            '  eval "$(hpcdl cluster env)"; squeue; sinfo; module avail\n'
            "  hpcdl cluster down    # stops the cluster"
        )
    return ExitCode.OK


def _typed(step: TourStep) -> list[str]:
    from hpcdl.site import find_site_file, load_site

    datasets = shlex.quote(str(load_site(find_site_file(_SITE)).paths.datasets))
    return [command.format(datasets=datasets) for command in step.commands]


def _take(number: int, step: TourStep, *, asks: bool, runs: bool) -> None:
    """Take a step: print what it shows; show, ask for and run its commands.

    Raises:
        Stopped: by a signal, or Ctrl-D.
        CheckFailed: a command's exit status was not the one it must have.
    """
    print("\n" + paint(f"[{number}/{len(STEPS)}] {step.title}", "bold") + f"\n{step.why}")
    commands = _typed(step)
    on = f"`hpcdl tour --from {number}` continues there"
    try:
        for command in commands:
            print(f"$ {command}", end="" if asks else "\n", flush=True)
            if asks:
                input(" ")
            status = _status(command) if runs else 0
            wanted = step.status if runs and command == commands[-1] else 0
            if status == ExitCode.STOPPED:
                raise KeyboardInterrupt
            if status != wanted:
                message = f"step {number}: its command exited with status {status}, not {wanted}"
                raise CheckFailed(message, hint=on)
    except (KeyboardInterrupt, EOFError):
        print()
        raise Stopped(f"the tour stopped at step {number}", hint=on) from None
    if runs and step.status:
        print("FAIL as expected: the check detected the slowdown.")


def _status(command: str) -> int:
    """The exit status of a command in the cluster's environment; it sees signals before we do."""
    from hpcdl.cluster.state import environment, read_state
    from hpcdl.workflows.embedded import directory_of

    found = os.environ.get("PATH", os.defpath)
    env = {**os.environ, "HPCDL_SITE": _SITE, "PATH": f"{found}:{Path(sys.executable).parent}"}
    current = read_state(directory_of(_SITE))
    if current:
        env = environment(current, env)
    with noted():
        return subprocess.call(shlex.split(command), env=env, stdin=subprocess.DEVNULL)


COMMAND = _tour
