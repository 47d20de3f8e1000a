"""A finding: a rule broken at a place of a script."""

from __future__ import annotations

from dataclasses import dataclass

from hpcdl.slurm.rules import Rule

_MOST = 12
"""So many further lines are named."""


@dataclass(frozen=True)
class Finding:
    """A rule broken at a place; line and column from 1, width in characters.

    `detail` says what is special here ("did you mean '--gpus-per-node'?"), or is empty. `also` are
    further lines of which the same is to be said.
    """

    rule: Rule
    line: int
    column: int
    width: int
    detail: str = ""
    also: tuple[int, ...] = ()

    @property
    def message(self) -> str:
        """What is wrong, in one line."""
        lines = [*map(str, self.also[:_MOST]), *["..."] * (len(self.also) > _MOST)]
        also = f" (also in line{'s' * (len(lines) > 1)} {', '.join(lines)})" if lines else ""
        return f"{self.rule.title}: {self.detail}{also}" if self.detail else self.rule.title + also

    @property
    def severity(self) -> str:
        """error, warning or advice."""
        return self.rule.severity
