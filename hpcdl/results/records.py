"""One reader and one writer for each kind of result file.

Anybody may have written such a file: a user's own program, a job of another user. A reader takes
no pipe, nothing larger than it should be and no text that is half a character; what the schema
does not allow is None, with a sentence that says so. A caller names what it needs (`need`); what
nobody needs stops nobody.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from hpcdl.system.errors import BadInput
from hpcdl.system.files import as_json, read_regular, write_atomic
from hpcdl.system.frozen import dataclass

Values = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """The content of a file: values as the schema types them, and faults by place (`a.b`)."""

    path: Path
    values: Values
    faults: Mapping[str, str]

    def need(self, *places: str) -> None:
        """Raise BadInput unless all these places hold what the schema wants of them."""
        for place in places:
            above = [place[:end] for end, sign in enumerate(f"{place}.") if sign == "."]
            problems = [
                problem
                for other, problem in self.faults.items()
                if other in above or other.startswith((f"{place}.", f"{place}["))
            ]
            if not problems and at(self.values, *place.split(".")) is None:
                problems = [f"it lacks {place}"]
            if problems:
                raise BadInput(f"{self.path}: {problems[0]}")


def at(values: object, *path: str) -> Any:
    """The value at a path of keys, None where there is none."""
    for key in path:
        values = values.get(key) if isinstance(values, Mapping) else None
    return values


@dataclass(frozen=True)
class Format:
    """A kind of file: its name, and the version that is written and read."""

    name: str
    version: int
    most_bytes: int = 50_000_000

    @cached_property
    def schema(self) -> Values:
        """The JSON Schema; `unit` is the unit of a number."""
        path = Path(__file__).parent / "schemas" / self.name
        schema: Values = json.loads(path.read_text(encoding="utf-8"))
        return schema

    def read(self, path: Path) -> Record:
        """Return the record of a file.

        Raises BadInput: there is no such file, it is no regular one, too large, empty, or another
        kind of file.
        """
        try:
            text = read_regular(path, self.most_bytes, self.name).decode()
            if not text.strip():
                raise BadInput(f"{path} is empty")
            value = json.loads(text)
            record = self.of(value, path, halves="\\ud" in text or "\\uD" in text)
            strange = value.keys() - self.schema["properties"].keys()
            if len(strange) > len(value) / 2:
                raise BadInput(
                    f"{path} is no {self.name}: it has other keys, such as {min(strange)!r}"
                )
            return record
        except UnicodeDecodeError as fault:
            raise BadInput(f"{path} is not UTF-8 text") from fault
        except json.JSONDecodeError as fault:
            raise BadInput(f"{path}:{fault.lineno}:{fault.colno}: not JSON: {fault.msg}") from fault
        except (ValueError, RecursionError) as fault:
            raise BadInput(f"{path} is no {self.name}: too deep, or too large a number") from fault

    def find(self, folder: Path) -> Values | None:
        """Return the values of the file in a directory, None if it cannot be read."""
        with suppress(BadInput):
            return self.read(folder / self.name).values
        return None

    def of(self, value: Any, path: Path = Path(), *, halves: bool = False) -> Record:
        """Return the record of parsed JSON; with `halves`, it may have escapes of half a character.

        Raises BadInput: it is no mapping.
        """
        from hpcdl.system.document import check_values

        if not isinstance(value, dict):
            raise BadInput(f"{path} is no {self.name}: it holds no mapping")
        if halves:
            text = json.dumps(value, ensure_ascii=False)
            value = json.loads(text.encode("utf-8", "replace"))
        values, faults = check_values(value, self.schema)
        version = value.get("schema")
        if type(version) is int and version != self.version:
            problem = (
                f"it is of version {str(version)[:9]}; this hpcdl reads version {self.version}"
            )
            faults = {"schema": problem, **faults}
        return Record(path, values, faults)

    def data(self, values: Mapping[str, Any]) -> Values:
        """The values as they are written: with their version, and with the units of the numbers."""
        units = dict(_units(self.schema, values))
        return {"schema": self.version, **values, **({"units": units} if units else {})}

    def write(self, path: Path, values: Mapping[str, Any], *, sync: bool = True) -> None:
        """Write a file as a whole; without `sync` a crash of the machine may lose it.

        Raises MissingPrerequisite: the file system refuses it.
        """
        text = as_json(self.data(values))
        # A byte that is no UTF-8, such as in a program's argument, becomes an escape of JSON.
        write_atomic(path, f"{text}\n".encode(errors="backslashreplace"), sync=sync)


def outcome(status: str, reason: str = "", exit_code: int = 0) -> Values:
    """Return how a program ended, in the form of all result files."""
    return {"status": status, "reason": reason, "exit_code": exit_code}


def _units(schema: Values, value: object, place: str = "") -> Iterator[tuple[str, str]]:
    if "unit" in schema:
        yield place, schema["unit"]
    elif isinstance(value, Mapping):
        for name, part in schema.get("properties", {}).items():
            if name in value:
                yield from _units(part, value[name], f"{place}.{name}".lstrip("."))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _units(schema["items"], one, f"{place}[]")


RESULT = Format("result.json", 2)
PROGRESS = Format("progress.json", 2, 1_000_000)
VERDICTS = Format("verdicts.json", 2)
EXPECTATION = Format("expectation.json", 2, 1_000_000)
JOB = Format("job.json", 1, 10_000_000)
DATASET = Format("dataset.json", 1)
