"""Puts a job's files in place and queues it; finds submitted jobs again.

A job's directory is WORK/jobs/NAME-STAMP: job.sh, job.json (what was asked and decided), job.log,
progress.json, result.json. WORK/jobs/by-id/ID links to it; an embedded cluster, which counts its
jobs from 1 as every other does, has an index of its own beside that one.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hpcdl.jobs import environment
from hpcdl.jobs.program import check_script
from hpcdl.jobs.script import Script, default_job_dir, render_script
from hpcdl.jobs.spec import JobSpec, Module
from hpcdl.results.records import JOB
from hpcdl.site import Site
from hpcdl.slurm import client
from hpcdl.system.errors import BadInput
from hpcdl.system.files import switch_link, write_atomic
from hpcdl.system.signals import terminable, undivided
from hpcdl.system.text import utc_stamp
from hpcdl.system.trust import user_of


@dataclass(frozen=True)
class Submission:
    """A queued job and where its files lie; `chain` are the ids of all jobs of its run."""

    job_id: int
    folder: Path
    chain: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.chain:
            object.__setattr__(self, "chain", (self.job_id,))

    @property
    def script(self) -> Path:
        """The batch script."""
        return self.folder / "job.sh"

    @property
    def log(self) -> Path:
        """Both outputs of the job."""
        return self.folder / "job.log"

    @property
    def result(self) -> Path:
        """What the training program measured."""
        return self.folder / "result.json"


def place(site: Site, spec: JobSpec, module: Module) -> tuple[Script, JobSpec]:
    """The script of a job that has a directory of its own, and the spec with that directory.

    Nothing is written yet.
    """
    stamp = f"{utc_stamp()}-{os.urandom(2).hex()}"
    folder = (spec.job_dir or default_job_dir(site, spec.name, stamp)).absolute()
    placed = replace(spec, job_dir=folder)
    return render_script(site, placed, module), placed


def submit(site: Site, spec: JobSpec, module: Module) -> Submission:
    """Write a job's directory and queue it. `sbatch` refuses what can never run.

    Raises:
        BadInput: impossible request, or Slurm refuses it; the directory is then removed again.
        MissingPrerequisite: Slurm does not answer, or the directory cannot be written.
    """
    check_data(spec)
    check_script(spec)
    script, placed = place(site, spec, module)
    folder = placed.job_dir
    assert folder is not None
    _check_free(folder)
    queued: list[int] = []
    with terminable():
        try:
            environment.keep(folder / environment.NAME, spec.environment)
            write_atomic(folder / "job.sh", script.text, mode=0o755)
            for options in _links(spec.chain, queued):
                with undivided():
                    queued.append(client.submit(folder / "job.sh", options))
            JOB.write(folder / JOB.name, _record(site, placed, module, script, queued))
            for job_id in queued:
                switch_link(index(site) / str(job_id), os.path.relpath(folder, index(site)))
        except BaseException:
            # A job without its record could not be followed: it is removed again as a whole.
            with undivided():
                client.cancel(queued)
                _withdraw(folder)
            raise
    return Submission(queued[0], folder, tuple(queued))


def _check_free(folder: Path) -> None:
    """Refuse a directory whose job.sh is another job's, or a user's own: it would be lost."""
    if (folder / "job.json").exists():
        raise BadInput(f"{folder} holds a submitted job", hint="choose another --job-dir")
    for name in ("job.sh", environment.NAME):
        if (folder / name).exists() or (folder / name).is_symlink():
            raise BadInput(
                f"{folder} holds a {name} already, which would be written over",
                hint="choose another --job-dir, or move it away",
            )


def check_data(spec: JobSpec) -> None:
    """Refuse a data set that is not there: it lies on the file system that nodes share.

    Raises:
        BadInput: see above.
    """
    if spec.data and not Path(spec.data).exists():
        raise BadInput(
            f"there is no data set {spec.data}",
            hint="`hpcdl data make` writes one; `hpcdl job render` does not ask for it",
        )


def _links(chain: int, queued: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """Options of each job of a chain: one starts only where none before it finished.

    Every job before it is named: one that is dropped, because the run has finished, counts as
    not ok for the next.
    """
    yield ()
    for _ in range(chain - 1):
        before = ",".join(f"afternotok:{job_id}" for job_id in queued)
        yield (f"--dependency={before}", "--kill-on-invalid-dep=yes")


def find(site: Site, which: str) -> Submission:
    """The submission of a job id or a job's directory.

    Raises:
        BadInput: neither is known here.
    """
    folder = index(site) / which if which.isdigit() else Path(which)
    try:
        record = JOB.read(folder / JOB.name)
        record.need("job_id", "chain")
        found = Submission(record.values["job_id"], folder.resolve(), tuple(record.values["chain"]))
        owner = found.folder.stat().st_uid
    except (BadInput, OSError) as fault:
        kind = f"job {which}" if which.isdigit() else f"job in {which}"
        raise BadInput(
            f"there is no {kind} submitted by hpcdl",
            hint=f"`squeue --me` lists your jobs; hpcdl keeps its own under {site.paths.work}/jobs",
        ) from fault
    if which.isdigit() and owner not in {0, os.getuid()}:
        raise BadInput(  # an index that a group writes to: what it says of others' jobs is theirs
            f"job {which} was submitted by {user_of(owner)}",
            hint=f"to look at it, name its directory: {found.folder}",
        )
    return found


def asked(submission: Submission) -> dict[str, Any]:
    """What was asked and decided: the job's job.json; empty where it cannot be read."""
    record = JOB.find(submission.folder / JOB.name)
    return record.values if record else {}


def release_of(script: str) -> str | None:
    """The release that the job of a script, as Slurm has it, loads; None without a record of it.

    The record lies beside the script; others may write to the index.
    """
    record = JOB.find(Path(script).parent / JOB.name) if script else None
    return (record.values.get("release") or None) if record else None


def index(site: Site) -> Path:
    """Where links by job id to the directories of submitted jobs lie."""
    place = site.paths.work / "jobs" / "by-id"
    cluster = Path(os.environ.get("SLURM_CONF") or "/").parent.parent
    if not (cluster / ".hpcdl-cluster").is_file():
        return place
    return place.with_name(f"by-id-{hashlib.sha256(bytes(cluster)).hexdigest()[:8]}")


def _withdraw(folder: Path) -> None:
    """Remove a job's directory that Slurm did not accept; other files in it stay."""
    with suppress(OSError):
        (folder / "job.json").unlink(missing_ok=True)
        (folder / "job.sh").unlink(missing_ok=True)
        (folder / environment.NAME).unlink(missing_ok=True)
        folder.rmdir()  # refused where other files are left


def _record(
    site: Site, spec: JobSpec, module: Module, script: Script, queued: Sequence[int]
) -> dict[str, Any]:
    return {
        "job_id": queued[0],
        "chain": list(queued),
        "name": spec.name,
        "site": site.name,
        "site_file": str(site.source),
        "partition": spec.partition,
        "gpu_model": spec.gpu_model,
        "layout": asdict(script.layout),
        "launcher": spec.launcher,
        "program": list(spec.program),
        "modules": list(module.names),
        "release": module.release,
        "submitted": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
