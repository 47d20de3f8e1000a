"""What `hpcdl job lint` prints, what a waiver silences, and how it exits."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.cli import main
from hpcdl.jobs.layout import cluster_of
from hpcdl.jobs.lint import lint
from hpcdl.jobs.lint.lint_report import run_lint
from hpcdl.slurm.rules import rule
from hpcdl.system.errors import ExitCode
from hpcdl.system.resources import folder
from tests.make.sites import shipped

WRONG = "#!/bin/bash\n#SBATCH --ntasks=4 --cpus-per-task=8\nsrun --exact ./solver\n"
SITE = cluster_of(shipped("p100-v100-k80"))  # v100: 6 nodes of 8 GPUs, 80 CPUs, two days


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "job.sh"
    path.write_text(WRONG)
    return path


def test_a_finding_shows_place_line_caret_consequence_fix_and_source(script, capsys):
    assert run_lint([script], "22.05") == ExitCode.NO
    lines = capsys.readouterr().out.splitlines()
    one = rule("cpus-per-task-lost")
    assert lines[0] == f"{script}:3:1: error: {one.title} [cpus-per-task-lost]"
    assert lines[1:3] == [" 3 | srun --exact ./solver", "   | ^^^^"]
    for part in (one.consequence, one.fix, one.source):
        assert part in "\n".join(lines)
    assert lines[-1] == f"{script}: 1 error (Slurm 22.05)"


def test_what_is_said_of_several_lines_with_the_same_words_is_said_once(script, capsys):
    step = "srun --exact ./solver\n"
    script.write_text(WRONG + step + "srun -c4 --exact ./solver\n" + step)
    run_lint([script], "22.05", as_json=True)
    data = json.loads(capsys.readouterr().out)
    assert data["counts"] == {"error": 1, "warning": 0, "note": 0, "advice": 0}
    (found,) = data["files"][0]["findings"]
    assert (found["rule"], found["line"], found["also"]) == ("cpus-per-task-lost", 3, [4, 6])
    assert found["message"].endswith("(also in lines 4, 6)")


def test_of_several_scripts_in_a_file_the_first_is_read(script):
    second = "#!/bin/bash\n#SBATCH --time=1:00:00\nsrun --exact ./solver\n"
    found = lint(WRONG + second, name="job.sh", version="22.05")
    assert [(one.rule.id, one.line, one.also) for one in found] == [("cpus-per-task-lost", 3, ())]


@pytest.mark.parametrize(
    ("directive", "said"),
    [
        ("--time = 1:00:00", "write = without blanks"),
        ("--account=${PROJECT:?set it}", "'${PROJECT:?set' is not expanded"),
        ("--workdir=/scratch", "sbatch has no --workdir; did you mean '--chdir'?"),
    ],
)
def test_a_frequent_slip_is_named(directive, said):
    found = lint(f"#!/bin/bash\n#SBATCH {directive}\n./solver\n", name="job.sh", version="24.11")
    assert said in [one.detail for one in found]


ADVISED = "#!/bin/bash\n#SBATCH -n 4 --requeue\nsrun ./solver | tee log\n"


def test_advice_is_counted_in_one_line_and_shown_where_it_is_asked_for(script, hpcdl):
    script.write_text(ADVISED)
    said = hpcdl("job", "lint", "--slurm-version", "24.11", str(script)).out
    assert "status-lost" not in said
    last = f"{script}: 1 warning (Slurm 24.11); 1 piece of advice: --advice shows it"
    assert said.splitlines()[-1] == last
    said = hpcdl("job", "lint", "--advice", str(script)).out
    assert ": advice: the exit code of the work is not looked at" in said
    assert said.splitlines()[-1] == f"{script}: 1 warning, 1 piece of advice (Slurm 26.05)"


def test_advice_is_counted_in_json(script, capsys):
    script.write_text(ADVISED)
    for advice in (False, True):
        run_lint([script], "24.11", as_json=True, advice=advice)
        data = json.loads(capsys.readouterr().out)
        assert data["counts"] == {"error": 0, "warning": 1, "note": 0, "advice": 1}
        assert len(data["files"][0]["findings"]) == 1 + advice


def test_the_other_files_are_linted_when_one_cannot_be_read(script, tmp_path, capsys):
    script.write_text("#!/bin/bash\ntrue\n")
    assert run_lint([tmp_path / "absent.sh", script], "22.05") == ExitCode.USAGE
    printed = capsys.readouterr()
    assert "no findings" in printed.out
    assert "absent.sh" in printed.err


def test_bytes_that_are_no_utf8_are_read_all_the_same(script, capsys):
    script.write_bytes(b"#!/bin/bash\n# caf\xe9\n#SBATCH --mem=1G --mem-per-cpu=1G\n")
    assert run_lint([script], "22.05") == ExitCode.NO
    assert "job.sh:3:18: error" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("directives", "column"),
    [
        ("--gpus-per-node=9", 9),
        ("--gres=gpu:v100:16", 9),
        ("--nodes=1 --gpus=16", 19),
        ("--mem=4000G", 9),
        ("-N7", 9),
        ("--ntasks-per-node=8 -c11", 29),
        ("--time=2-1", 9),
    ],
)
def test_more_than_the_partition_has_is_an_error(directives, column):
    text = f"#!/bin/bash\n#SBATCH {directives} -p v100\ntrue\n"
    found = lint(text, name="x", version="24.11", cluster=SITE)
    assert [(one.rule.id, one.column) for one in found] == [("partition-limit", column)]
    assert lint(text, name="x", version="24.11") == ()
    unnamed = text.replace(" -p v100", "")
    assert lint(unnamed, name="x", version="24.11", cluster=SITE) == ()
    default = replace(SITE, default="v100")
    assert lint(unnamed, name="x", version="24.11", cluster=default) == found


def test_an_installed_site_says_the_release_where_none_is_named(script, capsys):
    home = Path(os.environ["HPCDL_HOME"])
    home.mkdir(parents=True)
    (home / "site.yaml").write_text((folder("templates") / "sites" / "pi.yaml").read_text())
    main(["job", "lint", str(script)])
    assert "(Slurm 20.11.9)" in capsys.readouterr().out
    main(["job", "lint", "--slurm-version", "24.11", str(script)])
    assert "(Slurm 24.11)" in capsys.readouterr().out


HEAD = "#!/bin/bash\n#SBATCH -n4 --gpus=4 --open-mode=append\n"
STEP = "srun a | tee b\n"


def found(text, version="26.05"):
    return [(one.line, one.rule.id) for one in lint(text, name="job.sh", version=version)]


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        (STEP, [(3, "status-lost")]),
        ("# hpcdl-lint: allow status-lost one rank may die\n" + STEP, []),
        ("  #hpcdl-lint:  allow  status-lost  one rank may die\n" + STEP, []),
        ("srun \\\n  a | tee b  # hpcdl-lint: allow status-lost may die\n", []),
        (STEP + "true\n# hpcdl-lint: allow-file status-lost ranks are independent\n", []),
        # In a here-document it is text.
        (STEP + "cat <<E\n# hpcdl-lint: allow status-lost\nE\n", [(3, "status-lost")]),
        (
            "# hpcdl-lint: allow status-losts may die\n" + STEP,
            [(3, "waiver-unknown"), (4, "status-lost")],
        ),
    ],
)
def test_a_waiver_covers_its_rule_in_the_script_and_one_of_no_rule_is_reported(text, rules):
    assert found(HEAD + text) == rules
