"""A waiver silences one rule at one place, and is reported where it does not."""

import pytest

from hpcdl.jobs.lint import lint

HEAD = "#!/bin/bash\n#SBATCH -n4 --gpus=4 --open-mode=append\n"
STEP = "srun python a.py\n"


def found(text, version="26.05"):
    return [(one.line, one.rule.id) for one in lint(text, name="job.sh", version=version)]


def test_without_a_waiver_the_step_is_reported():
    assert found(HEAD + STEP) == [(3, "kill-on-bad-exit")]


@pytest.mark.parametrize(
    "text",
    [
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
    ],
)
def test_a_waiver_covers_the_next_line_its_own_line_or_the_file(text):
    assert found(HEAD + text) == []


def test_a_waiver_does_not_reach_the_line_after_the_next():
    text = HEAD + "# hpcdl-lint: allow kill-on-bad-exit may die\ntrue\n" + STEP
    assert found(text) == [(3, "waiver-unused"), (5, "kill-on-bad-exit")]


def test_a_waiver_of_an_unknown_rule_is_an_error():
    text = HEAD + "# hpcdl-lint: allow kill-on-bad-exits may die\n" + STEP
    assert found(text) == [(3, "waiver-unknown"), (4, "kill-on-bad-exit")]


def test_a_waiver_without_a_reason_waives_but_is_reported():
    assert found(HEAD + "# hpcdl-lint: allow kill-on-bad-exit\n" + STEP) == [(3, "waiver-reason")]


def test_a_waiver_for_other_releases_is_not_unused_on_this_one():
    text = HEAD + "# hpcdl-lint: allow cpus-per-task-lost we are past 23.02\ntrue\n"
    assert found(text, "26.05") == []
    assert found(text, "22.05") == [(3, "waiver-unused")]
