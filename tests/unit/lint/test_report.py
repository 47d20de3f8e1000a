"""What `hpcdl job lint` prints, and how it exits."""

import json
import os
from pathlib import Path

import pytest

from hpcdl.cli import main
from hpcdl.jobs.lint import lint
from hpcdl.jobs.lint.lint_report import run_lint
from hpcdl.site.model import Gpu, Interconnect, Partition
from hpcdl.slurm.rules import rule
from hpcdl.system.errors import BadInput, ExitCode
from hpcdl.system.resources import folder

WRONG = "#!/bin/bash\n#SBATCH --ntasks=4 --cpus-per-task=8\nsrun --exact ./solver\n"
V100 = Partition(
    name="v100", nodes=4, hostlist=None, gpu=Gpu("V100-SXM2", "v100", 8, "7.0", 16), sockets=2,
    cores_per_socket=20, threads_per_core=1, memory_gb=380,
    interconnect=Interconnect("infiniband", 100, "ib0"), scratch=None, max_time="24:00:00",
    max_minutes=1440, features=(), target="x86_64_v3", driver=None, reference_set="v100",
    stack=None, account=None, qos=None, environment={},
)  # fmt: skip


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
    text = "\n".join(lines)
    assert one.consequence in text
    assert one.fix in text
    assert one.source in text
    assert lines[-1] == f"{script}: 1 error (Slurm 22.05)"


def test_what_is_said_of_several_lines_with_the_same_words_is_said_once(script, capsys):
    step = "srun --exact ./solver\n"
    script.write_text(WRONG + step + "srun -c4 --exact ./solver\n" + step)
    run_lint([script], "22.05", as_json=True)
    (found,) = json.loads(capsys.readouterr().out)["files"][0]["findings"]
    assert (found["line"], found["also"]) == (3, [4, 6])
    assert found["message"].endswith("(also in lines 4, 6)")


def test_of_several_scripts_in_a_file_the_first_is_read(script):
    second = "#!/bin/bash\n#SBATCH --time=1:00:00\nsrun --exact ./solver\n"
    found = lint(WRONG + second, name="job.sh", version="22.05")
    assert [(one.rule.id, one.line, one.also) for one in found] == [("cpus-per-task-lost", 3, ())]


ADVISED = "#!/bin/bash\n#SBATCH --ntasks=4 --mem=16\nsrun ./solver | tee log\n"


def test_warnings_and_advice_alone_leave_the_exit_code_at_0(script, capsys):
    script.write_text(ADVISED)
    assert run_lint([script], "24.11") == ExitCode.OK
    assert "warning: " in capsys.readouterr().out


def test_advice_is_counted_in_one_line_and_shown_where_it_is_asked_for(script, capsys):
    script.write_text(ADVISED)
    main(["job", "lint", "--slurm-version", "24.11", str(script)])
    said = capsys.readouterr().out
    assert "memory-unit" not in said
    last = f"{script}: 1 warning (Slurm 24.11); 1 piece of advice: --advice shows it"
    assert said.splitlines()[-1] == last
    main(["job", "lint", "--slurm-version", "24.11", "--advice", str(script)])
    said = capsys.readouterr().out
    assert ": advice: memory without a unit is in megabytes" in said
    assert said.splitlines()[-1] == f"{script}: 1 warning, 1 piece of advice (Slurm 24.11)"


def test_advice_is_counted_in_json_and_a_note_of_sarif(script, capsys):
    script.write_text(ADVISED)
    for advice in (False, True):
        run_lint([script], "24.11", as_json=True, advice=advice)
        data = json.loads(capsys.readouterr().out)
        assert data["counts"] == {"error": 0, "warning": 1, "advice": 1}
        assert len(data["files"][0]["findings"]) == 1 + advice
        run_lint([script], "24.11", as_sarif=True, advice=advice)
        (run,) = json.loads(capsys.readouterr().out)["runs"]
        assert [one["level"] for one in run["results"]] == ["note"] * advice + ["warning"]


def test_the_newest_known_release_is_the_default(script, capsys):
    run_lint([script])
    assert "(Slurm 26.05)" in capsys.readouterr().out


def test_json_holds_every_finding_with_its_rule(script, capsys):
    assert run_lint([script], "22.05", as_json=True) == ExitCode.NO
    data = json.loads(capsys.readouterr().out)
    assert data["counts"] == {"error": 1, "warning": 0, "advice": 0}
    (file,) = data["files"]
    assert [one["rule"] for one in file["findings"]] == ["cpus-per-task-lost"]
    assert {one["line"] for one in file["findings"]} == {3}


def test_sarif_names_rule_level_and_region(script, capsys):
    run_lint([script], "22.05", as_sarif=True)
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    result = run["results"][0]
    assert result["ruleId"] in {one["id"] for one in run["tool"]["driver"]["rules"]}
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 3


def test_a_file_that_cannot_be_read_is_bad_input(tmp_path):
    with pytest.raises(BadInput, match="No such file"):
        run_lint([tmp_path / "absent.sh"], "22.05")
    with pytest.raises(BadInput, match="no batch script below"):
        run_lint([tmp_path], "22.05")


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


def test_a_script_cannot_drive_the_terminal(script, capsys):
    script.write_text("#!/bin/bash\n#SBATCH --wrong=\x1b[31m\x07\n")
    run_lint([script], "22.05")
    assert not {"\x1b", "\x07"} & set(capsys.readouterr().out)


@pytest.mark.parametrize("version", ["20.02", "19.05.1", "abc"])
def test_a_release_that_the_rules_do_not_know_is_refused(script, version):
    with pytest.raises(BadInput):
        run_lint([script], version)


@pytest.mark.parametrize(
    ("directives", "column"),
    [
        ("--partition=v100 --gpus-per-node=9", 26),
        ("-p v100 --gres=gpu:v100:16", 17),
        ("-N5", 9),
        ("--ntasks-per-node=8 -c6", 29),
        ("--time=2-0", 9),
    ],
)
def test_more_than_the_partition_has_is_an_error(directives, column):
    text = f"#!/bin/bash\n#SBATCH {directives}\ntrue\n"
    found = lint(text, name="x", version="24.11", partition=V100)
    assert [(one.rule.id, one.column) for one in found] == [("partition-limit", column)]
    assert lint(text, name="x", version="24.11") == ()


def test_limits_of_another_partition_do_not_count():
    text = "#!/bin/bash\n#SBATCH --partition=big --nodes=100\ntrue\n"
    assert lint(text, name="x", version="24.11", partition=V100) == ()


def test_the_page_of_rules_is_up_to_date():
    from tools.lint_rules import as_markdown

    page = Path(__file__).parents[3] / "docs" / "lint.md"
    assert page.read_text() == as_markdown(), "make docs"


def test_an_installed_site_says_the_release_where_none_is_named(script, capsys):
    home = Path(os.environ["HPCDL_HOME"])
    home.mkdir(parents=True)
    text = (folder("templates") / "sites" / "pi.yaml").read_text()
    (home / "site.yaml").write_text(text)
    main(["job", "lint", str(script)])
    assert "(Slurm 20.11.9)" in capsys.readouterr().out
    main(["job", "lint", "--slurm-version", "24.11", str(script)])
    assert "(Slurm 24.11)" in capsys.readouterr().out
