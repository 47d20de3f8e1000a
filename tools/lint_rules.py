"""docs/lint.md, made from the data: `make docs`."""

from __future__ import annotations

import csv
import gzip
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
| advice | it depends on what the script does not show: the site, the program |

Only errors change the exit code. Advice is counted in one line and printed by `--advice`. A
directory stands for the batch scripts below it, `-` for standard input; what is no script is
refused with status 2. `--explain RULE` prints one rule, `--sarif` what code hosts show beside the
lines. Of a template or form (`{{{{ nodes }}}}`, `@nodes@`, `-n num_cores`, or a variable that
nobody sets where a number belongs) only that is said which no filling mends; of several scripts in
one file the first is read. What is to be said of several lines with the same words is said once.

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

`allow` waives a rule for the next line, or for its own line if it follows code (lines that a
backslash joins are one); `allow-file` waives it for the whole file. A waiver without a rule, a
reason or an effect is reported itself.

## The rules

The last column is the evidence: `run` (tested on a real Slurm), `published` (stated by a source).
"""

_TITLES = {"error": "Errors", "warning": "Warnings", "advice": "Advice"}
_WILD = Path(__file__).parents[1] / "tests" / "unit" / "lint"
_MEASURED = """\
## Measured on public scripts

**Of what is printed of scripts of repositories that nobody here had seen, {last}
is right (round 29): the goal of 95 % is not reached.** Of other scripts of known repositories
{second} is right (round 30, by the rules as round 29 had mended them). Of 40 scripts written for
the purpose, as users of clusters write them, 21 of 22 errors and warnings were right, and 34 of 38
findings with advice (round 31; most of the wrong ones are mended since). Of 514 scripts of 165
repositories found by the names of scripts, and 30 found by what they use (signals, heterogeneous
jobs, csh, horovodrun), 59 of 63 errors and warnings were right, 94 % (round 32; the wrong ones are
mended since). A round is some hundred scripts that nothing had been mended by, each finding judged
by hand: is it true of this script, and does it matter there? Else it is wrong. What a round showed
wrong was mended before the next.

| Round | Scripts | Right when first seen | |
|---|---|---|---|
{fresh}

Rounds 20 to 27 are {drawn} scripts of as many repositories, drawn by lot from a public archive of
job scripts (hariharan-devarajan/jobspec-database), rounds 28 and 30 others of these repositories,
with less than 60 % of their words in common. That archive has no more: round 29 is {latest} scripts
of {sources} repositories, what it had left and repositories found by the names of usual scripts, up
to 20 of each (27 have findings; five are one author's `--requeue`). Only errors and warnings are
judged. Since round 23 what is said with the same words of several lines is one finding, a script
with gaps is a template, of which only that is said which no filling mends, and a pipe or a bare
`wait` is told of only where the job's end depends on it. By the rules of round 28 the scripts of
rounds 23 to 27 have 383 findings, 378 right, and have lost 8 that were right: no measure, for these
very scripts mended them. By the rules of today rounds 29 and 30 have lost the nine that were wrong
and none that was right; one is new and wrong: an option that a template gives on some sites only.

- Round 29 showed wrong: a quick program before the work that a trap awaits (2), the rank of an only
  node (2), comments of Jinja, a template known by its directory only; round 30: notebooks in the
  background (2), `--cpu_bind`. Doubtful, and counted right: a script with marks of a merge, one
  that is indented whole, and a job script of Snakemake without `#!`.
- What was wrong in rounds 23 to 27 had a cause of its own nearly every time: a file of several
  scripts, notes behind the work, a site's setup, servers in the background, one node, an agent
  that sets the ranks itself. Templates and forms are 18 of the 68 that were wrong.
- `export-flows` is advice now, `port-from-job-id` and `gpu-bind-isolates` are gone; the generator
  alone follows `nested-environment`, `cuda-visible-devices`, `steps-whole` and `mpirun-bind`. A
  rule below 90 % is advice or gone, as before `cpu-autobind`, `cpus-per-gpu`, `cuda-device-order`,
  `exact-implied`, `gpu-flag-on-step`, `gpus-per-task`, `gpus-per-task-unbound`, `signal-usr1` and
  the note `cpus-per-task-repeat`.
- Printed although below 90 % are rules of few findings whose causes are mended, and those that
  only templates and forms made wrong: for what they say now Slurm itself answers.
- What is missed: of 42 scripts of rounds 15 to 18, drawn by lot and read by hand, 5 break in a way
  that was not found; two such ways are rules now (`assignment-spaced`, `step-of-shell`). Of 30 of
  round 29 none breaks in a way that a rule should see: one writes another script, where
  `#SBATCH —output` has a typographic dash; in some `conda activate` works only where the site's
  module or the shell's start sets it up. Of some 150 of
  round 32 seven held what a rule should have seen, and sees now: GPUs and tasks that a variable
  counts, `SLURM_GPUS`, an option without `#SBATCH`, `# SBATCH` throughout (2), a typographic dash
  behind `#!`. Five more break by what `bash -n` refuses.

In all the linter was run over {scripts} public batch scripts of {repositories} repositories
(tests/unit/lint/wild.csv.gz: round, repository, path, commit; of rounds 20 on mostly the
archive's)
for Slurm 20.11, 22.05, 24.11 and 26.05: no crash, 2 to 4 ms of CPU time a script and release.
{judged} findings were judged (judged.csv). Rounds 1 to 14 count all that was found, what is advice
or gone today, too. A rule that is missing here found nothing.

| Rule | Today | Rounds 1 to 9 | 10 to 19 | 20 to 22 | 23 to 25 | 26 | 27 | 28 | 29 | 30 |
|---|---|---|---|---|---|---|---|---|---|---|
"""
_ROUNDS = tuple(
    [str(turn) for turn in range(*ends)]
    for ends in (
        (1, 10),
        (10, 20),
        (20, 23),
        (23, 26),
        (26, 27),
        (27, 28),
        (28, 29),
        (29, 30),
        (30, 31),
    )
)
_FRESH = range(20, 31)


def as_markdown() -> str:
    """The page: how to use the linter, a table per severity, then each rule with its source."""
    releases = known_releases()
    parts = [_HEAD.format(oldest=releases[0], newest=releases[-1])]
    for severity in SEVERITIES:
        rows = [one for one in all_rules() if one.severity == severity and one.lint]
        parts.append(_table(f"### {_TITLES[severity]}", rows))
    rest = [one for one in all_rules() if not one.lint]
    parts.append(_table("### Rules beyond a linter; the job generator follows them", rest))
    return "\n".join([*parts, _measured()])


def _measured() -> str:
    """How often the findings were right."""
    with gzip.open(_WILD / "wild.csv.gz", "rt") as file:
        scripts = list(csv.DictReader(file))
    with (_WILD / "judged.csv").open() as file:
        judged = list(csv.DictReader(file))
    total = Counter((row["rule"], row["round"]) for row in judged)
    right = Counter((row["rule"], row["round"]) for row in judged if row["right"] == "yes")
    rules = sorted({row["rule"] for row in judged})

    def share(rules: list[str], turns: list[str]) -> tuple[int, int]:
        yes, all_ = (
            sum(one[rule, turn] for rule in rules for turn in turns) for one in (right, total)
        )
        return yes, all_

    def cells(rules: list[str]) -> str:
        found = [share(rules, turns) for turns in _ROUNDS]
        return " | ".join(f"{yes} of {all_}" if all_ else "" for yes, all_ in found)

    today = {one.id: one.severity for one in all_rules() if one.lint}
    printed = [one for one in rules if today.get(one) in {"error", "warning"}]
    counts = Counter(row["round"] for row in scripts)
    fresh = [
        f"| {turn} | {counts[turn]:,} | {_percent(*share(rules, [turn]))} |"
        for turn in map(str, _FRESH)
    ]
    last, second = (share(rules, [turn]) for turn in ("29", "30"))
    head = _MEASURED.format(
        last=f"{last[0]} of {last[1]}, {100 * last[0] / last[1]:.0f} %,",
        second=f"{second[0]} of {second[1]}",
        fresh="\n".join(fresh),
        drawn=f"{sum(counts[str(turn)] for turn in range(20, 28)):,}",
        latest=counts["29"],
        sources=len({row["repository"] for row in scripts if row["round"] == "29"}),
        scripts=f"{len(scripts):,}",
        repositories=f"{len({row['repository'] for row in scripts}):,}",
        judged=f"{len(judged):,}",
    )
    lines = [f"| `{one}` | {today.get(one, 'gone')} | {cells([one])} |" for one in rules]
    lines += [f"| all | | {cells(rules)} |", f"| errors and warnings | | {cells(printed)} |"]
    return head + "\n".join(lines) + "\n"


def _percent(yes: int, all_: int) -> str:
    return f"{yes} of {all_} | {100 * yes / all_:.0f} %" if all_ else " | "


def _table(title: str, rules: list[Rule]) -> str:
    lines = [
        title,
        "",
        "| Rule | Releases | What | Consequence | Instead | Source | Evidence |",
        "|---|---|---|---|---|---|---|",
    ]
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
