"""Plans of a stack: what `stack build` makes of it, one build per group of partitions.

Every way of building has a plan of its own with the same methods, a `ReleasePlan`; what the command
line, `stack plan` and the documents show comes from it. Its versions are those that `stack resolve`
shows for each of its partitions: both are answers of one `Resolver`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hpcdl.site import Site
from hpcdl.stack.build import plan_wheels
from hpcdl.stack.release import ReleasePlan
from hpcdl.stack.resolve import Resolver, find_request
from hpcdl.stack.spack_backend.spack_build import plan_spack
from hpcdl.system.errors import BadInput, HpcdlError, MissingPrerequisite


@dataclass(frozen=True)
class Blocked:
    """Partitions of a stack that get no build on this machine, and why."""

    partitions: tuple[str, ...]
    fault: HpcdlError

    def __str__(self) -> str:
        return f"{', '.join(self.partitions)}: {self.fault.in_one_line()}"


def plan_stack(
    site: Site,
    name: str | None = None,
    *,
    partition: str | None = None,
    backend: str | None = None,
    without_horovod: bool = False,
) -> tuple[tuple[ReleasePlan, ...], tuple[Blocked, ...]]:
    """The builds of a stack, one per TensorFlow that its GPUs need, and what gets none.

    `partition` asks for its build only; `backend` builds it another way than the site file says,
    `without_horovod` leaves that out, whatever the site says.
    """
    request = find_request(site, name)
    horovod = request.horovod and not without_horovod
    request = replace(request, backend=backend or request.backend, horovod=horovod)
    site = replace(site, stacks={**site.stacks, request.name: request})
    groups = Resolver(site).groups(request)
    wanted = [
        group for group in groups if partition is None or site.partition(partition).name in group
    ]
    if not wanted:
        raise BadInput(f"stack '{request.name}' does not serve partition '{partition}'")
    plans: list[ReleasePlan] = []
    blocked = []
    for names in wanted:
        every = len(groups) == 1 and set(names) == set(site.partitions)
        served = request.partitions if every else names
        try:
            if request.backend == "wheels":
                plans.append(plan_wheels(site, request, names, served))
            else:
                plans.append(plan_spack(site, request, names, served, alone=len(groups) == 1))
        except (MissingPrerequisite, BadInput) as fault:
            blocked.append(Blocked(names, fault))
    return tuple(plans), tuple(blocked)
