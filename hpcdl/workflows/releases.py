"""Releases and the queue: what jobs have pinned must not be removed."""

from __future__ import annotations

from hpcdl.jobs.submission import pinned_releases
from hpcdl.site import Site
from hpcdl.slurm import client


def pinned_by_jobs(site: Site) -> set[str]:
    """The releases that queued and running jobs of this site name.

    Raises:
        MachineLacks: Slurm is away, so nobody knows.
    """
    return pinned_releases(site, {job.id for job in client.queue() if job.active})
