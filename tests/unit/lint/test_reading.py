"""Any batch script is read as sbatch, getopt and the shell read it."""

import io
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdl.cli import main
from hpcdl.jobs.lint import lint
from hpcdl.jobs.lint.options import read_options
from hpcdl.jobs.lint.parse import BatchScript
from hpcdl.jobs.lint.shell import Reading, Word, unquote
from hpcdl.slurm.rules import as_release

HEAD, NEWEST = "#!/bin/bash\n", as_release("26.05")


def rules_of(text, version="26.05", **more):
    return {one.rule.id for one in lint(text, name="job.sh", version=version, **more)}


@pytest.mark.parametrize(
    ("line", "command", "options"),
    [
        *(
            (one, "sbatch", [("nodes", "2")])
            for one in ("-N2", "-N 2", "--nodes 2", "--nodes=2", '--nodes="2"', "-N'2'")
        ),
        ("-HN2", "sbatch", [("hold", None), ("nodes", "2")]),
        ("--parti=gpu", "sbatch", [("partition", "gpu")]),
        ("--ntasks-per=2", "sbatch", [("ntasks-per", "2")]),
        ("--exclusive user", "srun", [("exclusive", None)]),
        ("-K1 --overlap python", "srun", [("kill-on-bad-exit", "1"), ("overlap", None)]),
        ("-n 4 prog --nodes=9", "srun", [("ntasks", "4")]),
    ],
)
def test_options_are_read_in_all_their_spellings(line, command, options):
    """A beginning names one; an optional value stands behind `=` only; the program ends them."""
    found = read_options([Word(word, 0) for word in line.split()], command, NEWEST).given
    assert [(one.name, one.value) for one in found] == options


def test_directives_take_quotes_escapes_comments_and_several_options_on_a_line():
    text = '#SBATCH --job-name="a # b" -n 4 # --nodes=9\n#SBATCH --comment=a\\"b\n#SBATCH\t-c2\n'
    (options,) = BatchScript(HEAD + text, "x", NEWEST).components
    assert [(one.name, one.value) for one in options.given] == [
        ("job-name", "a # b"),
        ("ntasks", "4"),
        ("comment", 'a"b'),
        ("cpus-per-task", "2"),
    ]


@pytest.mark.parametrize(
    ("line", "before", "since"),
    [
        (" --job-name=a\\ --ntasks=x", {"option-value"}, set()),
        ("\\ --hint=x", set(), {"directive-argument"}),
        (" --res=x", set(), {"option-misspelt"}),
        (" -n1 :0", {"directive-argument"}, {"directive-argument"}),
    ],
)
def test_words_and_beginnings_of_options_are_those_of_the_release(line, before, since):
    text = f"{HEAD}#SBATCH{line}\ntrue\n"
    assert (rules_of(text, "23.11"), rules_of(text, "24.05")) == (before, since)


def test_what_a_variable_of_another_name_holds_is_a_program():
    text = 'srun "${RUNNER[@]}" -m a --task b\nsrun "${OPTS[@]}" --tassk 2 a\n'
    assert [one.line for one in lint(HEAD + text, name="x", version="26.05")] == [3]


def test_directives_end_at_the_first_command_not_at_comments_or_blank_lines():
    text = "\n# why\n#SBATCH -n1\n\n  # more\n#SBATCH -c2\ntrue\n#SBATCH -N3\n"
    script = BatchScript(HEAD + text, "x", NEWEST)
    assert [line.options.given[0].name for line in script.directives] == ["ntasks", "cpus-per-task"]


@pytest.mark.parametrize("separator", ["hetjob", "packjob"])
def test_components_of_a_heterogeneous_job_have_options_of_their_own(separator):
    text = HEAD + f"#SBATCH -n1\n#SBATCH {separator}\n#SBATCH -n8 --mem=1G\n"
    assert [one.number("ntasks") for one in BatchScript(text, "x", NEWEST).components] == [1, 8]


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_dos_line_ends_are_reported_once_and_change_nothing_else(line_end):
    text = HEAD + "#SBATCH -n2 --mem=1G --mem-per-cpu=1G\nsrun --mpi=mvapich python a | tee b\n"
    found = rules_of(text.replace("\n", line_end))
    right = {"memory-flags", "mpi-plugin", "status-lost"}
    assert found - {"dos-line-ends"} == right
    assert ("dos-line-ends" in found) == (line_end == "\r\n")
    assert "nul-character" in rules_of(f"{text}\0")


def test_a_point_release_between_two_bugs_is_distinguished():
    text = HEAD + "#SBATCH --gpus=8 --ntasks-per-gpu=1 -c4\nsrun -c4 -K1 python a.py\n"
    both = {"ntasks-per-gpu-pends", "ntasks-per-gpu-with-cpus"}
    assert both <= rules_of(text, "25.05.0")
    assert both & rules_of(text, "24.11.7") == {"ntasks-per-gpu-with-cpus"}
    assert not both & rules_of(text, "25.05.1")


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("srun a \\\n  --b c", [["srun", "a", "--b", "c"]]),
        ("a 'b c' \"d $(e f) g\" | h", [["a", "'b c'", '"d $(e f) g"'], ["e", "f"], ["h"]]),
        ("x=1 y=$(z) cmd", [["cmd"], ["z"]]),
        ("cat <<'E' | b\nsrun not\nE\nc", [["cat"], ["b"], ["c"]]),
        ("cat <<-E\n\tsrun not\n\tE\nc", [["cat"], ["c"]]),
        ("a >f 2>&1 <g b # c", [["a", "b"]]),
        ("a <<< 'srun b' c", [["a", "c"]]),
        ("bash -c 'a; b'", [["bash", "-c", "'a; b'"], ["a"], ["b"]]),
        ("(( x < 3 )) && a", [["(( x < 3 ))"], ["a"]]),
        ("f() { a; }; function g { b; }", [["a"], ["b"]]),
        ("a=(srun b) c", [["c"]]),
        ("`a b` c", [["`a b`", "c"], ["a", "b"]]),
        ("a $'it\\'s' b", [["a", "$'it\\'s'", "b"]]),
        ('a "${x:-don\'t}" b', [["a", '"${x:-don\'t}"', "b"]]),
    ],
)
def test_the_shell_is_cut_into_its_commands(line, names):
    found = [[word.raw for word in one.words] for one in Reading(line).commands if one.words]
    assert found == names


def test_what_runs_in_the_background_or_in_a_pipe_is_known():
    found = Reading("a && b &\n{ c; d; } | e\n( f; g ) &\nh").commands
    assert [one.name for one in found if one.background] == ["a", "b", "f", "g"]
    assert [one.name for one in found if one.piped] == ["c", "d"]


def test_constructs_around_a_command_are_known():
    text = (
        'case "$R" in 0|1) a;; *) b; esac; while c; do d; done; if [ $x = 1 ]; then e; else f; fi'
    )
    kinds = {one.name: list(one.scopes) for one in Reading(text).commands}
    assert kinds["a"] == kinds["b"] == ["case"]
    assert kinds["c"] == kinds["d"] == ["loop"]
    assert (kinds["e"], kinds["f"]) == (["branch"], ["branch"])


def test_a_step_is_found_behind_wrappers_and_in_variables():
    text = "time srun -n1 a\nenv A=b timeout 5m /usr/bin/srun -n2 b\n"
    text += "L='srun -n3'\n$L c\nexec srun -n4 d\n"
    steps = BatchScript(text, "x", NEWEST).steps
    assert [(step.options.number("ntasks"), step.program) for step in steps] == [
        (1, "a"),
        (2, "b"),
        (3, "c"),
        (4, "d"),
    ]


def test_options_hidden_in_an_unknown_variable_are_not_taken_as_missing():
    head = HEAD + "#SBATCH -n4 -c4 --gpus=4\n"
    assert "cpus-per-task-default" in rules_of(head + "srun python a.py\n", "22.05")
    assert "cpus-per-task-default" not in rules_of(head + "srun $MORE python a.py\n", "22.05")


_WORDS = """\
#SBATCH  --gpus-per-node= --signal=B: srun & wait trap $( ) (( ${ } ' " ` \\ <<E E\n
case x in esac ;; if then fi do done { | || && # hetjob -N = : @ % , =( A+=( [[ ]] \u00e9
CUDA_VISIBLE_DEVICES= MASTER_PORT=$SLURM_JOB_ID export --export= SLURM_LOCALID --time= --mpi=
scontrol requeue 99999999999999999999 bash -c"""
_MORE = (" ", "\n", "\r\n", "\0", "\u2028", "\n# hpcdl-lint: allow ", "\n#SBATCH ")
_PIECES = st.sampled_from((*_WORDS.split(), *_MORE))


@pytest.mark.parametrize("name", ["job.sh", "templates/job.txt", "job.sh.j2"])
@pytest.mark.parametrize(
    "gap", ["", "--account=<project>", "-J run_XXX", "--mail-user=your.name@x"]
)
def test_a_placeholder_is_noted_and_mutes_nothing(name, gap):
    text = f"{HEAD}#SBATCH --mem=1G --mem-per-cpu=1G {gap}\n#SBATCH --mail-type=END\n"
    text += "srun --exact --whole a\n"
    rules = {one.rule.id for one in lint(text, name=name, version="26.05")}
    assert rules - {"placeholder"} == {"memory-flags", "exact-whole"}
    assert ("placeholder" in rules) == bool(gap)


@given(st.lists(_PIECES, max_size=60).map("".join), st.sampled_from(["20.11.2", "22.05", "26.05"]))
@settings(max_examples=400, deadline=None)
def test_no_mixture_of_script_parts_crashes_the_linter(text, version):
    for one in lint(HEAD + text, name="x", version=version):
        assert min(one.line, one.column) >= 1


@given(st.binary(max_size=400))
@settings(max_examples=200, deadline=None)
def test_no_bytes_crash_the_linter(data):
    lint(data.decode("utf-8", "surrogateescape"), name="x", version="24.11")
    lint("#!/bin/sh\n#SBATCH " + data.decode("latin-1"), name="x", version="20.11")


@pytest.mark.parametrize(
    "text",
    [
        "#SBATCH --nodes=2\n" * 5_000,
        "#SBATCH --nodees=2 x\n" * 5_000,
        "true\n" + "#SBATCH --nodes=2\n" * 5_000,
        "#SBATCH " + "--nodes=2 " * 5_000,
        "# hpcdl-lint: allow status-lost x\n" * 5_000,
        "srun " + "a " * 25_000,
        "srun " * 10_000,
        "a|" * 3_000,
        "'\"" * 25_000,
        "((" * 25_000,
        "$(" * 25_000,
        '"${' * 17_000,
        "( " * 10_000 + "a" + " )&" * 10_000,
        "A+=(1 2 3)\n" * 4_000,
        "trap x USR2\nsrun y &\nwait $p\n" * 1_000,
    ],
    ids=lambda text: text[:20].encode("unicode_escape").decode(),
)
def test_long_scripts_take_time_in_proportion_to_their_length(text):
    lint(HEAD, name="x", version="22.05")
    start = time.process_time()
    lint(HEAD + text, name="x", version="22.05")
    assert time.process_time() - start < 1.25  # 0.05 to 0.4 s alone; a quadratic step takes 7 s


TEXT = st.text(alphabet="'\"\\a $`\n", max_size=6)
PART = (
    TEXT.map(shlex.quote)
    | TEXT.map(lambda text: '"' + re.sub(r'(["\\$`])', r"\\\1", text) + '"')
    | TEXT.map(lambda text: "".join(f"\\{one}" for one in text))
)


@settings(max_examples=10)
@given(st.lists(st.lists(PART, min_size=1, max_size=4).map("".join), min_size=20, max_size=40))
def test_quotes_are_taken_off_as_by_bash(words):
    code = ";".join(f"printf '%s\\0' {word}''" for word in words)
    found = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout
    assert [unquote(word) for word in words] == found.split("\0")[:-1]


# What can be linted: files, directories, standard input, what follows `--`; what is no script.

LINT = ("job", "lint", "--slurm-version", "26.05")
SCRIPT = "#!/bin/bash\n#SBATCH --ntasks=4 --partiton=p100\npython train.py\n"


@pytest.fixture
def directory(tmp_path):
    for name in ("a.sh", "deep/b.slurm", ".git/hook.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(SCRIPT)
    (tmp_path / "page.md").write_text("# Jobs\n\n#SBATCH --oops\n")
    (tmp_path / "tool.sh").write_text("#!/bin/bash\nexit 0\n")
    (tmp_path / "data.bin").write_bytes(b"#!\0\1\2")
    return tmp_path


def test_of_a_directory_the_batch_scripts_below_it_are_linted(directory, hpcdl):
    files = json.loads(hpcdl(*LINT, "--json", str(directory), code=1).out)["files"]
    assert [one["file"].removeprefix(f"{directory}/") for one in files] == ["a.sh", "deep/b.slurm"]


@pytest.mark.parametrize("words", [["--"], []])
def test_several_files_also_behind_two_dashes(directory, hpcdl, words):
    files = [str(directory / "a.sh"), str(directory / "deep/b.slurm")]
    assert hpcdl(*LINT, *words, *files, code=1).out.count("did you mean '--partition'?") == 2


def test_standard_input(monkeypatch, hpcdl):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SCRIPT.encode())))
    assert "-:2:20: error" in hpcdl(*LINT, "-", code=1).out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"\x7fELF\2\1\1\0", "is no script"),
        (b"root:x:0:0:root:/root:/bin/bash\n", "is no script"),
        ("#!/bin/bash\n#SBATCH -n 1\n".encode("utf-16"), "is UTF-16, which sbatch does not read"),
    ],
)
def test_what_is_no_script_is_bad_input(tmp_path, hpcdl, content, said):
    (tmp_path / "file").write_bytes(content)
    assert said in hpcdl(*LINT, str(tmp_path / "file"), code=2).err


def test_a_release_later_than_the_rules_is_told_the_latest(directory, hpcdl):
    said = hpcdl("job", "lint", "--slurm-version", "30.05", str(directory), code=2).err
    assert "--slurm-version 26.05" in said


@pytest.mark.parametrize(
    ("shell", "name"),
    [
        ("/bin/tcsh", "tcsh"),
        ("/usr/bin/env -S Rscript --vanilla", "Rscript"),
        ("/usr/bin/python3 -u", "python3"),
    ],
)
def test_of_other_shells_only_directives_are_checked(tmp_path, hpcdl, shell, name):
    path = tmp_path / "job"
    path.write_text(f"#!{shell}\n#SBATCH --ntasks=0\nsrun --exact | tee x &\n")
    printed = hpcdl(*LINT, str(path), code=1)
    assert f"{name} runs it, so only directives are checked" in printed.err
    assert printed.out.count("error:") == 1


@pytest.mark.timeout(20)
def test_a_pipe_and_links_in_circles_below_a_directory_hold_nothing_up(directory, capsys):
    os.mkfifo(directory / "deep" / "c.sh")
    (directory / "circle").symlink_to(directory)
    (directory / "itself").symlink_to("itself")
    assert main(["job", "lint", "--json", str(directory)]) in {0, 1}
    files = json.loads(capsys.readouterr().out)["files"]
    assert [Path(one["file"]).name for one in files] == ["a.sh", "b.slurm"]
