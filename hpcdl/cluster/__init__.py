"""The embedded cluster: a real slurmctld, slurmd and munge on one machine, from a site file.

Pure functions lay a site out and write its configuration (`cluster_plan`); `daemons`, `network`
and `processes` act; `lifecycle` says in which order, and breaks and repairs single nodes. All state
is below one directory, and nothing of the machine's own is touched.
"""

NAMESPACES = "namespaces"
LOOPBACK = "loopback"
MODES = ("auto", NAMESPACES, LOOPBACK)
"""How nodes are isolated."""
