"""Ports of clusters that two users start at the same moment: each range is one cluster's."""

import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from hpcdl.cluster.model import LOOPBACK
from hpcdl.cluster.network import reserved_ports
from tests.strangers import as_root

CHOOSE = """
import os, sys
from hpcdl.cluster.network import reserved_ports
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print("ready", flush=True); sys.stdin.readline()
with reserved_ports("loopback", 3) as ports:
    print(ports.base, flush=True); sys.stdin.readline()
"""


@as_root
def test_many_users_choose_at_once_and_none_gets_anothers_ports():
    choosers = [
        subprocess.Popen([sys.executable, "-c", CHOOSE], stdin=subprocess.PIPE, text=True,
                         stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
        for _ in range(8)
    ]  # fmt: skip
    try:
        assert [one.stdout.readline() for one in choosers] == ["ready\n"] * 8
        for one in choosers:
            one.stdin.write("\n")
            one.stdin.flush()
        said = [one.stdout.readline() for one in choosers]
        assert len(set(said)) == 8, said
    finally:
        for one in choosers:
            one.kill()
            one.communicate()


def test_a_daemon_listens_on_a_reserved_port_and_nobody_else_chooses_it():
    with ExitStack() as held:
        ports = held.enter_context(reserved_ports(LOOPBACK, 2))
        with reserved_ports(LOOPBACK, 2) as others:
            assert others.base != ports.base
        addresses = ("", "127.0.0.1", "127.0.0.2", "")
        for port, address in zip(ports.on_host(LOOPBACK, 2), addresses, strict=True):
            daemon = held.enter_context(socket.socket())
            daemon.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            daemon.bind((address, port))
            daemon.listen()
        held.enter_context(reserved_ports(LOOPBACK, 2))
