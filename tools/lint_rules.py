"""docs/lint.md, made from the data: `make docs`."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

from hpcdl.slurm.rules import SEVERITIES, Rule, all_rules, known_releases

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
| note | good to know, often a matter of portability |

Only errors change the exit code. A directory stands for the batch scripts below it, `-` for
standard input; what is no script is refused with status 2. `--explain RULE` prints one rule,
`--sarif` what code hosts show beside the lines. Gaps of templates (`{{{{ nodes }}}}`, `@nodes@`,
`<nodes>`) are not checked.

Partitions and GPU types are checked against the site file, where one is named or installed.
`--live` asks the Slurm on PATH instead: also for accounts, QOS, GRES, features, the release and the
options of plug-ins. `slurm.plugin_options` of the site file, or `--plugin-options image,module`,
names the options that plug-ins (SPANK) add; then any other unknown option is an error.
What depends on slurm.conf is advice until the setting is known: from `slurm.select` and
`slurm.task_plugins` of the site file, or all of it by `--live`. `--cpu-bind=cores` costs CPUs only
under task/affinity, select/linear refuses GPUs per task, KillOnBadExit and JobFileAppend silence
the rules that ask for them.

What a script runs is read by tree-sitter's grammar of bash, which
`pip install 'hpcdl[lint]'` and every release have; without it, and for other shells, only
directives are checked. `--json` prints the findings as JSON.

## Waiving a rule

```bash
# hpcdl-lint: allow gpus-per-task-isolates the tasks are independent
#SBATCH --gpus-per-task=1
```

`allow` waives a rule for the next line, or for its own line if it follows code; `allow-file` waives
it for the whole file. A waiver without a rule, a reason or an effect is reported itself.

## The rules

The last column is the evidence: `run` (tested on a real Slurm), `published` (stated by a source).
"""

_SPEED = "2 to 4"
_WILD = Path(__file__).parents[1] / "tests" / "unit" / "lint"
_MEASURED = """\
## Measured on public scripts

The linter was run over {scripts} public batch scripts of {repositories} repositories
(tests/unit/lint/wild.csv: repository, path, commit), for Slurm 20.11, 22.05, 24.11 and 26.05: no
crash, {speed} ms a script and release. {judged} findings were judged by hand (judged.csv): is what
it says of this script true, and does it matter there? The first column was counted before anything
was mended, on {first} scripts; the second, after that, on {second} scripts that nothing had been
mended by. What was wrong was mended in both cases, and nothing was counted a second time.

Below 90 %: `kill-on-bad-exit` is a note and wants to see Python's ranks; `cuda-device-order` and
`gpus-per-task` are gone from the linter; `log-directory` was contradicted by a real Slurm, which
makes the directory itself since 23.02, and holds before it only; the others had one cause each,
mostly a program's own options behind a variable, a template's gap, or a small example's memory.

| Rule | Before | After, on new scripts |
|---|---|---|
"""


def as_markdown() -> str:
    """The page: how to use the linter, a table per severity, then each rule with its source."""
    releases = known_releases()
    parts = [_HEAD.format(oldest=releases[0], newest=releases[-1])]
    for severity in SEVERITIES:
        rows = [one for one in all_rules() if one.severity == severity and one.lint]
        parts.append(_table(f"### {severity.capitalize()}s", rows))
    rest = [one for one in all_rules() if not one.lint]
    parts.append(_table("### Rules beyond a linter; the job generator follows them", rest))
    return "\n".join([*parts, _measured()])


def _measured() -> str:
    """How often the findings were right."""
    with (_WILD / "wild.csv").open() as file:
        scripts = list(csv.DictReader(file))
    with (_WILD / "judged.csv").open() as file:
        judged = list(csv.DictReader(file))
    total = Counter((row["rule"], row["round"]) for row in judged)
    right = Counter((row["rule"], row["round"]) for row in judged if row["right"] == "yes")
    rounds = Counter(row["round"] for row in scripts)
    head = _MEASURED.format(
        scripts=len(scripts),
        repositories=len({row["repository"] for row in scripts}),
        judged=len(judged),
        first=rounds["1"],
        second=rounds["2"],
        speed=_SPEED,
    )

    def cell(rule: str, turn: str) -> str:
        return f"{right[rule, turn]} of {total[rule, turn]}" if total[rule, turn] else ""

    rules = sorted({row["rule"] for row in judged})
    lines = [f"| `{one}` | {cell(one, '1')} | {cell(one, '2')} |" for one in rules]
    every = [
        f"{sum(right[one, turn] for one in rules)} of {sum(total[one, turn] for one in rules)}"
        for turn in ("1", "2")
    ]
    return head + "\n".join([*lines, f"| all | {every[0]} | {every[1]} |"]) + "\n"


def _table(title: str, rules: list[Rule]) -> str:
    lines = [title, "", "| Rule | Releases | What | Consequence | Instead | Source | Evidence |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    lines += [_row(one) for one in rules]
    return "\n".join(lines) + "\n"


def _row(one: Rule) -> str:
    cells = [
        f"`{one.id}`",
        str(one.span),
        one.title,
        one.consequence,
        one.fix,
        one.source,
        one.proof,
    ]
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
