"""A waiver silences one rule at one place, and is reported where it does not."""

import pytest

from hpcdl.jobs.lint import lint

HEAD = "#!/bin/bash\n#SBATCH -n4 --gpus=4 --open-mode=append\n"
STEP = "srun python a.py\n"


def found(text, version="26.05"):
    return [(one.line, one.rule.id) for one in lint(text, name="job.sh", version=version)]


@pytest.mark.parametrize("text", [
    "# hpcdl-lint: allow kill-on-bad-exit one rank may die\n" + STEP,
    "  #hpcdl-lint:  allow  kill-on-bad-exit  one rank may die\n" + STEP,
    "srun python a.py  # hpcdl-lint: allow kill-on-bad-exit one rank may die\n",
    STEP + "# hpcdl-lint: allow-file kill-on-bad-exit ranks are independent\n",
    "# hpcdl-lint: allow kill-on-bad-exit may die\nsrun python a\\\n b\n",
    "# hpcdl-lint: allow kill-on-bad-exit may die\ntime \\\n  srun \\\n  python a.py\n",
    "srun \\\n  python a.py  # hpcdl-lint: allow kill-on-bad-exit may die\n",
    "# hpcdl-lint: allow pipe-status only to look at\n"
    "# hpcdl-lint: allow kill-on-bad-exit may die\nsrun python a.py | tee log\n",
    STEP + "cat <<END\n# hpcdl-lint: allow nonsense\nEND\n"
    "# hpcdl-lint: allow-file kill-on-bad-exit one in a here-document is text\n",
])  # fmt: skip
def test_a_waiver_covers_the_next_line_its_own_line_or_the_file(text):
    assert found(HEAD + text) == []


@pytest.mark.parametrize(("text", "rules"), [
    (STEP, [(3, "kill-on-bad-exit")]),
    # It does not reach the line after the next.
    ("# hpcdl-lint: allow kill-on-bad-exit may die\ntrue\n" + STEP,
     [(3, "waiver-unused"), (5, "kill-on-bad-exit")]),
    ("# hpcdl-lint: allow kill-on-bad-exits may die\n" + STEP,
     [(3, "waiver-unknown"), (4, "kill-on-bad-exit")]),
    # Without a reason it waives, but is reported.
    ("# hpcdl-lint: allow kill-on-bad-exit\n" + STEP, [(3, "waiver-reason")]),
])  # fmt: skip
def test_where_a_waiver_does_not_silence_the_rule_or_is_wrong_that_is_reported(text, rules):
    assert found(HEAD + text) == rules


def test_a_waiver_for_other_releases_is_not_unused_on_this_one():
    text = HEAD + "# hpcdl-lint: allow cpus-per-task-lost we are past 23.02\ntrue\n"
    assert found(text, "26.05") == []
    assert found(text, "22.05") == [(3, "waiver-unused")]
