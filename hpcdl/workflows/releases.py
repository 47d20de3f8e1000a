"""Releases and the queue: which jobs use which release, and so what must not be removed.

A job's script is read as Slurm keeps it: it names its release by its folder, or loads the
module by name. So other people's jobs, job arrays and scripts that were submitted by hand count
as well. Where Slurm does not show a script, hpcdl's own record of the job tells; a job without
either counts as a user of every release.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hpcdl.jobs.submission import release_of
from hpcdl.site import Site
from hpcdl.slurm import client
from hpcdl.slurm.parse import JobRecord
from hpcdl.stack.recipe import MODULE
from hpcdl.stack.release import release_ids, releases_folder

_ASKED_AT_ONCE = 8
_LOAD = re.compile(
    r"^[^#\n]*?\b(?:module(?:\s+-\S+)*\s+(?:load|add|try-load|switch|swap)|ml(?:\s+(?:load|add))?)"
    r"\s+([^;&|#\n]+)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Use:
    """An active job and what it needs of the site's releases.

    `releases` are named by their folders; `loads` are modules of ours that it loads by name,
    such as `tensorflow` or `tensorflow/2.21.0-cpu`; `known` is False where nobody can tell.
    """

    job: JobRecord
    releases: tuple[str, ...]
    loads: tuple[str, ...] = ()
    known: bool = True


def uses(site: Site) -> tuple[Use, ...]:
    """What every queued or running job uses; an array counts once.

    Raises:
        MachineLacks: Slurm is away, so nobody knows.
    """
    jobs = {job.array_job or job.id: job for job in client.queue() if job.active}
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        return tuple(pool.map(lambda number: _use(site, number, jobs[number]), sorted(jobs)))


def pinned_by_jobs(site: Site) -> dict[str, str]:
    """Why each release that queued or running jobs need must stay.

    Raises:
        MachineLacks: Slurm is away, so nobody knows.
    """
    found = uses(site)
    named: dict[str, list[int]] = {}
    for use in found:
        for release in use.releases:
            named.setdefault(release, []).append(use.job.id)
    unknown = [use.job.id for use in found if not use.known]
    doubt = f"{_jobs(unknown)} may use it: only root or a Slurm operator can read the script"
    kept = dict.fromkeys(release_ids(site), doubt) if unknown else {}
    return {**kept, **{name: f"{_jobs(jobs)} will load it" for name, jobs in named.items()}}


def read_script(site: Site, text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The releases that a script names by their folder, and the modules of ours it loads."""
    folders = {str(releases_folder(site)), str(site.paths.prefix.resolve() / "releases")}
    path = "|".join(re.escape(folder) for folder in sorted(folders))
    releases = re.findall(rf"(?:{path})/([A-Za-z0-9][A-Za-z0-9._-]*)", text)
    words = [word.strip("'\"") for found in _LOAD.findall(text) for word in found.split()]
    loads = [word for word in words if word.partition("/")[0] == MODULE]
    return tuple(dict.fromkeys(releases)), tuple(dict.fromkeys(loads))


def _use(site: Site, number: int, job: JobRecord) -> Use:
    script = client.batch_script(number)
    if script is not None:
        return Use(job, *read_script(site, script))
    release = release_of(site, number)
    return Use(job, (release,) if release else (), known=release is not None)


def _jobs(numbers: Iterable[int]) -> str:
    """`job 7`, `jobs 7, 9 and 12 more`."""
    known = sorted(numbers)
    shown = ", ".join(map(str, known[:3]))
    more = f" and {len(known) - 3} more" if len(known) > 3 else ""
    return f"{'job' if len(known) == 1 else 'jobs'} {shown}{more}"
