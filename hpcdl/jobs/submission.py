"""Puts a job's files in place and queues it; finds submitted jobs again.

A job's folder is WORK/jobs/NAME-STAMP: job.sh, job.json (what was asked and decided), job.log,
progress.json, result.json. WORK/jobs/by-id/ID links to it.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hpcdl.jobs.script import Script, default_job_dir, render_script
from hpcdl.jobs.spec import JobSpec, Module
from hpcdl.site import Site
from hpcdl.slurm import client
from hpcdl.system.errors import BadInput
from hpcdl.system.files import switch_link, write_atomic, write_json

SCHEMA = 1


@dataclass(frozen=True)
class Submission:
    """A queued job and where its files lie."""

    job_id: int
    folder: Path

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
    """The script of a job that has a folder of its own, and the spec with that folder.

    Nothing is written yet.
    """
    stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
    folder = (spec.job_dir or default_job_dir(site, spec.name, stamp)).absolute()
    placed = replace(spec, job_dir=folder)
    return render_script(site, placed, module), placed


def submit(site: Site, spec: JobSpec, module: Module) -> Submission:
    """Write a job's folder, ask Slurm whether it would run, and queue it.

    Raises:
        BadInput: impossible request, or Slurm refuses it; the folder is then removed again.
        MachineLacks: Slurm is away, or the folder cannot be written.
    """
    script, placed = place(site, spec, module)
    folder = placed.job_dir
    assert folder is not None
    if (folder / "job.json").exists():
        raise BadInput(f"{folder} holds a submitted job", hint="choose another --job-dir")
    job_id = None
    try:
        write_atomic(folder / "job.sh", _bytes(script.text), mode=0o755)
        client.would_run(folder / "job.sh")
        job_id = client.submit(folder / "job.sh")
        write_json(folder / "job.json", _record(site, placed, module, script, job_id))
        switch_link(_index(site) / str(job_id), os.path.relpath(folder, _index(site)))
    except BaseException:
        # A job without its record could not be followed: it is taken back as a whole.
        if job_id is not None:
            client.cancel([job_id])
        _withdraw(folder)
        raise
    return Submission(job_id, folder)


def find(site: Site, which: str) -> Submission:
    """The submission of a job id or a job's folder.

    Raises:
        BadInput: neither is known here.
    """
    folder = _index(site) / which if which.isdigit() else Path(which)
    try:
        record = json.loads((folder / "job.json").read_text())
        return Submission(int(record["job_id"]), folder.resolve())
    except (OSError, ValueError, KeyError, TypeError) as fault:
        kind = f"job {which}" if which.isdigit() else f"job in {which}"
        raise BadInput(
            f"there is no {kind} submitted by hpcdl",
            hint=f"`squeue --me` lists your jobs; hpcdl keeps its own under {site.paths.work}/jobs",
        ) from fault


def asked(submission: Submission) -> dict[str, Any]:
    """What was asked and decided: the job's job.json; empty where it cannot be read."""
    try:
        record = json.loads((submission.folder / "job.json").read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def pinned_releases(site: Site, job_ids: set[int]) -> set[str]:
    """The releases that these jobs will load or have loaded."""
    found: set[str] = set()
    for job_id in job_ids:
        try:
            record = json.loads((_index(site) / str(job_id) / "job.json").read_text())
        except (OSError, ValueError):
            continue
        if isinstance(record, dict) and record.get("release"):
            found.add(str(record["release"]))
    return found


def _index(site: Site) -> Path:
    return site.paths.work / "jobs" / "by-id"


def _withdraw(folder: Path) -> None:
    """Take back a job's folder that Slurm did not accept; other files in it stay."""
    with suppress(OSError):
        (folder / "job.json").unlink(missing_ok=True)
        (folder / "job.sh").unlink(missing_ok=True)
        folder.rmdir()  # refused where other files are left


def _record(
    site: Site, spec: JobSpec, module: Module, script: Script, job_id: int
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "job_id": job_id,
        "name": spec.name,
        "site": site.name,
        "site_file": str(site.source),
        "partition": spec.partition,
        "layout": asdict(script.layout),
        "launcher": spec.launcher,
        "program": list(spec.program),
        "modules": list(module.names),
        "release": module.release,
        "submitted": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
