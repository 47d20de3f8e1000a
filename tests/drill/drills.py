"""All drills, in the order of the table."""

from tests.drill import clusters, disks, faults, fuzz, jobs, spack, stacks

DRILLS = [
    drill for one in (clusters, stacks, spack, jobs, disks, faults, fuzz) for drill in one.DRILLS
]
