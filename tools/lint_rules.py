"""docs/lint.md and the evidence of its rules, made from the data: `make docs`."""

from __future__ import annotations

from collections.abc import Iterable

from hpcdl.slurm.rules import SEVERITIES, SlurmRule, all_rules, known_releases

_HEAD = """\
<!-- Made by `make docs` from hpcdl/facts/slurm_rules.yaml. -->

# Linting batch scripts

```console
$ hpcdl job lint --slurm-version 22.05 job.sh
```

`hpcdl job lint` checks any batch script against the rules below. It exits with status 1 if a
script has an error, and with 2 if one cannot be read. Without `--slurm-version` it uses the site's
release, else the newest one it knows. It knows Slurm {oldest} to {newest}. A release without its
point release (22.05) means the newest of its series.

| severity | meaning |
|---|---|
| error | Slurm refuses it, or it does not do what it says |
| warning | it works, but not as intended |
| note | it is still to be filled in |
| advice | it depends on what the script does not show: the site, the program |

Only errors change the exit code. Advice is counted in one line and printed by `--advice`. A
directory stands for the batch scripts below it, `-` for standard input; what is no script is
refused with status 2.

A value that is still to be filled in (`<project>`, `@nodes@`, `your.name`) is a note and mutes
nothing: what sbatch refuses is an error. Of several scripts in one file the first is read. What
holds of several lines in the same words is one finding.

A script is held against the partition that it names: nodes, tasks, CPUs, memory, GPUs and their
types, time, features. The figures come from the site file, or with `--live` from the Slurm on PATH,
which also knows accounts, QOS, GRES, MaxArraySize, MPI and SPANK plug-ins; it runs `sbatch
--test-only` as well, for 10 s at most.

`slurm.plugin_options` of the site file names the options that plug-ins add; then any other unknown
option is an error.

What depends on slurm.conf is advice until the setting is known: from `slurm.select` and
`slurm.task_plugins` of the site file, or all of it by `--live`.

What a script runs is read by tree-sitter's grammar of bash, which
`pip install 'hpcdl[lint]'` and every release have; without it, and for other shells, only
directives are checked. `--json` prints the findings as JSON.

## Waiving a rule

```bash
# hpcdl-lint: allow threads-beyond the ranks take turns
```

Wherever such a line stands, the rule is waived for the script. A waiver of no rule is reported
itself.

## The rules

A rule without releases holds in all. A finding says what follows; here is where each rule
[comes from](evidence/lint-rules.md), and how many findings were [right](evidence/lint.md).
"""

_EVIDENCE = """\
<!-- Made by `make docs` from hpcdl/facts/slurm_rules.yaml. -->

# Where the rules come from

`run`: tested on a real Slurm; `published`: stated by the source. [The rules](../lint.md).
"""

_TITLES = {"error": "Errors", "warning": "Warnings", "note": "Notes", "advice": "Advice"}
_GUIDE = ["Rule", "Releases", "What", "Instead"]


def as_markdown() -> str:
    """The page for users: how to use the linter, and a table of rules per severity."""
    releases = known_releases()
    parts = [_HEAD.format(oldest=releases[0], newest=releases[-1])]
    for severity in SEVERITIES:
        rules = [rule for rule in all_rules() if rule.severity == severity and rule.lint]
        parts.append(f"### {_TITLES[severity]}\n")
        parts.append(_table(_GUIDE, (_guide(rule) for rule in rules)))
    return "\n".join(parts)


def evidence() -> str:
    """The page of sources; the rules that only the job generator follows stand on it whole."""
    linted = ((f"`{rule.id}`", *_why(rule)) for rule in all_rules() if rule.lint)
    beyond = ((*_guide(rule), *_why(rule)) for rule in all_rules() if not rule.lint)
    why = ["Consequence", "Source", "Evidence"]
    return "\n".join(
        [
            _EVIDENCE,
            _table(["Rule", *why], linted),
            "## Rules beyond a linter; the job generator follows them\n",
            _table([*_GUIDE, *why], beyond),
        ]
    )


def _guide(rule: SlurmRule) -> tuple[str, ...]:
    span = str(rule.span).replace("all releases", "")
    return (f"`{rule.id}`", span, rule.title, rule.fix)


def _why(rule: SlurmRule) -> tuple[str, ...]:
    return (rule.consequence, rule.source, rule.proof)


def _table(heads: list[str], rows: Iterable[tuple[str, ...]]) -> str:
    head, *lines = (f"| {' | '.join(map(_cell, cells))} |" for cells in (heads, *rows))
    return "\n".join([head, "|" + "---|" * len(heads), *lines]) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
