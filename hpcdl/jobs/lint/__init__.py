"""`hpcdl job lint`: any batch script, by anyone, against Slurm's rules by release.

`lint` is pure: text in, findings out. `parse` reads the script (with `shell`, `tokens` and
`options`), the `check_*` modules look at it, each function tied to the ids of rules in
facts/slurm_rules.yaml, `waivers` takes out what the script allows itself, `lint_report` shows the
rest. `run_lint` is the one place that reads files and prints.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.jobs.lint.finding import Finding
from hpcdl.slurm.rules import Release, all_rules, as_release, known_releases, rule
from hpcdl.system.errors import BadInput, ExitCode

if TYPE_CHECKING:
    from hpcdl.jobs.lint.job import Hit
    from hpcdl.jobs.lint.parse import Script
    from hpcdl.site.model import Partition

__all__ = ["Finding", "lint", "read_script", "run_lint"]

MAX_BYTES = 16_000_000
"""Larger files are no batch scripts: Slurm's own limit is 4 MB (max_script_size)."""
_NO_PARSER = """note: only directives are checked, not what the scripts run
  hint: pip install 'hpcdl[lint]'"""


def lint(
    text: str, *, name: str, version: str | Release, partition: Partition | None = None
) -> tuple[Finding, ...]:
    """What is wrong with a batch script on a release of Slurm, in the order of its lines.

    Args:
        text: the script; line ends as they are in the file.
        name: what findings call it.
        version: a Slurm release, like 22.05 or 23.11.4.
        partition: where it is to run, if known: adds checks against the partition's limits.

    Raises:
        BadInput: `version` is not a release, or older than the rules know.
    """
    from hpcdl.jobs.lint.checks import hits
    from hpcdl.jobs.lint.job import Job
    from hpcdl.jobs.lint.parse import Script
    from hpcdl.jobs.lint.waivers import apply

    release = _known(as_release(version))
    script = Script(text, name)
    known = frozenset(one.id for one in all_rules())
    active = frozenset(one.id for one in all_rules() if one.lint and one.holds(release))
    found = apply(script, hits(Job(script, release, partition), active), known, active)
    unique = {(hit.start, hit.rule): hit for hit in reversed(found)}
    return tuple(_finding(script, unique[key]) for key in sorted(unique))


def run_lint(
    paths: Sequence[Path],
    version: str | None = None,
    as_json: bool = False,
    *,
    partition: Partition | None = None,
    as_sarif: bool = False,
) -> ExitCode:
    """Lint files and print what is found; `-` is standard input.

    Args:
        paths: the scripts.
        version: a Slurm release; the newest known one by default.
        as_json: print one JSON document instead of text.
        partition: see `lint`.
        as_sarif: print a SARIF log instead.

    Returns:
        NO where a script has an error, else USAGE where one cannot be read, else OK.

    Raises:
        BadInput: `version` is not a release, or no script could be read.
    """
    from hpcdl.jobs.lint import lint_report
    from hpcdl.jobs.lint.shell import parser

    if parser() is None:
        print(_NO_PARSER, file=sys.stderr)
    release = _known(as_release(version or known_releases()[-1]))
    results: list[tuple[str, tuple[Finding, ...]]] = []
    refused: list[BadInput] = []
    for path in paths:
        try:
            text = read_script(path)
        except BadInput as fault:
            refused.append(fault)
            continue
        found = lint(text, name=str(path), version=release, partition=partition)
        results.append((str(path), found))
        if not (as_json or as_sarif):
            blocks = lint_report.as_text(str(path), text, found)
            print(
                *filter(None, [blocks, lint_report.summary(str(path), str(release), found)]),
                sep="\n\n",
            )
    if not results and refused:
        raise refused[0]
    if as_json or as_sarif:
        data = (
            lint_report.as_sarif(results)
            if as_sarif
            else lint_report.as_data(str(release), results)
        )
        print(json.dumps(data, indent=2))
    for error in refused:
        print(error.render(), file=sys.stderr)
    errors = any(one.severity == "error" for _, found in results for one in found)
    return ExitCode.NO if errors else ExitCode.USAGE if refused else ExitCode.OK


def read_script(path: Path) -> str:
    """The text of a script, line ends kept; bytes that are no UTF-8 are read as Latin-1.

    Raises:
        BadInput: it cannot be read, or is larger than any batch script.
    """
    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
    except IsADirectoryError as fault:
        raise BadInput(f"{path} is a directory, not a script") from fault
    except (OSError, ValueError) as fault:
        reason = getattr(fault, "strerror", None) or str(fault)
        raise BadInput(f"cannot read {path}: {reason}") from fault
    if len(data) > MAX_BYTES:
        raise BadInput(f"{path} is larger than {MAX_BYTES // 1_000_000} MB: no batch script")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _known(release: Release) -> Release:
    oldest = known_releases()[0]
    if release < as_release(f"{oldest}.0"):
        raise BadInput(f"the rules begin with Slurm {oldest}; {release} is older")
    return release


def _finding(script: Script, hit: Hit) -> Finding:
    line, column = script.place(hit.start)
    return Finding(rule(hit.rule), line, column, max(1, hit.length), hit.detail)
