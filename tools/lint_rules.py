"""docs/lint.md, made from the data: `make docs`."""

from __future__ import annotations

import csv
from collections import Counter
from itertools import chain
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

_WILD = Path(__file__).parents[1] / "tests" / "unit" / "lint"
_MEASURED = """\
## Measured on public scripts

The linter was run over {scripts} public batch scripts of {repositories} repositories
(tests/unit/lint/wild.csv: round, repository, path, commit), for Slurm 20.11, 22.05, 24.11 and
26.05: no crash, 2 to 4 ms of CPU time a script and release. {judged} findings were judged by hand
(judged.csv): is what it says of this script true, and does it matter there? Else it is wrong.
Rounds 4 to 14 are of 23 November 2026, with at most 12 scripts of a repository, from round 10 on 6.

Each round is on scripts that nothing had been mended by. What one showed wrong was mended before
the next, and was not counted again.

| Round | Scripts | Right | |
|---|---|---|---|
{rounds}

The goal is 95 % on scripts that nobody here has seen. **It is not reached**: rounds 11 to 14, each
on scripts that followed the mending, have 104 of 136 right, 76 %, round by round between 43 % and
100 %. On the scripts of rounds 10 to 14 today's linter, which they mended, has all 143 that were
right and 21 of the 78 that were wrong: errors 8 of 8, warnings 41 of 48, notes 94 of 108. Of rounds
1 to 9, 196 right findings were looked for again, and all are there. What is left is mostly one
thing that a script does not show: whether a program that srun starts uses more than one CPU
(`cpus-per-task-default`, `cpus-per-task-repeat`: a download, a client of a service). Before round
10 this was taken to matter wherever CPUs were asked for.

More than half of what was wrong in rounds 4 to 8 are the gaps of a few templates, a finding for
each: 78 of the 86 of round 8 are those of one program (`!NAME`). Forms to fill in (`--nodes=`) are
14 of the 46 of round 10.

A rule below 90 % is advice or gone. Gone are `cuda-device-order`, `gpus-per-task` and
`signal-usr1`. Notes are `cpus-per-gpu`, `cpus-per-task-repeat`, `cuda-visible-devices`,
`gpu-bind-isolates`, `gpu-flag-on-step`, `gpus-per-task-isolates`, `gpus-per-task-unbound`,
`idle-nodes`, `kill-on-bad-exit`, `log-directory` (which holds before Slurm 23.02 only),
`memory-unit`, `nested-environment`, `ntasks-per-gpu-isolates` and `variable-unset`.

Below 90 % in rounds 4 to 14, and an error or a warning still, as today's linter has none or few of
what was wrong: `option-value` and `directive-argument` (templates and forms: none of 112 is left),
`directive-variable` (templates), `option-misspelt` (eight copies of `--c 1`, which sbatch refuses;
the advice was wrong), `cpus-per-task-default` (136 of 144, without docker, shells and other jobs'
steps), and those of one or two wrong findings, each with its cause mended: `background-unawaited`,
`directive-misspelt`, `ntasks-per-node`, `port-from-job-id`, `rank-of-batch-shell`, `steps-whole`,
`typographic`. Rounds 4 to 14 thus have nothing that shows `background-unawaited`,
`directive-misspelt`, `option-value`, `port-from-job-id` and `typographic` right; where their
evidence is `run`, Slurm's own answer does. A rule that is missing here found nothing.

| Rule | Rounds 1 to 3 | Rounds 4 to 9 | Rounds 10 to 14 |
|---|---|---|---|
"""
_ROUNDS = tuple([str(turn) for turn in range(*ends)] for ends in ((1, 4), (4, 10), (10, 15)))


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
    rules = sorted({row["rule"] for row in judged})

    def share(rules: list[str], turns: list[str]) -> tuple[int, int]:
        yes, all_ = (sum(one[rule, turn] for rule in rules for turn in turns)
                     for one in (right, total))  # fmt: skip
        return yes, all_

    def cells(rules: list[str]) -> str:
        found = [share(rules, turns) for turns in _ROUNDS]
        return " | ".join(f"{yes} of {all_}" if all_ else "" for yes, all_ in found)

    counts = Counter(row["round"] for row in scripts)
    rounds = []
    for turn in chain(*_ROUNDS):
        yes, all_ = share(rules, [turn])
        rounds.append(f"| {turn} | {counts[turn]} | {yes} of {all_} | {100 * yes / all_:.0f} % |")
    head = _MEASURED.format(
        scripts=len(scripts),
        repositories=len({row["repository"] for row in scripts}),
        judged=len(judged),
        rounds="\n".join(rounds),
    )
    lines = [f"| `{one}` | {cells([one])} |" for one in rules]
    return head + "\n".join([*lines, f"| all | {cells(rules)} |"]) + "\n"


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
