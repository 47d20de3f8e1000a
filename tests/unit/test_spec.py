"""What a user may ask: checked at the door, refused by name."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdl.jobs.spec import JobSpec, check_spec, command_of, minutes_of
from hpcdl.system.errors import BadInput


def refusal(**asked):
    with pytest.raises(BadInput) as caught:
        check_spec(JobSpec("p100", **asked))
    return caught.value.render()


COUNTS = ("gpus", "nodes", "gpus_per_node", "cpus_per_task", "minutes")
NO_WORDS = {"a\0b": "has a NUL byte", "x" * 100_001: "longer than 100 kB",
            "\ud800": "half a character"}  # fmt: skip


FORMS = [
    ("name", "the job name",
     ["", " ", "a b", "-x", "../x", "a/b", "a\nb", "$(id)", "a;b", "x" * 64, "é", "a\n"]),
    *((count, "{} is not possible", [0, -1, 10**7]) for count in COUNTS),
    ("environment", "is no name of a variable",
     [{name: "x"} for name in ("", "1A", "A-B", "A B", "A=B", "a\nb", "É", "$(id)")]),
    # Bash uses these, or the script.
    *(("environment", f"the variable {name} cannot be set", [{name: "x"}])
      for name in ("UID", "RANDOM", "launcher", "SLURM_RESTART_COUNT", "_")),
    *(("program", said, [("python", word)]) for word, said in NO_WORDS.items()),
    *(("environment", said, [{"A": word}]) for word, said in NO_WORDS.items()),
    *((name, f"--{name}", ["", "a b", "a\n#SBATCH --x", "$(id)", "-x", "é"])
      for name in ("account", "qos")),
    ("job_dir", "Slurm cannot write a log below",
     [Path(name) for name in ("/a\nb", "/a\\b", "/a\x1b", "/a\x7fb")]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "said", "value"),
    [(field, said, value) for field, said, values in FORMS for value in values],
)
def test_each_part_of_a_request_has_its_form(field, said, value):
    assert said.format(value) in refusal(**{field: value})


def test_arguments_have_a_bound_together_as_execve_has():
    assert "longer than 1000 kB together" in refusal(program=("echo", *["x" * 100_000] * 11))
    check_spec(JobSpec("p100", program=("echo", *["x" * 100_000] * 9)))


@pytest.mark.parametrize(("text", "minutes"), [
    ("5", 5), ("0:30", 1), ("1:00:00", 60), ("2-00:00:00", 2880), ("1-12", 2160),
])  # fmt: skip
def test_times_are_taken_as_sbatch_takes_them(text, minutes):
    assert minutes_of(text) == minutes


@pytest.mark.parametrize("text", [
    "", "x", "-1", "1h", "1:2:3:4", "1:75", "\u0665", "5\n", "1-", "unlimited", "0", "0:00",
])  # fmt: skip
def test_what_is_no_time_limit_is_refused(text):
    with pytest.raises(BadInput, match="is not a time limit"):
        minutes_of(text)


@given(st.text(max_size=20))
def test_no_text_for_a_time_gives_anything_but_minutes_or_bad_input(text):
    try:
        assert minutes_of(text) >= 1
    except BadInput:
        return


@pytest.mark.parametrize(("rest", "program"), [
    ([], ("hpcdl", "train")),
    (["--steps", "5"], ("hpcdl", "train", "--steps", "5")),
    (["python", "x.py", "--lr", "0.1"], ("python", "x.py", "--lr", "0.1")),
    (["", "x"], ("", "x")),
])  # fmt: skip
def test_arguments_after_the_dashes_are_the_program_or_options_of_train(rest, program):
    assert command_of(rest) == program


def test_a_chain_that_would_start_over_in_every_job_is_refused():
    program = ("hpcdl", "train", "--fresh")
    assert "start over in every job" in refusal(chain=2, program=program)
    check_spec(JobSpec("p100", program=program))
    check_spec(JobSpec("p100", chain=2, program=("mine", "--fresh")))
