"""`hpcdl cluster`: the embedded Slurm."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from hpcdl.cli.framework import Command, Group, option, show
from hpcdl.system.errors import ExitCode

if TYPE_CHECKING:
    from hpcdl.cluster import ClusterState


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _found(args: argparse.Namespace) -> ClusterState:
    from hpcdl.workflows.embedded import running

    return running(args.site)


def _up_arguments(parser: argparse.ArgumentParser) -> None:
    from hpcdl.cluster.model import MODES

    add = parser.add_argument
    add("--mode", choices=MODES, default="auto", help="how nodes are isolated")
    add("--accounting", action="store_true", help="start slurmdbd too, for sacct")
    add("--slurm", metavar="V", default="", help="another Slurm release, such as 24.11")
    add("--max-nodes-per-partition", type=int, metavar="K", help="at most K nodes per partition")


def _up(args: argparse.Namespace) -> ExitCode:
    from hpcdl.cluster import status
    from hpcdl.cluster.lifecycle import prepare, up
    from hpcdl.workflows.embedded import site_of

    site = site_of(args.site)
    wanted = {
        "mode": args.mode,
        "accounting": args.accounting,
        "slurm": args.slurm,
        "max_nodes": args.max_nodes_per_partition,
    }
    if args.dry_run:
        text, data = status.intention(*prepare(site, **wanted))
    else:
        started = up(site, **wanted, say=_say)
        text, data = status.summary(started), status.as_data(started)
    return show(args, data, text)


def _down(args: argparse.Namespace) -> ExitCode:
    from hpcdl.cluster.teardown import down
    from hpcdl.workflows.embedded import directory_of

    directory = directory_of(args.site)
    stopped = not args.dry_run and down(directory, purge=args.purge, say=_say)
    text = "stopped" if stopped else "nothing was running"
    text = f"would stop the cluster below {directory}" if args.dry_run else text
    return show(args, {"schema": 1, "directory": directory, "stopped": stopped}, text)


def _status(args: argparse.Namespace) -> ExitCode:
    from hpcdl.cluster import status

    current = _found(args)
    data = status.as_data(current)
    return show(args, data, status.as_text(data), ok=data["phase"] == "ready")


def _env(args: argparse.Namespace) -> ExitCode:
    from hpcdl.cluster.state import modules, shell_exports, variables

    current = _found(args)
    data = {**variables(current), "MODULEPATH": modules(current)}
    return show(args, data, shell_exports(current), end="")


def _node_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "action",
        choices=("kill", "cut", "slow", "heal", "up"),
        help="fault to inject, or repair: heal, up",
    )
    add("node", metavar="NAME", help="node, such as p100-02")


def _node(args: argparse.Namespace) -> ExitCode:
    from hpcdl.cluster.lifecycle import change

    current = _found(args)
    if args.dry_run:
        outcome = f"would {args.action} the node {current.node(args.node).name}"
    else:
        outcome = change(current, args.node, args.action)
    return show(
        args, {"schema": 1, "node": args.node, "action": args.action, "done": outcome}, outcome
    )


GROUP = Group(
    "cluster",
    "the embedded cluster: a real Slurm on this machine",
    (
        Command(
            "up",
            "Start the embedded cluster; restart daemons that died.",
            "hpcdl cluster up",
            _up,
            _up_arguments,
            changes=True,
        ),
        Command(
            "down",
            "Stop the embedded cluster and all its processes.",
            "hpcdl cluster down",
            _down,
            option("--purge", action="store_true", help="remove logs and accounting data, too"),
            changes=True,
        ),
        Command(
            "status",
            "Show daemons and nodes; exit 1 if any is down.",
            "hpcdl cluster status",
            _status,
        ),
        Command(
            "env",
            "Print shell settings that select the embedded cluster.",
            'eval "$(hpcdl cluster env)"',
            _env,
        ),
        Command(
            "node",
            "Inject a fault into a node (kill, cut off its network, slow) or repair it.",
            "hpcdl cluster node kill p100-02",
            _node,
            _node_arguments,
            changes=True,
        ),
    ),
)
