"""`hpcdl job lint`: any batch script, by anyone, against Slurm's rules by release.

`lint` is pure: text in, findings out. `parse` reads the script (with `shell` and `options`), the
functions of the `check_*` modules look at it as a `job`, whose waivers take out what it allows
itself. `lint_report` reads files and prints.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from hpcdl.slurm.rules import SlurmRelease, SlurmRule, all_rules, as_release, known_releases, rule
from hpcdl.system.errors import BadInput

if TYPE_CHECKING:
    from hpcdl.jobs.lint.job import Hit
    from hpcdl.slurm.fits import Cluster

__all__ = ["LintFinding", "lint"]

_CHECKS = ("directives", "steps", "programs", "signals", "habits")
_MOST_LINES = 12
"""So many further lines are named."""


class LintFinding(NamedTuple):
    """A rule broken at a place; line and column from 1, width in characters.

    `detail` says what is special here ("did you mean '--gpus-per-node'?"), or is empty. `also` are
    further lines of which the same is to be said.
    """

    rule: SlurmRule
    line: int
    column: int
    width: int
    detail: str = ""
    also: tuple[int, ...] = ()

    @property
    def message(self) -> str:
        """What is wrong, in one line."""
        lines = [*map(str, self.also[:_MOST_LINES]), *["..."] * (len(self.also) > _MOST_LINES)]
        also = f" (also in line{'s' * (len(lines) > 1)} {', '.join(lines)})" if lines else ""
        return f"{self.rule.title}: {self.detail}{also}" if self.detail else self.rule.title + also

    @property
    def severity(self) -> str:
        """error, warning or advice."""
        return self.rule.severity


def lint(
    text: str, *, name: str, version: str | SlurmRelease, cluster: Cluster | None = None
) -> tuple[LintFinding, ...]:
    """Return what is wrong with a batch script on a release of Slurm, in the order of its lines.

    What is to be said with the same words of several lines is one finding, at the first. Where it
    is known, `cluster` adds checks of its names and partitions.

    Raises BadInput: `version` is not a release, or older than the rules know.
    """
    from hpcdl.jobs.lint.job import CHECKS, Job, apply
    from hpcdl.jobs.lint.parse import BatchScript

    release, oldest = as_release(version), known_releases()[0]
    if release < as_release(f"{oldest}.0"):
        raise BadInput(f"the rules begin with Slurm {oldest}; {release} is older")
    script = BatchScript(text, name, release).first
    active = frozenset(one.id for one in all_rules() if one.lint and one.holds(release))
    for name in _CHECKS:
        import_module(f"hpcdl.jobs.lint.check_{name}")
    job = Job(script, release, cluster)
    hits = (hit for rules, check in CHECKS if rules & active for hit in check(job))
    found = apply(script, (hit for hit in hits if hit.rule in active))
    unique = {(hit.start, hit.rule): hit for hit in reversed(found)}
    same: dict[tuple[str, str], list[Hit]] = {}
    for _, hit in sorted(unique.items()):
        same.setdefault((hit.rule, hit.detail), []).append(hit)
    findings = []
    for (rule_id, detail), places in same.items():
        line, column = script.place(places[0].start)
        also = sorted({script.place(hit.start)[0] for hit in places} - {line})
        width = max(1, places[0].length)
        findings.append(LintFinding(rule(rule_id), line, column, width, detail, tuple(also)))
    return tuple(findings)
