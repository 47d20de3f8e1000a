"""Scripts that are named from where the user stands are found from the job's own directory."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.jobs import JobSpec, Module
from hpcdl.jobs.program import check_program, script_of, seen_from, unread_directives
from hpcdl.system.errors import BadInput


@pytest.fixture
def here(tmp_path):
    for name in ("train.py", "run.sh", "bash", "my tool", "sub/train.py", "sub/tool"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    return tmp_path


def seen(here, line, **asked):
    return seen_from(here, JobSpec("cpu", program=tuple(line.split()), **asked))


def check(here, line, **asked):
    check_program(here, seen(here, line, **asked), Module(()))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python train.py --lr 0.1", "python HERE/train.py --lr 0.1"),
        ("python3 -u -W x sub/train.py train.py", "python3 -u -W x HERE/sub/train.py train.py"),
        ("/usr/bin/python3 -Xdev train.py", "/usr/bin/python3 -Xdev HERE/train.py"),
        ("bash -o pipefail run.sh", "bash -o pipefail HERE/run.sh"),
        ("bash -eo pipefail run.sh", "bash -eo pipefail HERE/run.sh"),
        ("python sub", "python HERE/sub"),
        ("./run.sh train.py", "HERE/run.sh train.py"),
        ("run.sh", "HERE/run.sh"),
        ("sub/tool", "HERE/sub/tool"),
        ("python train_{model}.py", "python HERE/train_{model}.py"),
        ("torchrun --nproc_per_node 2 train.py", "torchrun --nproc_per_node 2 HERE/train.py"),
        ("env A=b python train.py", "env A=b python HERE/train.py"),
        ("hpcdl train --data sub", "hpcdl train --data HERE/sub"),
        ("hpcdl train --data=sub --lr 1", "hpcdl train --data=HERE/sub --lr 1"),
        # What names no file of this directory stays as it is.
        ("python -m train.py", "python -m train.py"),
        ("python -um sub", "python -um sub"),
        ("bash -ec run.sh", "bash -ec run.sh"),
        ("python /a/train.py", "python /a/train.py"),
        ("python other.py", "python other.py"),
        ("cat train.py", "cat train.py"),
        ("hpcdl train --data synthetic", "hpcdl train --data synthetic"),
    ],
)
def test_files_of_this_directory_are_named_whole(here, line, expected):
    assert seen(here, line).program == tuple(expected.replace("HERE", str(here)).split())


@pytest.mark.parametrize("program", [(), ("python",), ("python", "-"), ("bash", "-c", "x.sh")])
def test_a_program_without_a_script_has_none(program):
    assert script_of(program) == (None, "")


def test_a_script_that_ranks_would_not_find_is_refused(here):
    with pytest.raises(BadInput, match=r"no script my_train\.py here") as caught:
        check(here, "python3 my_train.py")
    assert "directory of their own" in caught.value.hint
    check(here, "python3 train.py", job_dir=here)
    check(here, "python3 my_train.py", container="docker://image")


def test_a_script_is_no_program_that_a_module_brings_and_chdir_is_there(here):
    spec = seen(here, "my_train.py --lr 1")
    with pytest.raises(BadInput, match=r"no program 'my_train\.py' here"):
        check_program(here, spec, Module(("tensorflow",)))
    check_program(here, seen(here, "tool"), Module(("tensorflow",)))
    with pytest.raises(BadInput, match="there is no directory /nope"):
        check(here, "true", chdir=Path("/nope"))


@pytest.mark.parametrize(
    "line",
    [
        "env NB=foo.ipynb true",
        "nsys profile --command 'x.py y' true",
        "./lr=0.1 x",
        "bash prepnode",
        "timeout 60 bash -c 'source env.sh && python train.py'",
        "sbatch next.sh",
    ],
)
def test_programs_that_run_are_not_refused_for_what_they_look_like(here, monkeypatch, line):
    for name in ("lr=0.1", "bin/prepnode", "bin/nsys", "bin/sbatch"):
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text("#!/bin/sh\n")
        (here / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{here}/bin:/usr/bin:/bin")
    alone = replace(seen(here, ""), launcher="single", program=tuple(shlex.split(line)), chdir=here)
    check_program(here, alone, Module(()))


@pytest.mark.parametrize(
    "line", ["source venv/bin/activate", "module load cuda", "conda activate tf", "cd /x"]
)
def test_what_changes_a_shell_is_no_program(here, line):
    with pytest.raises(BadInput, match="it changes a shell") as caught:
        check(here, line)
    assert f"--setup '{line}'" in caught.value.hint


@pytest.mark.parametrize("line", ["uv run python train.py", "conda run -n tf python train.py"])
def test_a_script_is_found_behind_what_runs_an_environment(here, line):
    assert seen(here, line).program[-1] == f"{here}/train.py"


def test_what_runs_a_project_works_in_its_directory(here, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    check(here, "uv run python train.py")
    (here / "pyproject.toml").write_text("")
    with pytest.raises(BadInput, match=r"without pyproject\.toml") as caught:
        check(here, "uv run python train.py")
    assert "--chdir ." in caught.value.hint
    check(here, "uv run python train.py", chdir=here)


@pytest.mark.parametrize(("line", "noted"), [("bash run.sh", True), ("bash sub/plain.sh", False)])
def test_directives_of_the_program_s_script_are_noted(here, line, noted):
    (here / "run.sh").write_text("#!/bin/bash\n#SBATCH -N 2\n")
    (here / "sub/plain.sh").write_text("echo #SBATCH\n")
    assert unread_directives(seen(here, line)) == (here / "run.sh" if noted else None)


@pytest.mark.parametrize(
    "line",
    ["cat train.py", "python3 train.py sub/tool", "python3 -m train", "python3 -m json.tool sub"],
)
def test_with_chdir_a_program_finds_what_the_user_does(here, line):
    check(here, line, chdir=here)


def test_a_module_of_this_directory_is_found_from_the_job_s(here):
    check(here, "python3 -m sub.train")
    (here / "train").mkdir()  # is not what `hpcdl train` names
    check(here, "hpcdl train --model mlp")
    for words in ("--model sub.nets:build", "--dataset=train:data"):
        assert seen(here, f"hpcdl train {words}").python_path == here
    assert seen(here, "hpcdl train --model elsewhere:build").python_path is None


def test_the_first_example_of_the_documents_finds_its_program(tmp_path, monkeypatch, hpcdl):
    (tmp_path / "my_train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    line = "job render --site p100-v100-k80 --gpus 8 --no-module -- python my_train.py --lr 0.1"
    assert f" python {tmp_path}/my_train.py --lr 0.1 & hpcdl_step=$!\n" in hpcdl(*line.split()).out
