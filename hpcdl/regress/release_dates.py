"""What the published release of a partition promises, for checks that look whether it holds."""

from __future__ import annotations

from collections.abc import Mapping

from hpcdl.site import Partition, Site
from hpcdl.stack.release import release_for


def promised_versions(site: Site, partition: Partition, release: str | None) -> Mapping[str, str]:
    """Versions in the record of the release that a partition's jobs load, by component.

    Nothing where no release is published, or where the jobs load another one.
    """
    found = (
        release_for(site, partition.name, partition.gpu and partition.gpu.model)
        if release
        else None
    )
    return found.versions if found is not None and found.id == release else {}
