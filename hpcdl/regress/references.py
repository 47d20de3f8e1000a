"""Reference values: what a value is compared with, and where each number comes from.

A site's own references lie in PREFIX/references/SET.yaml, a file that a team reviews; published
ones are records of hpcdl/facts, chosen in references.yaml. The site's own win. Bounds follow
from the measured spread: wide enough for a noisy machine, never so wide that half the speed
would pass.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from hpcdl import facts
from hpcdl.site import Site
from hpcdl.slurm.execution import recorded
from hpcdl.system.document import Document, check, read_document
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.files import clear_leftovers, locked, write_atomic

SCHEMA = 1
MIN_RUNS = 3
OWN_DEMAND = "the check's own demand"
"""The source of a reference that is a rule: no measurement takes its place."""
NARROWEST, WIDEST = 0.10, 0.40
_SPREADS = 5.0
# Expected range of n values of a normal distribution in units of its standard deviation.
_RANGE_FACTORS = {2: 1.128, 3: 1.693, 4: 2.059, 5: 2.326, 6: 2.534, 7: 2.704, 8: 2.847}
_MAD_TO_SIGMA = 1.4826

ReferenceKey = tuple[str, str, str, str]


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The expected value of one metric of one check, and its source.

    `lower` and `upper` are fractions of `value`, None where that side is not judged. `spread`
    is the relative standard deviation between runs, `runs` their number; 0 for published ones.
    """

    check: str
    case: str
    partition: str
    metric: str
    value: float
    unit: str
    lower: float | None = None
    upper: float | None = None
    runs: int = 0
    spread: float = 0.0
    source: str
    proof: str
    date: str
    release: str | None = None
    driver: str | None = None
    nodes: tuple[str, ...] = ()
    machine: str | None = None

    @property
    def key(self) -> ReferenceKey:
        """Return its key in its set: check, case, partition, metric."""
        return self.check, self.case, self.partition, self.metric

    @property
    def names(self) -> frozenset[str]:
        """Return the names that select it: `check` or `check/case`."""
        return frozenset({self.check, f"{self.check}/{self.case}"})

    @property
    def is_rule(self) -> bool:
        """Return whether it is the check's own requirement."""
        return self.source == OWN_DEMAND

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """Lowest and highest value that pass, in `unit`."""
        low = None if self.lower is None else self.value * (1 + self.lower)
        high = None if self.upper is None else self.value * (1 + self.upper)
        return low, high


def site_file(site: Site, reference_set: str) -> Path:
    """Where the site keeps its own references of a set."""
    return site.paths.prefix / "references" / f"{reference_set}.yaml"


def load_references(site: Site, partitions: Sequence[str] = ()) -> dict[ReferenceKey, Reference]:
    """The references of partitions (all by default) by `Reference.key`.

    Published ones hold for every partition with their set; the site's own are over them. Raises
    BadInput: an unknown partition, or a file with faults; all of them, with their places.
    """
    sets: dict[str, list[str]] = {}
    for part in site.by_groups(partitions):
        sets.setdefault(part.reference_set, []).append(part.label)
    rows: dict[ReferenceKey, Reference] = {}
    for name, labels in sets.items():
        of_all = [replace(row, partition=label) for row in published(name) for label in labels]
        own = [row for row in read_references(site_file(site, name)) if row.partition in labels]
        rows |= {row.key: row for row in (*of_all, *own)}
    return rows


def published(reference_set: str) -> tuple[Reference, ...]:
    """The published references of a set, without a partition; none where there are none."""
    table = facts.load("references")
    groups = table["sets"].get(reference_set, ())
    rows = facts.load("throughput") if groups else {"records": (), "sources": {}}
    records = {
        record["id"]: {**record, "source": rows["sources"][record["source"]]}
        for record in rows["records"]
        if "id" in record
    }
    return tuple(
        _of_record(table, group, records[name]) for group in groups for name in group["records"]
    )


def _of_record(
    fields: Mapping[str, Any], group: Mapping[str, Any], record: Mapping[str, Any]
) -> Reference:
    """A published measurement as a reference of the training that comes closest."""
    nodes, precision = int(record.get("nodes", 1)), record.get("precision", "fp32")
    data = record["data"] if record["data"] == "imagenet" else "synthetic"
    shape = f"{nodes}x{int(record['gpus']) // nodes}"
    return Reference(
        check=fields["check"],
        metric=fields["metric"],
        partition="",
        unit="images/s",
        case=f"{record['model']}-{shape}-{data}-{precision.rpartition('/')[2]}",
        value=float(record["images_per_sec"]),
        lower=float(group["lower"]),
        proof=record.get("proof", "published"),
        source=f"{record['source']}: {record['id']}",
        date=str(record.get("date") or "unknown"),
    )


def read_references(path: Path) -> tuple[Reference, ...]:
    """The references of a file, none where there is no such file.

    Raises BadInput: every fault of the file at once.
    """
    if not path.exists():
        return ()
    document = read_document(path, if_empty="`hpcdl check references measure` drafts one")
    values = check(document, facts.load("check_formats")["references"])
    found = (values or {}).get("set")
    if found is not None and found != path.stem:
        document.fault(
            f"these are references of '{found}', and the file is '{path.name}'",
            document.find(("set",)),
            "a set's file has its name",
        )
    _look_through(document, (values or {}).get("references") or [])
    document.raise_faults()
    return tuple(map(reference_of, values["references"]))


def _look_through(document: Document, entries: Sequence[Mapping[str, Any]]) -> None:
    """Faults that a schema does not know: rows that judge nothing, and rows that hide others."""
    seen: set[tuple[object, ...]] = set()
    for index, entry in enumerate(entries):
        if not entry:
            continue
        place = document.find(("references", index))
        if entry.get("lower") is None and entry.get("upper") is None:
            document.fault(
                "a reference without bounds passes everything",
                place,
                "give 'lower', 'upper' or both",
            )
        key = tuple(entry.get(name) for name in ("check", "case", "partition", "metric"))
        if key in seen:
            document.fault(f"a second reference of {'/'.join(map(str, key))}", place)
        seen.add(key)


@dataclass(frozen=True)
class Edit:
    """A file of PREFIX/references with its text before and after."""

    path: Path
    before: str
    after: str

    @property
    def diff(self) -> str:
        """A unified diff that `git apply` and `patch -p1` take in the site's prefix."""
        name = f"references/{self.path.name}"
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True),
            self.after.splitlines(keepends=True),
            f"a/{name}" if self.before else "/dev/null",
            f"b/{name}",
        )
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in lines
        )


@dataclass(frozen=True)
class Edits:
    """Changes of files that are made together, and what they mean in words."""

    files: tuple[Edit, ...]
    summary: str = ""

    @property
    def diff(self) -> str:
        """A unified diff of all files, from the site's prefix."""
        return "".join(edit.diff for edit in self.files)

    def write(self) -> None:
        """Write all files; each atomically.

        Raises BadInput: another process changed one meanwhile; nothing is written.
        """
        if not self.files:
            return
        with locked(self.files[0].path.with_name(".lock")):
            for edit in self.files:
                if edit.before != text_of(edit.path):
                    raise BadInput(
                        f"{edit.path} was changed meanwhile", hint="run the same command again"
                    )
            for edit in self.files:
                clear_leftovers(edit.path)
                write_atomic(edit.path, edit.after)


def edits_of(site: Site, rows: Iterable[Reference]) -> Edits:
    """Put rows into the files of their partitions' sets, in the places of those of their keys.

    Raises BadInput: a file has faults.
    """
    sets: dict[str, list[Reference]] = {}
    for row in rows:
        sets.setdefault(site.partition(row.partition).reference_set, []).append(row)
    return Edits(tuple(_edit_of(site, name, new) for name, new in sets.items()))


def _edit_of(site: Site, reference_set: str, rows: Sequence[Reference]) -> Edit:
    path = site_file(site, reference_set)
    merged = {row.key: row for row in (*read_references(path), *rows)}
    return Edit(path, text_of(path), render_references(reference_set, [*merged.values()]))


def text_of(path: Path) -> str:
    """A file's text, '' where there is none."""
    return path.read_text(encoding="utf-8") if path.exists() else ""


def render_references(reference_set: str, rows: Sequence[Reference]) -> str:
    """The text of a set's file, sorted, so that a change is a small diff."""
    import yaml

    entries = [entry_of(row) for row in sorted(rows, key=lambda row: row.key)]
    content = {"schema": SCHEMA, "set": reference_set, "references": entries}
    head = (
        "# Reference values of the nightly checks. `hpcdl check references measure`\n"
        "# writes them; a change is reviewed like code. Bounds are fractions.\n"
    )
    return head + str(yaml.safe_dump(content, sort_keys=False, width=96, allow_unicode=True))


def spread_of(values: Sequence[float]) -> float:
    """The relative standard deviation between runs, by the more pessimistic of two robust ways.

    The median absolute deviation ignores single outliers; the range, divided by its expectation
    for that many normal values, is what can be trusted of three.
    """
    middle = median(values)
    if middle <= 0 or len(values) < 2:
        return 0.0
    mad = median(abs(value - middle) for value in values) * _MAD_TO_SIGMA
    factor = _RANGE_FACTORS.get(len(values))
    by_range = (max(values) - min(values)) / factor if factor else 0.0
    return max(mad, by_range) / middle


def from_runs(row: Reference, values: Sequence[float]) -> Reference:
    """`row` with value, spread and bound from measured values: `upper` where it has one.

    Raises MissingPrerequisite: too few values.
    """
    good = [value for value in values if math.isfinite(value) and value > 0]
    if len(good) < MIN_RUNS:
        raise MissingPrerequisite(
            f"{row.check} {row.case} on {row.partition}: {len(good)} good runs are no reference",
            hint=f"at least {MIN_RUNS} runs must end well; see their logs",
        )
    spread = spread_of(good)
    # Five standard deviations, at least 10 %, at most 40 %: half the speed never passes. What else
    # a shared machine does tomorrow is not in the spread of a few runs today.
    far = recorded(row.machine).margin or min(WIDEST, max(NARROWEST, round(_SPREADS * spread, 3)))
    return replace(
        row,
        value=float(f"{median(good):.6g}"),
        runs=len(good),
        spread=round(spread, 4),
        lower=-far if row.upper is None else None,
        upper=None if row.upper is None else far,
    )


def rule(check: str, case: str, partition: str, metric: str, least: float) -> Reference:
    """A reference that is no measurement: the least value that a check itself demands."""
    return Reference(
        check=check,
        case=case,
        partition=partition,
        metric=metric,
        value=least,
        unit="",
        lower=0.0,
        source=OWN_DEMAND,
        proof="run",
        date=time.strftime("%Y-%m-%d"),
    )


def fingerprint() -> str:
    """This machine, in short: processor, its CPUs, memory. For the embedded cluster."""
    model = (
        " ".join(_entry("/proc/cpuinfo", "^model name[^:]*:(.*)").split()) or "unknown processor"
    )
    memory = round(int(_entry("/proc/meminfo", r"^MemTotal:\s*(\d+)") or 0) / 1024**2)
    return f"{model}, {len(os.sched_getaffinity(0))} CPUs, {memory} GB"


def _entry(path: str, pattern: str) -> str:
    with suppress(OSError):
        found = re.search(pattern, Path(path).read_text(errors="replace"), re.MULTILINE)
        return found[1] if found else ""
    return ""


def reference_of(entry: Mapping[str, Any]) -> Reference:
    """A row from what a file has of it."""
    return Reference(**{**entry, "nodes": tuple(entry.get("nodes") or ())})


def entry_of(row: Reference) -> dict[str, Any]:
    """A row for the file: without what says nothing."""
    values = asdict(row) | {"nodes": list(row.nodes)}
    return {key: value for key, value in values.items() if value not in (None, [])}
