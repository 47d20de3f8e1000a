"""A partition's links as the site's own references of the all-reduce check know them.

The check measures bus bandwidth by message size, on one node and on two; a team reviews the
references that come of it. So they say what a job's gradients meet, and `hpcdl predict` and the
expectation of a job start from them instead of from published links.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

from hpcdl.predict.results import Exchange, Place, times_of
from hpcdl.regress.bandwidth import SIZES, SMALL_SIZES, metric_name
from hpcdl.regress.references import fingerprint, read_references, site_file
from hpcdl.site import Partition, Site
from hpcdl.workflows.trained import HOROVOD

CHECK = "allreduce"
_CASE = re.compile(r"(?P<strategy>[a-z_]+)-(?P<nodes>[0-9]{1,4})x(?P<local>[0-9]{1,4})")
_SIZES = {metric_name(size): size for size in (*SIZES, *SMALL_SIZES)}


def measured_links(
    site: Site, partition: Partition, strategy: str, local: int
) -> tuple[Exchange, ...]:
    """What the site measured of the links within a node, and of those between nodes.

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
    if not path.exists():
        return
    here = {None, fingerprint()}
    rows = [
        row
        for row in read_references(path)
        if (row.check, row.partition) == (CHECK, partition.label) and row.machine in here
    ]
    for case, group in groupby(sorted(rows, key=lambda row: row.case), lambda row: row.case):
        found = _CASE.fullmatch(case)
        if not found or found["strategy"] != strategy:
            continue
        nodes, local = int(found["nodes"]), int(found["local"])
        rates = [(_SIZES[row.metric], row.value) for row in group if row.metric in _SIZES]
        one = Exchange(origin=str(path), place=Place(partition.name, gpu="", on_cpu=False),
                       nodes=nodes, local=local, times=times_of(rates, nodes * local),
                       steady=strategy != HOROVOD)  # fmt: skip
        if nodes * local > 1 and one.times and one.slope[1] > 0:
            yield one
