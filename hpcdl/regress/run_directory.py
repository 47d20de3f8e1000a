"""A run's directory: settings, ReFrame's output, events of its jobs, report, verdicts.

WORK/checks/runs/STAMP holds settings.py, what ReFrame printed (reframe.log), a line per change of
a job's state (events.jsonl), a line per thing that ReFrame left out (record.jsonl), report.json,
stage/ and verdicts.json. The run holds a lock on it while it lives. A directory whose lock is free
is looked through by the next run: jobs that are left, since the run was killed or Slurm did not
answer, are cancelled; then the lock goes.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hpcdl.site import Site
from hpcdl.slurm import client, once
from hpcdl.slurm.parse import ACTIVE
from hpcdl.system import files
from hpcdl.system.errors import BadInput, HpcdlError
from hpcdl.system.files import read_regular
from hpcdl.system.text import utc_stamp

SUBMITTING, SUBMITTED = "SUBMITTING", "SUBMITTED"
"""The states of a job whose token is known and whose id is not; and of which nothing more is."""
_MOST_BYTES = 50_000_000
_NAME = re.compile(r"\d{8}-\d{6}Z-[0-9a-f]{4}")


class RunDirectory:
    """Where one run keeps its files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = path / "settings.py"
        self.log = path / "reframe.log"
        self.events = path / "events.jsonl"
        self.record = path / "record.jsonl"
        self.report = path / "report.json"
        self.verdicts = path / "verdicts.json"

    def again(self, number: int) -> RunDirectory:
        """Where checks that are measured again keep theirs; the events of jobs are the run's."""
        other = RunDirectory(self.path / f"again-{number}")
        other.path.mkdir()
        other.events = self.events
        return other


@dataclass(frozen=True)
class JobEvent:
    """The state of one of the run's jobs; `record` is Slurm's last record of it."""

    job: int
    name: str
    directory: Path
    state: str
    why: str
    nodes: str
    restarts: int
    record: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Return whether nothing more happens to it."""
        return self.state not in ACTIVE and self.state != SUBMITTED


def runs_directory(site: Site) -> Path:
    """Return the directory of the site's runs."""
    return site.paths.work / "checks" / "runs"


def reports_directory(site: Site) -> Path:
    """Where `check night` keeps what the last one gave: page, verdicts and JUnit of each run."""
    return site.paths.work / "checks" / "reports"


def last_page(site: Site) -> Path | None:
    """The page that `check night` of this user wrote last, None where there is none."""
    pages = (reports_directory(site) / f"{name}.html" for name in ("nightly", "weekly"))
    written = [
        page
        for page in pages
        if page.is_file() and not page.is_symlink() and page.stat().st_uid == os.geteuid()
    ]
    return max(written, key=lambda page: page.stat().st_mtime, default=None)


def began(name: str) -> datetime | None:
    """When a run began, which the name of its directory says; None for another name."""
    with suppress(ValueError):
        return datetime.strptime(name[:16], "%Y%m%d-%H%M%SZ").replace(tzinfo=timezone.utc)
    return None


@contextmanager
def new_run(site: Site) -> Iterator[RunDirectory]:
    """A new run's directory, locked while the run lives; `latest` leads to it."""
    parent = runs_directory(site)
    path = parent / f"{utc_stamp()}-{os.urandom(2).hex()}"
    with files.explain_os_errors(path):
        files.make_directory(parent, 0o775)
        path.mkdir(0o755)
    with files.locked(path / "lock"):
        files.switch_link(parent.parent / "latest", f"{parent.name}/{path.name}")
        yield RunDirectory(path)


def is_named_as_run(path: Path) -> bool:
    """Return whether a directory has the name of a run's."""
    return _NAME.fullmatch(path.name) is not None


def read_events(path: Path) -> dict[int, JobEvent]:
    """The last event of every job, by job id; a line cut in the middle is left out."""
    events: dict[int, JobEvent] = {}
    for entry in json_lines(path):
        with suppress(KeyError, TypeError, ValueError):
            events[int(entry["job"])] = JobEvent(
                int(entry["job"]),
                str(entry["name"]),
                Path(entry["directory"]),
                str(entry["state"]),
                str(entry.get("why", "")),
                str(entry.get("nodes", "")),
                int(entry.get("restarts", 0)),
                entry.get("record") or {},
            )
    return events


def cancel_left_jobs(directory: RunDirectory) -> list[int]:
    """Cancel the jobs of a run that still wait or run, and give their ids.

    A job is the run's own if it was submitted with a token of it: ids come back after a cluster is
    set up anew. Raises HpcdlError: Slurm does not answer, so that their states are unknown.
    """
    found = once.by_token(_tokens(directory.events))
    left = [
        job
        for ids in found.values()
        for job in ids
        if (record := client.job(job)) and record.active
    ]
    client.cancel(left)
    return left


def _tokens(events: Path) -> dict[str, float]:
    """Return tokens of jobs whose ends are not known; when those without id were submitted."""
    tokens: dict[str, float] = {}
    for entry in json_lines(events):
        token, at, state = entry.get("token"), entry.get("time"), entry.get("state")
        if isinstance(token, str) and isinstance(at, float):
            tokens[token] = at if state == SUBMITTING else 0.0
            # One that was given up was cancelled, if Slurm heard it.
            if state not in {*ACTIVE, SUBMITTING, SUBMITTED, "GIVEN_UP"}:
                del tokens[token]
    return tokens


def sweep(site: Site) -> list[int]:
    """Cancel and remove what killed runs of this user left; ids of the jobs that were cancelled.

    Where Slurm does not answer, or may still take a job, the lock stays for the next time.
    """
    cancelled: list[int] = []
    for lock in sorted(runs_directory(site).glob("*/lock")):
        with suppress(HpcdlError, FileNotFoundError):
            if lock.parent.lstat().st_uid != os.getuid() or is_held(lock):
                continue
            with files.locked(lock, wait_seconds=0.0):  # a run that begins just now waits for this
                run = RunDirectory(lock.parent)
                files.clear_leftovers(run.settings, run.verdicts)
                cancelled += cancel_left_jobs(run)
                late = max(_tokens(lock.with_name("events.jsonl")).values(), default=0.0)
                if time.time() - late > once.SETTLED_SECONDS:
                    lock.unlink(missing_ok=True)
    return cancelled


def is_held(lock: Path) -> bool:
    """Return whether a run may be alive: its lock is held, or cannot be tested."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        return not files.take_lock(descriptor)
    except OSError:
        return True
    finally:
        os.close(descriptor)


def json_lines(path: Path) -> Sequence[dict[str, Any]]:
    """The mappings of a file of JSON lines; what is truncated or missing is left out."""
    try:
        text = read_regular(path, _MOST_BYTES, "file of JSON lines").decode(errors="replace")
    except BadInput:
        return []
    found = []
    for line in text.splitlines():
        with suppress(ValueError):
            if isinstance(value := json.loads(line), dict):
                found.append(value)
    return found
