"""The results of all nights: one SQLite file on a local disk.

A run is added in one transaction, so that a crash leaves all of it or nothing, and two nights
at once wait for each other. A file system without dependable locks is refused. What is lost is
never lost for good: every run's verdicts.json can be imported again, and again changes nothing.
It is for its owner alone: whoever may read an SQLite file can lock it.
"""

from __future__ import annotations

import os
import sqlite3
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from datetime import date, datetime, timedelta, timezone
from functools import cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from hpcdl.regress.identity import Night, Series
from hpcdl.site import Site
from hpcdl.system import files
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.resources import home
from hpcdl.system.trust import require_no_stranger

SCHEMA = 4
VARIABLE = "HPCDL_HISTORY"
_WAIT_SECONDS = 10.0
CLOCKS_SECONDS = 60.0
"""How far a result may be dated in the future: clocks differ. Others are refused, or not seen."""
_INDEXES = """
CREATE INDEX IF NOT EXISTS by_series ON results (site, check_name, case_name, partition, metric,
  environment, unit, time, value, status, nodes);
CREATE INDEX IF NOT EXISTS by_time ON results (time);
CREATE UNIQUE INDEX IF NOT EXISTS once_without_job
  ON results (run, check_name, case_name, partition, metric, environment) WHERE job IS NULL;
"""
"""To SQLite every missing job is another one: what has none could be added twice."""
_MAGIC, _HEAD = b"SQLite format 3\0", 64
_KEY = ("site", "check_name", "case_name", "partition", "metric", "environment", "unit")
_THIS = " AND ".join(f"{name} = ?" for name in _KEY)
"""What identifies a series: columns, and the condition that a result is of it."""
_MEASURED = "AND value IS NOT NULL AND status != 'ERROR'"
_SQL = {
    "str": "TEXT NOT NULL",
    "bool": "INTEGER NOT NULL",
    "float | None": "REAL",
    "int | None": "INTEGER",
}


@dataclass(frozen=True)
class Result:
    """One metric of one case of one run; `metric` is '' where nothing was measured.

    `time` is ISO 8601 in UTC; `low` and `high` are bounds in `unit`; `queue_wait` in seconds;
    `better` says which values are (`higher`, `lower`), '' if that was not given.
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
    site: str = ""
    environment: str = ""
    better: str = ""


class Means(NamedTuple):
    """The nights of a series, oldest first, a column each.

    Their days, the mean of each one's values, the number of these, and the first and last of the
    nodes of its jobs.
    """

    days: Sequence[str] = ()
    values: Sequence[float] = ()
    runs: Sequence[int] = ()
    first: Sequence[str] = ()
    last: Sequence[str] = ()

    def since(self, day: str) -> Means:
        """The nights from a day on."""
        start = bisect_left(self.days, day)
        return Means._make(column[start:] for column in self) if start else self


TYPES = {field.name: str(field.type) for field in fields(Result)}
"""The columns of a result, and their types."""
COLUMNS = tuple(TYPES)
_TABLE = (
    f"CREATE TABLE IF NOT EXISTS results ({', '.join(f'{n} {_SQL[t]}' for n, t in TYPES.items())}, "
    "UNIQUE (run, check_name, case_name, partition, metric, job))"
)


def history_path(site: Site) -> Path:
    """The history file: HPCDL_HISTORY, else one per site below hpcdl's home."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen).absolute() if chosen else home("history") / f"{site.name}.sqlite"


class History:
    """An open history; use `open_history`."""

    def __init__(
        self, connection: sqlite3.Connection, site: str = "", now: datetime | None = None
    ) -> None:
        self._connection = connection
        self._site = site
        # As the history writes times; clocks differ by a minute.
        latest = (now or datetime.now(timezone.utc)) + timedelta(seconds=CLOCKS_SECONDS)
        self._until = latest.astimezone(timezone.utc).isoformat(timespec="seconds")

    def as_of(self, now: datetime) -> History:
        """The same history, without what is dated later."""
        return History(self._connection, self._site, now)

    def later(self) -> int:
        """Return how many results are dated in the future; they are not used otherwise."""
        query = "SELECT count(*) FROM results WHERE time > ? AND ? IN ('', site)"
        return int(self._connection.execute(query, (self._until, self._site)).fetchone()[0])

    def add(self, results: Iterable[Result]) -> int:
        """Add results that are not there yet, all or none; their number.

        Raises BadInput: one is dated more than a minute in the future.
        """
        marks = ", ".join("?" * len(COLUMNS))
        names = ", ".join(COLUMNS)
        statement = f"INSERT OR IGNORE INTO results ({names}) VALUES ({marks})"  # noqa: S608 - ours
        with self._connection:
            before = self._connection.total_changes
            self._connection.executemany(statement, self._rows(results))
            return self._connection.total_changes - before

    def _rows(self, results: Iterable[Result]) -> Iterator[list[object]]:
        site = COLUMNS.index("site")
        for result in results:
            if result.time > self._until:
                raise BadInput(
                    f"a result is dated in the future: {result.check_name} of run {result.run}, "
                    f"{result.time}",
                    hint="set the clock of the machine that wrote it, or of this one; nothing was "
                    "added",
                )
            row = [*vars(result).values()]
            row[site] = row[site] or self._site
            yield row

    def results(self) -> Iterator[Result]:
        """All results, oldest first."""
        cursor = self._connection.execute(
            f"SELECT {', '.join(COLUMNS)} FROM results WHERE time <= ? ORDER BY time",  # noqa: S608 - our names  # nosec B608
            (self._until,),
        )
        return map(_result, cursor)

    def series(self) -> dict[Series, str]:
        """The series of this site, of all where none was named, with the times of their newest."""
        names, newest = ", ".join(_KEY), dict[Series, str]()
        backwards = ", ".join(f"{name} DESC" for name in (*_KEY, "time"))
        row = (f"{self._site}\0" if self._site else "\U0010ffff", *[""] * len(_KEY))
        # Backwards from one to the next by the index: DISTINCT would go through every result, and
        # so would a condition on the site.
        while True:
            row = self._connection.execute(
                f"SELECT {names}, time FROM results WHERE ({names}, time) < "  # noqa: S608 - ours  # nosec B608
                f"({', '.join('?' * len(row))}) AND time <= ? ORDER BY {backwards} LIMIT 1",
                (*row, self._until),
            ).fetchone()
            if row is None or self._site not in {"", row[0]}:
                return dict(reversed(newest.items()))
            site, *rest, time = row
            newest[Series(*rest)._replace(site=site)] = time
            row = (site, *rest, "")

    def _of(self, series: Series, what: str, more: str = "", since: str = "") -> sqlite3.Cursor:
        """Run a query on a series' results, without those in the future."""
        return self._connection.execute(
            f"SELECT {what} FROM results WHERE {_THIS} AND time >= ? AND time <= ? {more}",  # noqa: S608 - ours  # nosec B608
            (series.site, *series[:-1], since, self._until),
        )

    def nights(self, series: Series, since: str = "") -> list[Night]:
        """The values of a series, as drift detection takes them; runs without one are left out."""
        what = "time, value, release, driver, nodes"
        return [
            Night(_day(time[:10]), value, release, driver, single_node(nodes))
            for time, value, release, driver, nodes in self._of(
                series, what, f"{_MEASURED} ORDER BY time", since
            )
        ]

    def means(self, series: Series, since: str = "") -> Means:
        """Each night's mean, and where it ran."""
        what, more = "substr(time, 1, 10), value, nodes", f"{_MEASURED} ORDER BY time"
        rows = self._of(series, what, more, since).fetchall()
        if not rows:
            return Means()
        days, values, nodes = zip(*rows, strict=True)
        if len({*days}) == len(days):  # of a million results, most are the only one of their night
            return Means(days, values, (1,) * len(days), nodes, nodes)
        nights = [[*night] for _, night in groupby(rows, itemgetter(0))]
        places = [sorted(on for _, _, on in night) for night in nights]
        return Means(
            [night[0][0] for night in nights],
            [fmean(value for _, value, _ in night) for night in nights],
            [*map(len, nights)],
            [on[0] for on in places],
            [on[-1] for on in places],
        )

    def points(self, series: Series, since: str = "") -> list[Result]:
        """A series' results, oldest first; an error has no value."""
        found = map(_result, self._of(series, ", ".join(COLUMNS), "ORDER BY time", since))
        return [replace(one, value=None) if one.status == "ERROR" else one for one in found]

    def before(self, series: Series, day: str) -> tuple[str, str]:
        """Release and driver of a series' last value before a day."""
        found = self._of(
            series, "release, driver", f"AND time < '{day}' ORDER BY time DESC LIMIT 1"
        )
        return found.fetchone() or ("", "")

    def newest(self, series: Series, time: str) -> list[Result]:
        """All results of the newest run, which is of this time: one per node where distributed."""
        found = [*map(_result, self._of(series, ", ".join(COLUMNS), "ORDER BY job", time))]
        last = max((one.run for one in found), default="")
        return [one for one in found if one.run == last]


def series_of(result: Result) -> Series:
    """The series that a result is of."""
    where = (result.check_name, result.case_name, result.partition, result.metric)
    return Series(*where, result.environment, result.unit, result.site)


def night_of(result: Result) -> Night:
    """A result with a value, as drift detection takes it."""
    node = single_node(result.nodes)
    return Night(_day(result.time[:10]), result.value or 0.0, result.release, result.driver, node)


@contextmanager
def read_history(site: Site) -> Iterator[History]:
    """The history of a site, to read it: no file is made; an empty one where none was begun.

    Raises as `open_history`.
    """
    path = history_path(site)
    if path.exists() and (path.is_dir() or path.stat().st_size > 0):
        with open_history(path, site.name) as history:
            yield history
        return
    with closing(sqlite3.connect(":memory:")) as connection:
        _prepare(connection, path)
        yield History(connection, site.name)


@contextmanager
def open_history(path: Path, site: str = "") -> Iterator[History]:
    """The history in a file, made where there is none; the results of one site.

    Raises MissingPrerequisite: no dependable locks, no space left, others can change it, or busy
    for too long. Raises BadInput: the file is damaged, a directory or no history.
    """
    _require_history(path)
    refuse_without_locks(path)
    _make_private(path)
    try:
        with closing(sqlite3.connect(path, timeout=_WAIT_SECONDS)) as connection:
            _prepare(connection, path)
            yield History(connection, site)
    except sqlite3.DatabaseError as fault:
        raise _explained(path, fault) from fault


def _require_history(path: Path) -> None:
    """Refuse another program's file before anything of it, such as its mode, is changed."""
    if path.is_file() and os.access(path, os.R_OK):
        with path.open("rb") as file:
            head = file.read(_HEAD)
        if head and (not head.startswith(_MAGIC) or head[60:] == bytes(4)):  # user_version
            raise _no_history(path)


def _no_history(path: Path) -> BadInput:
    hint = "name another file; `hpcdl check history import` adds the runs' verdicts.json to it"
    return BadInput(f"{path} is no history of hpcdl", hint=hint)


def refuse_without_locks(path: Path, mounts: str = "/proc/self/mounts") -> None:
    """Raise MissingPrerequisite where the file system of the path has no trustworthy locks."""
    kind = files.file_system(path, mounts)
    hint = f"choose a local disk by {VARIABLE}"
    if kind in files.OF_NETWORKS:
        message = f"{path} is on {kind}, whose locks are not safe for SQLite"
        raise MissingPrerequisite(message, hint=hint)
    with files.explain_os_errors(path):
        files.make_directory(path.parent)
        if not files.locks_hold(path.parent):
            where = f"{path} ({kind})" if kind else str(path)
            message = f"locks do not hold on the file system of {where}"
            raise MissingPrerequisite(message, hint=hint)


def _make_private(path: Path) -> None:
    """Create a missing file; no other user may read it or plant a journal beside it."""
    if path.is_dir():
        raise BadInput(f"the history {path} is a directory", hint="name a file")
    require_no_stranger(path.parent)
    require_no_stranger(path)
    with files.explain_os_errors(path):
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        if path.stat().st_uid == os.getuid():
            path.chmod(0o600)


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make the table where there is none, all of it or nothing; refuse one of another schema."""
    connection.execute("PRAGMA synchronous=FULL")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == 0:
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            # One by one: executescript would commit first.
            for statement in (_TABLE, *_INDEXES.split(";")):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={SCHEMA}")
    elif version != SCHEMA:
        raise BadInput(
            f"{path} is of schema {version}, and this hpcdl reads schema {SCHEMA}",
            hint="name another file; `hpcdl check history import` takes the runs' verdicts.json",
        )


def _explained(path: Path, fault: sqlite3.DatabaseError) -> BadInput | MissingPrerequisite:
    text = str(fault)
    if "locked" in text:
        holder = files.lock_holder(path) or "unknown"
        return files.LockBusy(
            f"the history {path} was in use for {_WAIT_SECONDS:.0f} s, by pid {holder}",
            hint="nothing was added; run the same command again when it has ended",
        )
    if isinstance(fault, sqlite3.OperationalError) and "malformed" not in text:
        return MissingPrerequisite(
            f"the history {path} cannot be used: {text}",
            hint="look at the free space and the permissions there, or name another file by "
            f"{VARIABLE}; nothing was added",
        )
    return BadInput(
        f"the history {path} is damaged: {text}",
        hint="move it away; `hpcdl check history import` takes the runs' verdicts.json again",
    )


def _result(row: tuple[Any, ...]) -> Result:
    values = dict(zip(COLUMNS, row, strict=True))
    return Result(**{**values, "waived": bool(values["waived"])})


_day = cache(date.fromisoformat)


@cache
def single_node(nodes: str) -> str:
    """The node of a job on one node; '' for several, of which none can be blamed alone."""
    return "" if "[" in nodes or "," in nodes else nodes
