"""Releases and the queue: which jobs use which release, and so what must not be removed.

A job's script is read as Slurm keeps it: it names its release by its directory, or loads the
module by name. So other people's jobs, job arrays and scripts that were submitted by hand count
as well. Where Slurm does not show a script, hpcdl's own record of the job is read; a job without
either counts as a user of every release, and so does an interactive one: nobody knows what its
user types. A script that loads nothing runs with what its user had loaded when he submitted it.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

from hpcdl.jobs.submission import release_of
from hpcdl.regress.result import epoch
from hpcdl.site import Site
from hpcdl.slurm import client
from hpcdl.slurm.parse import JobRecord
from hpcdl.stack.modules import given_since, read_history
from hpcdl.stack.publish import sound_releases
from hpcdl.stack.release import MODULE, release_ids, releases_folder
from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.text import bash_word

_ASKED_AT_ONCE = 8
_LOAD = re.compile(
    r"^[^#\n]*?\b(?:module(?:\s+-\S+){0,9}\s+(?:load|add|try-load|switch|swap)|ml(?:\s+(?:load|add))?)"
    r"\s+([^;&|#\n]+)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Use:
    """An active job and what it needs of the site's releases.

    `releases` are named by their directories; `loads` are modules of ours that it loads by name,
    such as `tensorflow` or `tensorflow/2.21.0-cpu`; `known` is False where that is unknown.
    `interactive` ones have no script (salloc, srun).
    """

    job: JobRecord
    releases: tuple[str, ...]
    loads: tuple[str, ...] = ()
    known: bool = True
    interactive: bool = False


def uses(site: Site) -> tuple[Use, ...]:
    """Return what every queued or running job uses; an array's script is read once.

    MissingPrerequisite where Slurm is away, or shows this user only some of the jobs.
    """
    if not client.sees_all_jobs():
        raise MissingPrerequisite(
            "Slurm shows you your own jobs only (PrivateData=jobs), so what others need is unknown",
            hint="run this as root or SlurmUser, or become an operator: "
            "sacctmgr modify user NAME set AdminLevel=Operator",
        )
    tasks: dict[int, list[JobRecord]] = {}
    for job in client.queue():
        if job.active:
            tasks.setdefault(job.array_job or job.id, []).append(job)
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        found = pool.map(lambda number: _uses(site, tasks[number]), sorted(tasks))
        return tuple(use for of_one in found for use in of_one)


def pinned_by_jobs(site: Site) -> dict[str, str]:
    """Why each release that queued or running jobs need must stay.

    Of a job that loads a version by name, every build of that version stays; of one that runs and
    loads what is current, all that was current since it started; of one that loads nothing, all
    that was current since it was submitted. An interactive job may have loaded any.
    """
    job_uses = uses(site)
    named: dict[str, list[int]] = {}
    loaded = _loaded_by(site)
    for use in job_uses:
        for release in dict.fromkeys([*use.releases, *loaded(use)]):
            named.setdefault(release, []).append(use.job.id)
    kept: dict[str, str] = {}
    for jobs, why in (
        (
            [use.job.id for use in job_uses if use.interactive],
            "may have loaded it: interactive (salloc, srun)",
        ),
        (
            [use.job.id for use in job_uses if not use.known],
            "may use it: only root or a Slurm operator can read the script",
        ),
    ):
        kept |= dict.fromkeys(release_ids(site), f"{_jobs(jobs)} {why}") if jobs else {}
    return {**kept, **{name: f"{_jobs(jobs)} will load it" for name, jobs in named.items()}}


def read_script(site: Site, text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The releases that a script names by their directory, and the modules of ours it loads."""
    folders = {str(releases_folder(site)), str(site.paths.prefix.resolve() / "releases")}
    # Scripts have a path with an apostrophe in it only as a word of bash.
    folders |= {bash_word(folder).removesuffix("'") for folder in folders}
    path = "|".join(re.escape(folder) for folder in sorted(folders))
    releases = re.findall(rf"(?:{path})/([A-Za-z0-9][A-Za-z0-9._-]*)", text)
    names = [one.strip("'\"") for found in _LOAD.findall(text) for one in found.split()]
    loads = [name for name in names if name.partition("/")[0] == MODULE]
    return tuple(dict.fromkeys(releases)), tuple(dict.fromkeys(loads))


def _loaded_by(site: Site) -> Callable[[Use], Iterator[str]]:
    """Return a function for the releases that a job loads, or loaded when it ran."""
    releases, events = sound_releases(site), read_history(site)
    times = sorted(event.at for event in events)

    @cache  # thousands of jobs started between the same two events
    def given(partition: str, first: int) -> list[str]:
        return sorted(given_since(site, events, releases, partition, first))

    def since(local: str, partition: str) -> list[str]:
        return given(partition, bisect_left(times, _in_utc(local)))

    def loaded(use: Use) -> Iterator[str]:
        if use.known and not use.releases and not use.loads:
            for partition in site.partitions:  # whatever machine its user loaded it on before
                yield from since(use.job.submitted, partition)
        for load in use.loads:
            if "/" in load:  # the module's name, or the part of it that Lmod completes
                means = re.compile(rf"{re.escape(load)}(?![0-9A-Za-z])")
                yield from (
                    name for name, release in releases.items() if means.match(release.module)
                )
            elif use.job.state != "PENDING":  # one that waits will get what is current then
                yield from since(use.job.started, use.job.partition)

    return loaded


def _in_utc(local: str) -> str:
    """Slurm's time as the history has it; the beginning of all times where there is none."""
    at = epoch(local)
    return "" if at is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def _uses(site: Site, jobs: Sequence[JobRecord]) -> list[Use]:
    """Return what a job, or each task of an array, uses: one script, several starts."""
    # By the tasks' own ids: that of an array goes with the task that has it (MinJobAge).
    script = next((text for job in jobs if (text := client.batch_script(job.id)) != ""), "")
    if script is not None:
        needs = read_script(site, script)
        return [Use(job, *needs, interactive=not script) for job in jobs]
    release = release_of(jobs[0].script)
    named = (release,) if release else ()
    return [Use(job, named, known=release is not None) for job in jobs]


def _jobs(numbers: Iterable[int]) -> str:
    """`job 7`, `jobs 7, 9 and 12 more`."""
    known = sorted(numbers)
    shown = ", ".join(map(str, known[:3]))
    more = f" and {len(known) - 3} more" if len(known) > 3 else ""
    return f"{'job' if len(known) == 1 else 'jobs'} {shown}{more}"
