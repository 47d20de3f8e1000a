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
| advice | it depends on what the script does not show: the site, the program |

Only errors change the exit code. Advice is counted in one line and printed by `--advice`. A
directory stands for the batch scripts below it, `-` for standard input; what is no script is
refused with status 2. `--explain RULE` prints one rule, `--sarif` what code hosts show beside the
lines. Gaps of templates (`{{{{ nodes }}}}`, `@nodes@`, `<nodes>`) are not checked.

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

_TITLES = {"error": "Errors", "warning": "Warnings", "advice": "Advice"}
_WILD = Path(__file__).parents[1] / "tests" / "unit" / "lint"
_MEASURED = """\
## Measured on public scripts

**The last three rounds, of 23 November 2026, have 336 of 460 right, 73 %; the goal of 95 % is not
reached.** They are 2500 scripts of 2500 repositories, drawn by lot from a public archive of job
scripts (hariharan-devarajan/jobspec-database), one of a repository, none of one seen before; 229
have an error or a warning. Between them was mended what the one before showed wrong.

| Round | Scripts | All | Without templates and forms | Once a script and rule |
|---|---|---|---|---|
| 20 | 900 | 112 of 176, 64 % | 112 of 135, 83 % | 76 of 102, 75 % |
| 21 | 800 | 128 of 144, 89 % | 128 of 137, 93 % | 83 of 96, 86 % |
| 22 | 800 | 96 of 140, 69 % | 96 of 123, 78 % | 60 of 72, 83 % |

Single files weigh most: 24 of the 44 that are wrong in round 22 are four scripts in one file, 17
the gaps of nine forms; of the other 99 findings 96 are right. Over the same 2500 scripts today's
rules have 381 findings, 338 of them right, 89 %, and miss none that was right: what was mended
shows, but it was mended by these scripts.

In all the linter was run over {scripts} public batch scripts of {repositories} repositories
(tests/unit/lint/wild.csv: round, repository, path, commit), for Slurm 20.11, 22.05, 24.11 and
26.05: no crash, 2 to 4 ms of CPU time a script and release. {judged} findings were judged by hand
(judged.csv): is what it says of this script true, and does it matter there? Else it is wrong.
The commits of rounds 20 to 22 are the archive's. Rounds 4 on are of 23 November 2026, with at most
12 scripts of a repository, from round 10 on 6, from round 20 on one. Round 20 was judged more
strictly: `pipe-status` is right there only if the pipe decides how the job ends, which its text
said then.

Each round is on scripts that nothing had been mended by. What one showed wrong was mended before
the next, and was not counted again. Rounds 1 to 14 count all that was found, what is advice or gone
today, too; from round 15 on, what is printed: errors and warnings. The last columns are the errors
and warnings of today among all, as they were when first seen.

| Round | Scripts | Right | | Errors and warnings of today | |
|---|---|---|---|---|---|
{rounds}

Rounds 15 to 19 have 25 of 28 right, 89 %: too few to judge by, as round 20 shows. Of the three that
were wrong two are mended (a memo `#sbatch ...` at the end, --ntasks-per-node beside a smaller
--ntasks), and the third, `mpirun-beyond`, is a warning now, for only Open MPI refuses it.

What was wrong in round 20, besides seven templates: four arrays of one task or with
--open-mode=append (`array-one-log`), six pipes whose status decides nothing (`pipe-status`), five
steps that only run `cd` (`steps-whole`), `--mail-type=START,END`, which sbatch takes, two whole
steps, which have all CPUs of the job (`cpus-per-gpu-ignored`), two directives in an example among
notes, a count of ranks that was an argument of the program (`mpirun-beyond`), and a hint at
`--tres-per-task`, which takes no memory.

In round 21, besides four templates and forms: two pipes behind `hostname` and `mpirun --version`, a
`wait` for nothing and one for servers (`wait-bare`), steps of a loop that waits for each
(`steps-whole`), `--export=All`, which counts as ALL, `--export==x`, which has no comma, the hint
`--gpu-bind` for `--cpu-bind`, which srun knows, and `temps = [...]`, which nobody reads.

In round 22, besides forms and that file: two lines of Python (`assignment-spaced`), and an MPI
plug-in that only one site has (`mpi-plugin`).

Most of what was wrong before were notes, and warnings of what a script does not show, as
`cpus-per-task-default` and `kill-on-bad-exit`: whether a program uses more than one CPU, whether
its ranks wait for each other. A rule below 90 % is advice or gone: gone are `cpu-autobind`,
`cpus-per-gpu`, `cuda-device-order`, `exact-implied`, `gpu-flag-on-step`, `gpus-per-task`,
`gpus-per-task-unbound`, `signal-usr1` and the note `cpus-per-task-repeat`.

More than half of what was wrong in rounds 4 to 8 are the gaps of a few templates, a finding for
each: 78 of the 86 of round 8 are those of one program (`!NAME`). Forms to fill in (`--nodes=`) are
14 of the 46 of round 10. Errors and warnings below 90 % by the table, as their causes were mended
and Slurm itself answers for them: `option-value`, `directive-argument`, `directive-variable`
(templates and forms; none of 112 was left after round 14), `option-misspelt` (eight copies of
`--c 1`, which sbatch refuses; the advice was wrong), `directive-after-command`, and those of one or
two wrong findings: `background-unawaited`, `directive-misspelt`, `exclusive-oversubscribe`,
`mpirun-beyond`, `rank-of-batch-shell`, `torchrun-per-task`, `typographic`. A rule that is missing
here found nothing.

What it misses: of 42 scripts of rounds 15 to 18, drawn by lot and read by hand, 5 break in a way
that was not found: two by `NAME = value`, two by srun of what only a shell runs (both are rules
now, `assignment-spaced` and `step-of-shell`), one may by `mpirun -n 32` on four nodes without
--ntasks, where the slots depend on the cluster. Over the scripts of rounds 15 to 18 the two rules
have ten findings more, all right; they were made for these, and are not in the table.

| Rule | Today | Rounds 1 to 3 | 4 to 9 | 10 to 14 | 15 to 19 | 20 | 21 | 22 |
|---|---|---|---|---|---|---|---|---|
"""
_ROUNDS = tuple(
    [str(turn) for turn in range(*ends)]
    for ends in ((1, 4), (4, 10), (10, 15), (15, 20), (20, 21), (21, 22), (22, 23))
)


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

    today = {one.id: one.severity for one in all_rules() if one.lint}
    printed = [one for one in rules if today.get(one) in {"error", "warning"}]
    counts = Counter(row["round"] for row in scripts)
    rounds = []
    for turn in chain(*_ROUNDS):
        cells_ = [_percent(*share(which, [turn])) for which in (rules, printed)]
        rounds.append(f"| {turn} | {counts[turn]} | {' | '.join(cells_)} |")
    head = _MEASURED.format(
        scripts=len(scripts),
        repositories=len({row["repository"] for row in scripts}),
        judged=len(judged),
        rounds="\n".join(rounds),
    )
    lines = [f"| `{one}` | {today.get(one, 'gone')} | {cells([one])} |" for one in rules]
    lines += [f"| all | | {cells(rules)} |", f"| errors and warnings | | {cells(printed)} |"]
    return head + "\n".join(lines) + "\n"


def _percent(yes: int, all_: int) -> str:
    return f"{yes} of {all_} | {100 * yes / all_:.0f} %" if all_ else " | "


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
