"""All drills, in the order of the table."""

from tests.drill import clusters, disks, faults, jobs, spack, stacks

DRILLS = [drill for one in (clusters, stacks, spack, jobs, disks, faults) for drill in one.DRILLS]
