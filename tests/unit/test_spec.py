"""What a user may ask: checked and refused by name; what is taken arrives byte for byte."""

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hpcdl.cli.framework import build_parser
from hpcdl.jobs.script import answers, as_ours, directives
from hpcdl.jobs.spec import JobSpec, check_spec, command_of, megabytes_of, minutes_of
from hpcdl.slurm.options import known_options, walltime
from hpcdl.system.errors import BadInput
from hpcdl.system.text import bash_word
from tests.make.specs import refusal
from tests.unit.conftest import commands

NO_WORDS = {"a\0b": "has a NUL byte", "x" * 100_001: "too long", "\ud800": "half a character"}


FORMS = [
    ("environment", "is no valid name", [{name: "x"} for name in ("", "A=B", "a\nb")]),
    *(("program", said, [("python", word)]) for word, said in NO_WORDS.items()),
    *(("environment", said, [{"A": word}]) for word, said in NO_WORDS.items()),
    (
        "job_dir",
        "Slurm cannot write a log below it",
        [Path(name) for name in ("/a\nb", "/a\\b", "/a\x1b", "/a\x7fb")],
    ),
]


@pytest.mark.parametrize(
    ("field", "said", "value"),
    [(field, said, value) for field, said, values in FORMS for value in values],
)
def test_each_part_of_a_request_has_its_form(field, said, value):
    assert said.format(value) in refusal(**{field: value})


def test_arguments_have_a_bound_together_as_execve_has():
    assert "longer than 1000 kB together" in refusal(program=("echo", *["x" * 100_000] * 11))
    check_spec(JobSpec("p100", program=("echo", *["x" * 100_000] * 9)))


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("5", 5), ("0:30", 1), ("1:00:00", 60), ("2-00:00:00", 2880), ("1-12", 2160), ("1:75", 3)],
)
def test_times_are_taken_as_sbatch_takes_them(text, minutes):
    assert minutes_of(text) == minutes


# What sbatch takes, and we do not: no limit, no time, all memory of a node, what no job needs.
OURS = {
    "time": (minutes_of, "0 -1 infinite unlimited 4294967295 99999999999"),
    "mem": (megabytes_of, "0 0g 99999999t"),
}


@pytest.mark.parametrize("option", OURS)
def test_times_and_sizes_are_those_that_the_real_sbatch_takes(option):
    tried = yaml.safe_load((Path(__file__).parent / "lint/values.yaml").read_text())[option]
    read, refused = OURS[option]
    for text in tried["accepted"]:
        if text.lower() not in refused.split():
            assert read(text) >= 1
    for text in (*tried["refused"], *refused.split(), "", "x", "\u0665", "5\n", "64b"):
        with pytest.raises(BadInput, match=r"is not a time limit|is no size|no job runs for years"):
            read(text)


@given(st.integers(1, 10**6))
def test_minutes_are_written_as_they_are_read(minutes):
    assert minutes_of(walltime(minutes)) == minutes


@given(st.text(max_size=20))
def test_no_text_for_a_time_gives_anything_but_minutes_or_bad_input(text):
    try:
        assert minutes_of(text) >= 1
    except BadInput:
        return


@pytest.mark.parametrize(
    ("rest", "program"),
    [
        ([], ("hpcdl", "train")),
        (["--steps", "5"], ("hpcdl", "train", "--steps", "5")),
        (["python", "x.py", "--lr", "0.1"], ("python", "x.py", "--lr", "0.1")),
        (["", "x"], ("", "x")),
    ],
)
def test_arguments_after_the_dashes_are_the_program_or_options_of_train(rest, program):
    assert command_of(rest) == program


def test_a_chain_that_would_start_over_in_every_job_is_refused():
    program = ("hpcdl", "train", "--fresh")
    assert "start over in every job" in refusal(chain=2, program=program)
    check_spec(JobSpec("p100", program=program))
    check_spec(JobSpec("p100", chain=2, program=("mine", "--fresh")))


@pytest.mark.parametrize("text", ["python", "train.py", "--lr=0.1", "/data/a-b_c.d", "a:b,c@d%e+f"])
def test_plain_words_stay_readable(text):
    assert bash_word(text) == text


@pytest.mark.parametrize(
    ("asked", "directive"),
    [
        ("mail-type=END,FAIL", "--mail-type=END,FAIL"),
        ("--mail-user=me@site", "--mail-user=me@site"),
        ("constraint=a&b|c", '--constraint="a&b|c"'),
        ("hold", "--hold"),
        ("get-user-env=60L", "--get-user-env=60L"),
        ('comment=a "b" #', '--comment="a \\"b\\" #"'),
    ],
)
def test_options_become_directives_that_sbatch_reads_as_they_were_meant(asked, directive):
    assert directives([asked]) == (directive,)


def test_a_value_of_several_lines_is_no_directive():
    with pytest.raises(BadInput, match="no directive can hold"):
        directives(["comment=a\nb"])


def test_every_option_of_sbatch_leads_to_ours_by_its_name_and_by_its_letter():
    ours = set(build_parser("x", commands()["job submit"])._option_string_actions)
    for name, fact in known_options("sbatch").items():
        said = as_ours(f"--{name}")
        assert said or f"--{name}" in ours, name
        assert set(re.findall(r"--[a-z][a-z-]+", said)) <= ours, name
        if fact.letter:
            assert as_ours(f"-{fact.letter}") == as_ours(f"-{fact.letter}1") == said, name
    assert as_ours("--bogus") == as_ours("-j") == ""


def test_no_directive_of_the_script_can_be_given_again(hpcdl):
    assert answers("own").keys() - {"hetjob", "packjob"} <= known_options("sbatch").keys()
    line = "job render --site p100-v100-k80 --gpus 2 --no-module --account a --qos b"
    lines = hpcdl(*line.split()).out.splitlines()
    own = {one[10:].partition("=")[0] for one in lines if one.startswith("#SBATCH --")}
    assert len(own) > 10
    assert own <= answers("own").keys()


def test_the_command_line_and_the_file_pass_them_on(tmp_path, hpcdl):
    (tmp_path / "job.yaml").write_text("schema: 1\nsbatch: [mail-type=END, nice]\n")
    line = ["job", "explain", "--site", "p100-v100-k80", "--no-module"]
    text = hpcdl(*line, "--file", str(tmp_path / "job.yaml")).out
    assert "#  as requested\n#SBATCH --mail-type=END\n#  as requested\n#SBATCH --nice\n" in text
    text = hpcdl(*line, "--sbatch", "exclude=n1", "--sbatch=--hold").out
    assert {"#SBATCH --exclude=n1", "#SBATCH --hold"} <= set(text.splitlines())
