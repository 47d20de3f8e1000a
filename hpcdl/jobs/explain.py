"""The batch script with the reason for every line. Pure."""

from __future__ import annotations

from hpcdl.jobs.script import Line, Script


def explain(script: Script) -> str:
    """The script with the reason, and the rule where there is one, before each line.

    It is a script itself: reasons of a continued line stand before its first one.
    """
    found: list[str] = []
    held: list[str] = []
    start = 0
    for line in script.lines:
        if not held:
            start = len(found)
        reason = _reason(line, script.slurm_version)
        if reason:
            found.insert(start, reason)
            start += 1
        found.append(line.text)
        held = [line.text] if line.text.endswith("\\") else []
    return "\n".join(found)


def _reason(line: Line, version: str) -> str:
    """A comment, indented as its line is."""
    if not line.reason:
        return ""
    rule = line.rule(version)
    indent = line.text[: len(line.text) - len(line.text.lstrip())]
    return f"{indent}#  {line.reason}" + (f"  [{rule}]" if rule else "")
