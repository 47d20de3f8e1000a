"""All drills, in the order of the table."""

from tests.drill import clusters, disks, faults, jobs, spack, stacks

DRILLS = (
    *clusters.DRILLS,
    *stacks.DRILLS,
    *spack.DRILLS,
    *jobs.DRILLS,
    *disks.DRILLS,
    *faults.DRILLS,
)
