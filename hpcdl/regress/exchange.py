"""Results as text: JSON lines out; JSON lines, runs and what ReFrame keeps by itself in.

ReFrame's own are its report.json, its results database and its performance logs; each case of them
is judged as one of a run. Files are read line by line, however long they are. A line that is no
result stops everything with its number; a last line without its end is a file that was cut: what
stands before it is taken, and `Incoming.cut` says where, so that nobody takes a part for the whole.
"""

from __future__ import annotations

import io
import json
import math
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from datetime import datetime, timezone
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from hpcdl.regress.formats import Run, read_run
from hpcdl.regress.history import TYPES, Result
from hpcdl.regress.identity import HIGHER, LARGEST, LOWER
from hpcdl.regress.run_directory import began, is_named_as_run
from hpcdl.regress.runner import CheckOutcome, Plain, as_data, with_evidence
from hpcdl.regress.verdict import Verdict, judge
from hpcdl.results.faults import FaultKind, Status
from hpcdl.system.errors import BadInput, PartlyDone
from hpcdl.system.files import open_regular, read_regular

SCHEMA = 1
MAX_LINE = 1_000_000
"""Characters of a result; a longer line is no file of ours, and is not read to its end."""
_TOO_LONG = f"it is longer than {MAX_LINE:,} characters: no result"
_WHAT = (
    "import takes what `hpcdl check history export` writes, runs with verdicts.json, and ReFrame's "
    "report.json, results.db and performance logs"
)
_SQLITE = b"SQLite format 3\0"
# A view, or a column that is computed, can have rows without end in a file of 8 kB.
_PLAIN_COLUMN = (
    "SELECT 1 FROM sqlite_master AS s, pragma_table_xinfo('sessions') AS c "
    "WHERE s.type = 'table' AND s.name = 'sessions' AND c.name = 'json_blob' AND c.hidden = 0"
)
_OF_LOG = ("value", "ref", "lower_thres", "upper_thres")
_OF_VERDICT = ("partition", "status", "waived", "reason", "release", "driver", "log", "environment")
_OF_METRIC = ("value", "unit", "reference", "low", "high", "better")
_OPEN = {"low": -math.inf, "high": math.inf}
_MOST_BYTES = 100_000_000
_YEARS = range(1970, 3000)
"""Others are no nights, and months before or after them there is no date."""


class Incoming(Iterable[Result]):
    """The results of a file; after they were gone through, `cut` is the line that lacks its end.

    `system` is ReFrame's name of the site. Partitions of another system are named with it: one
    history of ReFrame's may hold several, each with a partition `gpu`.
    """

    def __init__(self, path: Path, system: str = "") -> None:
        self.path = path / "verdicts.json" if (path / "verdicts.json").exists() else path
        self.system = system
        self.cut: int | None = None

    def __iter__(self) -> Iterator[Result]:
        """The results, checked one by one.

        Raises BadInput: a line that is none, with its number; the file cannot be read.
        """
        try:
            with open_regular(self.path, "file of results") as binary:
                head = binary.read(len(_SQLITE))
            if head == _SQLITE:
                yield from _of_database(self.path, self.system)
                return
            with io.TextIOWrapper(
                open_regular(self.path, "file of results"), encoding="utf-8", newline="\n"
            ) as file:
                first = file.readline(MAX_LINE)
                if first.startswith("{") and (report := _report(self.path, first)):
                    yield from _of_report(report, self.path, self.system)
                elif first.strip() == "{":
                    run = read_run(self.path)
                    yield from of_run(run, _time(self.path, run))
                else:
                    yield from self._lines(file, first)
        except UnicodeDecodeError as fault:
            raise BadInput(f"{self.path} is not UTF-8 text", hint=_WHAT) from fault
        except OSError as fault:
            raise BadInput(f"{self.path} cannot be read: {fault.strerror}") from fault
        except BadInput as fault:
            fault.hint = fault.hint or _WHAT
            raise

    def _lines(self, file: IO[str], first: str) -> Iterator[Result]:
        """The lines of an export, or the rows of a performance log of ReFrame's."""
        columns = first.strip().split("|") if "job_completion_time|" in first else []
        rest = iter(lambda: file.readline(MAX_LINE), "")
        for number, line in enumerate(rest if columns else chain([first], rest), 1 + bool(columns)):
            if len(line) == MAX_LINE:
                raise BadInput(f"{self.path}, line {number}: {_TOO_LONG}")
            if not line.strip():
                continue
            if columns and line.endswith("\n"):
                fields = line[:-1].split("|")
                if len(fields) != len(columns):
                    what = f"{len(fields)} fields, and its first line names {len(columns)}"
                    hint = "a name with | in it is two: import ReFrame's results.db or report.json"
                    raise BadInput(f"{self.path}, line {number}: {what}", hint=hint)
                row = dict(zip(columns, fields, strict=True))
                yield from _of_log(row, self.path, self.system)
                continue
            try:
                value = json.loads(line)
            except ValueError as fault:
                if not line.endswith("\n"):
                    self.cut = number
                    return
                raise BadInput(f"{self.path}, line {number}: no JSON ({fault})") from fault
            except RecursionError as fault:
                raise BadInput(f"{self.path}, line {number}: it is nested too deep") from fault
            yield _result(value, self.path, number)


def _report(path: Path, first: str) -> dict[str, Any] | None:
    """A report of ReFrame's own (report.json); None for another file. `first` is its first line."""
    if first.strip() != "{" and '"session_info"' not in first:
        return None
    try:
        found = json.loads(read_regular(path, _MOST_BYTES, "file of results"))
    except (ValueError, RecursionError) as fault:
        raise BadInput(f"{path} is no JSON: {fault}") from fault
    return found if isinstance(found, dict) and "session_info" in found else None


def _of_database(path: Path, system: str) -> Iterator[Result]:
    """The sessions of ReFrame's results database, each as one night."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as database:
            if sys.version_info >= (3, 11):  # a session of 600 MB took 3.5 GB of memory
                database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES)
            if not database.execute(_PLAIN_COLUMN).fetchone():
                raise ValueError("it has no table of sessions")
            for (blob,) in database.execute("SELECT json_blob FROM sessions ORDER BY 1"):
                yield from _of_report(json.loads(blob), path, system)
    except (sqlite3.Error, ValueError, RecursionError) as fault:
        message = f"{path} is no results database of ReFrame ({fault})"
        hint = "of another history, import what `hpcdl check history export` writes"
        raise BadInput(message, hint=hint) from fault


def _of_log(row: Mapping[str, str], path: Path, system: str) -> Iterator[Result]:
    """The results of one row of a performance log, as of a case of a report."""
    try:
        names = [name.removesuffix("_value") for name in row if name.endswith("_value")]
        case = {
            **row,
            # ReFrame measures what is sane: what has numbers and fails misses a reference.
            "fail_phase": "performance" if names else None,
            "display_name": row["name"],
            "job_nodelist": row.get("job_nodelist", "").split(","),
            "perfvalues": {
                name: [
                    *(_amount(row.get(f"{name}_{of}")) for of in _OF_LOG),
                    row.get(f"{name}_unit"),
                ]
                for name in names
            },
        }
        time = datetime.fromtimestamp(float(row["job_completion_time_unix"]), timezone.utc)
    except (KeyError, ValueError, OverflowError, OSError) as fault:
        message = f"{path} is no performance log of ReFrame that hpcdl can read ({fault!r:.100})"
        raise BadInput(message, hint="it needs the columns of ReFrame's own settings") from fault
    yield from _of_cases(f"perflog-{time:%Y%m%d-%H%M%S}", time, [case], system)


def _amount(text: str | None) -> float | None:
    """A number of a log; None where it has none (`None`, `null`)."""
    return None if text in {None, "", "None", "null"} else float(text or 0)


def _of_report(report: Mapping[str, Any], path: Path, system: str) -> Iterator[Result]:
    """The results of a session of ReFrame that hpcdl did not start, as one night.

    Raises BadInput: it is no report as ReFrame 4.10 writes it.
    """
    try:
        info = report["session_info"]
        ended = datetime.fromtimestamp(float(info["time_end_unix"]), timezone.utc)
        cases = [case for run in report["runs"] for case in run["testcases"]]
        yield from _of_cases(f"reframe-{info['uuid']}", ended, cases, system)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, OSError) as fault:
        message = f"{path} is no report of ReFrame that hpcdl can read ({fault!r:.100})"
        hint = "write it with ReFrame 4.10 or newer: --report-file"
        raise BadInput(message, hint=hint) from fault


def _of_cases(
    run: str, time: datetime, cases: Iterable[Mapping[str, Any]], system: str
) -> Iterator[Result]:
    """The results of ReFrame's cases, judged by what ReFrame itself knows of them."""
    named = [
        case
        if case.get("system") in {None, system}
        else {**case, "partition": f"{case['system']}:{case['partition']}"}
        for case in cases
    ]
    verdicts = [judge(with_evidence(case, Plain({}, {}, {}))) for case in named]
    plain = [verdict.as_data() for verdict in verdicts]
    yield from of_run({"run": run, "verdicts": plain}, time.isoformat(timespec="seconds"))


def incoming(paths: Sequence[Path], system: str) -> list[Incoming]:
    """The files to import; a run's directory without verdicts was stopped, and holds no results.

    Raises BadInput: nothing is named, or nothing of it holds results.
    """
    files = [Incoming(one, system) for path in paths for one in _files(path)]
    if not files:
        more = ": no directory holds verdicts or logs" if paths else ""
        hint = f"name files or directories; {_WHAT}"
        raise BadInput(f"there is nothing to import{more}", hint=hint)
    return files


def _files(path: Path) -> list[Path]:
    """A file, a run's directory with verdicts, or the logs below one of ReFrame's."""
    if not path.is_dir() or (path / "verdicts.json").exists():
        return [path]
    return [] if is_named_as_run(path) else sorted(path.rglob("*.log"))


def refuse_cut(files: Iterable[Incoming]) -> None:
    """Raise PartlyDone where a file that was gone through had been cut."""
    cut = [f"{file.path}: line {file.cut} has no end" for file in files if file.cut]
    if cut:
        raise PartlyDone(
            "a file was cut; the results before that place are taken",
            details=cut,
            hint="import the whole file when you have it: what is there is not added again",
        )


def as_json_lines(results: Iterable[Result]) -> Iterator[str]:
    """Results as JSON lines."""
    return (json.dumps({"schema": SCHEMA, **asdict(result)}) for result in results)


def of_outcome(outcome: CheckOutcome, when: datetime | None = None) -> list[Result]:
    """The results of a run, one per metric."""
    moment = (when or datetime.now(timezone.utc)).astimezone(timezone.utc)
    return list(of_run(as_data(outcome), moment.isoformat(timespec="seconds")))


def of_verdicts(verdicts: Sequence[Verdict], site: str) -> list[Result]:
    """The results of a run that goes on, as they would be added to the history now."""
    each = [verdict.as_data() for verdict in verdicts]
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return list(of_run({"run": "now", "site": site, "verdicts": each}, now))


def of_run(run: Run, time: str) -> Iterator[Result]:
    """The results of a run's verdicts; `time` is ISO 8601 in UTC.

    Raises BadInput: a verdict with numbers that no history holds.
    """
    if run.get("settings"):  # no night: `check run` remembers it as little
        return
    name, site = Path(str(run.get("run") or "")).name or time, str(run.get("site") or "")
    results: list[Result] = []
    for number, verdict in enumerate(run["verdicts"], 1):
        if {fault["kind"] for fault in verdict.get("faults") or ()} == {FaultKind.SELECTION.value}:
            continue  # a mistyped name is no result of a night
        try:
            results += [_checked(entry) for entry in _entries(verdict, name, time, site)]
        except (TypeError, ValueError, OverflowError) as fault:
            raise BadInput(f"run {name}, verdict {number}: no result ({fault})") from fault
    yield from _without_jobs_joined(results)


def _without_jobs_joined(results: Iterable[Result]) -> Iterator[Result]:
    """Results of which the history keeps one, because they have no job, with all their reasons."""
    joined: dict[tuple[str, ...], Result] = {}
    for result in results:
        if result.job is not None:
            yield result
            continue
        key = (
            result.check_name,
            result.case_name,
            result.partition,
            result.metric,
            result.environment,
        )
        before = joined.setdefault(key, result)
        if result.reason not in before.reason.split("; "):
            joined[key] = replace(before, reason=f"{before.reason}; {result.reason}")
    yield from joined.values()


def _entries(verdict: Mapping[str, Any], run: str, time: str, site: str) -> list[dict[str, Any]]:
    job, faults = verdict.get("job") or {}, verdict.get("faults") or ()
    common = {
        **{name: verdict.get(name) for name in _OF_VERDICT},
        "run": run,
        "site": site,
        "time": time,
        "check_name": verdict["check"],
        "case_name": verdict["case"],
        "nodes": job.get("nodes"),
        "job": job.get("id") or None,
        "queue_wait": job.get("queue_wait_seconds"),
        "restarts": job.get("restarts"),
    }
    about = {fault.get("metric") for fault in faults} if verdict["status"] != "ERROR" else {""}
    rows = []
    for metric in verdict["metrics"]:
        row = {**common, "metric": metric["name"]}
        row |= {name: metric.get(name) for name in _OF_METRIC}
        if about and "" not in about and metric["name"] not in about and _holds(metric):
            row |= {"status": "PASS", "reason": ""}  # what is wrong is another metric's
        rows += _of_runs(row, metric["name"], verdict.get("runs") or ())
    return rows or [common]


def _holds(metric: Mapping[str, Any]) -> bool:
    value, low, high = (metric.get(of) for of in ("value", "low", "high"))
    return value is not None and (low is None or low <= value) and (high is None or value <= high)


def _of_runs(
    row: dict[str, Any], metric: str, runs: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """A result per run of a night; the verdict is that of all of them."""
    each = [run for run in runs if run["values"].get(metric) is not None]
    return [
        {
            **row,
            "value": run["values"][metric],
            "nodes": run["job"].get("nodes"),
            "job": run["job"].get("id") or None,
            "queue_wait": run["job"].get("queue_wait_seconds"),
            "restarts": run["job"].get("restarts"),
        }
        for run in each
    ] or [row]


def _time(path: Path, run: Run) -> str:
    """Return a run's time in UTC, from its directory's name, its own, or its file's age."""
    aged = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
    own = began(Path(str(run.get("run") or "")).name)
    return (began(path.resolve().parent.name) or own or aged).isoformat(timespec="seconds")


def _result(entry: object, path: Path, number: int) -> Result:
    if not isinstance(entry, Mapping):
        raise BadInput(f"{path}, line {number}: no result")
    if (schema := entry.get("schema", SCHEMA)) != SCHEMA:
        problem = f"its schema is {str(schema)[:20]!r}, and this hpcdl reads {SCHEMA}"
        raise BadInput(f"{path}, line {number}: {problem}", hint="a newer hpcdl reads it")
    try:
        return _checked(entry)
    except (TypeError, ValueError, OverflowError) as fault:
        raise BadInput(f"{path}, line {number}: no result ({fault})") from fault


def _checked(entry: Mapping[str, Any]) -> Result:
    """A result that the history can hold and the gate can count with.

    Raises TypeError, ValueError, OverflowError: it is none; the message says why.
    """
    values = {name: _OF_KIND[kind](name, entry.get(name)) for name, kind in TYPES.items()}
    values["time"] = _utc(values["time"])
    if not values["run"] or not values["check_name"] or not values["status"]:
        raise ValueError("run, check_name and status must be given")
    if values["better"] not in {"", HIGHER, LOWER}:
        raise ValueError(f"better is {values['better'][:20]!r}, not {HIGHER} or {LOWER}")
    measured = entry.get("value") not in (None, "")
    if measured and values["value"] is None and values["status"] == Status.PASS.value:
        raise ValueError("it passes with a value that is not finite")
    return Result(**values)


@lru_cache
def _utc(text: str) -> str:
    """A time in the one form that all of the history has, so that its order is that of time."""
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise ValueError(f"time {text[:40]!r} is not like 2026-06-01T02:00:00+00:00") from None
    if moment.tzinfo is None:
        raise ValueError(f"time {text!r} lacks its offset from UTC, such as +00:00")
    if moment.year not in _YEARS:
        raise ValueError(f"time {text!r} is no time of a run")
    return moment.astimezone(timezone.utc).isoformat(timespec="seconds")


def _text(name: str, value: Any) -> str:
    if isinstance(value, str) and value.isascii():  # nearly all of a million
        return value
    if isinstance(value, (dict, list)):
        raise TypeError(f"{name} is no text")
    return "" if value is None else str(value).encode("utf-8", "replace").decode()


def _whole(name: str, value: Any) -> int | None:
    if value in (None, ""):
        return None
    if not -(2**63) <= int(value) < 2**63:
        raise ValueError(f"{name} does not fit into 64 bits")
    return int(value)


def _finite(name: str, value: Any) -> float | None:
    """A number that can be counted with; None for a failed measurement and an open bound."""
    if value in (None, ""):
        return None
    number = float(value)
    if math.isfinite(number):
        if name == "value" and number and not 1 / LARGEST <= abs(number) <= LARGEST:
            raise ValueError(f"{name} is larger or smaller than any measurement")
        return number
    if name == "value" or number == _OPEN.get(name):
        return None
    raise ValueError(f"{name} is not finite")


_OF_KIND: dict[str, Callable[[str, Any], Any]] = {
    "str": _text,
    "bool": lambda _, value: value in (True, 1),
    "int | None": _whole,
    "float | None": _finite,
}
