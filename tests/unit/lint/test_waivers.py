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
        HEAD + "# hpcdl-lint: allow kill-on-bad-exit one rank may die\n" + STEP,
        HEAD + "  #hpcdl-lint:  allow  kill-on-bad-exit  one rank may die\n" + STEP,
        HEAD + "srun python a.py  # hpcdl-lint: allow kill-on-bad-exit one rank may die\n",
        HEAD + STEP + "# hpcdl-lint: allow-file kill-on-bad-exit ranks are independent\n",
        HEAD
        + "# hpcdl-lint: allow kill-on-bad-exit may die\n\\\nsrun python a\\\n b\n".replace(
            "\\\nsrun", "srun"
        ),
    ],
)
def test_a_waiver_covers_the_next_line_its_own_line_or_the_file(text):
    assert found(text) == []


def test_a_waiver_covers_all_lines_of_a_continued_command():
    step = "time \\\n  srun \\\n  python a.py\n"
    assert found(HEAD + "# hpcdl-lint: allow kill-on-bad-exit may die\n" + step) == []


def test_several_waivers_stack_above_one_line():
    text = HEAD + (
        "# hpcdl-lint: allow pipe-status only to look at\n"
        "# hpcdl-lint: allow kill-on-bad-exit may die\n"
        "srun python a.py | tee log\n"
    )
    assert found(text) == []


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


def test_a_waiver_in_a_here_document_is_text():
    text = HEAD + "cat <<END\n# hpcdl-lint: allow nonsense\nEND\n"
    assert found(text) == []
