"""All-reduce: sizes of messages, names of their metrics, and what a site measured.

The check measures bus bandwidth by message size, on one node and on two; a team reviews the
references that come of it. So they say what a job's gradients meet, and the expectation of a job
starts from them instead of from published links.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

from hpcdl.predict.results import Exchange, bus_rate
from hpcdl.regress.references import fingerprint, read_references, site_file
from hpcdl.site import Partition, Site

SIZES = (1 << 16, 1 << 20, 1 << 24, 1 << 26)
"""Bytes: a small layer's gradient, Horovod's fusion at work, and what large models send."""
SMALL_SIZES = (1 << 16, 1 << 20, 1 << 22)
"""On a single node: its memory carries everything several times."""
_CASE = re.compile(r"(?P<strategy>[a-z_]+)-(?P<nodes>[0-9]{1,4})x(?P<local>[0-9]{1,4})")
_UNITS = ((1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def metric_name(size: int) -> str:
    """The metric of messages of a size: `bus_gbs_4MiB`."""
    unit, name = next(one for one in _UNITS if size >= one[0])
    return f"bus_gbs_{size // unit}{name}"


def measured_links(
    site: Site, partition: Partition, strategy: str, local: int
) -> tuple[Exchange, ...]:
    """Return the site's measurements of links within a node and between nodes.

    Of several numbers of ranks per node, the one nearest to `local` counts. References of
    another machine that emulated the cluster are none of this one.
    """
    known = list(_exchanges(site, partition, strategy))
    near = [one for one in known if one.nodes == 1]
    far = [one for one in known if one.nodes > 1]
    return tuple(
        min(some, key=lambda one: (abs(one.local - local), one.nodes))
        for some in (near, far)
        if some
    )


def _exchanges(site: Site, partition: Partition, strategy: str) -> Iterator[Exchange]:
    path = site_file(site, partition.reference_set)
    here, sizes = {None, fingerprint()}, {metric_name(size): size for size in SIZES + SMALL_SIZES}
    rows = [
        row
        for row in read_references(path)
        if (row.check, row.partition) == ("allreduce", partition.label) and row.machine in here
    ]
    for case, group in groupby(sorted(rows, key=lambda row: row.case), lambda row: row.case):
        match = _CASE.fullmatch(case)
        if not match or match["strategy"] != strategy:
            continue
        nodes, local = int(match["nodes"]), int(match["local"])
        rates = [(sizes[row.metric], row.value) for row in group if row.metric in sizes]
        rate = bus_rate(rates) if rates else None
        if nodes * local > 1 and rate:
            yield Exchange(str(path), nodes, local, rate)
