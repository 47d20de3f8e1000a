"""All drills, in the order of the table."""

from tests.drill import clusters, disks, faults, jobs, stacks

DRILLS = (*clusters.DRILLS, *stacks.DRILLS, *jobs.DRILLS, *disks.DRILLS, *faults.DRILLS)
