"""The embedded cluster: a real slurmctld, slurmd and munge on one machine, from a site file.

Pure functions lay a site out and write its configuration (`cluster_plan`); `daemons`, `network`
and `processes` act; `lifecycle` says in which order, and breaks and repairs single nodes. All state
is below one directory, and nothing of the machine's own is touched.
"""

from hpcdl.cluster.lifecycle import up
from hpcdl.cluster.model import ClusterState
from hpcdl.cluster.state import environment, read_state, shell_exports
from hpcdl.cluster.teardown import down

__all__ = ["ClusterState", "down", "environment", "read_state", "shell_exports", "up"]
