"""Pages generated from data: the site file and the job file key by key, exit codes, commands.

A key, a code or an option is described once, where it is declared; these pages repeat it for
readers. `make docs` writes them, and a test compares the committed ones with this module.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from textwrap import fill
from typing import Any

from hpcdl import facts
from hpcdl.cli import GROUPS, MACHINERY, load_group
from hpcdl.cli.framework import Command, Group, build_parser
from hpcdl.system.document import Schema
from hpcdl.system.errors import MEANINGS, ExitCode

_MADE = "<!-- Made by `make docs` from {source}. -->\n\n"
_FEW = 5
"""So many rows are a list."""
_MANY = 3
"""Options that two commands share, from which on they are listed once."""
_TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true, false",
    "array": "list",
    "object": "mapping",
    "null": "null",
}


def site_file() -> str:
    """docs/site-file.md: every key of site.yaml."""
    from hpcdl.site.check import site_schema

    intro = """\
# The site file, key by key

`site.yaml` describes a cluster once; stacks, scripts, checks and predictions are derived from it.
`hpcdl site init` writes a commented one from a live Slurm, `hpcdl site check` compares the two, and
`hpcdl schema site` prints a JSON Schema for editors. Commented examples are in
`templates/sites/`.

All errors of a file are shown at once, each with its line and the nearest valid key. Anchors, tags
and duplicate keys are not allowed. Keys in **bold** are required.
"""
    return (
        _MADE.format(source="hpcdl/site/model.py")
        + intro
        + "\n".join(_keys(site_schema(), "site.yaml"))
        + "\n"
    )


def job_file() -> str:
    """docs/job-file.md: every key of job.yaml."""
    from hpcdl.jobs.spec import job_schema

    intro = """\
# The job file, key by key

`hpcdl job submit --file job.yaml` takes a request from a file; options on the command line
override it. One of `--gpus`, `--nodes`, `--gpus-per-node` and `--tasks` replaces all of them, and
`tasks_per_node`, that the file has; `--mem` replaces `mem_per_cpu` and `mem_per_gpu`.
`hpcdl schema job` prints a JSON Schema for editors.

```yaml
schema: 1
partition: v100
gpus: 16
time: 2:00:00
program: [python, my_train.py, --lr, "0.1"]
```

Keys in **bold** are required.
"""
    return (
        _MADE.format(source="hpcdl/jobs/spec.py")
        + intro
        + "\n".join(_keys(job_schema(), "job.yaml"))
        + "\n"
    )


def results() -> str:
    """docs/results.md: every key of the files that say what came out, of jobs and of checks."""
    from hpcdl.results.faults import FaultKind
    from hpcdl.results.records import RESULT, VERDICTS

    intro = """\
# Results, key by key

What jobs and checks leave is JSON. Each file says the version of its format, and in `units` what
its numbers are counted in. `hpcdl schema result` prints the JSON Schema of `result.json`, with
types and bounds; so do `verdicts`, `progress` (how far a running job is), `expectation` and
`request` (`job.json`: what was asked for).

A reader takes what the schema allows; further keys are kept. A key that is **bold** is in every
file; units are behind the meaning.
"""
    kinds: dict[str, list[str]] = {}
    for kind in FaultKind:
        kinds.setdefault(kind.status.value, []).append(f"`{kind.value}`")
    rows = [(verdict, ", ".join(names)) for verdict, names in kinds.items()]
    pages = ("\n".join(_keys(one.schema, one.name)) + "\n" for one in (RESULT, VERDICTS))
    return (
        _MADE.format(source="hpcdl/results")
        + intro
        + "".join(pages)
        + "\n## Kinds of faults\n\nThe verdict follows from the kind. NO-REFERENCE, STALE and "
        + "INSUFFICIENT-DATA can be waived.\nWhat a check of your own says in words is of the "
        + "kind `check`.\n\n"
        + _listed(("verdict", "kinds"), rows)
        + "\n"
    )


def _keys(schema: Schema, name: str) -> Iterator[str]:
    """A table of a mapping's keys, then a section for each mapping below it."""
    written = not name.partition(":")[0].endswith(".json")  # by people, who ask what may stand
    told = fill(schema["description"], 100) if re.fullmatch(r"[a-z]+\.[a-z]+", name) else ""
    yield f"\n## `{name}`\n\n{told}\n" if told else f"\n## `{name}`\n"
    rows = []
    required = schema.get("required", ())
    below: list[tuple[str, Schema]] = []
    for key, part in schema["properties"].items():
        shown = f"**`{key}`**" if key in required else f"`{key}`"
        words = _form(part) if written or "enum" in part else part.get("unit", "1")
        kind = words.removesuffix("1") + (_default(part) if written else "")
        rows.append((shown, part["description"], *[kind] * bool(written or kind)))
        path = key if name.endswith(".yaml") else f"{name}.{key}".replace(".json.", ".json: ")
        inner = {
            path: part,
            f"{path}.NAME": part.get("additionalProperties"),
            f"{path}[]": part.get("items"),
        }
        below += [
            (where, one)
            for where, one in inner.items()
            if isinstance(one, dict) and one.get("properties")
        ]
    yield _listed(("key", "meaning", "type; default")[: 2 + written], rows)
    for path, part in below:
        if part["properties"].keys() <= schema["properties"].keys():
            keys = ", ".join(f"`{key}`" for key in part["properties"])
            yield f"\n## `{path}`\n\n{fill(f'As those of `{name}`: {keys}.', 100)}"
        else:
            yield from _keys(part, path)


def _listed(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A few rows as a list, more as a table; what a row has more than its heads is in brackets."""
    columns = 2 if len(rows) <= _FEW else len(heads)
    cells = []
    for row in rows:
        more = f" ({'; '.join(row[columns:])})" if row[columns:] else ""
        cells.append([*row[: columns - 1], row[columns - 1] + more])
    if len(rows) <= _FEW:
        return "\n".join(f"- {name}: {meaning}" for name, meaning in cells)
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in (heads, *cells)]
    return "\n".join([lines[0], "|" + "---|" * columns, *lines[1:]])


def _form(part: Schema) -> str:
    """What may stand there, in a few words."""
    if "enum" in part:
        return ", ".join(f"`{one}`" for one in part["enum"])
    low, high = part.get("minimum"), part.get("maximum")
    kinds = [part["type"]] if isinstance(part["type"], str) else part["type"]
    form = " or ".join(_TYPES[kind] for kind in kinds)
    if low is not None and low == high:
        form = f"`{low}`"
    elif low is not None and high is not None:
        form = f"{low:,} to {high:,}"
    examples = part.get("examples", [])
    fixed = low is not None and low == high
    return form + (f", such as `{examples[0]}`" if examples and not fixed else "")


def _default(part: Schema) -> str:
    if part.get("default") in (None, [], {}):
        return ""
    value = part["default"]
    return f"; `{value}`" if isinstance(value, str) else f"; `{json.dumps(value)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


_AFTER_CODES = """
## Exit codes of a job

| what happened | exit code | what follows |
|---|---|---|
| the walltime is nearly up: USR2 | 75, after a checkpoint | the script requeues the job |
| `scancel` or preemption: TERM | 5, after a checkpoint | Slurm requeues if PreemptMode=REQUEUE |
| signal n killed the program | 128 + n | nothing |
| anything else | the program's own | nothing |

## Preflight of a job

| code | cause |
|---|---|
"""


def exit_codes() -> str:
    """docs/exit-codes.md: the one table of exit codes."""
    rows = [
        f"| {'20-29' if code is ExitCode.PREFLIGHT else int(code)} | {_meaning(code)} |\n"
        for code in ExitCode
    ]
    causes = facts.load("slurm_reasons")["preflight"].items()
    return (
        _MADE.format(source="hpcdl/system/errors.py and hpcdl/facts/slurm_reasons.yaml")
        + "# Exit codes\n\nThe same for every `hpcdl` command, and for the jobs it writes.\n\n"
        + "| code | meaning |\n|---|---|\n"
        + "".join(rows)
        + _AFTER_CODES
        + "".join(f"| {code} | {_cell(cause)} |\n" for code, cause in causes)
    )


def _meaning(code: ExitCode) -> str:
    return MEANINGS[code].removeprefix("20 to 29: ")


def commands() -> str:
    """docs/commands.md: every command with its example and its help."""
    parts = [
        _MADE.format(source="the declarations in hpcdl/cli"),
        "# Commands\n\n",
        "Every command takes `--json`, `-v` and `--no-color` (or `NO_COLOR`). Commands that read "
        "the site\nfile take `--site FILE`; [without it](architecture.md#environment-variables) "
        "`HPCDL_SITE` counts.\nCommands that change something take `--dry-run`. "
        "[Exit codes](exit-codes.md) are the same for all.\n\n",
        "Faults are text on standard error, also with `--json`: `error: ...`, then `help: ...` "
        "with the next\nstep. "
        f"Scripts and editors call {', '.join(f'`hpcdl {name}`' for name in MACHINERY)}.\n",
    ]
    for name, what in GROUPS.items():
        entry = load_group(name)
        if name in MACHINERY:
            continue
        if isinstance(entry, Group):
            parts.append(f"\n## `hpcdl {name}`\n\n{what[0].upper()}{what[1:]}.\n")
            told: dict[str, list[tuple[str, str]]] = {}
            parts += [_command(f"hpcdl {name} {one.name}", one, told) for one in entry.commands]
        else:
            parts.append(_command(f"hpcdl {name}", entry, {}, level=2))
    return "".join(parts)


def _rows(prog: str, command: Command) -> list[tuple[str, str]]:
    return [
        (option_names(action), option_help(action))
        for action in build_parser(prog, command)._actions
        if action.dest not in {"help", "json", "verbose", "no_color", "site", "dry_run"}
        and action.help != argparse.SUPPRESS
    ]


def _command(
    prog: str, command: Command, told: dict[str, list[tuple[str, str]]], level: int = 3
) -> str:
    """A command's section; options that one of `told` has are named there alone."""
    rows, others = _rows(prog, command), ""
    like = max(told, key=lambda one: len({*told[one]} & {*rows}), default="")
    shared = [row for row in told.get(like, ()) if row in rows]
    if len(shared) >= _MANY:
        but = [row for row in told[like] if row not in rows]
        which = "all but " * (0 < len(but) < len(shared)) if len(but) < len(shared) else ""
        named = but if len(but) < len(shared) else shared
        names = ", ".join(f"`{row[0].split('`')[1].split()[0]}`" for row in named)
        link = f"[`{like}`](#{like.replace(' ', '-')})"
        others = f"Options as of {link}: {which}{names or 'all'}."
    told[prog] = rows
    rows = rows if len(shared) < _MANY else [row for row in rows if row not in shared]
    parts = [
        f"{'#' * level} `{prog}`",
        _cell(command.summary),
        f"    $ {command.example}",
        _listed(("argument", "meaning"), rows),
        " ".join([*filter(None, [others]), *["Takes `--dry-run`."] * command.changes]),
    ]
    return "\n" + "\n\n".join(part for part in parts if part) + "\n"


def option_names(action: Any) -> str:
    """An argument's names and value, in Markdown."""
    metavar = action.metavar or (None if action.nargs == 0 else action.dest.upper())
    if isinstance(metavar, tuple):
        metavar = " ".join(metavar)
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    value = f" {metavar}" if metavar and action.nargs != 0 else ""
    return ", ".join(f"`{name}{value}`" for name in action.option_strings)


def option_help(action: Any) -> str:
    """An argument's help, as argparse would print it."""
    text = action.help or ""
    return str(
        text % {"default": action.default} if "%(default)" in text else text.replace("%%", "%")
    )
