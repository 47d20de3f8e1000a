"""`hpcdl cluster`: the embedded Slurm."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from hpcdl.cli.framework import Group, command, option, show
from hpcdl.cluster import MODES
from hpcdl.system.amounts import positive
from hpcdl.system.errors import ExitCode

if TYPE_CHECKING:
    from hpcdl.cluster.shape import ClusterState


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _found(args: argparse.Namespace) -> ClusterState:
    from hpcdl.workflows.embedded import running

    return running(args.site)


@command(
    "hpcdl cluster up",
    option("--mode", "how nodes are isolated", choices=MODES, default="auto"),
    option("--accounting", "start slurmdbd too, for sacct"),
    option("--slurm", "V", "another Slurm release, such as 24.11", default=""),
    option("--max-nodes-per-partition", "K", "at most K nodes per partition", type=positive),
    changes=True,
)
def _up(args: argparse.Namespace) -> ExitCode:
    """Start the embedded cluster; restart daemons that died."""
    from hpcdl.cluster import lifecycle, state, status
    from hpcdl.workflows.embedded import request, site_of

    site = site_of(args.site)
    wished = request(site, args.mode, args.accounting, args.max_nodes_per_partition, args.slurm)
    directory = state.state_directory(site.name)
    if args.dry_run:
        text, data = status.intention(*lifecycle.prepare(wished, directory))
    else:
        started = lifecycle.up(wished, directory, _say)
        text, data = status.summary(started, args.site), status.as_data(started)
    return show(args, data, text)


@command(
    "hpcdl cluster down", option("--purge", "remove logs and accounting data, too"), changes=True
)
def _down(args: argparse.Namespace) -> ExitCode:
    """Stop the embedded cluster and all its processes."""
    from hpcdl.cluster.teardown import down
    from hpcdl.workflows.embedded import directory_of

    directory = directory_of(args.site)
    stopped = not args.dry_run and down(directory, purge=args.purge, say=_say)
    text = "stopped" if stopped else "nothing was running"
    text = f"would stop the cluster below {directory}" if args.dry_run else text
    return show(args, {"schema": 1, "directory": directory, "stopped": stopped}, text)


@command("hpcdl cluster status")
def _status(args: argparse.Namespace) -> ExitCode:
    """Show daemons and nodes; exit 1 if any is down."""
    from hpcdl.cluster import status

    current = _found(args)
    data = status.as_data(current)
    return show(args, data, status.as_text(data), ok=data["phase"] == "ready")


@command('eval "$(hpcdl cluster env)"')
def _env(args: argparse.Namespace) -> ExitCode:
    """Print shell settings that select the embedded cluster."""
    from hpcdl.cluster.state import modules, shell_exports, variables

    current = _found(args)
    data = {**variables(current), "MODULEPATH": modules(current)}
    return show(args, data, shell_exports(current), end="")


@command(
    "hpcdl cluster node kill p100-02",
    option(
        "action",
        "fault to inject, or repair: heal, up",
        choices=("kill", "cut", "slow", "heal", "up"),
    ),
    option("node", "NAME", "node, such as p100-02"),
    changes=True,
)
def _node(args: argparse.Namespace) -> ExitCode:
    """Inject a fault into a node (kill, cut off its network, slow) or repair it."""
    from hpcdl.cluster.lifecycle import change

    current = _found(args)
    if args.dry_run:
        outcome = f"would {args.action} the node {current.node(args.node).name}"
    else:
        outcome = change(current, args.node, args.action)
    return show(
        args, {"schema": 1, "node": args.node, "action": args.action, "done": outcome}, outcome
    )


GROUP = Group("cluster", (_up, _down, _status, _env, _node))
