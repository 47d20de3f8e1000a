"""The embedded cluster: how soon it takes jobs, and how little it needs."""

from dataclasses import replace
from pathlib import Path
from statistics import median

from hpcdl.cluster.teardown import down
from hpcdl.site import find_site_file, load_site
from hpcdl.system.errors import MissingPrerequisite
from tests.bench import report, timed
from tests.homes import short_home
from tests.make import up

RUNS = 3


def small(site, nodes):
    """The embedded site with one partition of `nodes` nodes."""
    part = replace(site.partitions["cpu"], nodes=nodes, hostlist=None)
    return replace(site, partitions={"cpu": part}, default_partition="cpu")


def memory_mb(state):
    """Proportional set size of all processes whose command line names the cluster, in MB."""
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(state.directory).encode() in (process / "cmdline").read_bytes():
                rollup = (process / "smaps_rollup").read_text()
                total += next(int(x.split()[1]) for x in rollup.splitlines() if x[:4] == "Pss:")
        except (OSError, StopIteration):
            continue
    return total / 1000


def measure(nodes, mode, runs):
    """Median seconds until all nodes are idle, MB, and median seconds of `down`."""
    site = small(load_site(find_site_file("embedded")), nodes)
    ups, downs, size = [], [], 0.0
    for _ in range(runs):
        with short_home() as folder:
            state = up(site, mode=mode, directory=folder / "c")
            ups.append(state.seconds)
            size = memory_mb(state)
            downs.append(timed(lambda folder=folder: down(folder / "c", purge=True)))
    return median(ups), size, median(downs)


def main():
    for nodes, mode, seconds, megabytes in (
        (4, "namespaces", 5.0, None),
        (4, "loopback", 5.0, None),
        (128, "loopback", 20.0, 500.0),
    ):
        name = f"cluster: {nodes} nodes, {mode}"
        try:
            ready, size, gone = measure(nodes, mode, RUNS if nodes < 10 else 1)
        except MissingPrerequisite as lack:
            report(name, None, "s", note=lack.message)
            continue
        report(f"{name}, up", ready, "s", most=seconds, note=f"all idle; down {gone:.2g} s")
        report(f"{name}, memory", size, "MB", most=megabytes, note="PSS of all processes")
