"""The results of all nights: one SQLite file on a local disk.

A run is added in one transaction, so that a crash leaves all of it or nothing, and two nights
at once wait for each other. A file system without dependable locks is refused. What is lost is
never lost for good: every run's verdicts.json can be imported again, and again changes nothing.
"""

from __future__ import annotations

import csv
import io
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from hpcdl.regress.drift import Night
from hpcdl.regress.runner import CheckOutcome
from hpcdl.regress.verdict import Verdict
from hpcdl.site import Site
from hpcdl.system.errors import BadInput, MachineLacks
from hpcdl.system.files import explain_os_errors
from hpcdl.system.resources import home

SCHEMA = 1
VARIABLE = "HPCDL_HISTORY"
_WAIT_SECONDS = 60.0
_NO_LOCKS = frozenset({"nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "smb3", "smbfs", "afs",
                       "9p", "fuse.sshfs", "orangefs", "panfs", "pvfs2"})  # fmt: skip
_TABLE = """
CREATE TABLE IF NOT EXISTS results (
  run TEXT NOT NULL, time TEXT NOT NULL, check_name TEXT NOT NULL, case_name TEXT NOT NULL,
  partition TEXT NOT NULL, metric TEXT NOT NULL, value REAL, unit TEXT NOT NULL,
  status TEXT NOT NULL, waived INTEGER NOT NULL, reason TEXT NOT NULL, release TEXT NOT NULL,
  driver TEXT NOT NULL, nodes TEXT NOT NULL, job INTEGER, reference REAL, low REAL, high REAL,
  queue_wait REAL, restarts INTEGER, log TEXT NOT NULL,
  UNIQUE (run, check_name, case_name, partition, metric, job)
);
CREATE INDEX IF NOT EXISTS by_series
  ON results (check_name, case_name, partition, metric, time, value, status);
CREATE INDEX IF NOT EXISTS by_time ON results (time);
"""


@dataclass(frozen=True)
class Result:
    """One metric of one case of one run; `metric` is '' where nothing was measured.

    `time` is ISO 8601 in UTC; `low` and `high` are bounds in `unit`; `queue_wait` in seconds.
    """

    run: str
    time: str
    check_name: str
    case_name: str
    partition: str
    metric: str
    value: float | None
    unit: str
    status: str
    waived: bool = False
    reason: str = ""
    release: str = ""
    driver: str = ""
    nodes: str = ""
    job: int | None = None
    reference: float | None = None
    low: float | None = None
    high: float | None = None
    queue_wait: float | None = None
    restarts: int | None = None
    log: str = ""


class Point(NamedTuple):
    """What a figure shows of one result; `time` and the bounds as in `Result`."""

    time: str
    value: float | None
    status: str
    reference: float | None
    low: float | None
    high: float | None
    release: str
    driver: str
    nodes: str


COLUMNS = tuple(field.name for field in fields(Result))
Series = tuple[str, str, str, str]
_TEXTS = frozenset({"run", "time", "check_name", "case_name", "partition", "metric", "unit",
                    "status", "reason", "release", "driver", "nodes", "log"})  # fmt: skip


def history_path(site: Site, given: Path | None = None) -> Path:
    """The history file: --history, HPCDL_HISTORY, else one per site below hpcdl's home."""
    chosen = os.environ.get(VARIABLE)
    if given is not None:
        return given.absolute()
    return Path(chosen).absolute() if chosen else home() / "history" / f"{site.name}.sqlite"


class History:
    """An open history; use `open_history`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def add(self, results: Iterable[Result]) -> int:
        """Add results that are not there yet, all or none; their number."""
        marks = ", ".join("?" for _ in COLUMNS)
        statement = f"INSERT OR IGNORE INTO results ({', '.join(COLUMNS)}) VALUES ({marks})"  # noqa: S608
        rows = [tuple(getattr(result, name) for name in COLUMNS) for result in results]
        with self._connection:
            before = self._connection.total_changes
            self._connection.executemany(statement, rows)
            return self._connection.total_changes - before

    def results(self, since: str = "", limit: int | None = None) -> Iterator[Result]:
        """Results from a time on, oldest first."""
        cursor = self._connection.execute(
            f"SELECT {', '.join(COLUMNS)} FROM results WHERE time >= ? ORDER BY time LIMIT ?",  # noqa: S608
            (since, -1 if limit is None else limit),
        )
        return (_result(row) for row in cursor)

    def series(self) -> list[Series]:
        """The series there are: check, case, partition, metric."""
        cursor = self._connection.execute(
            "SELECT DISTINCT check_name, case_name, partition, metric FROM results"
        )
        return sorted(tuple(row) for row in cursor)

    def nights(self, series: Series, since: str = "") -> list[Night]:
        """The values of a series, as drift detection takes them; runs without one are left out."""
        cursor = self._connection.execute(
            "SELECT time, value, release, driver, nodes FROM results WHERE check_name = ? AND "
            "case_name = ? AND partition = ? AND metric = ? AND time >= ? AND value IS NOT NULL "
            "ORDER BY time",
            (*series, since),
        )
        return [
            Night(datetime.fromisoformat(time).date(), value, release, driver, _single(nodes))
            for time, value, release, driver, nodes in cursor
        ]

    def points(self, series: Series, since: str = "") -> list[Point]:
        """A series as figures show it, oldest first, with the runs that gave no value."""
        cursor = self._connection.execute(
            f"SELECT {', '.join(Point._fields)} FROM results WHERE check_name = ? AND "  # noqa: S608
            "case_name = ? AND partition = ? AND metric = ? AND time >= ? ORDER BY time",
            (*series, since),
        )
        return [Point(*row) for row in cursor]

    def unit(self, series: Series) -> str:
        """The unit of a series' newest result."""
        last = self.last(series)
        return last.unit if last else ""

    def last(self, series: Series) -> Result | None:
        """The newest result of a series."""
        row = self._connection.execute(
            f"SELECT {', '.join(COLUMNS)} FROM results WHERE check_name = ? AND case_name = ? AND "  # noqa: S608
            "partition = ? AND metric = ? ORDER BY time DESC LIMIT 1",
            series,
        ).fetchone()
        return _result(row) if row else None


@contextmanager
def open_history(path: Path) -> Iterator[History]:
    """The history in a file, made where there is none.

    Raises:
        MachineLacks: a file system without dependable locks, no room, or busy for too long.
        BadInput: the file is damaged or no history.
    """
    refuse_without_locks(path)
    with explain_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with closing(sqlite3.connect(path, timeout=_WAIT_SECONDS)) as connection:
            _prepare(connection, path)
            yield History(connection)
    except sqlite3.DatabaseError as fault:
        raise _explained(path, fault) from fault


def refuse_without_locks(path: Path, mounts: str = "/proc/self/mounts") -> None:
    """Raise MachineLacks where the path lies on a file system whose locks cannot be trusted."""
    kind = file_system(path, mounts)
    if kind in _NO_LOCKS:
        raise MachineLacks(
            f"{path} lies on {kind}, whose locks SQLite cannot rely on",
            hint=f"choose a local disk: --history FILE or {VARIABLE}",
        )


def file_system(path: Path, mounts: str = "/proc/self/mounts") -> str:
    """The type of the file system that a path lies on, '' where it cannot be known."""
    place = str(path.absolute().parent.resolve())
    best, kind = "", ""
    try:
        lines = Path(mounts).read_text(errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        words = line.split()
        point = words[1].replace("\\040", " ") if len(words) > 2 else ""
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, words[2]
    return kind


def of_outcome(outcome: CheckOutcome, when: datetime | None = None) -> list[Result]:
    """The results of a run, one per metric."""
    moment = (when or datetime.now(timezone.utc)).astimezone(timezone.utc)
    time = moment.isoformat(timespec="seconds")
    run = outcome.folder.path.name
    return [row for verdict in outcome.verdicts for row in _of_verdict(verdict, run, time)]


def as_json_lines(results: Iterable[Result]) -> Iterator[str]:
    """Results as JSON lines."""
    return (json.dumps({"schema": SCHEMA, **asdict(result)}) for result in results)


def as_csv(results: Iterable[Result]) -> Iterator[str]:
    """Results as CSV with a header."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for result in results:
        writer.writerow(asdict(result))
        yield buffer.getvalue().removesuffix("\n")
        buffer.seek(0)
        buffer.truncate()


def read_results(path: Path) -> list[Result]:
    """Results from JSON lines, CSV, or a run's verdicts.json.

    Raises:
        BadInput: a line that is none, with its number.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise BadInput(f"{path} cannot be read: {fault}") from fault
    if text.startswith("run,"):
        return [_from(row, path, n) for n, row in enumerate(csv.DictReader(io.StringIO(text)), 2)]
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                value = json.loads(line)
            except ValueError as fault:
                raise BadInput(
                    f"{path}, line {number}: no JSON ({fault})",
                    hint="was the file cut? Its lines before this one can be imported",
                ) from fault
            found.append(_from(value, path, number))
    return found


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA synchronous=FULL")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA:
        raise BadInput(f"{path} was written by a newer hpcdl (schema {version})")
    if version < SCHEMA:
        connection.executescript(_TABLE)
        connection.execute(f"PRAGMA user_version={SCHEMA}")


def _explained(path: Path, fault: sqlite3.DatabaseError) -> BadInput | MachineLacks:
    text = str(fault)
    if isinstance(fault, sqlite3.OperationalError) and "malformed" not in text:
        return MachineLacks(f"the history {path} cannot be used: {text}")
    return BadInput(
        f"the history {path} is damaged: {text}",
        hint="move it away; `hpcdl check history import` takes the runs' verdicts.json again",
    )


def _of_verdict(verdict: Verdict, run: str, time: str) -> list[Result]:
    job = verdict.job.get("id")
    common: dict[str, Any] = {
        "run": run,
        "time": time,
        "check_name": verdict.check,
        "case_name": verdict.case,
        "partition": verdict.partition,
        "status": verdict.status.value,
        "waived": verdict.waived,
        "reason": verdict.reason,
        "release": verdict.release or "",
        "driver": verdict.driver or "",
        "nodes": str(verdict.job.get("nodes") or ""),
        "job": int(job) if job else None,
        "queue_wait": verdict.job.get("queue_wait_seconds"),
        "restarts": verdict.job.get("restarts"),
        "log": verdict.log,
    }
    rows = [
        Result(
            metric=metric.name, value=metric.value, unit=metric.unit, reference=metric.reference,
            low=metric.low, high=metric.high, **common,
        )
        for metric in verdict.metrics
    ]  # fmt: skip
    return rows or [Result(metric="", value=None, unit="", **common)]


def _result(row: tuple[Any, ...]) -> Result:
    values = dict(zip(COLUMNS, row, strict=True))
    return Result(**{**values, "waived": bool(values["waived"])})


def _from(entry: object, path: Path, number: int) -> Result:
    """A result from a line's values, checked."""
    if not isinstance(entry, Mapping):
        raise BadInput(f"{path}, line {number}: no result")
    try:
        values = {name: _typed(name, entry.get(name)) for name in COLUMNS}
        datetime.fromisoformat(values["time"])
        if not values["run"] or not values["check_name"]:
            raise ValueError("run and check_name must be given")
        return Result(**values)
    except (TypeError, ValueError) as fault:
        raise BadInput(f"{path}, line {number}: no result ({fault})") from fault


def _single(nodes: str) -> str:
    """The node of a job on one node; '' for several, of which none can be blamed alone."""
    return "" if set(nodes) & set("[,") else nodes


def _typed(name: str, value: Any) -> Any:
    if name in _TEXTS:
        return "" if value is None else str(value)
    if name == "waived":
        return value in (True, 1, "True", "1")
    if value in (None, ""):
        return None
    return int(value) if name in {"job", "restarts"} else float(value)
