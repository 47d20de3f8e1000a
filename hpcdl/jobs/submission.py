"""Puts a job's files in place and queues it; finds submitted jobs again.

A job's directory is WORK/jobs/NAME-STAMP: job.sh, job.json (what was asked and decided), job.log,
progress.json, result.json. WORK/jobs/by-id/ID links to it. Before `sbatch` is called,
job.json has the tokens of its jobs, and WORK/jobs/unconfirmed/TOKEN links to the directory until
job.json has their ids: killed in between, the same command resumes there, and so does any look
(`settle`). An embedded cluster, which counts its jobs from 1 as every other does, has both
directories of links for itself, beside these.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from hpcdl.jobs.script import VALUES, JobScript, as_shell, default_job_dir, render_script
from hpcdl.jobs.spec import JobSpec, Module
from hpcdl.results.records import JOB
from hpcdl.site import Site
from hpcdl.slurm import client, once
from hpcdl.slurm.once import (
    SETTLED_SECONDS,
    Unconfirmed,
    embedded_cluster,
    links,
    locate,
    revoke,
    unconfirmed,
)
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.files import (
    LockBusy,
    clear_leftovers,
    locked,
    switch_link,
    sync_directory,
    write_atomic,
)
from hpcdl.system.signals import terminable, undivided
from hpcdl.system.text import utc_stamp
from hpcdl.system.trust import user_of

_LOCK, _UNCONFIRMED = ".submit.lock", "unconfirmed"


@dataclass(frozen=True)
class Submission:
    """A queued job and the directory of its files; `chain` are the ids of all jobs of its run.

    `resumed`: a command that was stopped had begun to submit it.
    """

    job_id: int
    folder: Path
    chain: tuple[int, ...] = ()
    resumed: bool = False

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
        """The training program's result.json."""
        return self.folder / "result.json"


def place(site: Site, spec: JobSpec, module: Module) -> tuple[JobScript, JobSpec]:
    """Return the script of a job in its own directory, and the spec with that directory.

    Nothing is written yet.
    """
    stamp = f"{utc_stamp()}-{os.urandom(2).hex()}"
    folder = (spec.job_dir or default_job_dir(site, spec.name, stamp)).absolute()
    placed = replace(spec, job_dir=folder)
    return render_script(site, placed, module), placed


def submit(
    site: Site, spec: JobSpec, module: Module, tell: Callable[[Submission], None] | None = None
) -> Submission:
    """Write a job's directory and queue it, once. `sbatch` refuses what can never run.

    If a stopped command left a submission of the same job unconfirmed, that one is completed
    instead. `tell` informs the user; a command that is stopped before `tell` ends counts as one
    that did not inform the user.

    Raises:
        BadInput: impossible request, or Slurm refuses it; the directory is then removed again.
        Unconfirmed: it is unknown whether Slurm accepted it; `settle` finds out.
        MissingPrerequisite: Slurm does not answer, or the directory cannot be written.
    """
    script, placed = place(site, spec, module)
    assert placed.job_dir is not None
    record = _record(site, placed, module, script)
    files = {"job.sh": script.text.encode(errors="surrogateescape")}
    if placed.environment:
        files[VALUES] = as_shell(placed.environment)
    with terminable(), ExitStack() as stack:
        begun = _begun(site, record, stack)
        folder = begun or placed.job_dir
        if not begun:
            _check_free(folder, files)
            stack.enter_context(locked(folder / _LOCK))
            _check_free(folder, files)
        request = asked(folder) if begun else record
        job_ids = _known(folder, (folder / JOB.name).stat().st_mtime) if begun else {}
        try:
            if not begun:
                _write(site, folder, files, record)
            queued = _queue(site, folder, request, job_ids)
        except Unconfirmed:
            raise
        except BaseException:
            # A job without its record could not be followed: it is removed again as a whole.
            with undivided():
                client.cancel([*job_ids.values()])
                for token in request["tokens"] if begun else ():
                    revoke(folder, token)  # what a stopped command sent may be on its way
                _withdraw(site, folder, request["tokens"])
            raise
        done = Submission(queued[0], folder, tuple(queued), resumed=begun is not None)
        if tell:
            tell(done)
        _forget(site, folder, request["tokens"])
    return done


def _begun(site: Site, record: Mapping[str, Any], stack: ExitStack) -> Path | None:
    """Return the directory where a stopped command left this request unfinished; or None.

    Its lock is entered into `stack`; one that is held is of a command that still runs.
    """
    for link, place in links(index(site, _UNCONFIRMED)):
        with ExitStack() as held, suppress(LockBusy):
            if (place / JOB.name).exists():
                held.enter_context(locked(place / _LOCK, wait_seconds=0))
                earlier = asked(place) if link.is_symlink() else {}
                same = all(earlier.get(key) == record[key] for key in ("request", "site"))
                if same and earlier.get("tokens"):
                    stack.push(held.pop_all())
                    return place
    return None


def _write(site: Site, folder: Path, files: Mapping[str, bytes], record: Mapping[str, Any]) -> None:
    """The files of a job that is not queued yet; from here on its tokens find it."""
    switch_link(index(site, _UNCONFIRMED) / record["tokens"][0], str(folder))
    for name, content in files.items():
        write_atomic(folder / name, content, mode=0o755 if name == "job.sh" else 0o600)
    JOB.write(folder / JOB.name, record)
    for place in (folder, folder.parent, index(site, _UNCONFIRMED)):
        sync_directory(place)


def _queue(
    site: Site, folder: Path, request: Mapping[str, Any], job_ids: dict[str, int]
) -> list[int]:
    """Queue the jobs of a directory that are not queued yet; adds each job's id to `job_ids`."""
    os.utime(folder / JOB.name)  # when sbatch was called last
    queued: list[int] = list(request.get("chain") or ()) if request.get("job_id") else []
    for token in () if queued else request["tokens"]:
        # The next of a chain starts only where none before it finished. All are named: one that is
        # dropped, because the run has finished, counts as not ok for the next.
        before = ",".join(f"afternotok:{job_id}" for job_id in queued)
        after = (f"--dependency={before}", "--kill-on-invalid-dep=yes") if queued else ()
        with undivided():
            if token not in job_ids:
                job_ids[token] = once.submit(folder / "job.sh", after, token=token)
            queued.append(job_ids[token])
    _confirm(site, folder, request, queued)
    return queued


def _known(folder: Path, since: float | None = None) -> dict[str, int]:
    """The jobs of a directory's tokens, as `locate` finds them, where job.json has no ids."""
    request = asked(folder)
    tokens = request.get("tokens", ()) if request.get("job_id") is None else ()
    return locate({token: [folder] for token in tokens}, since)


def _confirm(site: Site, folder: Path, request: Mapping[str, Any], queued: Sequence[int]) -> None:
    JOB.write(folder / JOB.name, {**request, "job_id": queued[0], "chain": list(queued)})
    target = os.path.relpath(folder, index(site))
    for job_id in queued:
        try:
            switch_link(index(site) / str(job_id), target)
        except MissingPrerequisite:  # another user's: planted, or of before ids began anew
            switch_link(index(site) / f"{job_id}.{os.urandom(4).hex()}", target)


def _forget(site: Site, folder: Path, tokens: Sequence[str]) -> None:
    """Remove temporary files of a submission, including those of killed commands."""
    for name in ("job.sh", VALUES, JOB.name):
        clear_leftovers(folder / name)
    for token in tokens[:1]:  # the last step: until then the same command is this one
        (index(site, _UNCONFIRMED) / token).unlink(missing_ok=True)


@dataclass(frozen=True)
class Unsettled:
    """A submission without a job: Slurm may still take it, or, with `dead`, it never will."""

    folder: Path
    asked: Mapping[str, Any]
    since: float
    dead: bool


def settle(site: Site) -> tuple[Unsettled, ...]:
    """Recover, by token, submissions whose job id was never written; return those without a job.

    A submission without a job after SETTLED_SECONDS is withdrawn, and its tokens are revoked.

    Raises SlurmAway: it does not answer.
    """
    left = []
    for link, folder in links(index(site, _UNCONFIRMED)):
        with suppress(LockBusy):  # it is being submitted
            if not folder.is_dir():
                link.unlink(missing_ok=True)
                continue
            with locked(folder / _LOCK, wait_seconds=0):
                left += _settled(site, link, folder)
    return tuple(left)


def _settled(site: Site, link: Path, folder: Path) -> list[Unsettled]:
    request = asked(folder)
    if not request.get("tokens") or request.get("job_id") is not None:
        if request.get("job_id"):  # stopped at its last step
            _confirm(site, folder, request, request["chain"] or [request["job_id"]])
            _forget(site, folder, request["tokens"])
        elif not (folder / JOB.name).exists():  # stopped at its first
            _withdraw(site, folder, [link.name])
        link.unlink(missing_ok=True)
        return []
    job_ids, since = _known(folder), (folder / JOB.name).stat().st_mtime
    dead = time.time() - since > SETTLED_SECONDS
    if job_ids or dead:
        for token in set(request["tokens"]) - set(job_ids):
            job_ids |= {token: job} if (job := revoke(folder, token)) else {}
    if job_ids:
        queued = [job_ids[token] for token in request["tokens"] if token in job_ids]
        _confirm(site, folder, request, queued)
        _forget(site, folder, request["tokens"])
        return []
    if dead:
        _withdraw(site, folder, request["tokens"])
    return [Unsettled(folder, request, since, dead)]


def _check_free(folder: Path, files: Mapping[str, bytes]) -> None:
    """Refuse a directory that holds another job's files, or a user's own: they would be lost."""
    if (folder / "job.json").exists():
        raise BadInput(f"{folder} holds a submitted job", hint="choose another --job-dir")
    for name, content in files.items():
        path = folder / name
        same = not path.is_symlink() and path.is_file() and path.read_bytes() == content
        if not same and os.path.lexists(path):
            message = f"{folder} holds a {name} already, which would be overwritten"
            raise BadInput(message, hint="choose another --job-dir, or move it away")


def find(site: Site, which: str) -> Submission:
    """The submission of a job id or a job's directory; BadInput for one not known here."""
    try:
        return _read(site, which)
    except BadInput:
        if "\0" in which:
            raise
        left = settle(site)
        folder = Path(which).resolve()
        if any(one.folder.resolve() == folder and not one.dead for one in left):
            raise unconfirmed() from None
        return _read(site, which)


def _read(site: Site, which: str) -> Submission:
    folder = _indexed(site, which) if which.isdigit() else Path(which)
    try:
        record = JOB.read(folder / JOB.name)
        record.need("job_id", "chain")
        submission = Submission(
            record.values["job_id"], folder.resolve(), tuple(record.values["chain"])
        )
        owner = submission.folder.stat().st_uid
    except (BadInput, OSError) as fault:
        place = "in " if not which.isdigit() and os.path.lexists(folder) else ""
        ends = f", `scancel {which}` ends one" if which.isdigit() else ""
        hint = f"`squeue --me` lists your jobs{ends}; hpcdl keeps its own under "
        hint += f"{site.paths.work}/jobs"
        hint = "write a blank between two jobs" if "," in which else hint
        raise BadInput(f"there is no job {place}{which} submitted by hpcdl", hint=hint) from fault
    if which.isdigit() and owner not in {0, os.getuid()}:
        message = f"job {which} was submitted by {user_of(owner)}"
        raise BadInput(message, hint=f"to look at it, name its directory: {submission.folder}")
    if which.isdigit() and int(which) not in submission.chain:
        # Others may write to the index: a link of theirs leads from one job to another of ours.
        message = f"{index(site)}/{which} leads to job {submission.job_id}, not to {which}"
        raise BadInput(message, hint="remove that link, or name the job's directory")
    return submission


def _indexed(site: Site, job: str) -> Path:
    plain = index(site) / job  # another user's, where there is one of this user's beside it
    found = (plain, *index(site).glob(f"{job}.*")) if os.path.lexists(plain) else ()
    return next((link for link in found if link.lstat().st_uid == os.getuid()), plain)


def require_this_cluster(one: Submission, site: Site | None = None) -> Submission:
    """The submission itself; BadInput where Slurm's job of its id would be another cluster's.

    With the `site` also where a later job has its id.
    """
    here, own = embedded_cluster(), one.folder.resolve()
    later = site and _indexed(site, str(one.job_id)).resolve() != own
    if later or asked(one.folder).get("cluster", here) != here:
        message = f"job {one.job_id} of {one.folder} belongs to another cluster"
        hint = "SLURM_CONF says which one that is; for the embedded cluster `hpcdl cluster env` "
        raise BadInput(message, hint=hint + "sets it")
    return one


def asked(folder: Path) -> dict[str, Any]:
    """Return a directory's job.json, the request and decisions; empty if it cannot be read."""
    return JOB.find(folder) or {}


def release_of(script: str) -> str | None:
    """The release that the job of a script, as Slurm has it, loads; None without a record of it.

    The record is beside the script; others may write to the index.
    """
    return (asked(Path(script).parent).get("release") or None) if script else None


def index(site: Site, what: str = "by-id") -> Path:
    """Return the directory of links to jobs' directories: by id, or `unconfirmed` ones by token."""
    cluster = embedded_cluster()
    return site.paths.work / "jobs" / (f"{what}-{cluster}" if cluster else what)


def _withdraw(site: Site, folder: Path, tokens: Sequence[str]) -> None:
    """Remove a job's directory that Slurm did not accept; other files in it stay."""
    with suppress(OSError):
        for name in (JOB.name, "job.sh", VALUES, *(f"{token}.sh" for token in tokens)):
            (folder / name).unlink(missing_ok=True)
        _forget(site, folder, tokens)
        (folder / _LOCK).unlink(missing_ok=True)
        folder.rmdir()  # refused where other files are left


def _record(site: Site, spec: JobSpec, module: Module, script: JobScript) -> dict[str, Any]:
    content = f"{spec.chain}\n{script.text.replace(str(spec.job_dir), '')}"
    return {
        "tokens": [once.new_token() for _ in range(spec.chain)],
        "request": sha256(content.encode(errors="surrogateescape")).hexdigest(),
        "name": spec.name,
        "site": site.name,
        "site_file": str(site.source),
        "cluster": embedded_cluster(),
        "partition": spec.partition,
        "gpu_model": spec.gpu_model,
        "layout": asdict(script.layout),
        "launcher": spec.launcher,
        "program": list(spec.program),
        "modules": list(module.names),
        "release": module.release,
        "submitted": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
