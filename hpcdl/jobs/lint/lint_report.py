"""Findings as text in compiler style, JSON, and SARIF 2.1.0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hpcdl import __version__
from hpcdl.jobs.lint.finding import Finding
from hpcdl.slurm.rules import SEVERITIES, Rule
from hpcdl.system.document import Document, Fault, Mark, Scalar, show_fault
from hpcdl.system.text import count_of, paint

_STYLES = {"error": "red", "warning": "yellow", "advice": "cyan"}
_LEVELS = {"error": "error", "warning": "warning", "advice": "note"}
"""What SARIF calls them."""
_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
Results = Sequence[tuple[str, Sequence[Finding]]]
"""Files, with what was found in each."""


def as_text(
    name: str, text: str, version: str, findings: Sequence[Finding], *, advice: bool = False
) -> str:
    """Each finding with its place, line, caret, consequence, fix and source; then their number."""
    lines = [printable(line) for line in text.split("\n")]
    document = Document(printable(name), lines, Scalar("", False, Mark(1, 1)))
    blocks = ["\n".join(_block(document, one)) for one in shown(findings, advice)]
    return "\n\n".join([*blocks, summary(name, version, findings, advice=advice)])


def shown(findings: Sequence[Finding], advice: bool) -> list[Finding]:
    """The findings that are printed: advice only where it is asked for."""
    return [one for one in findings if advice or one.severity != "advice"]


def _block(document: Document, finding: Finding) -> list[str]:
    rule = finding.rule
    severity = paint(f"{rule.severity}:", _STYLES[rule.severity])
    message = f"{severity} {printable(finding.message)} [{rule.id}]"
    mark = Mark(finding.line, finding.column)
    return [
        *show_fault(document, Fault(message, mark, width=finding.width)),
        f"   then: {rule.consequence}",
        f"   fix:  {rule.fix}",
        f"   from: {rule.source} ({rule.span}; {rule.proof})",
    ]


def summary(name: str, version: str, findings: Sequence[Finding], *, advice: bool = False) -> str:
    """`job.sh: 2 errors (Slurm 22.05); 3 pieces of advice: --advice shows them`."""
    counts = Counter(finding.severity for finding in findings)
    parts = [count_of(counts[one], one) for one in ("error", "warning") if counts[one]]
    pieces = count_of(counts["advice"], "piece") + " of advice" if counts["advice"] else ""
    if pieces and advice:
        parts.append(pieces)
    them = "it" if counts["advice"] == 1 else "them"
    hidden = f"; {pieces}: --advice shows {them}" if pieces and not advice else ""
    return f"{printable(name)}: {', '.join(parts) or 'no findings'} (Slurm {version}){hidden}"


def printable(text: str) -> str:
    """Text without control characters, so that a script cannot drive the terminal."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign == "\t" else "\ufffd" for sign in text)


def as_data(version: str, results: Results, *, advice: bool = False) -> dict[str, Any]:
    """The findings of files as plain values: what `--json` prints. All are counted."""
    counts = Counter(finding.severity for _, findings in results for finding in findings)
    return {
        "schema": 1,
        "slurm": version,
        "counts": {severity: counts[severity] for severity in SEVERITIES},
        "files": [
            {"file": name, "findings": [_row(one) for one in shown(findings, advice)]}
            for name, findings in results
        ],
    }


def _row(finding: Finding) -> dict[str, Any]:
    rule = finding.rule
    return {
        "rule": rule.id,
        "severity": rule.severity,
        "line": finding.line,
        "also": list(finding.also),
        "column": finding.column,
        "width": finding.width,
        "message": finding.message,
        "consequence": rule.consequence,
        "fix": rule.fix,
        "releases": str(rule.span),
        "source": rule.source,
        "proof": rule.proof,
    }


def as_sarif(results: Results, *, advice: bool = False) -> dict[str, Any]:
    """The findings as a SARIF log, which code hosts show beside the lines."""
    results = [(name, shown(findings, advice)) for name, findings in results]
    rules = {finding.rule.id: finding.rule for _, findings in results for finding in findings}
    driver = {
        "name": "hpcdl job lint",
        "version": __version__,
        "rules": [_sarif_rule(rule) for rule in rules.values()],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_sarif_result(name, one) for name, findings in results for one in findings],
    }
    return {"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}


def _sarif_rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": f"{rule.title}: {rule.consequence}"},
        "help": {"text": f"{rule.fix}\nSource: {rule.source}"},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _sarif_result(name: str, finding: Finding) -> dict[str, Any]:
    region = {"startLine": finding.line, "startColumn": finding.column,
              "endColumn": finding.column + finding.width}  # fmt: skip
    place = {"artifactLocation": {"uri": name}, "region": region}
    return {
        "ruleId": finding.rule.id,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.message}. {finding.rule.consequence}"},
        "locations": [{"physicalLocation": place}],
    }
