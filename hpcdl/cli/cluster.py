"""`hpcdl cluster`: the embedded Slurm."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from hpcdl.cli.framework import Command, Group, print_json
from hpcdl.system.errors import ExitCode

if TYPE_CHECKING:
    from hpcdl.cluster import ClusterState
    from hpcdl.site import Site


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _site(args: argparse.Namespace) -> Site:
    """As everywhere, but the shipped `embedded` site is the default."""
    from hpcdl.cluster.find import site_of

    return site_of(args.site)


def _found(args: argparse.Namespace) -> ClusterState:
    from hpcdl.cluster.find import running

    return running(args.site)


def _up_arguments(parser: argparse.ArgumentParser) -> None:
    from hpcdl.cluster.model import MODES

    parser.add_argument("--mode", choices=MODES, default="auto", help="how nodes are isolated")
    parser.add_argument("--accounting", action="store_true", help="start slurmdbd too, for sacct")
    parser.add_argument(
        "--slurm", metavar="V", default="", help="another Slurm release, such as 24.11"
    )
    parser.add_argument("--port-base", type=int, metavar="PORT", help="first TCP port to use")
    parser.add_argument(
        "--max-nodes-per-partition", type=int, metavar="K", help="at most K nodes per partition"
    )


def _up(args: argparse.Namespace) -> ExitCode:
    from hpcdl.cluster import status
    from hpcdl.cluster.lifecycle import prepare, up

    site = _site(args)
    if args.dry_run:
        asked, directory = prepare(
            site, mode=args.mode, accounting=args.accounting, slurm=args.slurm,
            max_nodes=args.max_nodes_per_partition,
        )  # fmt: skip
        text, data = status.intention(asked, directory)
    else:
        started = up(
            site,
            mode=args.mode,
            accounting=args.accounting,
            port_base=args.port_base,
            max_nodes=args.max_nodes_per_partition,
            slurm=args.slurm,
            say=_say,
        )
        text, data = status.summary(started), status.as_data(started)
    if args.json:
        print_json(data)
    else:
        print(text)
    return ExitCode.OK


def _down_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--purge", action="store_true", help="remove logs and accounting data, too")


def _down(args: argparse.Namespace) -> ExitCode:
    from hpcdl.cluster.find import directory_of
    from hpcdl.cluster.teardown import down

    directory = directory_of(args.site)
    stopped = not args.dry_run and down(directory, purge=args.purge, say=_say)
    said = "stopped" if stopped else "nothing was running"
    if args.json:
        print_json({"schema": 1, "directory": directory, "stopped": stopped})
    else:
        print(f"would stop the cluster below {directory}" if args.dry_run else said)
    return ExitCode.OK


def _status(args: argparse.Namespace) -> ExitCode:
    from hpcdl.cluster import status

    current = _found(args)
    if args.json:
        print_json(status.as_data(current))
    else:
        print(status.as_text(current))
    return ExitCode.OK if status.healthy(current) else ExitCode.NO


def _env(args: argparse.Namespace) -> ExitCode:
    from hpcdl.cluster.environment import modules, shell_exports, variables

    current = _found(args)
    if args.json:
        print_json({**variables(current), "MODULEPATH": modules(current)})
    else:
        print(shell_exports(current), end="")
    return ExitCode.OK


def _roots_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--slurm", metavar="V", action="append", help="Slurm release to build; may be repeated"
    )


def _roots(args: argparse.Namespace) -> ExitCode:
    from hpcdl.cluster import rootfs

    wanted = args.slurm or list(rootfs.releases())
    for release in wanted:
        rootfs.check(release)
    if args.dry_run:
        missing = [release for release in wanted if rootfs.find(release) is None]
        if args.json:
            print_json({"schema": 2, "directory": str(rootfs.folder()), "would_build": missing})
        else:
            print(f"would build: {', '.join(missing) or 'nothing'}, below {rootfs.folder()}")
        return ExitCode.OK
    got = rootfs.get_all(wanted, _say)
    rows = [rootfs.row(release, one) for release, one in got.items()]
    if args.json:
        print_json({"schema": 1, "rootfs": rows})
    else:
        print("\n".join(rootfs.line(row) for row in rows))
    return ExitCode.OK if all(row["directory"] for row in rows) else ExitCode.PARTLY


def _node_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=("kill", "cut", "slow", "heal", "up"),
        help="fault to inject, or repair: heal, up",
    )
    parser.add_argument("node", metavar="NAME", help="node, such as p100-02")


def _node(args: argparse.Namespace) -> ExitCode:
    from hpcdl.cluster import nodes

    current = _found(args)
    if args.dry_run:
        said = f"would {args.action} the node {current.node(args.node).name}"
    else:
        said = nodes.ACTIONS[args.action](current, args.node)
    if args.json:
        print_json({"schema": 1, "node": args.node, "action": args.action, "done": said})
    else:
        print(said)
    return ExitCode.OK


GROUP = Group(
    "cluster",
    "the embedded cluster: a real Slurm on this machine",
    (
        Command("up", "Start the embedded cluster; restart daemons that died.", "hpcdl cluster up",
                _up, _up_arguments, changes=True),
        Command("down", "Stop the embedded cluster and all its processes.", "hpcdl cluster down",
                _down, _down_arguments, changes=True),
        Command("status", "Show daemons and nodes; exit 1 if any is down.",
                "hpcdl cluster status", _status),
        Command("env", "Print shell settings that select the embedded cluster.",
                'eval "$(hpcdl cluster env)"', _env),
        Command("rootfs", "Build root file systems with other Slurm releases, in parallel.",
                "hpcdl cluster rootfs --slurm 24.11", _roots, _roots_arguments, changes=True),
        Command("node",
                "Inject a fault into a node (kill, cut off its network, slow) or repair it.",
                "hpcdl cluster node kill p100-02", _node, _node_arguments, changes=True),
    ),
)  # fmt: skip
