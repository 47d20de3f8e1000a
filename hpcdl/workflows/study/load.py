"""Reads a study's file: every fault at once, each with its line; behind it values are valid.

The shipped studies lie in facts/studies; a user's own file is named by its path. What the
schema cannot say is checked here: names that refer to each other, rows that exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.slurm.execution import PROFILES
from hpcdl.system.document import Document, read_document
from hpcdl.system.errors import BadInput
from hpcdl.system.schema import Schema, check, short
from hpcdl.system.text import did_you_mean
from hpcdl.system.trust import require_known_owner
from hpcdl.workflows.study import model

Place = tuple[str | int, ...]

# Values that plans and costs are computed from; the program reads the others itself.
_COUNTS = ("gpus", "steps", "epochs", "batch-per-rank", "global-batch")
_COUNT = re.compile(r"[1-9][0-9]{0,8}")
_ANY = ("rule", "says", "where", "gpus")
_BOUNDS = ("at_least", "at_most")


@cache
def study_schema() -> Schema:
    """The JSON Schema of a study's file."""
    schema: Schema = facts.load("study_format")["study"]
    return schema


def shipped() -> tuple[str, ...]:
    """The names of the shipped studies."""
    return tuple(sorted(path.stem for path in _folder().glob("*.yaml")))


def load_study(which: str) -> model.Study:
    """The study of a name, or of a file's path; a `BadInput` has all faults of a file."""
    if "/" in which or which.endswith((".yaml", ".yml")):
        return read_study(Path(which))
    if which not in shipped():
        hint = did_you_mean(which, shipped())
        raise BadInput(f"unknown study '{which}'", hint=f"{hint}; or name a file of your own")
    return read_study(_folder() / f"{which}.yaml")


def read_study(path: Path) -> model.Study:
    """The study of a file; its faults as `load_study` raises them."""
    document = read_document(
        path, if_empty="`hpcdl study schema` has its keys", require=require_known_owner
    )
    _check_version(document)
    values = check(document, study_schema())
    if not document.faults:
        _check_meaning(document, values)
    document.raise_faults()
    return _study(values, path)


def scale_of(study: model.Study, name: str) -> model.Scale:
    """A size of a study; an unknown name is a `BadInput`."""
    if name not in study.scales:
        raise BadInput(f"unknown scale '{name}'", hint=did_you_mean(name, study.scales))
    return study.scales[name]


def _folder() -> Path:
    return facts.path("models").parent / "studies"


def _check_version(document: Document) -> None:
    """A file of a later version has this one fault, not all that follow from it."""
    node = document.find(("schema",))
    text, known = getattr(node, "text", ""), study_schema()["properties"]["schema"]["maximum"]
    if _COUNT.fullmatch(text) and int(text) > known:
        document.fault(
            f"schema {text} is newer than this hpcdl reads ({known})",
            node,
            "a newer hpcdl reads it",
        )
        document.raise_faults()


def _check_meaning(document: Document, values: dict[str, Any]) -> None:
    everywhere: set[str] = set()
    fault = _Faults(document)
    for scale_name, scale in values["scales"].items():
        where = ("scales", scale_name)
        for index, run in enumerate(scale["runs"]):
            if run["name"] in [other["name"] for other in scale["runs"][:index]]:
                fault.at((*where, "runs", index, "name"), f"the run '{run['name']}' is given twice")
            _check_run(fault, (*where, "runs", index), run)
            _check_names(fault, (*where, "runs", index), run, scale, values)
        keys = {key for run in scale["runs"] for key in (*run["over"], "run")}
        counts = {
            int(text)
            for run in scale["runs"]
            for text in run["over"].get("gpus", ())
            if _COUNT.fullmatch(text)
        }
        for index, rule in enumerate(scale["acceptance"]):
            _check_rule(fault, (*where, "acceptance", index), rule, keys, counts)
        fault.of_keys((*where, "exchange_from"), scale["exchange_from"] or {}, keys)
        for name, data in scale["data"].items():
            place = (*where, "data", name)
            if data["kind"] == "given" and not data["path"]:
                fault.at(place, f"'{name}' is given, but not where", "give its `path`")
            if "count" in data["options"]:
                fault.of_counts((*place, "options", "count"), "count", data["options"]["count"])
        everywhere |= keys
    _check_figure(fault, values, everywhere)
    known = sorted(row["id"] for row in facts.load("throughput")["records"])
    for index, group in enumerate(values["published"]):
        for number, row in enumerate(group["rows"]):
            fault.unless_known(
                row,
                known,
                ("published", index, "rows", number),
                f"facts/throughput.csv has no row '{row}'",
            )


class _Faults:
    def __init__(self, document: Document) -> None:
        self._document = document

    def at(self, where: Place, message: str, hint: str = "") -> None:
        self._document.fault(message, self._document.find(where), hint)

    def unless_known(self, name: str, known: Iterable[str], where: Place, message: str) -> None:
        """A name that refers to nothing."""
        if name not in (names := list(known)):
            self.at(where, message, did_you_mean(name, names))

    def of_keys(self, where: Place, asked: Iterable[str], keys: set[str]) -> None:
        """Report keys that no run has: they would choose no cell, or merge all."""
        for key in asked:
            self.unless_known(key, sorted(keys), (*where, key), f"no matrix has '{short(key)}'")

    def of_counts(self, where: Place, key: str, text: str) -> None:
        if not _COUNT.fullmatch(text):
            self.at(
                where,
                f"'{key}' is '{short(text)}', not a whole number from 1 on",
                "write digits, such as 8",
            )


def _check_run(fault: _Faults, where: Place, run: dict[str, Any]) -> None:
    over, options = run["over"], run["options"]
    for key, asked in over.items():
        if len(set(asked)) < len(asked):
            fault.at((*where, "over", key), f"'{key}' names a value twice")
        if key in options:
            fault.at((*where, "over", key), f"'{key}' is in the matrix and in the options")
    if "gpus" not in over:
        fault.at(
            (*where, "over"), "the matrix has no 'gpus'", "write gpus: [1] where it does not vary"
        )
    for key in _COUNTS:
        for index, text in enumerate(over.get(key, ())):
            fault.of_counts((*where, "over", key, index), key, text)
        if key in options:
            fault.of_counts((*where, "options", key), key, options[key])


def _check_names(
    fault: _Faults, where: Place, run: dict[str, Any], scale: dict[str, Any], study: dict[str, Any]
) -> None:
    """Names of data sets, and of what the study says above its scales; and what is excluded."""
    over = run["over"]
    for name in [run["data"], *over.get("data", ())]:
        fault.unless_known(
            name,
            [model.SYNTHETIC, *scale["data"]],
            (*where, "data"),
            f"there is no data set '{name}'",
        )
    for key in ("framework", "environment"):
        for name in dict.fromkeys(over.get(key, ())):
            fault.unless_known(
                name, study[f"{key}s"], (*where, "over", key), f"there is no {key} '{name}'"
            )
    for index, pattern in enumerate(run["exclude"]):
        for key, text in pattern.items():
            place = (*where, "exclude", index, key)
            fault.unless_known(key, over, place, f"'{key}' is not in the matrix")
            fault.unless_known(
                text,
                over.get(key, [text]),
                place,
                f"'{key}' never is '{short(text)}' in the matrix",
            )


def _check_figure(fault: _Faults, values: dict[str, Any], keys: set[str]) -> None:
    for index, key in enumerate(values["series"]):
        fault.of_keys(("series", index), [key], keys)
    for index, panel in enumerate(values["figure"]):
        fault.of_keys(("figure", index, "where"), panel["where"], keys)
    for index, table in enumerate(values["tables"]):
        fault.of_keys(("tables", index, "where"), {**table["where"], table["columns"]: ""}, keys)
    count, most = len(values["figure"]), study_schema()["properties"]["figure"]["maxItems"]
    if count > most:
        fault.at(
            ("figure", most),
            f"the figure has {count} panels, more than {most}",
            "show the rest in a study of their own",
        )


def _check_rule(
    fault: _Faults, where: Place, rule: dict[str, Any], keys: set[str], counts: set[int]
) -> None:
    kind = rule["rule"]
    needs = facts.load("study_format")["needs"].get(kind, ())
    for name in needs:
        if not _is_given(rule[name]):
            fault.at(where, f"the rule '{kind}' needs '{name}'")
    looks = {*needs, *_ANY} if kind != "complete" else {"rule", "says"}
    if kind == "input-share":
        looks |= {*_BOUNDS}
        if not any(_is_given(rule[name]) for name in _BOUNDS):
            fault.at(where, f"the rule '{kind}' has no bound", "give at_least or at_most")
    for name, value in rule.items():
        if name not in looks and _is_given(value):
            fault.at((*where, name), f"the rule '{kind}' does not look at '{name}'", "take it out")
    fault.of_keys((*where, "where"), rule["where"], keys)
    fault.of_keys((*where, "over"), [rule["over"]] if rule["over"] else [], keys)
    for index, count in enumerate(rule["gpus"]):
        if count not in counts:
            fault.at(
                (*where, "gpus", index),
                f"no run has {count} GPUs",
                f"use one of: {', '.join(map(str, sorted(counts)))}",
            )


def _is_given(value: Any) -> bool:
    """Return whether a file gives a value; a bound of 0 is one."""
    return value not in (None, "", [], {})


_KINDS = {
    "figure": model.Panel,
    "tables": model.Table,
    "original": model.Original,
    "frameworks": model.Framework,
    "environments": model.Environment,
}


def _study(values: dict[str, Any], path: Path) -> model.Study:
    made = {
        key: [kind(**_frozen(one)) for one in values[key]]
        if isinstance(values[key], list)
        else {name: kind(**_frozen(one)) for name, one in values[key].items()}
        for key, kind in _KINDS.items()
    }
    made["published"] = list(map(_published, values["published"]))
    made["scales"] = {name: _scale(name, scale) for name, scale in values["scales"].items()}
    rest = {key: value for key, value in values.items() if key != "schema"}
    return model.Study(**_frozen({**rest, **made}), path=path)


def _frozen(values: dict[str, Any]) -> dict[str, Any]:
    """The values with tuples for lists; deeper values stay as they are, except mappings."""
    return {
        key: tuple(value)
        if isinstance(value, list)
        else _frozen(value)
        if isinstance(value, dict)
        else value
        for key, value in values.items()
    }


def _scale(name: str, values: dict[str, Any]) -> model.Scale:
    made = {
        "execution": PROFILES[values["execution"]],
        "data": {key: model.DataSet(name=key, **data) for key, data in values["data"].items()},
        "runs": tuple(
            model.Run(**{**_frozen(run), "reads": run["reads"] and model.Reads(**run["reads"])})
            for run in values["runs"]
        ),
        "acceptance": tuple(model.AcceptanceRule(**_frozen(rule)) for rule in values["acceptance"]),
    }
    return model.Scale(name=name, **{**values, **made})


def _published(values: dict[str, Any]) -> model.Published:
    table = facts.load("throughput")
    rows = [row for row in table["records"] if row["id"] in values["rows"]]
    points = [model.Point(**point) for point in values["points"]]
    points += [
        model.Point(int(row["gpus"]), row.get("images_per_sec"), row.get("speedup")) for row in rows
    ]
    source = values["source"] or (table["sources"][rows[0]["source"]] if rows else "")
    points.sort(key=lambda point: point.gpus)
    return model.Published(values["label"], source, tuple(points), values["where"])
