"""A finding: a rule broken at a place of a script."""

from __future__ import annotations

from dataclasses import dataclass

from hpcdl.slurm.rules import Rule


@dataclass(frozen=True)
class Finding:
    """A rule broken at a place; line and column from 1, width in characters.

    `detail` says what is special here ("did you mean '--gpus-per-node'?"), or is empty.
    """

    rule: Rule
    line: int
    column: int
    width: int
    detail: str = ""

    @property
    def message(self) -> str:
        """What is wrong, in one line."""
        return f"{self.rule.title}: {self.detail}" if self.detail else self.rule.title

    @property
    def severity(self) -> str:
        """error, warning or advice."""
        return self.rule.severity
