"""`hpcdl job lint`: any batch script, by anyone, against Slurm's rules by release.

`lint` is pure: text in, findings out. `parse` reads the script (with `shell`, `tokens` and
`options`), the `check_*` modules look at it, each function tied to the ids of rules in
facts/slurm_rules.yaml, `waivers` takes out what the script allows itself, `lint_report` shows the
rest. `files` finds and reads scripts, `run_lint` prints.
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
    from hpcdl.jobs.lint.cluster import Cluster
    from hpcdl.jobs.lint.job import Hit
    from hpcdl.jobs.lint.parse import Script
    from hpcdl.site.model import Partition

__all__ = ["Finding", "explain", "lint", "run_lint"]

_NO_PARSER = """note: only directives are checked, not what the scripts run
  hint: pip install 'hpcdl[lint]'"""


def lint(
    text: str,
    *,
    name: str,
    version: str | Release,
    partition: Partition | None = None,
    cluster: Cluster | None = None,
) -> tuple[Finding, ...]:
    """What is wrong with a batch script on a release of Slurm, in the order of its lines.

    Args:
        text: the script; line ends as they are in the file.
        name: what findings call it.
        version: a Slurm release, like 22.05 or 23.11.4.
        partition: where it is to run, if known: adds checks against the partition's limits.
        cluster: what the cluster has, if known: adds checks of partitions, accounts, GRES.

    Raises:
        BadInput: `version` is not a release, or older than the rules know.
    """
    from hpcdl.jobs.lint.checks import hits
    from hpcdl.jobs.lint.job import Job
    from hpcdl.jobs.lint.parse import Script
    from hpcdl.jobs.lint.waivers import apply

    release = _known(as_release(version))
    script = Script(text, name).first
    known = frozenset(one.id for one in all_rules())
    active = frozenset(one.id for one in all_rules() if one.lint and one.holds(release))
    found = apply(script, hits(Job(script, release, partition, cluster), active), known, active)
    unique = {(hit.start, hit.rule): hit for hit in reversed(found)}
    return _said_once(script, [unique[key] for key in sorted(unique)])


def run_lint(
    paths: Sequence[Path],
    version: str | None = None,
    as_json: bool = False,
    *,
    partition: Partition | None = None,
    cluster: Cluster | None = None,
    as_sarif: bool = False,
    advice: bool = False,
) -> ExitCode:
    """Lint files and print what is found; `-` is standard input.

    The newest known release is checked by default; `partition` and `cluster` are those of `lint`.

    Returns:
        NO where a script has an error, else USAGE where one cannot be read, else OK.

    Raises:
        BadInput: `version` is not a release, or no script could be read.
    """
    from hpcdl.jobs.lint import lint_report
    from hpcdl.jobs.lint.files import scripts

    _say_what_is_not_read()
    release = _covered(as_release(version or known_releases()[-1]))
    results: list[tuple[str, tuple[Finding, ...]]] = []
    refused: list[BadInput] = []
    for path, text in scripts(paths):
        if isinstance(text, BadInput):
            refused.append(text)
            continue
        _say_what_is_not_checked(path, text)
        found = lint(text, name=str(path), version=release, partition=partition, cluster=cluster)
        results.append((str(path), found))
        if not (as_json or as_sarif):
            print(lint_report.as_text(str(path), text, str(release), found, advice=advice))
    if not results and refused:
        raise refused[0]
    if as_sarif:
        print(json.dumps(lint_report.as_sarif(results, advice=advice), indent=2))
    elif as_json:
        print(json.dumps(lint_report.as_data(str(release), results, advice=advice), indent=2))
    return _verdict(results, refused)


def _verdict(
    results: Sequence[tuple[str, tuple[Finding, ...]]], refused: Sequence[BadInput]
) -> ExitCode:
    """Say what could not be read, and how it all ends."""
    for error in refused:
        print(error.render(), file=sys.stderr)
    errors = any(one.severity == "error" for _, found in results for one in found)
    return ExitCode.NO if errors else ExitCode.USAGE if refused else ExitCode.OK


def explain(rule_id: str) -> str:
    """All that is known of a rule, as text.

    Raises:
        BadInput: there is no such rule.
    """
    one = rule(rule_id)
    seen = "" if one.lint else "\nlint: no script shows it; the job generator follows it"
    return (
        f"{one.id}: {one.title}\n{one.severity}, {one.span}, {one.proof}\n\n"
        f"then: {one.consequence}\nfix:  {one.fix}\nfrom: {one.source}{seen}"
    )


def _say_what_is_not_read() -> None:
    """Without its parser, nothing of what a script runs is."""
    from hpcdl.jobs.lint.shell import parser

    if parser() is None:
        print(_NO_PARSER, file=sys.stderr)


def _say_what_is_not_checked(path: Path, text: str) -> None:
    """Another shell's commands are not read."""
    from hpcdl.jobs.lint.parse import Script

    script = Script(text, str(path))
    if not script.is_shell:
        program = script.interpreter or "nothing"
        print(f"note: {path}: {program} runs it, so only directives are checked", file=sys.stderr)


def _covered(release: Release) -> Release:
    """A release that the rules know; a newer one may have others."""
    newest = as_release(known_releases()[-1])
    if release > newest:
        hint = f"--slurm-version {newest} is the nearest"
        raise BadInput(f"the rules end with Slurm {newest}; {release} is newer", hint=hint)
    return _known(release)


def _known(release: Release) -> Release:
    oldest = known_releases()[0]
    if release < as_release(f"{oldest}.0"):
        raise BadInput(f"the rules begin with Slurm {oldest}; {release} is older")
    return release


def _said_once(script: Script, hits: Sequence[Hit]) -> tuple[Finding, ...]:
    """The findings; what is said with the same words of several lines is one, at the first."""
    places: dict[tuple[str, str], list[Hit]] = {}
    for hit in hits:
        places.setdefault((hit.rule, hit.detail), []).append(hit)
    return tuple(_finding(script, same) for same in places.values())


def _finding(script: Script, hits: Sequence[Hit]) -> Finding:
    first = hits[0]
    line, column = script.place(first.start)
    also = sorted({script.place(hit.start)[0] for hit in hits} - {line})
    length = max(1, first.length)
    return Finding(rule(first.rule), line, column, length, first.detail, tuple(also))
